/* What all ranks hold becomes what each writes: every element once, by one that has it,
 * and just as a reshard to the same layout would cut it. */
#include "core/catalog/region.h"
#include "core/plan/balance.h"
#include "core/plan/deals.h"
#include "core/plan/holdings.h"
#include "core/plan/small.h"
#include "lib/acts.h"
#include "lib/naive.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/device.h>

enum { N_TENSORS = 9, MAX_WORLD_SIZE = 8, MOST = 900 };

/* The ranks of a state, with what they tell each other. */
struct ranks {
    int world_size;
    struct dcp_catalog *mine[MAX_WORLD_SIZE];
    struct dcp_buf held[MAX_WORLD_SIZE];
    struct dcp_catalog *all; /* their pieces, as one catalog */
};

static struct dcp_catalog *new_catalog(int world_size)
{
    struct dcp_catalog *catalog;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    catalog->world_size = world_size;
    return catalog;
}

/* The part of a tensor that falls to `part` of n, in one of many ways; n 1: all. */
static struct dcp_region cut(const struct dcp_tensor *tensor, int way, int part, int n,
                             int64_t dims[2][DCP_MAX_NDIM])
{
    struct dcp_region region = { .kind = DCP_FLAT,
                                 .begin = tensor->n_elems * part / n,
                                 .end = tensor->n_elems * (part + 1) / n };
    int d = way == 1 ? 0 : tensor->ndim - 1;

    if (way == 0 || tensor->ndim == 0)
        return region;
    memset(dims[0], 0, sizeof dims[0]);
    memcpy(dims[1], tensor->shape, (size_t)tensor->ndim * sizeof dims[1][0]);
    dims[0][d] = tensor->shape[d] * part / n;
    dims[1][d] = tensor->shape[d] * (part + 1) / n - dims[0][d];
    return (struct dcp_region){ .kind = DCP_BOX, .offset = dims[0], .size = dims[1] };
}

static void fill(const struct dcp_tensor *tensor, const struct dcp_region *region,
                 int32_t *out)
{
    int64_t elems[MOST];
    int64_t n = naive_elems(tensor, region, elems);

    for (int64_t k = 0; k < n; k++)
        out[k] = (int32_t)elems[k];
}

static void ranks_make(struct ranks *ranks, uint64_t *seed)
{
    *ranks = (struct ranks){ .world_size = 1 + (int)acts_pick(seed, MAX_WORLD_SIZE) };
    ranks->all = new_catalog(ranks->world_size);
    for (int r = 0; r < ranks->world_size; r++)
        ranks->mine[r] = new_catalog(ranks->world_size);
    for (int t = 0; t < N_TENSORS; t++) {
        int64_t shape[DCP_MAX_NDIM], dims[2][DCP_MAX_NDIM];
        int ndim = naive_shape(seed, MOST, shape), way = (int)acts_pick(seed, 3);
        int n = 1 + (int)acts_pick(seed, ranks->world_size);
        naive_tensor(ranks->all, DCP_I32, ndim, shape);
        for (int r = 0; r < ranks->world_size; r++) {
            struct dcp_catalog *mine = ranks->mine[r];
            naive_tensor(mine, DCP_I32, ndim, shape);
            const struct dcp_tensor *tensor = &mine->tensors[t];
            struct dcp_piece piece = { .tensor = t, .rank = r, .file = -1 };
            piece.region = cut(tensor, way, r % n, n, dims);
            piece.data = dcp_catalog_alloc(mine, MOST, sizeof(int32_t));
            fill(tensor, &piece.region, piece.data);
            assert_int_equal(dcp_catalog_add_piece(mine, &piece, NULL), 0);
            assert_int_equal(dcp_catalog_add_piece(ranks->all, &piece, NULL), 0);
        }
    }
    assert_int_equal(dcp_catalog_sort(ranks->all, NULL), 0);
}

static void ranks_free(struct ranks *ranks)
{
    for (int r = 0; r < ranks->world_size; r++) {
        dcp_catalog_free(ranks->mine[r]);
        dcp_buf_fini(&ranks->held[r]);
    }
    dcp_catalog_free(ranks->all);
}

