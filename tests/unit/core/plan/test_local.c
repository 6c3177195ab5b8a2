/* The states of ranks that are threads: each learns what it is to write, and no more. */
#include "core/plan/local.h"
#include "lib/rank_threads.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { WORLD_SIZE = 3, LARGE = 600, SMALL = 6 };

struct answer {
    int codes[WORLD_SIZE];
    struct dcp_error errs[WORLD_SIZE];
    size_t n_pieces[WORLD_SIZE];
    int32_t small[SMALL];
    const char *odd_name; /* of rank 2's large tensor; NULL: as the others have it */
    int64_t hole;         /* elements that rank 1 lacks */
};

static void merge(void *arg, struct dcp_comm *comm)
{
    struct answer *answer = arg;
    static const int64_t large[] = { LARGE }, small[] = { SMALL };
    int32_t data[LARGE] = { 0 };
    int r = comm->rank;
    const char *name = r == 2 && answer->odd_name ? answer->odd_name : "large";
    struct dcp_local_tensor locals[] = {
        { .name = name, .dtype = DCP_I32, .ndim = 1, .shape = large, .data = data },
        { .name = "small", .dtype = DCP_I32, .ndim = 1, .shape = small, .data = data },
    };
    struct dcp_state state = { .locals = locals, .n_locals = 2, .layout = "flat" };
    struct dcp_catalog *catalog;
    struct dcp_device host;

    for (size_t i = 0; i < 2; i++) {
        int64_t part = locals[i].shape[0] / WORLD_SIZE;
        locals[i].param = locals[i].name;
        locals[i].region = (struct dcp_region){ .kind = DCP_FLAT,
                                                .begin = r * part,
                                                .end = (r + 1) * part };
    }
    if (r == 1)
        locals[0].region.end -= answer->hole;
    for (int i = 0; i < SMALL; i++)
        data[i] = 10 * r + i;
    dcp_device_host(&host);
    answer->codes[r] =
        dcp_local_merge(comm, &host, &state, DCP_OK, &catalog, &answer->errs[r]);
    if (answer->codes[r])
        return;
    answer->n_pieces[r] = catalog->n_pieces;
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        answer->codes[r] |= catalog->pieces[p].rank != r;
        if (catalog->pieces[p].tensor == 1)
            memcpy(answer->small, catalog->pieces[p].data, sizeof answer->small);
    }
    dcp_catalog_free(catalog);
}

static void shares(void **state)
{
    (void)state;
    struct answer answer = { 0 };
    static const int32_t joined[SMALL] = { 0, 1, 10, 11, 20, 21 };

    rank_threads_run(WORLD_SIZE, merge, &answer);
    for (int r = 0; r < WORLD_SIZE; r++) {
        assert_int_equal(answer.codes[r], 0);
        assert_int_equal(answer.n_pieces[r], r == 0 ? 2 : 1);
    }
    assert_memory_equal(answer.small, joined, sizeof joined);
}

static void check_refused(struct answer *answer, const char *words)
{
    rank_threads_run(WORLD_SIZE, merge, answer);
    for (int r = 0; r < WORLD_SIZE; r++) {
        assert_int_equal(answer->codes[r], DCP_E_MISMATCH);
        assert_non_null(strstr(answer->errs[r].message, words));
    }
}

static void other_lists(void **state)
{
    (void)state;
    check_refused(&(struct answer){ .odd_name = "larger" },
                  "ranks 0 and 2 do not list the same tensors");
}

static void holes(void **state)
{
    (void)state;
    check_refused(&(struct answer){ .hole = 7 },
                  "tensor 'large': elements 393..399 are in no piece");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares),
        cmocka_unit_test(other_lists),
        cmocka_unit_test(holes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
