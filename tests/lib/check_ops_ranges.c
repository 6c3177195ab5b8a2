/* cmocka wants these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "check_ops_own.h"
#include "trainer/ops/adamw.h"
#include <math.h>
#include <string.h>

/* The kernels on ranges have the same bits in every table. */
static void one_range(enum dcp_dtype dtype, int64_t n, bool stochastic)
{
    size_t size = (size_t)n * dcp_dtype_size(dtype);
    struct array x = array_normal(DCP_F32, n, 1), part = array_normal(dtype, n, 1);
    struct array more = array_normal(dtype, n, 1), state[2][4];
    const struct adamw_params params = { 3e-3, 0.9,  0.95,  1e-8,       0.1, 3,
                                         true, true, 0.75f, stochastic, 77 };
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    struct array out[2], wide[2], rounded[2], weights[2], norm[2];
    const void *parts[] = { part.t, more.t };
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(dtype, n);
        wide[i] = array_poisoned(DCP_F32, n);
        rounded[i] = array_copy(&x);
        weights[i] = array_poisoned(DCP_BF16, n);
        norm[i] = array_constant(DCP_F32, 16, 0);
        for (int k = 0; k < 4; k++)
            state[i][k] = i ? array_copy(&state[0][k]) : array_normal(DCP_F32, n, 1);
    }
    for (int64_t j = 0; j < n; j++)
        state[0][2].f32[j] = state[1][2].f32[j] = fabsf(state[0][2].f32[j]);
    for (int i = 0; i < 2; i++) {
        const struct adamw_range range = {
            .master = state[i][0].f32,
            .m = state[i][1].f32,
            .v = state[i][2].f32,
            .grad = part.t,
            .grad_dtype = dtype,
            .weights = weights[i].t,
            .n = n,
            .first = 12345,
        };
        double *digits = (double *)(void *)(norm[i].f32 + 8);
        ops[i]->sum(ctx[i], dtype, n, x.f32, parts, 2, out[i].t);
        ops[i]->widen(ctx[i], dtype, n, part.t, wide[i].f32);
        ops[i]->round(ctx[i], n, rounded[i].f32);
        ops[i]->norm_peak(ctx[i], dtype, n, part.t, norm[i].f32);
        ops[i]->norm_peak(ctx[i], dtype, n, more.t, norm[i].f32);
        array_sync();
        ops[i]->norm_add(ctx[i], dtype, n, part.t, norm[i].f32[0], digits);
        ops[i]->norm_add(ctx[i], dtype, n, more.t, norm[i].f32[0], digits);
        ops[i]->adamw(ctx[i], &params, &range);
    }
    array_sync();
    assert_memory_equal(out[0].t, out[1].t, size);
    assert_memory_equal(wide[0].f32, wide[1].f32, (size_t)n * 4);
    assert_memory_equal(rounded[0].f32, rounded[1].f32, (size_t)n * 4);
    assert_memory_equal(norm[0].f32, norm[1].f32, 16 * 4);
    assert_memory_equal(weights[0].t, weights[1].t, (size_t)n * 2);
    for (int k = 0; k < 3; k++)
        assert_memory_equal(state[0][k].f32, state[1][k].f32, (size_t)n * 4);
    array_fini(&x), array_fini(&part), array_fini(&more);
    for (int i = 0; i < 2; i++) {
        struct array *all[] = { &out[i],      &wide[i],     &rounded[i],
                                &weights[i],  &norm[i],     &state[i][0],
                                &state[i][1], &state[i][2], &state[i][3] };
        for (size_t k = 0; k < DCP_ARRAY_LEN(all); k++)
            array_fini(all[k]);
    }
}

void check_ops_ranges(void **state)
{
    (void)state;
    EACH_DTYPE(dtype)
    {
        one_range(dtype, 1, false);
        one_range(dtype, 1003, true);
        one_range(dtype, 70001, false);
    }
}

/* Memory of the table: what is put there comes back, what is zeroed is zero. */
void check_ops_memory(void **state)
{
    (void)state;
    enum { N = 100003 };
    const struct ops *ops = both.fast;
    void *ctx = both.fast_ctx, *a, *b;
    char *in = malloc(N), *out = malloc(N);
    assert_true(in && out);
    for (int i = 0; i < N; i++)
        in[i] = (char)(i * 7);
    assert_int_equal(ops->alloc(ctx, N, "a test", &a, NULL), 0);
    assert_int_equal(ops->alloc(ctx, N, "a test", &b, NULL), 0);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal(ops->put(ctx, a, in, N, NULL), 0);
    ops->copy(ctx, b, a, N);
    ops->zero(ctx, a, N);
    ops->copy(ctx, a, (char *)b + 1, N - 1);
    assert_int_equal(ops->get(ctx, out, a, N, NULL), 0);
    assert_memory_equal(out, in + 1, N - 1);
    assert_int_equal(out[N - 1], 0);
    ops->free(ctx, a), ops->free(ctx, b), ops->free(ctx, NULL);
    free(in), free(out);

    struct dcp_error err = { 0 };
    assert_int_equal(ops->alloc(ctx, UINT64_MAX, "too many numbers", &a, &err),
                     DCP_E_MEMORY);
    assert_non_null(strstr(err.message, "too many numbers need"));
    assert_null(a);
}