/* Rank 0's act: a catalog with what is dealt. */
static int make(struct ranks *ranks, struct dcp_catalog **out, struct dcp_error *err)
{
    struct dcp_cursor holdings[MAX_WORLD_SIZE];

    *out = new_catalog(ranks->world_size);
    for (int t = 0; t < N_TENSORS; t++)
        assert_int_equal(
            dcp_catalog_add_tensor(*out, &ranks->all->tensors[t], NULL, NULL), 0);
    for (int r = 0; r < ranks->world_size; r++)
        holdings[r] = dcp_cursor_init(ranks->held[r].data, ranks->held[r].size_bytes);
    return dcp_deals_make(*out, holdings, err);
}

static void pack_all(struct ranks *ranks)
{
    struct dcp_device host;

    dcp_device_host(&host);
    for (int r = 0; r < ranks->world_size; r++)
        assert_int_equal(dcp_holdings_pack(ranks->mine[r], &host, &ranks->held[r], NULL),
                         0);
}

static void check_data(const struct dcp_catalog *catalog, const struct dcp_piece *piece)
{
    const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
    int32_t want[MOST];

    fill(tensor, &piece->region, want);
    if (dcp_piece_bytes(catalog, piece))
        assert_memory_equal(piece->data, want, dcp_piece_bytes(catalog, piece));
}

/* What the ranks take, with the bytes that rank 0 joined. */
static void take_all(struct ranks *ranks, const struct dcp_catalog *deals,
                     struct dcp_catalog *taken)
{
    DCP_CLEANUP_BUF struct dcp_buf told = { 0 };

    dcp_deals_pack(deals, &told);
    for (int r = 0; r < ranks->world_size; r++) {
        struct dcp_cursor in = dcp_cursor_init(told.data, told.size_bytes);
        size_t first = taken->n_pieces;
        assert_int_equal(dcp_deals_take(&in, ranks->mine[r]->pieces, r, taken, NULL), 0);
        assert_int_equal(in.at, in.size_bytes);
        for (size_t p = first; p < taken->n_pieces; p++) {
            struct dcp_piece *piece = &taken->pieces[p];
            const struct dcp_tensor *tensor = &deals->tensors[piece->tensor];
            assert_int_equal(piece->rank, r);
            if (!piece->data && tensor->n_elems) {
                assert_int_equal(r, 0);
                assert_int_equal(tensor->n_pieces, 1);
                piece->data = deals->pieces[tensor->first_piece].data;
            }
            check_data(taken, piece);
        }
    }
    assert_int_equal(dcp_catalog_sort(taken, NULL), 0);
}

static void each_element_once(void **state)
{
    (void)state;
    uint64_t seed = 41;
    size_t n_small = 0, n_replicas = 0;

    for (int i = 0; i < 600; i++) {
        struct ranks ranks;
        struct dcp_catalog *deals, *taken;
        ranks_make(&ranks, &seed);
        pack_all(&ranks);
        assert_int_equal(make(&ranks, &deals, NULL), 0);
        taken = new_catalog(ranks.world_size);
        for (int t = 0; t < N_TENSORS; t++)
            assert_int_equal(
                dcp_catalog_add_tensor(taken, &deals->tensors[t], NULL, NULL), 0);
        take_all(&ranks, deals, taken);
        n_replicas += deals->n_pieces;
        for (size_t p = 0; p < deals->n_pieces; p++)
            n_small += deals->pieces[p].data != NULL;
        /* As a reshard would have it. */
        assert_int_equal(dcp_small_join(ranks.all, NULL), 0);
        assert_int_equal(dcp_balance(ranks.all, NULL), 0);
        assert_int_equal(dcp_catalog_check(taken, NULL), 0);
        assert_int_equal(taken->n_pieces, ranks.all->n_pieces);
        for (size_t p = 0; p < taken->n_pieces; p++) {
            const struct dcp_piece *a = &taken->pieces[p], *b = &ranks.all->pieces[p];
            assert_int_equal(a->tensor, b->tensor);
            assert_int_equal(a->rank, b->rank);
            assert_int_equal(
                dcp_region_order(&taken->tensors[a->tensor], &a->region, &b->region), 0);
        }
        dcp_catalog_free(taken);
        dcp_catalog_free(deals);
        ranks_free(&ranks);
    }
    assert_true(n_small > 100 && n_replicas > n_small + 100);
}

