/* cmocka wants these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "check_ops_own.h"
#include "trainer/ops/quant.h"
#include <math.h>
#include <string.h>

/* As its comment in quant.h reads: a block's step, and its numbers in steps. */
static float plain_block(const float *x, int64_t n, enum dcp_dtype as, int top,
                         int *numbers)
{
    float peak = 0, step;
    bool odd = false;
    for (int64_t i = 0; i < n; i++) {
        odd |= isnan(x[i]);
        peak = fmaxf(peak, fabsf(x[i]));
    }
    if (odd)
        peak = NAN;
    if (as != DCP_F32) {
        uint16_t half;
        ops_to_16bit(as, &peak, &half, 1);
        ops_from_16bit(as, &half, &peak, 1);
    }
    step = peak / (float)top;
    for (int i = 0; i < QUANT_BLOCK; i++) {
        double steps = i >= n || step == 0 ? 0 : nearbyint((double)(x[i] / step));
        numbers[i] = isfinite(step) ? (int)fmax(fmin(steps, top), -top) : 1;
    }
    return step;
}

/* Whether blocks are what a plain hand makes of x, and close to it. */
static void check_blocks(const struct array *x, enum dcp_dtype as, int bits,
                         const void *blocks, const float *back)
{
    int top = bits == 8 ? 127 : 7, numbers[QUANT_BLOCK];
    for (int64_t at = 0, b = 0; at < x->n; at += QUANT_BLOCK, b++) {
        const struct quant8 *q8 = (const struct quant8 *)blocks + b;
        const struct quant4 *q4 = (const struct quant4 *)blocks + b;
        int64_t n = x->n - at < QUANT_BLOCK ? x->n - at : QUANT_BLOCK;
        float want = plain_block(x->f32 + at, n, as, top, numbers);
        float step = bits == 8 ? q8->step : q4->step;
        assert_true(isnan(want) ? isnan(step) : step == want);
        for (int i = 0; i < QUANT_BLOCK; i++) {
            int half = i % (QUANT_BLOCK / 2),
                pair = i < QUANT_BLOCK / 2 ? q4->pairs[half] & 15 : q4->pairs[half] >> 4;
            assert_int_equal(bits == 8 ? q8->numbers[i] : pair - 8, numbers[i]);
            if (i >= n)
                continue;
            float value = back[at + i], off = fabsf(value - x->f32[at + i]);
            assert_true(isnan(step) ? isnan(value) : value == (float)numbers[i] * step);
            if (isfinite(step) && as == x->dtype)
                assert_true(off <= step * 0.50002f + 0x1p-146f);
        }
    }
}

/* There and back in both tables. */
static void one_quant(struct array *x, enum dcp_dtype as, int bits)
{
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx }, *blocks[2];
    size_t n_blocks = (size_t)(x->n + QUANT_BLOCK - 1) / QUANT_BLOCK,
           size = bits == 8 ? sizeof(struct quant8) : sizeof(struct quant4);
    struct array back[2], wide[2];
    for (int i = 0; i < 2; i++) {
        blocks[i] = array_bytes((int64_t)n_blocks, size);
        back[i] = array_poisoned(x->dtype, x->n);
        wide[i] = array_poisoned(DCP_F32, x->n);
        ops[i]->quantize(ctx[i], bits, x->dtype, x->n, x->t, as, blocks[i]);
        ops[i]->dequantize(ctx[i], bits, x->dtype, x->n, blocks[i], back[i].t);
        ops[i]->dequantize(ctx[i], bits, DCP_F32, x->n, blocks[i], wide[i].t);
    }
    array_sync();
    assert_memory_equal(blocks[0], blocks[1], n_blocks * size);
    check_blocks(x, as, bits, blocks[0], wide[0].f32);
    check_blocks(x, as, bits, blocks[1], wide[1].f32);
    ops[1]->cast(ctx[1], x->dtype, x->n, wide[1].f32, wide[0].t);
    for (int i = 0; i < 2; i++)
        array_widen(&back[i]);
    for (int64_t j = 0; j < x->n; j++) {
        float a = back[0].f32[j], b = back[1].f32[j];
        assert_true(a == b || (isnan(a) && isnan(b)));
    }
    for (int i = 0; i < 2; i++)
        array_fini(&back[i]), array_fini(&wide[i]), array_free(blocks[i]);
}

