/* cmocka wants these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "check_ops_own.h"
#include "trainer/ops/optim.h"
#include <math.h>
#include <string.h>

/* The kernels on ranges have the same bits in every table. */
static void one_range(enum optim_type type, enum dcp_dtype dtype,
                      enum dcp_dtype weight_dtype, int64_t n, bool stochastic)
{
    size_t size = (size_t)n * dcp_dtype_size(dtype);
    struct array x = array_normal(DCP_F32, n, 1), part = array_normal(dtype, n, 1);
    struct array more = array_normal(dtype, n, 1), state[2][4];
    const struct optim_params params = { .type = type,
                                         .lr = 3e-3,
                                         .weight_decay = 0.1,
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .eps = 1e-8,
                                         .momentum = 0.9,
                                         .dampening = 0.1,
                                         .lr_decay = 0.01,
                                         .nesterov = n % 2,
                                         .step = 3,
                                         .bias_correction = true,
                                         .decoupled = true,
                                         .grad_scale = 0.75f,
                                         .stochastic = stochastic,
                                         .seed = 77 };
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    struct array out[2], wide[2], rounded[2], weights[2], norm[2];
    const void *parts[] = { part.t, more.t };
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(dtype, n);
        wide[i] = array_poisoned(DCP_F32, n);
        rounded[i] = array_copy(&x);
        weights[i] = array_poisoned(weight_dtype, n);
        norm[i] = array_constant(DCP_F32, 16, 0);
        for (int k = 0; k < 4; k++)
            state[i][k] = i ? array_copy(&state[0][k]) : array_normal(DCP_F32, n, 1);
    }
    for (int64_t j = 0; j < n; j++)
        state[0][2].f32[j] = state[1][2].f32[j] = fabsf(state[0][2].f32[j]);
    for (int i = 0; i < 2; i++) {
        const struct optim_range range = {
            .master = state[i][0].f32,
            .state = { state[i][1].f32, state[i][2].f32 },
            .grad = part.t,
            .grad_dtype = dtype,
            .weights = weights[i].t,
            .weight_dtype = weight_dtype,
            .n = n,
            .first = 12345,
        };
        double *digits = (double *)(void *)(norm[i].f32 + 8);
        ops[i]->sum(ctx[i], dtype, n, x.f32, parts, 2, out[i].t);
        ops[i]->widen(ctx[i], dtype, n, part.t, wide[i].f32);
        ops[i]->round(ctx[i], weight_dtype, n, rounded[i].f32);
        ops[i]->norm_peak(ctx[i], dtype, n, part.t, norm[i].f32);
        ops[i]->norm_peak(ctx[i], dtype, n, more.t, norm[i].f32);
        array_sync();
        ops[i]->norm_add(ctx[i], dtype, n, part.t, norm[i].f32[0], digits);
        ops[i]->norm_add(ctx[i], dtype, n, more.t, norm[i].f32[0], digits);
        ops[i]->optim(ctx[i], &params, &range);
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

/* Sums in units: added, merged, and taken back, also in place from the front. */
static void one_exact(enum dcp_dtype dtype, int64_t n)
{
    enum { N_VALUES = 3000 };
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    struct array x = array_normal(DCP_F32, n, 1), odd = array_normal(DCP_F32, n, 1e-7f);
    struct array peak = array_constant(DCP_F32, 1, 3), out[2];
    int64_t *units[2], *more[2], first = n < OPS_EXACT_IN_PLACE ? n : OPS_EXACT_IN_PLACE;
    size_t size = (size_t)n * dcp_dtype_size(dtype);
    odd.f32[0] = NAN, odd.f32[n / 2] = INFINITY, odd.f32[n - 1] = 1e30f;
    for (int i = 0; i < 2; i++) {
        units[i] = array_bytes(n, sizeof **units);
        more[i] = array_bytes(n, sizeof **more);
        out[i] = array_poisoned(dtype, n);
        ops[i]->exact_add(ctx[i], n, x.f32, peak.f32, N_VALUES, false, units[i]);
        ops[i]->exact_add(ctx[i], n, odd.f32, peak.f32, N_VALUES, true, units[i]);
        ops[i]->exact_add(ctx[i], n, x.f32, peak.f32, N_VALUES, false, more[i]);
        ops[i]->exact_merge(ctx[i], n, more[i], units[i]);
        ops[i]->exact_get(ctx[i], dtype, n, units[i], peak.f32, N_VALUES, out[i].t);
        ops[i]->exact_get(ctx[i], dtype, first, units[i], peak.f32, N_VALUES, units[i]);
    }
    array_sync();
    assert_memory_equal(out[0].t, out[1].t, size);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(units[i], out[i].t, (size_t)first * dcp_dtype_size(dtype));
    assert_memory_equal(more[0], more[1], (size_t)n * sizeof **more);
    struct array want = array_poisoned(DCP_F32, n);
    ops[1]->widen(ctx[1], dtype, n, out[1].t, want.f32);
    for (int64_t i = 0; i < n; i++) {
        bool counts = i && i != n / 2 && i != n - 1;
        double sum = 2 * (double)x.f32[i] + (counts ? (double)odd.f32[i] : 0);
        double rounded = fabs(sum) * (dtype == DCP_F32 ? 0x1p-24 : 0x1p-8);
        double least = dtype == DCP_F16 ? 0x1p-25 : 0; /* half of a subnormal */
        /* Units of 2^-40, three values of which each is off by half of one. */
        assert_true(fabs((double)want.f32[i] - sum) <= rounded + least + 0x1p-39);
    }
    array_fini(&x), array_fini(&odd), array_fini(&peak), array_fini(&want);
    for (int i = 0; i < 2; i++) {
        array_fini(&out[i]);
        array_free(units[i]), array_free(more[i]);
    }
}

/* Casts of numbers of every kind, infinity and NaN among them, and back. */
static void every_number(enum dcp_dtype dtype)
{
    enum { N = 1 << 16, KINDS = 6 };
    static const uint32_t lower[KINDS] = { 0, 1, 0x0fff, 0x1000, 0x8000, 0xffff };
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    struct array x = array_poisoned(DCP_F32, N * KINDS), all = array_poisoned(dtype, N);
    struct array cast[2], rounded[2], wide[2];
    for (uint32_t i = 0; i < N; i++) {
        ((uint16_t *)all.t)[i] = (uint16_t)i;
        for (uint32_t k = 0; k < KINDS; k++) {
            uint32_t bits = i << 16 | lower[k];
            memcpy(&x.f32[i * KINDS + k], &bits, sizeof bits);
        }
    }
    for (int i = 0; i < 2; i++) {
        cast[i] = array_poisoned(dtype, x.n);
        rounded[i] = array_copy(&x);
        wide[i] = array_poisoned(DCP_F32, N);
        ops[i]->cast(ctx[i], dtype, x.n, x.f32, cast[i].t);
        ops[i]->round(ctx[i], dtype, x.n, rounded[i].f32);
        ops[i]->widen(ctx[i], dtype, N, all.t, wide[i].f32);
    }
    array_sync();
    assert_memory_equal(cast[0].t, cast[1].t, (size_t)x.n * 2);
    assert_memory_equal(rounded[0].f32, rounded[1].f32, (size_t)x.n * 4);
    assert_memory_equal(wide[0].f32, wide[1].f32, N * 4);
    array_fini(&x), array_fini(&all);
    for (int i = 0; i < 2; i++)
        array_fini(&cast[i]), array_fini(&rounded[i]), array_fini(&wide[i]);
}

void check_ops_ranges(void **state)
{
    (void)state;
    EACH_DTYPE(dtype)
    {
        one_range(OPTIM_ADAM, dtype, DCP_BF16, 1, false);
        one_range(OPTIM_ADAM, dtype, DCP_BF16, 1003, true);
        one_range(OPTIM_ADAM, dtype, DCP_BF16, 70001, false);
        one_range(OPTIM_ADAM, dtype, DCP_F16, 70001, false);
        for (int type = 0; type < OPTIM_N_TYPES; type++)
            one_range((enum optim_type)type, dtype, DCP_BF16, 1003, type % 2);
        one_exact(dtype, 1);
        one_exact(dtype, 70001);
    }
    EACH_16BIT_DTYPE(dtype)
    every_number(dtype);
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
