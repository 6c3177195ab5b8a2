/* dcp: distributed checkpoints that PyTorch wrote, and what is written of them. */
#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/torch_dist/reading.h"
#include "formats/torch_dist/torch_dist.h"
#include "lib/checkpoint.h"
#include "lib/format_io.h"
#include "lib/reshard_folder.h"
#include "lib/sha256.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define DATA DCP_TESTS_DIR "/formats/data/dcp/"

static const char *const folders[] = {
    "torch-1.13.1",       "torch-2.2.2",         "torch-2.6.0-one",
    "torch-2.6.0-flat",   "torch-2.13.0-alone",  "torch-2.13.0-shards",
    "torch-2.14.1-one",   "torch-2.14.1-nested", "torch-2.14.1-zstd",
    "torch-2.14.1-fsdp2",
};

static void open_fixture(const char *folder, struct checkpoint *out)
{
    char path[512];

    snprintf(path, sizeof path, DATA "%s", folder);
    checkpoint_open(path, out);
    assert_string_equal(out->location.format->name, "torch-dist");
}

static void assert_object(const struct dcp_catalog *catalog, const char *name,
                          const char *text)
{
    DCP_CLEANUP_JSON json_t *got = checkpoint_object(catalog, name);
    DCP_CLEANUP_JSON json_t *want = NULL;

    assert_int_equal(dcp_json_parse(text, strlen(text), name, &want, NULL), 0);
    DCP_CLEANUP_FREE char *shown = got ? dcp_json_text(got, 0) : NULL;
    if (!json_equal(got, want))
        fail_msg("%s: %s", name, shown ? shown : "is not there");
}

/* -- what others wrote --------------------------------------------------------------- */

static void check_tensor(struct checkpoint *c, const json_t *expected)
{
    const char *name = json_string_value(json_object_get(expected, "name"));
    int at = dcp_catalog_find(c->catalog, name);

    if (at < 0)
        fail_msg("no tensor '%s'", name);
    checkpoint_expect_tensor(c, at, expected);
}

/* Objects but those of the optimizer's groups, which are one object here. */
static void check_object(const struct dcp_catalog *catalog, const char *name,
                         const json_t *expected)
{
    json_t *want = json_object_get(expected, "value");
    DCP_CLEANUP_JSON json_t *got = checkpoint_object(catalog, name);
    json_t *tuple = json_object_get(got, "$tuple");

    if (strstr(name, "param_groups"))
        return;
    if (!got)
        fail_msg("no object '%s'", name);
    assert_true(json_equal(tuple ? tuple : got, want));
}

static void test_fixtures(void **state)
{
    (void)state;
    for (size_t f = 0; f < DCP_ARRAY_LEN(folders); f++) {
        struct checkpoint c = { 0 };
        struct dcp_error err = { 0 };
        json_t *tensor, *object;
        char path[512];
        const char *key;
        size_t i;
        print_message("%s\n", folders[f]);
        open_fixture(folders[f], &c);
        snprintf(path, sizeof path, DATA "%s/expected.json", folders[f]);
        json_t *expected = checkpoint_load_json(path);
        assert_int_equal(c.catalog->n_tensors,
                         json_array_size(json_object_get(expected, "tensors")));
        json_array_foreach(json_object_get(expected, "tensors"), i, tensor)
        {
            check_tensor(&c, tensor);
        }
        json_object_foreach(json_object_get(expected, "objects"), key, object)
        {
            check_object(c.catalog, key, object);
        }
        if (dcp_catalog_check(c.catalog, &err))
            fail_msg("%s", err.message);
        assert_int_equal(dcp_verify(&c.location.source, NULL, NULL, &err), 0);
        json_decref(expected);
        checkpoint_close(&c);
    }
}

struct expectation {
    const char *folder, *tensor;
    enum dcp_role role;
    const char *param;
    int world_size;
    const char *layout;
};

