/* Regions against the same thing done element by element. */
#include "core/catalog/region.h"
#include "lib/acts.h"
#include "lib/naive.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 400
#define ROUNDS 4000

/* A tensor on its own, as the functions of regions take it. */
static struct dcp_tensor make(uint64_t *seed, int64_t shape[DCP_MAX_NDIM])
{
    struct dcp_tensor tensor = { .name = "t", .shape = shape };

    tensor.ndim = naive_shape(seed, MOST, shape);
    tensor.n_elems = 1;
    for (int d = 0; d < tensor.ndim; d++)
        tensor.n_elems *= shape[d];
    return tensor;
}

static void elements_and_intervals(void **state)
{
    (void)state;
    uint64_t seed = 1;

    for (int i = 0; i < ROUNDS; i++) {
        int64_t shape[DCP_MAX_NDIM], dims[2][DCP_MAX_NDIM], elems[MOST], begin, end;
        struct dcp_tensor tensor = make(&seed, shape);
        struct dcp_region region = naive_region(&seed, &tensor, dims);
        int64_t n = naive_elems(&tensor, &region, elems);
        assert_int_equal(dcp_region_check(&tensor, &region, NULL), 0);
        assert_int_equal(dcp_region_elems(&tensor, &region), n);
        bool together = !n || elems[n - 1] - elems[0] == n - 1;
        assert_int_equal(dcp_region_interval(&tensor, &region, &begin, &end), together);
        if (together)
            assert_int_equal(end - begin, n);
        if (together && n)
            assert_int_equal(begin, elems[0]);
    }
}

/* From any element on and in runs of any length. */
static void walks(void **state)
{
    (void)state;
    uint64_t seed = 2;

    for (int i = 0; i < ROUNDS; i++) {
        int64_t shape[DCP_MAX_NDIM], dims[2][DCP_MAX_NDIM], elems[MOST];
        struct dcp_tensor tensor = make(&seed, shape);
        struct dcp_region region = naive_region(&seed, &tensor, dims);
        int64_t n = naive_elems(&tensor, &region, elems), flat, at, run;
        int64_t next = acts_pick(&seed, n + 1);
        struct dcp_region_walk walk;
        dcp_region_walk_init(&walk, &tensor, &region, next);
        for (;;) {
            int64_t max = 1 + acts_pick(&seed, MOST);
            if (!dcp_region_walk_next(&walk, max, &flat, &at, &run))
                break;
            assert_int_equal(at, next);
            assert_in_range(run, 1, max);
            assert_true(at + run <= n);
            for (int64_t k = 0; k < run; k++)
                assert_int_equal(elems[at + k], flat + k);
            next += run;
        }
        assert_int_equal(next, n);
        assert_false(dcp_region_walk_next(&walk, 1, &flat, &at, &run));
    }
}

static void flat_ranges_as_boxes(void **state)
{
    (void)state;
    uint64_t seed = 3;

    for (int i = 0; i < ROUNDS; i++) {
        int64_t shape[DCP_MAX_NDIM], elems[MOST];
        struct dcp_tensor tensor = make(&seed, shape);
        int64_t a = acts_pick(&seed, tensor.n_elems + 1);
        int64_t b = acts_pick(&seed, tensor.n_elems + 1), next = a < b ? a : b;
        struct dcp_box boxes[DCP_MAX_FLAT_BOXES];
        int n = dcp_region_flat_boxes(&tensor, next, a < b ? b : a, boxes);
        assert_true(n <= 2 * tensor.ndim - 1 || n <= 1);
        for (int k = 0; k < n; k++) {
            struct dcp_region box = { .kind = DCP_BOX,
                                      .offset = boxes[k].offset,
                                      .size = boxes[k].size };
            assert_int_equal(dcp_region_check(&tensor, &box, NULL), 0);
            int64_t count = naive_elems(&tensor, &box, elems);
            assert_true(count > 0);
            for (int64_t e = 0; e < count; e++)
                assert_int_equal(elems[e], next + e);
            next += count;
        }
        assert_int_equal(next, a < b ? b : a);
    }
}

/* Equal means the same elements; otherwise the first element, then the size decides; and
 * it is an order: antisymmetric and transitive. */
