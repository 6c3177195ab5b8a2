/* Grids against the same thing done element by element. */
#include "core/catalog/region.h"
#include "lib/acts.h"
#include "lib/naive.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { MOST = 400, ROUNDS = 3000, MOST_CELLS = MOST, WORLD_SIZE = 4096 };

struct piece {
    struct dcp_region region;
    int rank;
    int64_t dims[2][DCP_MAX_NDIM];
};

/* A tensor cut into the cells of a grid. */
struct cut {
    struct dcp_catalog *catalog;
    struct dcp_tensor tensor;
    int64_t shape[DCP_MAX_NDIM];
    struct dcp_grid grid;
    struct piece pieces[MOST_CELLS];
    size_t n;
};

static void make_pieces(struct cut *cut)
{
    int64_t cells[DCP_MAX_NDIM], c[DCP_MAX_NDIM] = { 0 };
    int ndim = dcp_grid_ndim(&cut->tensor, &cut->grid);

    cut->n = (size_t)dcp_grid_cells(&cut->tensor, &cut->grid, cells);
    for (size_t i = 0; i < cut->n; i++) {
        struct piece *piece = &cut->pieces[i];
        piece->rank = cut->grid.first;
        for (int d = 0; d < ndim; d++) {
            int64_t all = cut->grid.flat ? cut->tensor.n_elems : cut->shape[d];
            int64_t lead = cut->grid.lead[d], size = cut->grid.size[d];
            int64_t begin = c[d] ? lead + (c[d] - 1) * size : 0;
            int64_t end = c[d] ? begin + size : lead;
            piece->dims[0][d] = begin;
            piece->dims[1][d] = (end < all ? end : all) - begin;
            piece->rank += (int)c[d] * cut->grid.stride[d];
        }
        piece->region = (struct dcp_region){ .kind = DCP_BOX,
                                             .offset = piece->dims[0],
                                             .size = piece->dims[1] };
        if (cut->grid.flat)
            piece->region =
                (struct dcp_region){ .kind = DCP_FLAT,
                                     .begin = piece->dims[0][0],
                                     .end = piece->dims[0][0] + piece->dims[1][0] };
        for (int d = ndim - 1; d >= 0 && ++c[d] == cells[d]; d--)
            c[d] = 0;
    }
}

static void cut_anyhow(struct cut *cut, uint64_t *seed, bool flat)
{
    *cut = (struct cut){ .tensor = { .name = "t", .shape = cut->shape } };
    assert_int_equal(dcp_catalog_new(&cut->catalog, NULL), 0);
    do {
        cut->tensor.ndim = naive_shape(seed, MOST, cut->shape);
        cut->tensor.n_elems = 1;
        for (int d = 0; d < cut->tensor.ndim; d++)
            cut->tensor.n_elems *= cut->shape[d];
    } while (!cut->tensor.n_elems);
    cut->grid.flat = flat;
    cut->grid.first = (int)acts_pick(seed, 8);
    for (int d = 0; d < dcp_grid_ndim(&cut->tensor, &cut->grid); d++) {
        int64_t all = flat ? cut->tensor.n_elems : cut->shape[d];
        cut->grid.lead[d] = 1 + acts_pick(seed, all);
        cut->grid.size[d] = 1 + acts_pick(seed, all);
        cut->grid.stride[d] = (int)acts_pick(seed, 4);
    }
    make_pieces(cut);
}

static const struct dcp_grid *find(struct cut *cut)
{
    const struct dcp_grid *found;

    assert_int_equal(dcp_grid_find(cut->catalog, &cut->tensor, &cut->pieces[0].region,
                                   &cut->pieces[0].rank, sizeof cut->pieces[0], cut->n,
                                   &found, NULL),
                     0);
    return found;
}

/* Which piece has each element. */
static void holders(const struct cut *cut, int *out)
{
    int64_t elems[MOST];

    for (size_t i = 0; i < cut->n; i++) {
        int64_t n = naive_elems(&cut->tensor, &cut->pieces[i].region, elems);
        for (int64_t e = 0; e < n; e++)
            out[elems[e]] = cut->pieces[i].rank;
    }
}

