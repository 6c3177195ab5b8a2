/* cmocka wants these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "check_ops_own.h"
#include "trainer/ops/factor.h"
#include "trainer/ops/norm.h"
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
                                         .stride = 0.02,
                                         .nesterov = n % 2,
                                         .step = 3,
                                         .bias_correction = true,
                                         .decoupled = true,
                                         .grad_scale = 0.75f,
                                         .stochastic = stochastic,
                                         .seed = 77 };
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    struct array out[2], wide[2], weights[2], norm[2];
    const void *parts[] = { part.t, more.t };
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(dtype, n);
        wide[i] = array_poisoned(DCP_F32, n);
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
    assert_memory_equal(norm[0].f32, norm[1].f32, 16 * 4);
    assert_memory_equal(weights[0].t, weights[1].t, (size_t)n * 2);
    for (int k = 0; k < 3; k++)
        assert_memory_equal(state[0][k].f32, state[1][k].f32, (size_t)n * 4);
    array_fini(&x), array_fini(&part), array_fini(&more);
    for (int i = 0; i < 2; i++) {
        struct array *all[] = { &out[i],      &wide[i],     &weights[i],  &norm[i],
                                &state[i][0], &state[i][1], &state[i][2], &state[i][3] };
        for (size_t k = 0; k < DCP_ARRAY_LEN(all); k++)
            array_fini(all[k]);
    }
}

static void one_blend(int64_t n)
{
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    struct array x = array_normal(DCP_F32, n, 1), y = array_normal(DCP_F32, n, 1);
    struct array out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(DCP_F32, n);
        ops[i]->blend(ctx[i], n, 0.3f, x.f32, -1.7f, y.f32, out[i].f32);
        ops[i]->blend(ctx[i], n, 1.1f, x.f32, 0.9f, out[i].f32, out[i].f32);
    }
    array_sync();
    assert_memory_equal(out[0].f32, out[1].f32, (size_t)n * 4);
    double want =
        1.1 * (double)x.f32[0] + 0.9 * (0.3 * (double)x.f32[0] - 1.7 * (double)y.f32[0]);
    assert_true(fabs((double)out[0].f32[0] - want) < 1e-5);
    array_fini(&x), array_fini(&y), array_fini(&out[0]), array_fini(&out[1]);
}

/* Squares of a part of a matrix by rows and columns, and what variances they stand for.
 */
static void one_factor(enum dcp_dtype dtype, int64_t rows, int64_t columns, int64_t first,
                       int64_t n)
{
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    const struct ops_matrix_part part = { columns, first, n };
    struct array x = array_normal(dtype, n, 1), wide = array_poisoned(DCP_F32, n);
    struct array vars = array_constant(DCP_F32, rows + columns, 0), out[2];
    struct factor_sum *sums[2];
    size_t size = (size_t)(rows + columns) * sizeof **sums;
    ops[1]->widen(ctx[1], dtype, n, x.t, wide.f32);
    const struct factor_units units = factor_units(norm_peak(0, wide.f32, n), rows);
    for (int64_t i = 0; i < rows + columns; i++)
        vars.f32[i] = 1 + (float)i / 7;
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(DCP_F32, n);
        sums[i] = array_bytes(rows + columns, sizeof **sums);
        memset(sums[i], 0, size);
        for (int twice = 0; twice < 2; twice++)
            ops[i]->factor_add(ctx[i], dtype, &part, x.t, 0.75f, &units, sums[i],
                               sums[i] + rows);
        ops[i]->factored(ctx[i], &part, vars.f32, vars.f32 + rows, 3, out[i].f32);
    }
    array_sync();
    assert_memory_equal(sums[0], sums[1], size);
    assert_memory_equal(out[0].f32, out[1].f32, (size_t)n * sizeof(float));
    struct factor_sum *want = array_bytes(rows + columns, sizeof *want);
    memset(want, 0, size);
    for (int64_t i = 0; i < n; i++) {
        struct factor_sum one = factor_count(wide.f32[i] * 0.75f, units);
        int64_t at[] = { (first + i) / columns, rows + (first + i) % columns };
        for (int k = 0; k < 2; k++) {
            want[at[k]].high += 2 * one.high;
            want[at[k]].low += 2 * one.low;
        }
    }
    assert_memory_equal(sums[0], want, size);
    array_free(want);
    int64_t last = first + n - 1;
    assert_true(out[0].f32[n - 1] ==
                vars.f32[last / columns] * vars.f32[rows + last % columns] / 3);
    array_fini(&x), array_fini(&wide), array_fini(&vars);
    for (int i = 0; i < 2; i++)
        array_fini(&out[i]), array_free(sums[i]);
}