/* Ranks 0 and 1 hold flat ranges of one tensor. */
static int of_two(int64_t first_end, int64_t second_begin, struct dcp_error *err)
{
    const int64_t shape[] = { 500 };
    static int32_t data[500];
    struct ranks ranks = { .world_size = 2, .all = new_catalog(2) };
    struct dcp_catalog *deals = NULL;

    for (int t = 0; t < N_TENSORS; t++)
        naive_tensor(ranks.all, DCP_I32, 1, shape);
    for (int r = 0; r < 2; r++) {
        ranks.mine[r] = new_catalog(2);
        for (int t = 0; t < N_TENSORS; t++) {
            struct dcp_piece piece = { .tensor = t, .rank = r, .file = -1, .data = data };
            naive_tensor(ranks.mine[r], DCP_I32, 1, shape);
            piece.region = (struct dcp_region){ .kind = DCP_FLAT,
                                                .begin = r ? second_begin : 0,
                                                .end = r ? 500 : first_end };
            assert_int_equal(dcp_catalog_add_piece(ranks.mine[r], &piece, NULL), 0);
        }
    }
    pack_all(&ranks);
    int rc = make(&ranks, &deals, err);
    dcp_catalog_free(deals);
    ranks_free(&ranks);
    return rc;
}

static void holes_and_overlaps(void **state)
{
    (void)state;
    struct dcp_error err = { 0 };

    assert_int_equal(of_two(250, 250, &err), 0);
    assert_int_equal(of_two(249, 250, &err), DCP_E_MISMATCH);
    assert_int_equal(err.code, DCP_E_MISMATCH);
    assert_non_null(strstr(err.message, "elements 249..249 are in no piece"));
    err = (struct dcp_error){ 0 };
    assert_int_equal(of_two(251, 250, &err), DCP_E_MISMATCH);
    assert_non_null(strstr(err.message, "elements 250..250 are in two pieces"));
}

/* A byte of a message becomes another one. */
static void disturb(uint64_t *seed, struct dcp_buf *message)
{
    if (message->size_bytes)
        message->data[acts_pick(seed, (int64_t)message->size_bytes)] ^=
            (unsigned char)(1 << acts_pick(seed, 8));
}

/* Messages that are cut off or not what was sent: an error, never more. */
static void corrupt_messages(void **state)
{
    (void)state;
    uint64_t seed = 43;

    for (int i = 0; i < 300; i++) {
        DCP_CLEANUP_BUF struct dcp_buf told = { 0 };
        struct ranks ranks;
        struct dcp_catalog *deals, *bad, *taken;
        ranks_make(&ranks, &seed);
        pack_all(&ranks);
        assert_int_equal(make(&ranks, &deals, NULL), 0);
        dcp_deals_pack(deals, &told);
        int r = (int)acts_pick(&seed, ranks.world_size);
        struct dcp_buf *held = &ranks.held[r];
        if (i % 2)
            held->size_bytes = (size_t)acts_pick(&seed, (int64_t)held->size_bytes);
        else
            disturb(&seed, held);
        int rc = make(&ranks, &bad, NULL);
        assert_true(i % 2 ? rc == DCP_E_CORRUPT || rc == DCP_E_MISMATCH
                          : rc == DCP_E_CORRUPT || rc == DCP_E_MISMATCH || !rc);
        dcp_catalog_free(bad);
        taken = new_catalog(ranks.world_size);
        for (int t = 0; t < N_TENSORS; t++)
            assert_int_equal(
                dcp_catalog_add_tensor(taken, &deals->tensors[t], NULL, NULL), 0);
        disturb(&seed, &told);
        struct dcp_cursor in = dcp_cursor_init(told.data, told.size_bytes);
        rc = dcp_deals_take(&in, ranks.mine[r]->pieces, r, taken, NULL);
        assert_true(!rc || rc == DCP_E_CORRUPT);
        dcp_catalog_free(taken);
        dcp_catalog_free(deals);
        ranks_free(&ranks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_element_once),
        cmocka_unit_test(holes_and_overlaps),
        cmocka_unit_test(corrupt_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
