/* The planner against element-by-element maps: any cut of a tensor into any other, with
 * strides, replicas, mixed kinds of regions, and pieces that are missing. */
#include "core/catalog/region.h"
#include "core/plan/plan.h"
#include "lib/acts.h"
#include "lib/naive.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/reshard.h>

#define MOST 300
#define ROUNDS 3000
#define NOTHING (-1)

static struct dcp_catalog *new_catalog(void)
{
    struct dcp_catalog *catalog;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    return catalog;
}

/* Which element lies at every place of a piece's memory; *out_n places. */
static int64_t *memory_of(const struct dcp_tensor *tensor, const struct dcp_piece *piece,
                          int64_t *out_n)
{
    int64_t elems[MOST], n = naive_elems(tensor, &piece->region, elems), span = n;

    for (int64_t k = 0; k < n; k++) {
        int64_t place = naive_place(tensor, piece, elems[k], k);
        span = place + 1 > span ? place + 1 : span;
    }
    int64_t *memory = malloc((size_t)(span + 1) * sizeof *memory);
    assert_non_null(memory);
    for (int64_t i = 0; i < span; i++)
        memory[i] = NOTHING;
    for (int64_t k = 0; k < n; k++)
        memory[naive_place(tensor, piece, elems[k], k)] = elems[k];
    *out_n = span;
    return memory;
}

/* Carries out the copies of one target piece; each element must come once, in order. */
static void run_piece(const struct dcp_plan *plan, const struct dcp_catalog *src,
                      const struct dcp_catalog *dst, size_t p)
{
    const struct dcp_tensor *tensor = &dst->tensors[dst->pieces[p].tensor];
    int64_t want[MOST], got[MOST], n, previous = -1;

    n = naive_elems(tensor, &dst->pieces[p].region, want);
    for (int64_t k = 0; k < n; k++)
        got[k] = NOTHING;
    for (size_t c = plan->first[p]; c < plan->first[p + 1]; c++) {
        const struct dcp_copy *copy = &plan->copies[c];
        int64_t runs = dcp_copy_runs(copy), last = -1, span;
        assert_int_equal(copy->dst, p);
        assert_true(copy->n > 0 && copy->dst_at >= previous);
        previous = copy->dst_at;
        assert_string_equal(src->tensors[src->pieces[copy->src].tensor].name,
                            tensor->name);
        int64_t *memory = memory_of(&src->tensors[src->pieces[copy->src].tensor],
                                    &src->pieces[copy->src], &span);
        for (int64_t r = 0; r < runs; r++) {
            int64_t from, to;
            dcp_copy_run(copy, r, &from, &to);
            if (r == 0) {
                assert_int_equal(from, copy->src_at);
                assert_int_equal(to, copy->dst_at);
            }
            assert_true(to > last);
            assert_true(from >= 0 && from + copy->n <= span);
            assert_true(to + copy->n <= n);
            for (int64_t i = 0; i < copy->n; i++) {
                assert_int_equal(got[to + i], NOTHING);
                got[to + i] = memory[from + i];
                assert_int_equal(dcp_copy_seek(copy, to + i), r);
            }
            last = to + copy->n - 1;
        }
        assert_int_equal(dcp_copy_seek(copy, last + 1), runs);
        free(memory);
    }
    for (int64_t k = 0; k < n; k++)
        assert_int_equal(got[k], want[k]);
}

static void run_plan(const struct dcp_plan *plan, const struct dcp_catalog *src,
                     const struct dcp_catalog *dst)
{
    uint64_t runs = 0;

    assert_int_equal(plan->first[0], 0);
    assert_int_equal(plan->first[dst->n_pieces], plan->n_copies);
    for (size_t p = 0; p < dst->n_pieces; p++)
        run_piece(plan, src, dst, p);
    for (size_t c = 0; c < plan->n_copies; c++)
        runs += (uint64_t)dcp_copy_runs(&plan->copies[c]);
    assert_int_equal(plan->n_runs, runs);
}

/* Gives some whole or box pieces an unusual order in memory, as a view of torch has. */
static void add_strides(uint64_t *seed, struct dcp_catalog *catalog)
{
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        struct dcp_piece *piece = &catalog->pieces[p];
        const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
        int64_t *stride = dcp_catalog_alloc(catalog, DCP_MAX_NDIM, sizeof *stride);
        if (piece->region.kind == DCP_FLAT || acts_pick(seed, 3))
            continue;
        naive_strides(seed, tensor->ndim,
                      piece->region.kind == DCP_BOX ? piece->region.size : tensor->shape,
                      stride);
        piece->stride = stride;
    }
}

