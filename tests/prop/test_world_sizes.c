/* Save at one world size and sharding, load at another: every byte of every rank is
 * right, and the fingerprints do not depend on the sharding, the world size or the codec.
 */
#include "lib/acts.h"
#include "lib/rank_threads.h"
#include "lib/sample.h"
#include "lib/slower.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dcp/dcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int usual[] = { 1, 2, 3, 4, 7, 8 }, odd[] = { 5, 16, 1 };
enum { N_USUAL = sizeof usual / sizeof usual[0], N_ODD = sizeof odd / sizeof odd[0] };

struct act {
    const struct dcp_store *store;
    const char *layout;
    enum dcp_codec codec;
    int64_t step;
    int world_size;
    int64_t wrong; /* summed over ranks */
    int failures;
};

static void save_rank(void *arg, struct dcp_comm *comm)
{
    struct act *act = arg;
    struct dcp_context ctx = { .comm = comm, .store = act->store, .threads = 1 };
    struct dcp_save_options options = { .step = act->step, .codec = act->codec };
    struct dcp_error err = { 0 };
    struct sample sample;

    sample_make(&sample, act->layout, comm->world_size, comm->rank, true, 1);
    if (dcp_save(&ctx, &options, &sample.state, NULL, &err)) {
        fprintf(stderr, "save: %s\n", err.message);
        __atomic_fetch_add(&act->failures, 1, __ATOMIC_SEQ_CST);
    }
    sample_free(&sample);
}

static void load_rank(void *arg, struct dcp_comm *comm)
{
    struct act *act = arg;
    struct dcp_context ctx = { .comm = comm, .store = act->store, .threads = 1 };
    struct dcp_load_options options = { .step = act->step };
    struct dcp_load_result result = { 0 };
    struct dcp_error err = { 0 };
    struct sample sample;

    sample_make(&sample, act->layout, comm->world_size, comm->rank, false, 1);
    if (dcp_load(&ctx, &options, &sample.state, &result, &err)) {
        fprintf(stderr, "load: %s\n", err.message);
        __atomic_fetch_add(&act->failures, 1, __ATOMIC_SEQ_CST);
    } else {
        __atomic_fetch_add(&act->wrong, sample_wrong(&sample, 1), __ATOMIC_SEQ_CST);
        if (dcp_catalog_find_object(result.catalog, "trainer") < 0 ||
            result.world_size != act->world_size)
            __atomic_fetch_add(&act->failures, 1, __ATOMIC_SEQ_CST);
        dcp_catalog_free(result.catalog);
    }
    sample_free(&sample);
}

static void check_fingerprints(const struct dcp_store *store, int64_t step)
{
    struct dcp_source source = { store, NULL, true };
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };
    struct sample sample;
    char name[64];

    snprintf(name, sizeof name, "step-%08d", (int)step);
    source.name = name;
    sample_make(&sample, "replicated", 1, 0, false, 1);
    assert_int_equal(dcp_catalog_new(&catalog, &err), 0);
    int rc = dcp_format_find("native")->index(&source, catalog, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    for (int t = 0; t < sample_n_tensors(); t++)
        assert_int_equal(catalog->tensors[t].fingerprint,
                         sample_fingerprint(&sample, t, 1));
    dcp_catalog_free(catalog);
    sample_free(&sample);
}

static void every_pair(const char *from, const char *to, enum dcp_codec codec,
                       const int *world_sizes, int n_world_sizes)
{
    for (int w = 0; w < n_world_sizes; w++) {
        struct dcp_store store;
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        struct act act = { .store = &store, .layout = from, .codec = codec, .step = 5 };
        rank_threads_run(world_sizes[w], save_rank, &act);
        assert_int_equal(act.failures, 0);
        check_fingerprints(&store, 5);
        act.world_size = world_sizes[w];
        act.layout = to;
        for (int v = SLOWER > 1 ? w % 3 : 0; v<n_world_sizes; v += SLOWER> 1 ? 3 : 1) {
            rank_threads_run(world_sizes[v], load_rank, &act);
            assert_int_equal(act.failures, 0);
            assert_int_equal(act.wrong, 0);
        }
        dcp_store_free(&store);
    }
}

static void all_layout_pairs(void **state)
{
    (void)state;
    int n = 0;
    for (const char *const *from = dcp_layout_names(); *from; from++)
        for (const char *const *to = dcp_layout_names(); *to; to++)
            if (n++ % SLOWER == 0)
                every_pair(*from, *to, DCP_CODEC_NONE, usual, N_USUAL);
}

/* More ranks than most tensors have rows, and than the big one has blocks. */
static void odd_world_sizes(void **state)
{
    (void)state;
    every_pair("zero2", "dim0", DCP_CODEC_NONE, odd, N_ODD);
    every_pair("dim0", "zero3", DCP_CODEC_NONE, odd, N_ODD);
    every_pair("zero3", "flat", DCP_CODEC_SPLIT, odd, N_ODD);
}

static void codecs(void **state)
{
    (void)state;
    every_pair("zero3", "dim0", DCP_CODEC_ZSTD, usual, N_USUAL);
    every_pair("zero2", "zero3", DCP_CODEC_PLANES, usual, N_USUAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_layout_pairs),
        cmocka_unit_test(odd_world_sizes),
        cmocka_unit_test(codecs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
