/* roundtrip: every good fixture, written in every format that can hold it and read again,
 * has the same tensors; a PyTorch file also the same objects.
 *
 * With arguments this program is the tool of test_peers.py:
 *   dump PATH                                 one line of JSON for each tensor
 *   copy PATH FORMAT TARGET [SHARD_BYTES]     converts, in the plainest way */
#include "base/fs.h"
#include "base/json.h"
#include "lib/format_io.h"
#include "lib/sha256.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define DATA DCP_TESTS_DIR "/formats/data/"

static int index_source(const struct dcp_source *source, struct dcp_catalog **out,
                        struct dcp_error *err)
{
    const struct dcp_format *format;
    int rc = dcp_catalog_new(out, err);

    if (!rc)
        rc = dcp_format_probe(source, &format, err);
    if (!rc)
        rc = format->index(source, *out, err);
    return rc ? rc : dcp_catalog_sort(*out, err);
}

/* -- the tool ------------------------------------------------------------------------ */

static int dump(const struct dcp_source *source, const struct dcp_catalog *catalog,
                struct dcp_error *err)
{
    char digest[65];
    void *data;

    for (size_t i = 0; i < catalog->n_tensors; i++) {
        const struct dcp_tensor *t = &catalog->tensors[i];
        int rc = format_read_tensor(source, catalog, (int)i, &data, err);
        if (rc)
            return rc;
        sha256_hex(data, (size_t)dcp_tensor_bytes(t), digest);
        free(data);
        json_t *line =
            json_pack("{s:s,s:s,s:s,s:s,s:s,s:[]}", "name", t->name, "role",
                      dcp_role_name(t->role), "param", t->param, "dtype",
                      dcp_dtype_torch_name(t->dtype), "sha256", digest, "shape");
        for (int d = 0; d < t->ndim; d++)
            json_array_append_new(json_object_get(line, "shape"),
                                  json_integer(t->shape[d]));
        if (t->tied_to)
            json_object_set_new(line, "tied_to", json_string(t->tied_to));
        char *text = dcp_json_text(line, 0);
        puts(text);
        free(text);
        json_decref(line);
    }
    return DCP_OK;
}

static int copy(const struct dcp_source *source, const struct dcp_catalog *catalog,
                char **argv, struct dcp_error *err)
{
    const struct dcp_format *format = dcp_format_find(argv[0]);
    struct dcp_target_options options = { 0 };
    char *dir = NULL, *name = NULL;
    struct dcp_store store = { 0 };

    if (!format)
        return dcp_error_set(err, DCP_E_USAGE, "no format '%s'", argv[0]);
    if (argv[2])
        options.max_shard_size_bytes = strtoull(argv[2], NULL, 10);
    if (format->flags & DCP_FORMAT_IS_DIR)
        dir = strdup(argv[1]);
    else if (!dcp_fs_split(argv[1], &dir, &name))
        return dcp_error_memory(err, "a path");
    options.name = name;
    int rc = dcp_store_dir(&store, dir, true, err);
    if (!rc)
        rc = format_write(source, catalog, format, &options, &store, err);
    if (store.ops)
        dcp_store_free(&store);
    free(dir);
    free(name);
    return rc;
}

static int run_tool(int argc, char **argv)
{
    struct dcp_error err = { 0 };
    struct format_location location = { 0 };
    struct dcp_catalog *catalog = NULL;
    int rc = DCP_E_USAGE;

    if (argc >= 3)
        rc = format_location_open(argv[2], &location, &err);
    if (!rc)
        rc = index_source(&location.source, &catalog, &err);
    if (!rc && !strcmp(argv[1], "dump"))
        rc = dump(&location.source, catalog, &err);
    else if (!rc && argc >= 5)
        rc = copy(&location.source, catalog, argv + 3, &err);
    if (rc)
        fprintf(stderr, "%s: %s\n", dcp_error_name(rc), err.message);
    dcp_catalog_free(catalog);
    format_location_close(&location);
    return dcp_error_exit(rc);
}

/* -- the tests ----------------------------------------------------------------------- */

static void assert_same_names(const struct dcp_tensor *a, const struct dcp_tensor *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->role, b->role);
    assert_string_equal(a->param, b->param);
}

static void assert_same_tensors(const struct dcp_source *source_a,
                                const struct dcp_catalog *a,
                                const struct dcp_source *source_b,
                                const struct dcp_catalog *b)
{
    bool named = strcmp(b->format, "npy") != 0; /* it holds an array and no name */
    struct dcp_error err = { 0 };

    assert_int_equal(a->n_tensors, b->n_tensors);
    for (size_t i = 0; i < a->n_tensors; i++) {
        const struct dcp_tensor *t = &a->tensors[i];
        int at = named ? dcp_catalog_find(b, t->name) : 0;
        void *data_a, *data_b;
        if (at < 0)
            fail_msg("no tensor '%s'", t->name);
        if (named)
            assert_same_names(t, &b->tensors[at]);
        assert_int_equal(b->tensors[at].dtype, t->dtype);
        assert_int_equal(b->tensors[at].ndim, t->ndim);
        assert_memory_equal(b->tensors[at].shape, t->shape,
                            (size_t)t->ndim * sizeof *t->shape);
        assert_int_equal(format_read_tensor(source_a, a, (int)i, &data_a, &err), 0);
        assert_int_equal(format_read_tensor(source_b, b, at, &data_b, &err), 0);
        assert_memory_equal(data_a, data_b, (size_t)dcp_tensor_bytes(t));
        free(data_a);
        free(data_b);
    }
}