static void any_cut_to_any_cut(void **state)
{
    (void)state;
    uint64_t seed = 5;

    for (int i = 0; i < ROUNDS; i++) {
        struct dcp_catalog *src = new_catalog(), *dst = new_catalog();
        struct dcp_plan *plan;
        struct dcp_error err = { 0 };
        bool strides = i % 3 == 0;
        for (int t = 0; t < 2; t++) {
            int64_t shape[DCP_MAX_NDIM];
            int ndim = naive_shape(&seed, MOST, shape);
            naive_tensor(src, DCP_F32, ndim, shape);
            naive_tensor(dst, DCP_F32, ndim, shape);
            naive_cut(&seed, src, t, (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS), 4,
                      !strides);
            naive_cut(&seed, dst, t, (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS), 4,
                      true);
        }
        if (strides)
            add_strides(&seed, src);
        assert_int_equal(dcp_catalog_sort(src, NULL), 0);
        assert_int_equal(dcp_catalog_sort(dst, NULL), 0);
        assert_int_equal(dcp_catalog_check(src, &err), 0);
        int rc = dcp_plan_new(src, dst, NULL, &plan, &err);
        assert_string_equal(err.message, "");
        assert_int_equal(rc, 0);
        run_plan(plan, src, dst);
        dcp_plan_free(plan);
        dcp_catalog_free(src);
        dcp_catalog_free(dst);
    }
}

/* A target of arbitrary regions, which overlap, as the ranks of a load may want them. */
static void any_cut_to_anything(void **state)
{
    (void)state;
    uint64_t seed = 6;

    for (int i = 0; i < ROUNDS; i++) {
        struct dcp_catalog *src = new_catalog(), *dst = new_catalog();
        int64_t shape[DCP_MAX_NDIM], dims[2][DCP_MAX_NDIM];
        int ndim = naive_shape(&seed, MOST, shape);
        struct dcp_plan *plan;
        naive_tensor(src, DCP_F32, ndim, shape);
        naive_tensor(dst, DCP_F32, ndim, shape);
        naive_cut(&seed, src, 0, (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS), 4, true);
        for (int p = 0; p < 4; p++) {
            struct dcp_piece piece = { .rank = p, .file = -1 };
            piece.region = naive_region(&seed, &dst->tensors[0], dims);
            assert_int_equal(dcp_catalog_add_piece(dst, &piece, NULL), 0);
        }
        assert_int_equal(dcp_catalog_sort(src, NULL), 0);
        assert_int_equal(dcp_catalog_sort(dst, NULL), 0);
        assert_int_equal(dcp_plan_new(src, dst, NULL, &plan, NULL), 0);
        run_plan(plan, src, dst);
        dcp_plan_free(plan);
        dcp_catalog_free(src);
        dcp_catalog_free(dst);
    }
}

/* Leaves out a piece of the source: the plan names the first element that is missing in
 * the first target piece that wants one. */
static void holes_are_named(void **state)
{
    (void)state;
    uint64_t seed = 7;
    int holes = 0;

    for (int i = 0; i < ROUNDS; i++) {
        struct dcp_catalog *src = new_catalog(), *dst = new_catalog(), *left;
        int64_t shape[DCP_MAX_NDIM], elems[MOST], want = NOTHING;
        bool held[MOST] = { false };
        int ndim = naive_shape(&seed, MOST, shape);
        struct dcp_plan *plan;
        struct dcp_error err = { 0 };
        naive_tensor(src, DCP_F32, ndim, shape);
        naive_tensor(dst, DCP_F32, ndim, shape);
        naive_cut(&seed, src, 0, (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS), 4,
                  false);
        naive_cut(&seed, dst, 0, (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS), 4, true);
        left = new_catalog();
        naive_tensor(left, DCP_F32, ndim, shape);
        size_t gone = (size_t)acts_pick(&seed, (int64_t)src->n_pieces);
        for (size_t p = 0; p < src->n_pieces; p++)
            if (p != gone) {
                int64_t n = naive_elems(&src->tensors[0], &src->pieces[p].region, elems);
                assert_int_equal(dcp_catalog_add_piece(left, &src->pieces[p], NULL), 0);
                for (int64_t k = 0; k < n; k++)
                    held[elems[k]] = true;
            }
        assert_int_equal(dcp_catalog_sort(left, NULL), 0);
        assert_int_equal(dcp_catalog_sort(dst, NULL), 0);
        for (size_t p = 0; p < dst->n_pieces && want == NOTHING; p++) {
            int64_t n = naive_elems(&dst->tensors[0], &dst->pieces[p].region, elems);
            for (int64_t k = 0; k < n && want == NOTHING; k++)
                want = held[elems[k]] ? NOTHING : elems[k];
        }
        int rc = dcp_plan_new(left, dst, NULL, &plan, &err);
        if (want == NOTHING) {
            assert_int_equal(rc, 0);
            dcp_plan_free(plan);
        } else {
            char message[80];
            holes++;
            snprintf(message, sizeof message, "tensor 'tensor.0': element %" PRId64 " is",
                     want);
            assert_int_equal(rc, DCP_E_CORRUPT);
            assert_memory_equal(err.message, message, strlen(message));
            assert_string_equal(err.tensor, "tensor.0");
            assert_null(plan);
        }
        dcp_catalog_free(src);
        dcp_catalog_free(left);
        dcp_catalog_free(dst);
    }
    assert_true(holes > ROUNDS / 2);
}