static void test_roles(void **state)
{
    static const struct expectation cases[] = {
        { "torch-2.14.1-fsdp2", "app.model.0.weight", DCP_ROLE_MODEL, "0.weight", 3,
          "dim0" },
        { "torch-2.14.1-fsdp2", "app.optim.state.2.bias.exp_avg_sq", DCP_ROLE_EXP_AVG_SQ,
          "2.bias", 3, "dim0" },
        { "torch-2.14.1-nested", "model.cnt", DCP_ROLE_BUFFER, "cnt", 2, "dim0" },
        { "torch-2.14.1-nested", "optim.state.ln.bias.step", DCP_ROLE_OPTIM, "ln.bias", 2,
          "dim0" },
        { "torch-2.14.1-nested", "rng", DCP_ROLE_OTHER, "rng", 2, "dim0" },
        { "torch-2.6.0-flat", "optim.state.a.weight.exp_avg", DCP_ROLE_EXP_AVG,
          "a.weight", 2, "dim0" },
        { "torch-2.6.0-one", "model.t", DCP_ROLE_MODEL, "t", 1, "" },
        { "torch-1.13.1", "model.w", DCP_ROLE_MODEL, "w", 2, "dim0" },
        { "torch-2.13.0-shards", "layer.w", DCP_ROLE_MODEL, "layer.w", 3, "" },
        { "torch-2.13.0-alone", "own.rank2", DCP_ROLE_OTHER, "own.rank2", 3, "dim0" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        const struct expectation *want = &cases[i];
        struct checkpoint c = { 0 };
        open_fixture(want->folder, &c);
        int at = dcp_catalog_find(c.catalog, want->tensor);
        assert_true(at >= 0);
        assert_int_equal(c.catalog->tensors[at].role, want->role);
        assert_string_equal(c.catalog->tensors[at].param, want->param);
        assert_int_equal(c.catalog->world_size, want->world_size);
        assert_string_equal(c.catalog->layout, want->layout);
        checkpoint_close(&c);
    }
}

#define ADAM                                                                       \
    "\"weight_decay\":0.01,\"amsgrad\":false,\"maximize\":false,\"foreach\":null," \
    "\"capturable\":false,\"differentiable\":false,\"fused\":null"

static void test_optimizers(void **state)
{
    struct checkpoint c = { 0 };

    (void)state;
    open_fixture("torch-2.14.1-nested", &c);
    assert_object(
        c.catalog, "optimizer",
        "{\"type\":\"AdamW\",\"step\":1,\"param_groups\":[{\"lr\":0.001,\"betas\":[0.9,"
        "0.999],\"eps\":1e-8," ADAM ",\"decoupled_weight_decay\":true,\"params\":["
        "\"a.weight\",\"a.bias\"]},{\"lr\":0.002,\"betas\":[0.9,0.999],\"eps\":1e-8," ADAM
        ",\"decoupled_weight_decay\":true,\"params\":[\"b.weight\",\"ln.weight\","
        "\"ln.bias\"]}]}");
    assert_int_equal(c.catalog->step, 12);
    assert_int_equal(
        c.catalog->tensors[dcp_catalog_find(c.catalog, "model.ln.bias")].group, 1);
    assert_object(c.catalog, DCP_KEYS, "{\"nested\":true}");
    checkpoint_close(&c);
    c = (struct checkpoint){ 0 };
    open_fixture("torch-2.6.0-flat", &c);
    assert_object(
        c.catalog, "optimizer",
        "{\"step\":1,\"param_groups\":[{\"lr\":0.001,\"betas\":[0.9,0.999],\"eps\":1e-"
        "8," ADAM
        ",\"params\":[\"a.weight\",\"a.bias\"]},{\"lr\":0.002,\"betas\":[0.9,0.999],"
        "\"eps\":1e-8," ADAM ",\"params\":[\"b.weight\",\"ln.weight\",\"ln.bias\"]}]}");
    assert_object(c.catalog, DCP_KEYS,
                  "{\"groups\":\"flat\",\"nested\":true,\"style\":\"2.6\"}");
    checkpoint_close(&c);
    c = (struct checkpoint){ 0 };
    open_fixture("torch-2.2.2", &c);
    assert_object(c.catalog, "optimizer",
                  "{\"step\":3,\"param_groups\":[{\"lr\":0.001,\"betas\":[0.9,0.999],"
                  "\"eps\":1e-8,\"weight_decay\":0.01,\"amsgrad\":false,\"params\":["
                  "\"a.weight\",\"a.bias\"]}]}");
    assert_object(c.catalog, DCP_KEYS,
                  "{\"groups\":\"whole\",\"nested\":true,\"style\":\"2.6\",\"classes\":"
                  "\"2.2\",\"items\":"
                  "{\"extra\":\"value\"}}");
    checkpoint_close(&c);
    c = (struct checkpoint){ 0 };
    open_fixture("torch-2.14.1-fsdp2", &c);
    assert_object(c.catalog, DCP_KEYS,
                  "{\"model\":\"app.model\",\"optim\":\"app.optim\",\"groups\":\"flat\","
                  "\"nested\":true}");
    checkpoint_close(&c);
}

/* -- items --------------------------------------------------------------------------- */

/* The item of a part, written here, is the one that PyTorch wrote. */
static void check_item(struct checkpoint *c, const struct dcp_torch_dist_metadata *meta,
                       const struct dcp_torch_dist_part *part, enum dcp_torch_style style)
{
    const struct dcp_torch_dist_tensor *whole = &meta->tensors[part->tensor];
    struct dcp_tensor tensor = { .dtype = whole->dtype,
                                 .ndim = whole->ndim,
                                 .shape = part->box + 1 + whole->ndim,
                                 .n_elems = 1 };
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    uint64_t size_bytes;
    void *item;

    for (int d = 0; d < tensor.ndim; d++)
        tensor.n_elems *= tensor.shape[d];
    assert_int_equal(
        dcp_input_open(&in, &c->location.source, meta->files[part->file], NULL), 0);
    assert_int_equal(
        dcp_input_read_new(&in, part->offset, (size_t)part->size_bytes, &item, NULL), 0);
    assert_int_equal(dcp_torch_item_head(style, &tensor, &buf, &size_bytes, NULL), 0);
    assert_int_equal(size_bytes, part->size_bytes);
    const unsigned char *data = (const unsigned char *)item + buf.size_bytes;
    buf.size_bytes = 0;
    assert_int_equal(dcp_torch_item_tensor(style, &tensor, data, &buf, NULL), 0);
    assert_int_equal(buf.size_bytes, part->size_bytes);
    assert_memory_equal(buf.data, item, buf.size_bytes);
    free(item);
}

static void test_items(void **state)
{
    static const struct {
        const char *folder;
        enum dcp_torch_style style;
    } cases[] = {
        { "torch-1.13.1", DCP_TORCH_STYLE_1_13 },
        { "torch-2.2.2", DCP_TORCH_STYLE_2_6 },
        { "torch-2.6.0-flat", DCP_TORCH_STYLE_2_6 },
        { "torch-2.14.1-nested", DCP_TORCH_STYLE_NEW },
        { "torch-2.14.1-fsdp2", DCP_TORCH_STYLE_NEW },
    };
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct checkpoint c = { 0 };
        DCP_CLEANUP_TORCH_DIST_METADATA struct dcp_torch_dist_metadata meta = { 0 };
        open_fixture(cases[i].folder, &c);
        assert_int_equal(dcp_torch_dist_metadata_read(&c.location.source, &meta, NULL),
                         0);
        for (size_t p = 0; p < meta.n_parts; p++)
            if (meta.parts[p].tensor >= 0) {
                check_item(&c, &meta, &meta.parts[p], cases[i].style);
                n++;
            }
        checkpoint_close(&c);
    }
    assert_true(n > 100);
}