/* Sums in units: added, merged, and taken back, also in place: from the front, and behind
 * three that were; and made of parts at once. */
static void one_exact(enum dcp_dtype dtype, int64_t n)
{
    enum { N_VALUES = 3000, N_PARTS = 3 };
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    int64_t stride = n + 5, size_f32 = n * 4;
    struct array x = array_normal(dtype, N_PARTS * stride, 1);
    struct array values = array_poisoned(DCP_F32, x.n);
    struct array reference = array_constant(DCP_F32, 1, 3), peaks[2], out[2], wide[2],
                 sum[2];
    int64_t *units[2], *more[2], first = n < OPS_EXACT_IN_PLACE ? n : OPS_EXACT_IN_PLACE,
                                 last = n > 2 * first ? first - 3 : 0;
    char *behind[2]; /* where the last go, of as many as are at the front */
    size_t item = dcp_dtype_size(dtype), size = (size_t)n * item;
    const float odd[] = { NAN, INFINITY, 30000 };
    ops[1]->widen(ctx[1], dtype, x.n, x.t, values.f32);
    for (int k = 0; k < 3; k++) /* of the second part; none has a place */
        values.f32[stride + (k == 0 ? 0 : k == 1 ? n / 2 : n - 1)] = odd[k];
    ops[1]->cast(ctx[1], dtype, x.n, values.f32, x.t);
    ops[1]->widen(ctx[1], dtype, x.n, x.t, values.f32);
    for (int i = 0; i < 2; i++) {
        struct ops_exact of = { .dtype = dtype,
                                .n_parts = N_PARTS,
                                .stride = stride,
                                .n_values = N_VALUES,
                                .reference = reference.f32 },
                         one = of;
        one.n_parts = 1;
        units[i] = array_bytes(n, sizeof **units);
        more[i] = array_bytes(n, sizeof **more);
        out[i] = array_poisoned(dtype, n);
        sum[i] = array_poisoned(dtype, n);
        wide[i] = array_poisoned(DCP_F32, n);
        peaks[i] = array_constant(DCP_F32, 3, 0.25f);
        of.peak = peaks[i].f32;
        one.peak = peaks[i].f32 + 1;
        ops[i]->exact_sum(ctx[i], &of, n, x.t, dtype, sum[i].t);
        ops[i]->exact_sum(ctx[i], &of, n, x.t, DCP_F32, wide[i].t);
        ops[i]->exact_add(ctx[i], &one, n, x.t, false, units[i]);
        one.n_parts = 0, one.peak++;
        ops[i]->exact_add(ctx[i], &one, n, NULL, false, more[i]);
        ops[i]->exact_add(ctx[i], &one, n, NULL, true, units[i]);
        of.n_parts = N_PARTS - 1;
        ops[i]->exact_add(ctx[i], &of, n, (const char *)x.t + (size_t)stride * item, true,
                          more[i]);
        ops[i]->exact_merge(ctx[i], n, more[i], units[i]);
        ops[i]->exact_get(ctx[i], dtype, n, units[i], reference.f32, N_VALUES, out[i].t);
        ops[i]->exact_get(ctx[i], dtype, first, units[i], reference.f32, N_VALUES,
                          units[i]);
        behind[i] = (char *)(units[i] + n - first) + (size_t)(first - last) * item;
        ops[i]->exact_get(ctx[i], dtype, last, units[i] + n - last, reference.f32,
                          N_VALUES, behind[i]);
    }
    array_sync();
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(sum[i].t, out[0].t, size);
        assert_memory_equal(out[i].t, out[0].t, size);
        assert_memory_equal(units[i], out[i].t, (size_t)first * item);
        assert_memory_equal(behind[i], (char *)out[i].t + (size_t)(n - last) * item,
                            (size_t)last * item);
    }
    assert_memory_equal(more[0], more[1], (size_t)n * sizeof **more);
    assert_memory_equal(wide[0].t, wide[1].t, (size_t)size_f32);
    assert_memory_equal(peaks[0].f32, peaks[1].f32, 3 * sizeof(float));
    float want_peaks[] = { 0.25f, norm_peak(0.25f, values.f32, n), 0.25f };
    for (int p = 0; p < N_PARTS; p++)
        want_peaks[0] = norm_peak(want_peaks[0], values.f32 + p * stride, n);
    assert_memory_equal(peaks[0].f32, want_peaks, sizeof want_peaks);
    for (int64_t i = 0; i < n; i++) {
        double want = 0;
        for (int p = 0; p < N_PARTS; p++) {
            double value = (double)values.f32[p * stride + i];
            want += p == 1 && !(fabs(value) < 1000) ? 0 : value;
        }
        double rounded = fabs(want) * 0x1p-24;
        /* Units of 2^-40, three values of which each is off by half of one. */
        assert_true(fabs((double)wide[0].f32[i] - want) <= rounded + 0x1p-39);
    }
    struct array *all[] = { &x, &values, &reference };
    for (size_t k = 0; k < DCP_ARRAY_LEN(all); k++)
        array_fini(all[k]);
    for (int i = 0; i < 2; i++) {
        array_fini(&out[i]), array_fini(&sum[i]), array_fini(&wide[i]);
        array_fini(&peaks[i]);
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
    struct array cast[2], wide[2];
    for (uint32_t i = 0; i < N; i++) {
        ((uint16_t *)all.t)[i] = (uint16_t)i;
        for (uint32_t k = 0; k < KINDS; k++) {
            uint32_t bits = i << 16 | lower[k];
            memcpy(&x.f32[i * KINDS + k], &bits, sizeof bits);
        }
    }
    for (int i = 0; i < 2; i++) {
        cast[i] = array_poisoned(dtype, x.n);
        wide[i] = array_poisoned(DCP_F32, N);
        ops[i]->cast(ctx[i], dtype, x.n, x.f32, cast[i].t);
        ops[i]->widen(ctx[i], dtype, N, all.t, wide[i].f32);
    }
    array_sync();
    assert_memory_equal(cast[0].t, cast[1].t, (size_t)x.n * 2);
    assert_memory_equal(wide[0].f32, wide[1].f32, N * 4);
    array_fini(&x), array_fini(&all);
    for (int i = 0; i < 2; i++)
        array_fini(&cast[i]), array_fini(&wide[i]);
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
        for (int type = 0; type < OPTIM_FACTORED; type++)
            one_range((enum optim_type)type, dtype, DCP_BF16, 1003, type % 2);
        one_range(OPTIM_ALONG, dtype, DCP_BF16, 1003, true);
        one_range(OPTIM_ADAFACTOR_DIRECTION, dtype, DCP_BF16, 1003, true);
        one_factor(dtype, 300, 70, 0, 21000);
        one_factor(dtype, 5, 600, 777, 1);
        one_factor(dtype, 150, 301, 299, 40000);
        one_exact(dtype, 1);
        one_exact(dtype, 70001);
    }
    EACH_16BIT_DTYPE(dtype)
    every_number(dtype);
    one_blend(1);
    one_blend(600001);
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
