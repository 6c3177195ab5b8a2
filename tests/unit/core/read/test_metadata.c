/* A rank that loads reads the tables of the shards that it needs, and no others. */
#include "base/hash.h"
#include "base/mem.h"
#include "lib/acts.h"
#include "lib/rank_threads.h"
#include "lib/sample.h"
#include "lib/step_files.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { SAVED_BY = 6 };

static struct dcp_store_forward wrapper;
static atomic_int n_opened; /* tables */

static int counting_open(void *self, const char *name, struct dcp_store_file **out,
                         struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;
    const char *shard = strstr(name, "/shard-");

    n_opened += shard && strstr(shard, ".pieces");
    return inner->ops->open(inner->self, name, out, err);
}

/* Tables that are opened by all ranks of a load together. */
static int load(const struct dcp_store *store, const char *layout, int world_size)
{
    struct dcp_store counting;
    struct acts acts = {
        .store = &counting, .layout = layout, .world_size = world_size, .step = 1
    };

    dcp_store_forward(&counting, &wrapper, store);
    wrapper.ops.open = counting_open;
    n_opened = 0;
    assert_int_equal(acts_load(&acts), 0);
    assert_int_equal(acts.wrong, 0);
    return n_opened;
}

static void save(const struct dcp_store *store, const char *layout)
{
    struct acts acts = {
        .store = store, .layout = layout, .world_size = SAVED_BY, .step = 1
    };

    assert_int_equal(acts_save(&acts), 0);
}

/* One tensor in rows, a row a rank or two. */
struct rows {
    const struct dcp_store *store;
    bool load;
    int codes[2 * SAVED_BY];
};

enum { ROWS = 2 * SAVED_BY, COLUMNS = 1000 };

static void save_or_load_rows(void *arg, struct dcp_comm *comm)
{
    struct rows *rows = arg;
    float data[ROWS][COLUMNS];
    const int64_t shape[] = { ROWS, COLUMNS }, n = ROWS / comm->world_size;
    const int64_t offset[] = { comm->rank * n, 0 }, size[] = { n, COLUMNS };
    struct dcp_local_tensor local = {
        .name = "w",
        .dtype = DCP_F32,
        .ndim = 2,
        .shape = shape,
        .region = { .kind = DCP_BOX, .offset = offset, .size = size },
        .data = data
    };
    struct dcp_state state = { .layout = "dim0", .locals = &local, .n_locals = 1 };
    struct dcp_context ctx = { .comm = comm, .store = rows->store, .threads = 1 };
    struct dcp_save_options save = { .step = 1 };
    struct dcp_load_options load = { .step = 1 };

    for (int64_t r = 0; r < n; r++)
        for (int c = 0; c < COLUMNS; c++)
            data[r][c] = rows->load ? 0 : (float)(offset[0] + r) + (float)c / COLUMNS;
    rows->codes[comm->rank] = rows->load ? dcp_load(&ctx, &load, &state, NULL, NULL)
                                         : dcp_save(&ctx, &save, &state, NULL, NULL);
    for (int64_t r = 0; r < n; r++)
        if (data[r][COLUMNS / 2] != (float)(offset[0] + r) + 0.5f)
            rows->codes[comm->rank] = DCP_E_CORRUPT;
}

static void run_rows(struct rows *rows, int world_size)
{
    rank_threads_run(world_size, save_or_load_rows, rows);
    for (int r = 0; r < world_size; r++)
        assert_int_equal(rows->codes[r], 0);
}

static void each_reads_its_part(void **state)
{
    const struct dcp_store *store = *state;
    struct dcp_store counting;
    struct rows rows = { .store = store };
    const int worlds[] = { 1, 2, 3, SAVED_BY, 2 * SAVED_BY };

    run_rows(&rows, SAVED_BY);
    dcp_store_forward(&counting, &wrapper, store);
    wrapper.ops.open = counting_open;
    rows = (struct rows){ .store = &counting, .load = true };
    for (size_t w = 0; w < DCP_ARRAY_LEN(worlds); w++) {
        n_opened = 0;
        run_rows(&rows, worlds[w]);
        assert_int_equal(n_opened, worlds[w] > SAVED_BY ? worlds[w] : SAVED_BY);
    }
}