/* Blocks as they come, and one of each odd kind. */
static void every_block(enum dcp_dtype dtype)
{
    static const int64_t sizes[] = { 1, 127, 128, 129, 1000, 300001 };
    static const float odd[] = { NAN,  INFINITY, -INFINITY, 0x1p-149f, 0x1.8p-147f, 2.5f,
                                 7e4f, 3e-8f,    8.8e-8f,   3.4e38f,   0,           1 };
    enum { N_ODD = sizeof odd / sizeof *odd };
    for (size_t k = 0; k < DCP_ARRAY_LEN(sizes); k++) {
        struct array x = array_normal(dtype, sizes[k], 0.02);
        one_quant(&x, dtype, 8);
        one_quant(&x, dtype, 4);
        array_fini(&x);
    }
    struct array x = array_normal(dtype, N_ODD * QUANT_BLOCK, 0.02);
    for (int k = 0; k < N_ODD; k++) {
        if (fabsf(odd[k]) < 0.01f) /* all of it is as small */
            for (int i = 0; i < QUANT_BLOCK; i++)
                array_set(&x, k * QUANT_BLOCK + i, odd[k] * (float)(i % 4 - 2) / 2);
        array_set(&x, k * QUANT_BLOCK + 77, odd[k]);
    }
    EACH_DTYPE(as)
    {
        one_quant(&x, as, 8);
        one_quant(&x, as, 4);
    }
    array_fini(&x);
}

/* A sum of quantized parts is that of their numbers. */
static void one_sum(enum dcp_dtype dtype, int64_t n)
{
    enum { N_PARTS = 3 };
    const struct ops *ops = both.fast;
    int64_t stride = (n + QUANT_BLOCK - 1) / QUANT_BLOCK * QUANT_BLOCK;
    struct array x = array_normal(DCP_F32, N_PARTS * stride, 1);
    struct array wide = array_poisoned(DCP_F32, x.n),
                 peaks = array_constant(DCP_F32, 4, 0);
    struct array reference = array_constant(DCP_F32, 1, 3);
    struct array sums[2] = { array_poisoned(dtype, n), array_poisoned(DCP_F32, n) };
    struct array want[2] = { array_poisoned(dtype, n), array_poisoned(DCP_F32, n) };
    void *blocks = array_bytes(x.n / QUANT_BLOCK, sizeof(struct quant4));
    int64_t *units[2] = { array_bytes(n, 8), array_bytes(n, 8) };
    struct ops_exact sum = { .dtype = dtype,
                             .quantized = true,
                             .n_parts = N_PARTS,
                             .stride = stride,
                             .n_values = N_PARTS,
                             .reference = reference.f32,
                             .peak = peaks.f32 },
                     plain = sum;
    plain.quantized = false, plain.dtype = DCP_F32, plain.peak++;
    array_set(&x, stride + n / 2, INFINITY); /* its block has no place in a sum */
    ops->quantize(both.fast_ctx, 4, DCP_F32, x.n, x.t, dtype, blocks);
    ops->dequantize(both.fast_ctx, 4, DCP_F32, x.n, blocks, wide.t);
    ops->exact_sum(both.fast_ctx, &sum, n, blocks, dtype, sums[0].t);
    ops->exact_sum(both.fast_ctx, &sum, n, blocks, DCP_F32, sums[1].t);
    ops->exact_add(both.fast_ctx, &sum, n, blocks, false, units[0]);
    ops->exact_sum(both.fast_ctx, &plain, n, wide.t, DCP_F32, want[1].t);
    ops->exact_add(both.fast_ctx, &plain, n, wide.t, false, units[1]);
    ops->cast(both.fast_ctx, dtype, n, want[1].f32, want[0].t);
    array_sync();
    assert_memory_equal(sums[0].t, want[0].t, (size_t)n * dcp_dtype_size(dtype));
    assert_memory_equal(sums[1].t, want[1].t, (size_t)n * 4);
    assert_memory_equal(units[0], units[1], (size_t)n * 8);
    assert_true(isinf(peaks.f32[0]) && isinf(peaks.f32[1]));
    for (int i = 0; i < 2; i++)
        array_fini(&sums[i]), array_fini(&want[i]), array_free(units[i]);
    struct array *all[] = { &x, &wide, &peaks, &reference };
    for (size_t k = 0; k < DCP_ARRAY_LEN(all); k++)
        array_fini(all[k]);
    array_free(blocks);
}

void check_ops_quant(void **state)
{
    (void)state;
    EACH_DTYPE(dtype)
    {
        every_block(dtype);
        one_sum(dtype, 1);
        one_sum(dtype, 7000);
    }
}