static void order(void **state)
{
    (void)state;
    uint64_t seed = 4;

    for (int i = 0; i < ROUNDS; i++) {
        int64_t shape[DCP_MAX_NDIM], dims[3][2][DCP_MAX_NDIM], elems[3][MOST], n[3];
        struct dcp_tensor tensor = make(&seed, shape);
        struct dcp_region region[3];
        int cmp[3][3];
        for (int k = 0; k < 3; k++) {
            region[k] = naive_region(&seed, &tensor, dims[k]);
            n[k] = naive_elems(&tensor, &region[k], elems[k]);
        }
        for (int x = 0; x < 3; x++)
            for (int y = 0; y < 3; y++) {
                cmp[x][y] = dcp_region_order(&tensor, &region[x], &region[y]);
                if (!n[x] || !n[y])
                    continue;
                bool same = n[x] == n[y] &&
                            !memcmp(elems[x], elems[y], (size_t)n[x] * sizeof **elems);
                assert_int_equal(cmp[x][y] == 0, same);
                if (elems[x][0] != elems[y][0])
                    assert_int_equal(cmp[x][y] < 0, elems[x][0] < elems[y][0]);
                else if (n[x] != n[y])
                    assert_int_equal(cmp[x][y] < 0, n[x] < n[y]);
            }
        for (int x = 0; x < 3; x++)
            for (int y = 0; y < 3; y++) {
                assert_int_equal(cmp[x][y]<0, cmp[y][x]> 0);
                for (int z = 0; z < 3; z++)
                    if (cmp[x][y] <= 0 && cmp[y][z] <= 0)
                        assert_true(cmp[x][z] <= 0);
            }
    }
}

static void outside(void **state)
{
    (void)state;
    static const int64_t shape[] = { 4, 6 };
    const struct dcp_tensor tensor = {
        .name = "a\nb", .ndim = 2, .shape = shape, .n_elems = 24
    };
    const struct {
        struct dcp_region region;
        bool inside;
    } cases[] = {
        { { .kind = DCP_WHOLE }, true },
        { { .kind = DCP_FLAT, .begin = 0, .end = 24 }, true },
        { { .kind = DCP_FLAT, .begin = 24, .end = 24 }, true },
        { { .kind = DCP_FLAT, .begin = 0, .end = 25 }, false },
        { { .kind = DCP_FLAT, .begin = -1, .end = 2 }, false },
        { { .kind = DCP_FLAT, .begin = 3, .end = 2 }, false },
        { { .kind = DCP_FLAT, .begin = INT64_MIN, .end = INT64_MAX }, false },
        { { .kind = DCP_BOX, .offset = (int64_t[]){ 0, 0 }, .size = (int64_t[]){ 4, 6 } },
          true },
        { { .kind = DCP_BOX, .offset = (int64_t[]){ 4, 6 }, .size = (int64_t[]){ 0, 0 } },
          true },
        { { .kind = DCP_BOX, .offset = (int64_t[]){ 1, 0 }, .size = (int64_t[]){ 4, 6 } },
          false },
        { { .kind = DCP_BOX, .offset = (int64_t[]){ 0, 6 }, .size = (int64_t[]){ 4, 1 } },
          false },
        { { .kind = DCP_BOX,
            .offset = (int64_t[]){ INT64_MAX, 0 },
            .size = (int64_t[]){ 1, 6 } },
          false },
        { { .kind = DCP_BOX,
            .offset = (int64_t[]){ 0, 0 },
            .size = (int64_t[]){ 4, INT64_MAX } },
          false },
        { { .kind = DCP_BOX,
            .offset = (int64_t[]){ -1, 0 },
            .size = (int64_t[]){ 1, 1 } },
          false },
        { { .kind = DCP_BOX,
            .offset = (int64_t[]){ 1, 0 },
            .size = (int64_t[]){ -1, 1 } },
          false },
        { { .kind = (enum dcp_region_kind)3 }, false },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dcp_error err = { 0 };
        int rc = dcp_region_check(&tensor, &cases[i].region, &err);
        assert_int_equal(rc, cases[i].inside ? 0 : DCP_E_CORRUPT);
        if (!cases[i].inside) {
            assert_string_equal(err.message,
                                "a piece of tensor 'a\\nb' reaches outside of it");
            assert_string_equal(err.tensor, "a\\nb");
        }
    }
}

static void replicas(void **state)
{
    static const struct {
        int tensor;
        int64_t begin, end;
        bool again;
    } pieces[] = {
        { 0, 0, 3, false }, { 0, 0, 3, true },  { 0, 3, 6, false },
        { 1, 0, 3, false }, { 1, 0, 2, false }, { 1, 2, 6, false },
    };
    const int64_t shape[] = { 6 };
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    (void)state;
    assert_int_equal(dcp_catalog_new(&catalog, &err), 0);
    for (int t = 0; t < 2; t++)
        dcp_catalog_add_tensor(
            catalog,
            &(struct dcp_tensor){
                .name = t ? "a" : "b", .dtype = DCP_U8, .ndim = 1, .shape = shape },
            NULL, &err);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        assert_int_equal(dcp_catalog_add_piece(
                             catalog,
                             &(struct dcp_piece){ .tensor = pieces[i].tensor,
                                                  .rank = (int)i,
                                                  .file = -1,
                                                  .region = { .kind = DCP_FLAT,
                                                              .begin = pieces[i].begin,
                                                              .end = pieces[i].end } },
                             &err),
                         0);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        assert_int_equal(dcp_region_is_replica(catalog, i), pieces[i].again);
    dcp_catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_and_intervals),
        cmocka_unit_test(walks),
        cmocka_unit_test(flat_ranges_as_boxes),
        cmocka_unit_test(order),
        cmocka_unit_test(outside),
        cmocka_unit_test(replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