static void assert_same_objects(const struct dcp_catalog *a, const struct dcp_catalog *b)
{
    assert_int_equal(a->n_objects, b->n_objects);
    for (size_t i = 0; i < a->n_objects; i++) {
        int at = dcp_catalog_find_object(b, a->objects[i].name);
        if (at < 0)
            fail_msg("no object '%s'", a->objects[i].name);
        assert_string_equal(a->objects[i].data, b->objects[at].data);
    }
}

/* Writes the catalog to memory in a format and reads it again. What a format cannot hold
 * it must say. */
static void check_format(const struct dcp_source *source,
                         const struct dcp_catalog *catalog,
                         const struct dcp_format *format, uint64_t shard_bytes,
                         bool same_objects)
{
    bool is_dir = format->flags & DCP_FORMAT_IS_DIR;
    const struct dcp_target_options options = {
        .name = is_dir ? NULL : "some.model.file",
        .max_shard_size_bytes = shard_bytes,
        .config_json = "{\"model_type\": \"none\"}",
    };
    struct dcp_store store;
    struct dcp_catalog *again;
    struct dcp_error err = { 0 };

    assert_int_equal(dcp_store_mem(&store, &err), 0);
    int rc = format_write(source, catalog, format, &options, &store, &err);
    if (rc == DCP_E_MISMATCH) {
        assert_non_null(strstr(err.message, "cannot hold"));
        dcp_store_free(&store);
        return;
    }
    if (rc)
        fail_msg("%s: %s", format->name, err.message);
    const struct dcp_source written = {
        .store = &store,
        .name = is_dir ? "" : options.name,
        .is_dir = is_dir,
    };
    if (index_source(&written, &again, &err))
        fail_msg("%s: %s", format->name, err.message);
    assert_string_equal(again->format, format->name);
    assert_same_tensors(source, catalog, &written, again);
    if (same_objects)
        assert_same_objects(catalog, again);
    dcp_catalog_free(again);
    dcp_store_free(&store);
}

enum {
    OPTIM = 1, /* names of torch's optimizers tell no role to other formats */
    OPAQUE = 2 /* names stay, objects do not: of other classes, or without an optimizer */
};

static void check_fixture(const char *name, int what)
{
    struct format_location location;
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };
    char path[512];

    snprintf(path, sizeof path, DATA "%s", name);
    print_message("%s\n", name);
    assert_int_equal(format_location_open(path, &location, &err), 0);
    if (index_source(&location.source, &catalog, &err))
        fail_msg("%s", err.message);
    for (const struct dcp_format *const *f = dcp_formats(); *f; f++) {
        bool is_torch = !strcmp((*f)->name, "torch");
        if (!((*f)->flags & DCP_FORMAT_WRITES) || ((*f)->flags & DCP_FORMAT_SHARDED) ||
            (what == OPTIM && !is_torch))
            continue;
        check_format(&location.source, catalog, *f, 0, is_torch && what != OPAQUE);
        check_format(&location.source, catalog, *f, 40, is_torch && what != OPAQUE);
    }
    dcp_catalog_free(catalog);
    format_location_close(&location);
}

static void test_fixtures(void **state)
{
    static const char *const names[] = {
        "torch/crc0.pt",
        "torch/deflated.pt",
        "torch/dtypes.pt",
        "torch/fakedd.pt",
        "torch/la_plain.pt",
        "torch/legacy.pt",
        "torch/legacy_tar.pt",
        "torch/numpy.pt",
        "torch/param_attr.pt",
        "torch/proto2.pt",
        "torch/proto4.pt",
        "torch/single.pt",
        "torch/state_dict.pt",
        "torch/views.pt",
        "torch/view_of_big.pt",
        "torch/a.npz",
        "torch/fortran.npy",
        "npy/ok_py2_long.npy",
        "safetensors/ok.safetensors",
        "safetensors/ok_scalar.safetensors",
        "safetensors/ok_empty.safetensors",
        "safetensors/ok_zero_dim.safetensors",
    };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_fixture(names[i], 0);
    check_fixture("torch/adamw.pt", OPTIM);
    check_fixture("torch/nested.pt", OPTIM);
    check_fixture("torch/module.pt", OPAQUE);
    check_fixture("torch/sparse.pt", OPAQUE);
    check_fixture("gguf/ok_a64.gguf", OPAQUE);
    check_fixture("gguf/ok_noalign.gguf", OPAQUE);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
    };

    if (argc > 1)
        return run_tool(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