static void cells_are_found_and_marked(void **state)
{
    uint64_t seed = 1;
    size_t exact = 0;

    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t dims[2][DCP_MAX_NDIM], elems[MOST];
        bool ranks[WORLD_SIZE] = { false };
        struct cut cut;
        int holder[MOST];
        cut_anyhow(&cut, &seed, i % 2);
        const struct dcp_grid *grid = find(&cut);
        assert_non_null(grid);
        assert_true(dcp_grid_ok(&cut.tensor, grid, cut.n, WORLD_SIZE));
        holders(&cut, holder);
        struct dcp_region region = naive_region(&seed, &cut.tensor, dims);
        int64_t n = naive_elems(&cut.tensor, &region, elems);
        dcp_grid_mark(&cut.tensor, grid, &region, ranks);
        for (int64_t e = 0; e < n; e++)
            assert_true(ranks[holder[elems[e]]]);
        size_t marked = 0, holding = 0;
        bool holds[WORLD_SIZE] = { false };
        for (int64_t e = 0; e < n; e++)
            holds[holder[elems[e]]] = true;
        for (int r = 0; r < WORLD_SIZE; r++) {
            marked += ranks[r];
            holding += holds[r];
        }
        /* Of regions like the cells just the holders are marked. */
        if (n && (grid->flat || region.kind == DCP_BOX) &&
            (!grid->flat || elems[n - 1] - elems[0] == n - 1))
            assert_int_equal(marked, holding);
        exact += marked == holding;
        dcp_catalog_free(cut.catalog);
    }
    assert_true(exact > ROUNDS / 2);
}

/* Three cells of ten numbers, ranks 4, 5 and 6. */
static void three(struct cut *cut)
{
    *cut = (struct cut){ .shape = { 10 },
                         .tensor = { .name = "t", .ndim = 1, .n_elems = 10 },
                         .grid = { .flat = true,
                                   .lead = { 4 },
                                   .size = { 4 },
                                   .first = 4,
                                   .stride = { 1 } } };
    cut->tensor.shape = cut->shape;
    assert_int_equal(dcp_catalog_new(&cut->catalog, NULL), 0);
    make_pieces(cut);
}

static void ranks_without_a_rule_are_listed(void **state)
{
    struct cut cut;
    const int64_t last[] = { 8 }, one[] = { 1 };
    const struct dcp_region region = { .kind = DCP_BOX, .offset = last, .size = one };
    bool ranks[WORLD_SIZE] = { false };

    (void)state;
    three(&cut);
    assert_int_equal(cut.n, 3);
    cut.pieces[2].rank = 1;
    const struct dcp_grid *grid = find(&cut);
    assert_non_null(grid);
    assert_non_null(grid->ranks);
    dcp_grid_mark(&cut.tensor, grid, &region, ranks);
    assert_true(ranks[1]);
    assert_false(ranks[4] || ranks[5] || ranks[6]);
    assert_true(dcp_grid_ok(&cut.tensor, grid, 3, 6));
    assert_false(dcp_grid_ok(&cut.tensor, grid, 3, 5));
    assert_false(dcp_grid_ok(&cut.tensor, grid, 2, 6));
    dcp_catalog_free(cut.catalog);
}

static void what_is_no_grid(void **state)
{
    struct cut cut;

    (void)state;
    three(&cut);
    cut.n = 2; /* the end is missing */
    assert_null(find(&cut));
    dcp_catalog_free(cut.catalog);
    three(&cut);
    cut.pieces[1].region.end = 7; /* a hole */
    assert_null(find(&cut));
    dcp_catalog_free(cut.catalog);
    three(&cut);
    cut.pieces[1].region = cut.pieces[0].region; /* a replica */
    assert_null(find(&cut));
    dcp_catalog_free(cut.catalog);
}

static void what_cannot_be_one(void **state)
{
    struct cut cut;

    (void)state;
    three(&cut);
    struct dcp_grid good = cut.grid, bad = good;
    assert_true(dcp_grid_ok(&cut.tensor, &good, 0, 7));
    assert_false(dcp_grid_ok(&cut.tensor, &good, 0, 6)); /* no rank 6 */
    bad.lead[0] = 0;
    assert_false(dcp_grid_ok(&cut.tensor, &bad, 0, 7));
    bad = good;
    bad.size[0] = -4;
    assert_false(dcp_grid_ok(&cut.tensor, &bad, 0, 7));
    bad = good;
    bad.stride[0] = -3;
    assert_false(dcp_grid_ok(&cut.tensor, &bad, 0, 7));
    bad = (struct dcp_grid){ .flat = true, .lead = { 1 }, .size = { 1 } };
    cut.tensor.n_elems = cut.shape[0] = DCP_GRID_MOST_CELLS;
    assert_true(dcp_grid_ok(&cut.tensor, &bad, 0, 7));
    cut.tensor.n_elems = cut.shape[0] = DCP_GRID_MOST_CELLS + 1;
    assert_false(dcp_grid_ok(&cut.tensor, &bad, 0, 7));
    cut.tensor.n_elems = cut.shape[0] = INT64_MAX / 16;
    assert_false(dcp_grid_ok(&cut.tensor, &bad, 0, 7));
    dcp_catalog_free(cut.catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_are_found_and_marked),
        cmocka_unit_test(ranks_without_a_rule_are_listed),
        cmocka_unit_test(what_is_no_grid),
        cmocka_unit_test(what_cannot_be_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