/* Sources that overlap are no catalog that a check lets through, yet a plan of them must
 * hold, too: nothing twice, nothing outside. */
static void overlapping_sources(void **state)
{
    (void)state;
    uint64_t seed = 8;

    for (int i = 0; i < ROUNDS; i++) {
        struct dcp_catalog *src = new_catalog(), *dst = new_catalog();
        int64_t shape[] = { 1 + acts_pick(&seed, 40) };
        struct dcp_plan *plan;
        naive_tensor(src, DCP_F32, 1, shape);
        naive_tensor(dst, DCP_F32, 1, shape);
        for (int p = 0; p < 6; p++) {
            int64_t begin = acts_pick(&seed, shape[0]);
            struct dcp_region region = { .kind = DCP_FLAT,
                                         .begin = begin,
                                         .end = begin +
                                                acts_pick(&seed, shape[0] - begin + 1) };
            struct dcp_piece piece = { .region = region, .file = -1 };
            assert_int_equal(dcp_catalog_add_piece(src, &piece, NULL), 0);
        }
        naive_cut(&seed, dst, 0, NAIVE_FLAT, 2, false);
        assert_int_equal(dcp_catalog_sort(src, NULL), 0);
        assert_int_equal(dcp_catalog_sort(dst, NULL), 0);
        if (!dcp_plan_new(src, dst, NULL, &plan, NULL)) {
            run_plan(plan, src, dst);
            dcp_plan_free(plan);
        }
        dcp_catalog_free(src);
        dcp_catalog_free(dst);
    }
}

static void tensors_that_do_not_fit(void **state)
{
    (void)state;
    struct dcp_catalog *src = new_catalog(), *dst = new_catalog();
    const int64_t shape[] = { 3, 4 }, other[] = { 4, 3 };
    const int map[] = { 1, -1 };
    struct dcp_plan *plan;
    struct dcp_error err = { 0 };
    uint64_t seed = 9;

    naive_tensor(src, DCP_F32, 2, other);
    naive_tensor(src, DCP_F32, 2, shape);
    naive_tensor(dst, DCP_F32, 2, shape);
    naive_tensor(dst, DCP_F32, 2, shape);
    for (int t = 0; t < 2; t++) {
        naive_cut(&seed, src, t, NAIVE_BOXES, 2, false);
        naive_cut(&seed, dst, t, NAIVE_BOXES, 2, false);
    }
    dcp_catalog_sort(src, NULL);
    dcp_catalog_sort(dst, NULL);
    assert_int_equal(dcp_plan_new(src, dst, NULL, &plan, &err), DCP_E_MISMATCH);
    assert_string_equal(err.message,
                        "tensor 'tensor.0' has another shape in the checkpoint");
    err = (struct dcp_error){ 0 };
    /* Tensor 0 from tensor 1 of the source; tensor 1 from nowhere, though it is wanted.
     */
    assert_int_equal(dcp_plan_new(src, dst, map, &plan, &err), DCP_E_MISMATCH);
    assert_string_equal(err.message, "tensor 'tensor.1' is not in the checkpoint");
    dcp_catalog_free(src);
    dcp_catalog_free(dst);
}

/* 1,024 ranks to 768 ranks, 100 tensors: the plan of a large job stays quick and small.
 */
static void many_ranks(void **state)
{
    (void)state;
    struct dcp_catalog *src = new_catalog(), *dst = new_catalog();
    const int64_t shape[] = { 5000, 1024 };
    struct dcp_plan *plan;

    for (int t = 0; t < 100; t++) {
        naive_tensor(src, DCP_F32, 2, shape);
        naive_tensor(dst, DCP_F32, 2, shape);
    }
    assert_int_equal(dcp_layout_apply(src, "zero3", 1024, NULL), 0);
    assert_int_equal(dcp_layout_apply(dst, "dim0", 768, NULL), 0);
    assert_int_equal(dcp_plan_new(src, dst, NULL, &plan, NULL), 0);
    assert_true(plan->n_copies <= src->n_pieces + dst->n_pieces);
    int64_t elems = 0;
    for (size_t c = 0; c < plan->n_copies; c++)
        elems += plan->copies[c].n;
    assert_int_equal(elems, 100 * shape[0] * shape[1]);
    dcp_plan_free(plan);
    dcp_catalog_free(src);
    dcp_catalog_free(dst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_to_any_cut),      cmocka_unit_test(any_cut_to_anything),
        cmocka_unit_test(holes_are_named),         cmocka_unit_test(overlapping_sources),
        cmocka_unit_test(tensors_that_do_not_fit), cmocka_unit_test(many_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
