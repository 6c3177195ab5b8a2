/* Where ranks stand in a tree: levels, fan-out, and who is a child of whom. */
#include "port/comm/branch.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* Every rank but 0 is the child of one rank, in whose subtree it is. */
static void check_tree(int world_size, int largest)
{
    struct dcp_branch root = dcp_branch_of(0, world_size, largest);
    int *parents = calloc((size_t)world_size, sizeof *parents), deepest = 0;
    assert_non_null(parents);
    for (int r = 0; r < world_size; r++) {
        struct dcp_branch at = dcp_branch_of(r, world_size, largest);
        int next = r + 1;
        assert_int_equal(at.rank, r);
        assert_int_equal(at.levels, root.levels);
        assert_in_range(at.n_children, 0, at.fanout);
        assert_int_equal(dcp_branch_find(&at, r), 0);
        for (int slot = 1; slot <= at.n_children; slot++) {
            struct dcp_span ranks = dcp_branch_span(&at, slot);
            assert_int_equal(ranks.begin, next); /* in order, without gaps */
            assert_true(ranks.begin < ranks.end);
            assert_int_equal(dcp_branch_rank(&at, slot), ranks.begin);
            assert_int_equal(dcp_branch_find(&at, ranks.begin), slot);
            assert_int_equal(dcp_branch_find(&at, ranks.end - 1), slot);
            parents[ranks.begin] = r + 1;
            next = ranks.end;
        }
        assert_int_equal(at.end, next);
        assert_int_equal(dcp_branch_find(&at, at.end), 0);
        assert_int_equal(at.parent, parents[r] - 1);
        deepest = at.depth > deepest ? at.depth : deepest;
    }
    assert_int_equal(deepest, root.levels);
    free(parents);
}

static void every_rank_has_its_place(void **state)
{
    (void)state;
    for (int largest = 1; largest <= 33; largest += 1 + largest / 4)
        for (int world_size = 1; world_size < 80; world_size++)
            check_tree(world_size, largest);
    check_tree(4096, 32);
    check_tree(5000, 3);
}

/* In a round rank 0 and a rank between have so many messages each way; it takes so many
 * rounds of them, up and down. */
static void levels_grow_with_the_logarithm(void **state)
{
    (void)state;
    static const struct {
        int world_size, levels, fanout;
    } rows[] = { { 1, 0, 1 },       { 2, 1, 1 },     { 8, 1, 7 },      { 33, 1, 32 },
                 { 34, 2, 6 },      { 64, 2, 8 },    { 512, 2, 23 },   { 1057, 2, 32 },
                 { 1058, 3, 10 },   { 4096, 3, 16 }, { 33825, 3, 32 }, { 100000, 4, 18 },
                 { 1000000, 4, 32 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int last = rows[i].world_size - 1;
        struct dcp_branch at = dcp_branch_of(last, rows[i].world_size, DCP_BRANCH_FANOUT);
        assert_int_equal(at.levels, rows[i].levels);
        assert_int_equal(at.fanout, rows[i].fanout);
        assert_true(at.depth == at.levels || at.depth == at.levels - 1);
    }
    struct dcp_branch most = dcp_branch_of(INT32_MAX - 1, INT32_MAX, DCP_BRANCH_FANOUT);
    assert_int_equal(most.end, INT32_MAX);
    assert_int_equal(most.levels, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_has_its_place),
        cmocka_unit_test(levels_grow_with_the_logarithm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
