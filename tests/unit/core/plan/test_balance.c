/* Replicas are written once, by one of those who hold them, and the bytes come out even.
 */
#include "core/catalog/region.h"
#include "core/plan/balance.h"
#include "lib/acts.h"
#include "lib/naive.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/reshard.h>

#define MIB ((int64_t)1 << 20)
#define MAX_WORLD_SIZE 64

static struct dcp_catalog *new_catalog(void)
{
    struct dcp_catalog *catalog;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    return catalog;
}

/* Fills load with the bytes of each rank and returns their sum. */
static uint64_t loads(const struct dcp_catalog *catalog, uint64_t load[MAX_WORLD_SIZE])
{
    uint64_t total = 0;

    memset(load, 0, MAX_WORLD_SIZE * sizeof *load);
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        load[catalog->pieces[p].rank] += dcp_piece_bytes(catalog, &catalog->pieces[p]);
        total += dcp_piece_bytes(catalog, &catalog->pieces[p]);
    }
    return total;
}

/* Each piece of `catalog` lies in a piece that the same rank had before. */
static void check_holders(const struct dcp_catalog *before,
                          const struct dcp_catalog *catalog)
{
    int64_t mine[400], theirs[400];

    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
        int64_t n = naive_elems(tensor, &piece->region, mine);
        bool found = false;
        for (size_t q = 0; q < before->n_pieces && !found; q++) {
            if (before->pieces[q].tensor != piece->tensor ||
                before->pieces[q].rank != piece->rank)
                continue;
            int64_t m = naive_elems(tensor, &before->pieces[q].region, theirs), at = 0;
            for (int64_t k = 0; k < m && at < n; k++)
                at += theirs[k] == mine[at];
            found = at == n;
        }
        assert_true(found);
    }
}

static void random_replicas(void **state)
{
    (void)state;
    uint64_t seed = 31;

    for (int i = 0; i < 400; i++) {
        struct dcp_catalog *catalog = new_catalog(), *before = new_catalog();
        int world_size = 1 + (int)acts_pick(&seed, 8);
        for (int t = 0; t < 5; t++) {
            int64_t shape[DCP_MAX_NDIM];
            int ndim = naive_shape(&seed, 400, shape);
            naive_tensor(catalog, DCP_F32, ndim, shape);
            naive_tensor(before, DCP_F32, ndim, shape);
            naive_cut(&seed, catalog, t, (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS),
                      world_size, true);
        }
        catalog->world_size = world_size;
        for (size_t p = 0; p < catalog->n_pieces; p++)
            assert_int_equal(dcp_catalog_add_piece(before, &catalog->pieces[p], NULL), 0);
        assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
        assert_int_equal(dcp_balance(catalog, NULL), 0);
        assert_int_equal(dcp_catalog_check(catalog, NULL), 0);
        int64_t elems = 0;
        for (size_t p = 0; p < catalog->n_pieces; p++)
            elems += dcp_piece_elems(catalog, &catalog->pieces[p]);
        for (int t = 0; t < 5; t++) {
            elems -= catalog->tensors[t].n_elems;
            assert_true(catalog->tensors[t].n_pieces > 0);
        }
        assert_int_equal(elems, 0); /* once: no replica is left */
        check_holders(before, catalog);
        dcp_catalog_free(catalog);
        dcp_catalog_free(before);
    }
}

/* A model of many tensors, replicated on every rank: nobody has more than the mean and
 * the largest tensor that is not cut. */
static void even_bytes(void **state)
{
    (void)state;
    static const int world_sizes[] = { 1, 2, 3, 7, 8, 64 };
    uint64_t load[MAX_WORLD_SIZE];

    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; w++) {
        struct dcp_catalog *catalog = new_catalog();
        const int64_t table[] = { 50257, 768 }, square[] = { 768, 3072 },
                      bias[] = { 3072 };
        naive_tensor(catalog, DCP_F32, 2, table);
        for (int t = 0; t < 24; t++) {
            naive_tensor(catalog, DCP_F32, 2, square);
            naive_tensor(catalog, DCP_F32, 1, bias);
        }
        assert_int_equal(dcp_layout_apply(catalog, "replicated", world_sizes[w], NULL),
                         0);
        assert_int_equal(dcp_balance(catalog, NULL), 0);
        assert_int_equal(dcp_catalog_check(catalog, NULL), 0);
        uint64_t mean = loads(catalog, load) / (uint64_t)world_sizes[w];
        for (int r = 0; r < world_sizes[w]; r++) {
            assert_true(load[r] <= mean + 768 * 3072 * 4);
            assert_true(world_sizes[w] > 8 || load[r] >= mean - 768 * 3072 * 4);
        }
        /* The pieces that the table was cut into are rows, and not many. */
        assert_true(catalog->tensors[0].n_pieces <= 37);
        for (size_t p = 0; p < catalog->tensors[0].n_pieces; p++) {
            const struct dcp_piece *piece = &catalog->pieces[p];
            if (piece->region.kind == DCP_BOX)
                assert_int_equal(piece->region.size[1], 768);
        }
        dcp_catalog_free(catalog);
    }
}

/* A flat range that several ranks hold is cut into flat ranges. */
static void flat_replicas(void **state)
{
    (void)state;
    struct dcp_catalog *catalog = new_catalog();
    const int64_t shape[] = { 64 * MIB };
    uint64_t load[MAX_WORLD_SIZE];

    naive_tensor(catalog, DCP_F32, 1, shape);
    catalog->world_size = 4;
    for (int r = 0; r < 4; r++) {
        struct dcp_region region = { .kind = DCP_FLAT,
                                     .begin = r / 2 * 32 * MIB,
                                     .end = (r / 2 + 1) * 32 * MIB };
        struct dcp_piece piece = { .rank = r, .region = region, .file = -1 };
        assert_int_equal(dcp_catalog_add_piece(catalog, &piece, NULL), 0);
    }
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    assert_int_equal(dcp_balance(catalog, NULL), 0);
    assert_int_equal(dcp_catalog_check(catalog, NULL), 0);
    assert_int_equal(loads(catalog, load), 256 * MIB);
    for (int r = 0; r < 4; r++)
        assert_int_equal(load[r], 64 * MIB);
    for (size_t p = 0; p < catalog->n_pieces; p++)
        assert_int_equal(catalog->pieces[p].rank / 2,
                         catalog->pieces[p].region.begin / (32 * MIB));
    dcp_catalog_free(catalog);
}

/* What ranks already hold alone counts: replicas go to the others. */
static void what_is_held_counts(void **state)
{
    (void)state;
    struct dcp_catalog *catalog = new_catalog();
    const int64_t shape[] = { 1000 }, small[] = { 900 };

    naive_tensor(catalog, DCP_F32, 1, shape);
    naive_tensor(catalog, DCP_F32, 1, small);
    catalog->world_size = 2;
    for (int i = 0; i < 3; i++) {
        struct dcp_piece piece = { .tensor = i > 0, .rank = i == 2, .file = -1 };
        assert_int_equal(dcp_catalog_add_piece(catalog, &piece, NULL), 0);
    }
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    assert_int_equal(dcp_balance(catalog, NULL), 0);
    assert_int_equal(catalog->n_pieces, 2);
    assert_int_equal(catalog->pieces[1].rank, 1);
    dcp_catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_replicas),
        cmocka_unit_test(even_bytes),
        cmocka_unit_test(flat_replicas),
        cmocka_unit_test(what_is_held_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