/* Changes the manifest, under a digest that holds. */
static void forge(const struct dcp_store *store, const char *from, const char *to)
{
    static const char format[] = ",\n\"digest\":\"%016" PRIx64 "\"}\n";
    struct step_files files;
    char forged[4096], tail[32];

    step_files_read(&files, store, "step-00000001");
    size_t m = step_files_find(&files, "manifest.json");
    const char *text = (const char *)files.files[m].data;
    size_t n = files.files[m].n, tail_bytes = sizeof tail - 1;
    const char *at = memmem(text, n, from, strlen(from));
    assert_non_null(at);
    assert_true(n + strlen(to) < sizeof forged);
    int head = snprintf(forged, sizeof forged, "%.*s%s%.*s", (int)(at - text), text, to,
                        (int)(n - tail_bytes - strlen(from)) - (int)(at - text),
                        at + strlen(from));
    snprintf(tail, sizeof tail, format, dcp_hash_crc64(0, forged, (size_t)head));
    memcpy(forged + head, tail, tail_bytes);
    step_files_put(&files, "manifest.json", forged, (size_t)head + tail_bytes);
    step_files_free(&files);
}

/* A grid that says otherwise than the tables: nobody loads less than there is, or from
 * elsewhere. */
static void a_grid_that_lies(void **state)
{
    static const char differs[] = "not cut over its ranks as the manifest says";
    static const char *const lies[][3] = {
        { "\"stride\":[1]", "\"stride\":[0]", differs }, /* all is rank 0's */
        { "\"lead\":[2000]", "\"lead\":[4000]", differs },
        { "\"size\":[2000]", "\"size\":[1000]", "has no valid" }, /* ranks 6 to 10 */
        { "\"first\":0,\"stride\":[1]", "\"first\":5,\"stride\":[-1]", differs },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(lies); i++) {
        struct dcp_store store;
        struct rows rows = { .store = &store };
        const struct dcp_source source = { &store, "step-00000001", true };
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        run_rows(&rows, SAVED_BY);
        rows.load = true;
        run_rows(&rows, 1);
        forge(&store, lies[i][0], lies[i][1]);
        for (int world_size = 1; world_size <= SAVED_BY; world_size += SAVED_BY - 1) {
            rank_threads_run(world_size, save_or_load_rows, &rows);
            assert_int_equal(rows.codes[0], DCP_E_CORRUPT);
        }
        struct dcp_error err = { 0 };
        assert_int_equal(dcp_verify(&source, NULL, NULL, &err), DCP_E_CORRUPT);
        assert_non_null(strstr(err.message, lies[i][2]));
        dcp_store_free(&store);
    }
}

static void all_where_all_is_wanted(void **state)
{
    const struct dcp_store *store = *state;

    save(store, "dim0");
    assert_int_equal(load(store, "replicated", 2), 2 * SAVED_BY);
}

/* An empty state: the catalog of a step, and no piece of it. */
static void none_where_nothing_is_wanted(void **state)
{
    const struct dcp_store *store = *state;
    struct dcp_store counting;
    struct dcp_context ctx = { .store = &counting, .threads = 1 };
    struct dcp_load_options options = { .step = 1 };
    struct dcp_state nothing = { .layout = "replicated" };
    struct dcp_load_result result;

    save(store, "zero3");
    dcp_store_forward(&counting, &wrapper, store);
    wrapper.ops.open = counting_open;
    n_opened = 0;
    assert_int_equal(dcp_load(&ctx, &options, &nothing, &result, NULL), 0);
    assert_int_equal(n_opened, 0);
    assert_int_equal(result.catalog->n_tensors, sample_n_tensors());
    dcp_catalog_free(result.catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_reads_its_part, acts_setup, acts_teardown),
        cmocka_unit_test(a_grid_that_lies),
        cmocka_unit_test_setup_teardown(all_where_all_is_wanted, acts_setup,
                                        acts_teardown),
        cmocka_unit_test_setup_teardown(none_where_nothing_is_wanted, acts_setup,
                                        acts_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