/* -- written again ------------------------------------------------------------------- */

/* Same names, roles, parameters, bytes; the same objects. */
static void assert_same(struct checkpoint *a, struct checkpoint *b)
{
    assert_int_equal(a->catalog->n_tensors, b->catalog->n_tensors);
    for (size_t t = 0; t < a->catalog->n_tensors; t++) {
        const struct dcp_tensor *x = &a->catalog->tensors[t];
        int at = dcp_catalog_find(b->catalog, x->name);
        if (at < 0)
            fail_msg("no tensor '%s'", x->name);
        const struct dcp_tensor *y = &b->catalog->tensors[at];
        assert_int_equal(x->role, y->role);
        assert_string_equal(x->param, y->param);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->group, y->group);
        assert_int_equal(x->n_elems, y->n_elems);
        unsigned char *p = checkpoint_read(a, (int)t), *q = checkpoint_read(b, at);
        assert_memory_equal(p, q, (size_t)dcp_tensor_bytes(x));
        free(p);
        free(q);
    }
    assert_int_equal(a->catalog->n_objects, b->catalog->n_objects);
    for (size_t o = 0; o < a->catalog->n_objects; o++) {
        const struct dcp_object *x = &a->catalog->objects[o];
        int at = dcp_catalog_find_object(b->catalog, x->name);
        if (at < 0)
            fail_msg("no object '%s'", x->name);
        const struct dcp_object *y = &b->catalog->objects[at];
        assert_int_equal(x->kind, y->kind);
        assert_int_equal(x->size_bytes, y->size_bytes);
        if (x->size_bytes)
            assert_memory_equal(x->data, y->data, x->size_bytes);
    }
    assert_int_equal(a->catalog->step, b->catalog->step);
}

