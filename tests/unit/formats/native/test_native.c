/* The native format's own promises: valid safetensors shards with unique keys, members of
 * the future kept, corruption named, and nothing published that could not be read back.
 * What docs/FORMAT.md says of the bytes is tested by tests/oracle. */
/* labels: tsan */
#include "base/hash.h"
#include "core/plan/target.h"
#include "lib/acts.h"
#include "lib/rank_threads.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

#define MIB ((int64_t)1 << 20)

static struct dcp_catalog *index_step(const struct dcp_store *store, const char *format,
                                      const char *name, bool is_dir)
{
    struct dcp_source source = { store, name, is_dir };
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    int rc = dcp_format_find(format)->index(&source, catalog, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    return catalog;
}

/* --- shards --- */

static void shards_are_safetensors_files(void **state)
{
    struct dcp_store *store = *state;

    for (int codec = 0; codec < DCP_N_CODECS; codec++) {
        struct acts acts = { .store = store,
                             .layout = "zero2",
                             .world_size = 3,
                             .step = codec,
                             .codec = (enum dcp_codec)codec };
        char name[128];
        assert_int_equal(acts_save(&acts), 0);
        snprintf(name, sizeof name, "step-%08d", codec);
        struct dcp_catalog *step = index_step(store, "native", name, true);
        for (int r = 0; r < 3; r++) {
            size_t found = 0, want = 0;
            snprintf(name, sizeof name, "step-%08d/shard-%05d-of-00003.safetensors",
                     codec, r);
            struct dcp_catalog *shard = index_step(store, "safetensors", name, false);
            for (size_t p = 0; p < step->n_pieces; p++) {
                const struct dcp_piece *piece = &step->pieces[p];
                if (piece->rank != r)
                    continue;
                want++;
                const char *key = step->tensors[piece->tensor].name;
                int at = dcp_catalog_find(shard, key);
                assert_true(at >= 0);
                const struct dcp_tensor *tensor = &shard->tensors[at];
                const struct dcp_piece *stored = &shard->pieces[tensor->first_piece];
                assert_int_equal(stored->offset, piece->offset);
                assert_int_equal(stored->stored_size, piece->stored_size);
                assert_int_equal(tensor->dtype,
                                 codec ? DCP_U8 : step->tensors[piece->tensor].dtype);
                found++;
            }
            assert_int_equal(shard->n_tensors, want);
            assert_int_equal(found, want);
            dcp_catalog_free(shard);
        }
        dcp_catalog_free(step);
    }
}

/* A state that is given as it is: `n` tensors of bytes, whole on every rank. */
struct plain {
    const struct dcp_store *store;
    const char *const *names;
    const int64_t *sizes;
    size_t n;
    int codes[4];
    struct dcp_error errs[4];
    unsigned wrong;
};

static unsigned char plain_byte(size_t tensor, size_t at)
{
    return (unsigned char)(at * 131 + (at >> 13) + tensor * 7);
}

static void plain_rank(void *arg, struct dcp_comm *comm)
{
    struct plain *plain = arg;
    struct dcp_local_tensor locals[8];
    struct dcp_context ctx = { .comm = comm, .store = plain->store, .threads = 1 };
    struct dcp_save_options options = { .step = 1 };
    struct dcp_load_options load = { .step = -1 };
    struct dcp_error *err = &plain->errs[comm->rank];

    for (size_t t = 0; t < plain->n; t++) {
        unsigned char *data = malloc((size_t)plain->sizes[t]);
        locals[t] = (struct dcp_local_tensor){ .name = plain->names[t],
                                               .dtype = DCP_U8,
                                               .ndim = 1,
                                               .shape = &plain->sizes[t],
                                               .data = data };
        for (size_t i = 0; i < (size_t)plain->sizes[t]; i++)
            data[i] = plain_byte(t, i);
    }
    struct dcp_state state = { .locals = locals, .n_locals = plain->n };
    int rc = dcp_save(&ctx, &options, &state, NULL, err);
    for (size_t t = 0; t < plain->n; t++)
        memset(locals[t].data, 0, (size_t)plain->sizes[t]);
    if (!rc)
        rc = dcp_load(&ctx, &load, &state, NULL, err);
    for (size_t t = 0; t < plain->n; t++) {
        const unsigned char *data = locals[t].data;
        for (size_t i = 0; i < (size_t)plain->sizes[t]; i++)
            if (data[i] != plain_byte(t, i))
                __atomic_fetch_add(&plain->wrong, 1, __ATOMIC_RELAXED);
        free(locals[t].data);
    }
    plain->codes[comm->rank] = rc;
}

/* A large tensor is cut, so that a shard has several pieces of it, and other tensors bear
 * the very names that the further pieces would get. */
static void keys_are_unique(void **state)
{
    static const char *const names[] = {
        "w", "w#1", "w#2", "w#1#0", "__metadata__", "w#"
    };
    static const int64_t sizes[] = { 40 * MIB, 5, 6, 7, 8, 9 };
    struct plain plain = { .store = *state, .names = names, .sizes = sizes, .n = 6 };
    size_t n_pieces = 0;

    rank_threads_run(2, plain_rank, &plain);
    for (int r = 0; r < 2; r++) {
        assert_string_equal(plain.errs[r].message, "");
        assert_int_equal(plain.codes[r], 0);
    }
    assert_int_equal(plain.wrong, 0);
    for (int r = 0; r < 2; r++) {
        char name[128];
        snprintf(name, sizeof name, "step-00000001/shard-%05d-of-00002.safetensors", r);
        struct dcp_catalog *shard = index_step(*state, "safetensors", name, false);
        n_pieces += shard->n_tensors;
        dcp_catalog_free(shard);
    }
    struct dcp_catalog *step = index_step(*state, "native", "step-00000001", true);
    assert_int_equal(n_pieces, step->n_pieces);
    assert_true(step->tensors[0].n_pieces > 4);
    dcp_catalog_free(step);
}

/* --- recognising --- */

static void probes(void **state)
{
    struct dcp_store *store = *state;
    const struct dcp_store_ops *ops = store->ops;
    struct acts acts = { .store = store, .layout = "zero3", .world_size = 2, .step = 1 };
    struct dcp_source run = { store, "", true }, step = { store, "step-00000001", true };
    const struct dcp_format *format;
    struct dcp_error err = { 0 };
    void *text;
    size_t n;

    assert_int_equal(acts_save(&acts), 0);
    assert_int_equal(dcp_format_probe(&step, &format, NULL), 0);
    assert_string_equal(format->name, "native");
    assert_int_equal(format->probe(&run), 0);
    assert_int_equal(dcp_verify(&step, NULL, NULL, NULL), 0);
    /* Its first byte is gone, then all of it: still a native step, and a corrupt one. */
    dcp_store_read_file(store, "step-00000001/manifest.json", 1 << 20, &text, &n, NULL);
    ((char *)text)[0] = '[';
    ops->remove(store->self, "step-00000001/manifest.json", NULL);
    dcp_store_write_file(store, "step-00000001/manifest.json", text, n, NULL);
    free(text);
    assert_int_equal(dcp_verify(&step, NULL, NULL, &err), DCP_E_CORRUPT);
    assert_string_equal(err.message, "manifest.json is corrupt: its digest differs");
    ops->remove(store->self, "step-00000001/manifest.json", NULL);
    err = (struct dcp_error){ 0 };
    assert_int_equal(dcp_verify(&step, NULL, NULL, &err), DCP_E_CORRUPT);
    assert_string_equal(err.message, "'manifest.json' of the step is missing");
}

/* --- what is kept --- */

/* A step in a folder of the file system, whose manifest gets a member of the future. */
static void members_of_the_future_are_kept(void **state)
{
    (void)state;
    static const char future[] =
        ",\n\"future\":{\"text\":\"\\u00e9\",\"list\":[1,2.5,null]}";
    char folder[256], source[512], target[512],
        manifest[] = "step-00000001/manifest.json";
    struct dcp_store store;
    struct dcp_location location;
    struct dcp_reshard *job;
    struct dcp_reshard_options options = { .dtype = -1, .world_size = 3 };
    struct dcp_error err = { 0 };
    void *text;
    size_t n;

    acts_folder(folder);
    assert_int_equal(dcp_store_dir(&store, folder, false, NULL), 0);
    struct acts acts = { .store = &store, .layout = "zero3", .world_size = 2, .step = 1 };
    assert_int_equal(acts_save(&acts), 0);
    assert_int_equal(dcp_store_read_file(&store, manifest, 1 << 20, &text, &n, NULL), 0);
    size_t body = n - 31 + sizeof future - 1;
    char *changed = malloc(body + 32);
    assert_non_null(changed);
    memcpy(changed, text, n - 31);
    memcpy(changed + n - 31, future, sizeof future - 1);
    snprintf(changed + body, 32, ",\n\"digest\":\"%016" PRIx64 "\"}\n",
             dcp_hash_crc64(0, changed, body));
    free(text);
    assert_int_equal(store.ops->remove(store.self, manifest, NULL), 0);
    assert_int_equal(dcp_store_write_file(&store, manifest, changed, body + 31, NULL), 0);
    free(changed);

    snprintf(source, sizeof source, "%s/step-00000001", folder);
    snprintf(target, sizeof target, "%s/out", folder);
    assert_int_equal(dcp_location_open(source, &location, NULL), 0);
    assert_int_equal(dcp_reshard_plan(&location, target, &options, &job, &err), 0);
    assert_int_equal(dcp_reshard_run(job, &err), 0);
    dcp_reshard_free(job);
    dcp_location_close(&location);
    assert_int_equal(
        dcp_store_read_file(&store, "out/manifest.json", 1 << 20, &text, &n, NULL), 0);
    assert_non_null(
        strstr(text, "\n\"future\":{\"text\":\"\xc3\xa9\",\"list\":[1,2.5,null]}"));
    free(text);
    struct dcp_catalog *catalog = index_step(&store, "native", "out", true);
    assert_int_equal(catalog->world_size, 3);
    dcp_catalog_free(catalog);
    dcp_store_free(&store);
    acts_folder_remove(folder);
}

static int save_objects(struct dcp_store *store, const struct dcp_object *objects,
                        size_t n, struct dcp_error *err)
{
    int64_t shape = 3;
    float data[3] = { 1, 2, 3 };
    struct dcp_local_tensor local = {
        .name = "x", .dtype = DCP_F32, .ndim = 1, .shape = &shape, .data = data
    };
    struct dcp_state state = {
        .locals = &local, .n_locals = 1, .objects = objects, .n_objects = n
    };
    struct dcp_context ctx = { .store = store, .threads = 1 };
    struct dcp_save_options options = { .step = 5 };

    return dcp_save(&ctx, &options, &state, NULL, err);
}

static void objects_come_back(void **state)
{
    static const char json[] = "{\"b\":[1,-2,0.1,1e-300,true,null,\"\\u0001\\\"\\\\/\"],"
                               "\"a\":9223372036854775807}";
    unsigned char bytes[256];
    struct dcp_object objects[] = {
        { .name = "json", .data = json, .size_bytes = sizeof json - 1 },
        { .name = "all \"bytes\"\n",
          .kind = DCP_OBJECT_BYTES,
          .data = bytes,
          .size_bytes = sizeof bytes },
        { .name = "nothing", .kind = DCP_OBJECT_BYTES },
        { .name = "number", .data = "7", .size_bytes = 1 },
    };

    for (int i = 0; i < 256; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(save_objects(*state, objects, 4, NULL), 0);
    struct dcp_catalog *catalog = index_step(*state, "native", "step-00000005", true);
    assert_int_equal(catalog->n_objects, 4);
    assert_string_equal(catalog->objects[0].name, "json");
    assert_non_null(strstr(catalog->objects[0].data, "\"a\":9223372036854775807"));
    assert_non_null(strstr(catalog->objects[0].data, "0.10000000000000001"));
    assert_non_null(strstr(catalog->objects[0].data, "\\u0001\\\"\\\\/"));
    assert_string_equal(catalog->objects[1].name, "all \"bytes\"\n");
    assert_int_equal(catalog->objects[1].size_bytes, 256);
    assert_memory_equal(catalog->objects[1].data, bytes, 256);
    assert_int_equal(catalog->objects[2].size_bytes, 0);
    assert_string_equal(catalog->objects[3].data, "7");
    dcp_catalog_free(catalog);
}

/* --- what is not published --- */

static size_t count_names(struct dcp_store *store)
{
    struct dcp_store_entry *entries;
    size_t n;

    assert_int_equal(store->ops->list(store->self, "", &entries, &n, NULL), 0);
    dcp_store_list_free(entries, n);
    return n;
}

static void objects_that_cannot_be_read_back(void **state)
{
    char deep[200];
    const struct {
        struct dcp_object object;
        int code;
    } cases[] = {
        { { .name = "loss", .data = "{\"loss\":NaN}", .size_bytes = 12 }, DCP_E_USAGE },
        { { .name = "cut", .data = "{\"loss\":1}", .size_bytes = 9 }, DCP_E_USAGE },
        { { .name = "twice", .data = "{\"a\":1,\"a\":2}", .size_bytes = 13 },
          DCP_E_USAGE },
        { { .name = "large", .data = "9223372036854775808", .size_bytes = 19 },
          DCP_E_USAGE },
        { { .name = "\xff", .data = "1", .size_bytes = 1 }, DCP_E_USAGE },
        { { .name = NULL, .data = "1", .size_bytes = 1 }, DCP_E_USAGE },
        { { .name = "x", .data = "\"\xc3\"", .size_bytes = 3 }, DCP_E_USAGE },
        { { .name = "empty", .data = "", .size_bytes = 0 }, DCP_E_USAGE },
        { { .name = "deep", .data = deep, .size_bytes = 124 }, DCP_E_CORRUPT },
        { { .name = "manifest.extra", .data = "{\"step\":9}", .size_bytes = 10 },
          DCP_E_CORRUPT },
    };

    memset(deep, '[', 62);
    memset(deep + 62, ']', 62);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dcp_error err = { 0 };
        assert_int_equal(save_objects(*state, &cases[i].object, 1, &err), cases[i].code);
        assert_true(err.message[0] && err.code == cases[i].code);
        assert_int_equal(count_names(*state), 0);
    }
    const struct dcp_object twice[] = { { .name = "a", .data = "1", .size_bytes = 1 },
                                        { .name = "a", .data = "2", .size_bytes = 1 } };
    assert_int_equal(save_objects(*state, twice, 2, NULL), DCP_E_USAGE);
    assert_int_equal(save_objects(*state, twice, 1, NULL), 0); /* nothing is in the way */
}

static void states_that_cannot_be_read_back(void **state)
{
    struct dcp_store *store = *state;
    const int64_t shape[] = { 2, 2 }, offset[] = { 1, 1 }, size[] = { 2, 1 };
    unsigned char data[64] = { 0 };
    const struct dcp_local_tensor good = {
        .name = "x", .dtype = DCP_F32, .ndim = 2, .shape = shape, .data = data
    };
    struct dcp_local_tensor bad[8];
    for (int i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].name = "";
    bad[1].name = "\xff";
    bad[2].param = "\xc3(";
    bad[3].group = -1;
    bad[4].ndim = 9;
    bad[5].region =
        (struct dcp_region){ .kind = DCP_BOX, .offset = offset, .size = size };
    bad[6].region = (struct dcp_region){ .kind = DCP_FLAT, .begin = 0, .end = 3 };
    bad[7].data = NULL;
    static const int codes[8] = {
        DCP_E_USAGE,       DCP_E_USAGE, DCP_E_USAGE,    DCP_E_USAGE,
        DCP_E_UNSUPPORTED, DCP_E_USAGE, DCP_E_MISMATCH, DCP_E_USAGE,
    };
    struct dcp_context ctx = { .store = store, .threads = 1 };
    struct dcp_save_options options = { .step = 5 };

    for (int i = 0; i < 8; i++) {
        struct dcp_state one = { .locals = &bad[i], .n_locals = 1 };
        struct dcp_error err = { 0 };
        assert_int_equal(dcp_save(&ctx, &options, &one, NULL, &err), codes[i]);
        assert_true(err.message[0] && err.code == codes[i]);
        assert_int_equal(count_names(store), 0);
    }
    struct dcp_state one = { .locals = &good, .n_locals = 1 };
    one.mesh.dp = 2;
    assert_int_equal(dcp_save(&ctx, &options, &one, NULL, NULL), DCP_E_USAGE);
    one.mesh.dp = -1;
    assert_int_equal(dcp_save(&ctx, &options, &one, NULL, NULL), DCP_E_USAGE);
    one.mesh.dp = 0;
    one.layout = "\xff";
    assert_int_equal(dcp_save(&ctx, &options, &one, NULL, NULL), DCP_E_USAGE);
    one.layout = NULL;
    options.step = -1;
    assert_int_equal(dcp_save(&ctx, &options, &one, NULL, NULL), DCP_E_USAGE);
    options.step = 0;
    assert_int_equal(dcp_save(&ctx, &options, &one, NULL, NULL), 0);
}

/* A step of a source is an integer from 0 on, or -1: no reader takes another. */
static void steps_that_cannot_be_read_back(void **state)
{
    (void)state;
    for (int64_t step = -3; step <= 1; step++) {
        const struct dcp_target_options options = { 0 };
        struct dcp_error err = { 0 };
        struct dcp_catalog *catalog;
        assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
        catalog->step = step;
        struct dcp_target target = { .format = dcp_format_of_steps(),
                                     .catalog = catalog,
                                     .options = &options };
        int rc = dcp_target_open_cut(&target, &err);
        assert_int_equal(rc, step < -1 ? DCP_E_MISMATCH : DCP_OK);
        assert_int_equal(!strstr(err.message, "cannot hold: the step"), step >= -1);
        dcp_target_close(&target);
        dcp_catalog_free(catalog);
    }
}

/* A type that safetensors has no name for: its bytes, and a word for older readers. */
static void complex_numbers_come_back(void **state)
{
    struct dcp_store *store = *state;
    const int64_t shape = 2;
    double data[4] = { 1, -2, 0.5, 1e300 };
    const struct dcp_local_tensor local = {
        .name = "z", .dtype = DCP_C128, .ndim = 1, .shape = &shape, .data = data
    };
    struct dcp_state one = { .locals = &local, .n_locals = 1 };
    struct dcp_context ctx = { .store = store, .threads = 1 };
    struct dcp_save_options options = { .step = 5 };
    const struct dcp_source step = { .store = store,
                                     .name = "step-00000005",
                                     .is_dir = true };
    struct dcp_error err = { 0 };
    void *text;
    size_t n;

    assert_int_equal(dcp_save(&ctx, &options, &one, NULL, &err), 0);
    assert_int_equal(dcp_store_read_file(store, "step-00000005/manifest.json", 1 << 20,
                                         &text, &n, NULL),
                     0);
    assert_non_null(strstr(text, "\"requires\":[\"complex128\",\"piece-tables\"]"));
    free(text);
    assert_int_equal(dcp_verify(&step, NULL, NULL, &err), 0);
    struct dcp_catalog *catalog = index_step(store, "native", "step-00000005", true);
    assert_int_equal(catalog->tensors[0].dtype, DCP_C128);
    assert_int_equal(catalog->pieces[0].stored_size, sizeof data);
    dcp_catalog_free(catalog);
    catalog = index_step(store, "safetensors",
                         "step-00000005/shard-00000-of-00001.safetensors", false);
    assert_int_equal(catalog->tensors[0].dtype, DCP_U8);
    assert_int_equal(catalog->tensors[0].n_elems, sizeof data);
    dcp_catalog_free(catalog);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, acts_setup, acts_teardown)
    const struct CMUnitTest tests[] = {
        EACH(shards_are_safetensors_files),
        EACH(keys_are_unique),
        EACH(probes),
        cmocka_unit_test(members_of_the_future_are_kept),
        EACH(objects_come_back),
        EACH(objects_that_cannot_be_read_back),
        EACH(states_that_cannot_be_read_back),
        cmocka_unit_test(steps_that_cannot_be_read_back),
        EACH(complex_numbers_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