/* Every item begins where the index says; large tensors begin on a page. */
static void check_places(const struct dcp_catalog *catalog)
{
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        assert_int_equal(piece->codec, DCP_CODEC_NONE);
        assert_true(piece->has_crc && piece->has_crc32 == (piece->crc32 != 0));
        assert_int_equal(piece->offset % (piece->stored_size >= 4096 ? 4096 : 64), 0);
    }
    for (size_t f = 0; f < catalog->n_files; f++)
        assert_true(catalog->files[f].has_crc);
}

static void reshard(const char *source, const char *target, const char *format,
                    int world_size, const char *layout)
{
    const struct dcp_reshard_options options = {
        .format = format, .world_size = world_size, .layout = layout, .dtype = -1
    };

    reshard_folder_must_run(source, target, &options);
}

/* To other world sizes, and by way of native steps: nothing is lost. */
static void test_written_again(void **state)
{
    const struct reshard_folder *folder = *state;

    for (size_t f = 0; f < DCP_ARRAY_LEN(folders); f++) {
        struct checkpoint from = { 0 }, to = { 0 }, back = { 0 };
        struct dcp_error err = { 0 };
        char path[512], step[600], again[600], target[600];
        print_message("%s\n", folders[f]);
        snprintf(path, sizeof path, DATA "%s", folders[f]);
        snprintf(step, sizeof step, "%s/step%zu", folder->path, f);
        snprintf(again, sizeof again, "%s/again%zu", folder->path, f);
        snprintf(target, sizeof target, "%s/to%zu", folder->path, f);
        open_fixture(folders[f], &from);
        reshard(path, target, "torch-dist", 3, "dim0");
        checkpoint_open(target, &to);
        assert_same(&from, &to);
        check_places(to.catalog);
        assert_int_equal(to.catalog->world_size, 3);
        assert_string_equal(to.catalog->producer, "libdcp");
        if (dcp_verify(&to.location.source, NULL, NULL, &err))
            fail_msg("%s", err.message);
        reshard(path, step, "native", 2, "zero3");
        reshard(step, again, "dcp", 1, "replicated");
        checkpoint_open(again, &back);
        assert_same(&from, &back);
        checkpoint_close(&from);
        checkpoint_close(&to);
        checkpoint_close(&back);
    }
}

/* The same state, the same bytes. */
static void test_same_bytes(void **state)
{
    static const char *const files[] = { ".metadata", "__0_0.distcp", "__1_0.distcp" };
    const struct reshard_folder *folder = *state;
    char paths[2][600], name[1300];

    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/same%d", folder->path, i);
        reshard(DATA "torch-2.14.1-nested", paths[i], "dcp", 2, "dim0");
    }
    for (size_t f = 0; f < DCP_ARRAY_LEN(files); f++) {
        void *data[2];
        size_t n[2];
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "%s/%s", paths[i], files[f]);
            assert_int_equal(dcp_fs_read_file(name, 1 << 24, &data[i], &n[i], NULL), 0);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(data[0], data[1], n[0]);
        free(data[0]);
        free(data[1]);
    }
}

/* Any changed byte of what is written here is found by the index or its digests. */
static void test_changed_bytes(void **state)
{
    static const char *const files[] = { ".metadata", "__0_0.distcp", "__1_0.distcp" };
    const struct reshard_folder *folder = *state;
    struct format_location location;

    reshard(DATA "torch-2.2.2", folder->target, "dcp", 2, "dim0");
    assert_int_equal(format_location_open(folder->target, &location, NULL), 0);
    for (size_t f = 0; f < DCP_ARRAY_LEN(files); f++) {
        const struct dcp_store_ops *ops = location.store.ops;
        void *data;
        size_t n;
        assert_int_equal(
            dcp_store_read_file(&location.store, files[f], 1 << 20, &data, &n, NULL), 0);
        for (size_t at = 0; at < n; at += 1 + n / 97) {
            unsigned char *byte = (unsigned char *)data + at;
            *byte ^= 0x10;
            assert_int_equal(ops->replace(location.store.self, files[f], data, n, NULL),
                             0);
            int rc = dcp_verify(&location.source, NULL, NULL, NULL);
            if (rc != DCP_E_CORRUPT && rc != DCP_E_UNSUPPORTED)
                fail_msg("byte %zu of %s: %d", at, files[f], rc);
            *byte ^= 0x10;
        }
        assert_int_equal(ops->replace(location.store.self, files[f], data, n, NULL), 0);
        free(data);
    }
    assert_int_equal(dcp_verify(&location.source, NULL, NULL, NULL), 0);
    format_location_close(&location);
}

/* -- ranks that saved alone ---------------------------------------------------------- */

static int copy_file(const struct dcp_store *store, const char *folder, const char *name)
{
    char path[512];
    void *data;
    size_t n;

    snprintf(path, sizeof path, DATA "%s/%s", folder, name);
    assert_int_equal(dcp_fs_read_file(path, 1 << 20, &data, &n, NULL), 0);
    int rc = dcp_store_write_file(store, name, data, n, NULL);
    free(data);
    return rc;
}

/* Without one of the ranks: which file, or which elements, are missing. */
static void test_missing_ranks(void **state)
{
    static const char *const files[] = { "__0_0.distcp", "__1_0.distcp", "__2_0.distcp",
                                         "__0.metadata", "__1.metadata", "__2.metadata" };
    static const struct {
        const char *without, *words;
    } cases[] = {
        { "__1.metadata", "'__1.metadata' is missing" },
        { "__0.metadata", "'__0.metadata' is missing" },
        { "__2.metadata", "elements 18..20 are in no piece" },
        { "__2_0.distcp", "'__2_0.distcp' of the checkpoint is missing" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct dcp_store store;
        struct dcp_catalog *catalog;
        struct dcp_error err = { 0 };
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        for (size_t f = 0; f < DCP_ARRAY_LEN(files); f++)
            if (strcmp(files[f], cases[i].without) != 0)
                assert_int_equal(copy_file(&store, "torch-2.13.0-alone", files[f]), 0);
        const struct dcp_source source = { &store, "", true };
        assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
        int rc = dcp_torch_dist_index(&source, catalog, &err);
        if (!rc)
            rc = dcp_catalog_check(catalog, &err);
        assert_int_equal(rc, DCP_E_CORRUPT);
        if (!strstr(err.message, cases[i].words))
            fail_msg("%s", err.message);
        dcp_catalog_free(catalog);
        dcp_store_free(&store);
    }
}

/* A save that did not end, and a folder that is something else. */
static void test_probe(void **state)
{
    struct dcp_store store;
    const struct dcp_source source = { &store, "", true };
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    (void)state;
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(dcp_format_torch_dist.probe(&source), 0);
    assert_int_equal(copy_file(&store, "torch-2.2.2", "__0_0.distcp"), 0);
    assert_true(dcp_format_torch_dist.probe(&source) > 0);
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    assert_int_equal(dcp_torch_dist_index(&source, catalog, &err), DCP_E_CORRUPT);
    assert_non_null(
        strstr(err.message, "there is no '.metadata': the save did not finish"));
    dcp_catalog_free(catalog);
    dcp_store_free(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_items),
        cmocka_unit_test_setup_teardown(test_written_again, reshard_folder_setup,
                                        reshard_folder_teardown),
        cmocka_unit_test_setup_teardown(test_same_bytes, reshard_folder_setup,
                                        reshard_folder_teardown),
        cmocka_unit_test_setup_teardown(test_changed_bytes, reshard_folder_setup,
                                        reshard_folder_teardown),
        cmocka_unit_test(test_missing_ranks),
        cmocka_unit_test(test_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
