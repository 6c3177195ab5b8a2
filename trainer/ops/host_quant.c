/* host_quant: blocks of quant.h on the host, in threads when there are several. */
#include "host.h"
#include "quant.h"
#include "simd.h"
#include "value.h"

#define PART (INT64_C(1) << 18) /* elements that a thread takes at a time */

_Static_assert(PART % QUANT_BLOCK == 0, "no block is cut");
_Static_assert(sizeof(struct quant8) == 132 && sizeof(struct quant4) == 68, "no gaps");

static int64_t size_at(int64_t n, int64_t begin, int64_t size)
{
    return n - begin < size ? n - begin : size;
}

/* --- to blocks --- */

/* n numbers of a block, and zeros behind them; the largest of all. */
INLINE float read_block(enum dcp_dtype dtype, const void *x, int64_t begin, int64_t n,
                        float *values)
{
    uint32_t peak = 0;
    float out;
    for (int64_t i = 0; i < n; i++)
        values[i] = value_get(dtype, x, begin + i);
    for (int64_t i = n; i < QUANT_BLOCK; i++)
        values[i] = 0;
    for (int i = 0; i < QUANT_BLOCK; i++) {
        uint32_t bits = norm_magnitude(values[i]);
        peak = bits > peak ? bits : peak;
    }
    memcpy(&out, &peak, sizeof out);
    return out;
}

INLINE void write8(const float *values, float step, struct quant8 *block)
{
    block->step = step;
    for (int i = 0; i < QUANT_BLOCK; i++)
        block->numbers[i] = (int8_t)quant_number(values[i], step, QUANT_TOP8);
}

INLINE void write4(const float *values, float step, struct quant4 *block)
{
    const int half = QUANT_BLOCK / 2;
    block->step = step;
    for (int i = 0; i < half; i++)
        block->pairs[i] = quant_pair(quant_number(values[i], step, QUANT_TOP4),
                                     quant_number(values[i + half], step, QUANT_TOP4));
}

INLINE void quantize_as(enum dcp_dtype dtype, int bits, enum dcp_dtype as, const void *x,
                        int64_t begin, int64_t n, void *blocks)
{
    float values[QUANT_BLOCK];
    for (int64_t at = begin; at < begin + n; at += QUANT_BLOCK) {
        float peak =
            read_block(dtype, x, at, size_at(begin + n, at, QUANT_BLOCK), values);
        if (bits == 8)
            write8(values, quant_step(peak, as, QUANT_TOP8),
                   (struct quant8 *)blocks + at / QUANT_BLOCK);
        else
            write4(values, quant_step(peak, as, QUANT_TOP4),
                   (struct quant4 *)blocks + at / QUANT_BLOCK);
    }
}

DCP_VECTORS
static void quantize(enum dcp_dtype dtype, int bits, enum dcp_dtype as, const void *x,
                     int64_t begin, int64_t n, void *blocks)
{
    BY_DTYPE(dtype, quantize_as, bits, as, x, begin, n, blocks);
}

void ops_host_quantize(void *ctx, int bits, enum dcp_dtype dtype, int64_t n,
                       const void *x, enum dcp_dtype as, void *blocks)
{
    (void)ctx;
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t at = 0; at < n; at += PART)
        quantize(dtype, bits, as, x, at, size_at(n, at, PART), blocks);
}

/* --- from blocks --- */

INLINE void read8(const struct quant8 *block, float *values)
{
    for (int i = 0; i < QUANT_BLOCK; i++)
        values[i] = quant8_value(block, i);
}

INLINE void read4(const struct quant4 *block, float *values)
{
    const int half = QUANT_BLOCK / 2;
    for (int i = 0; i < half; i++) {
        values[i] = quant4_value(block, i);
        values[i + half] = quant4_value(block, i + half);
    }
}

INLINE void dequantize_as(enum dcp_dtype dtype, int bits, const void *blocks,
                          int64_t begin, int64_t n, void *out)
{
    float values[QUANT_BLOCK];
    for (int64_t at = begin; at < begin + n; at += QUANT_BLOCK) {
        int64_t size = size_at(begin + n, at, QUANT_BLOCK);
        if (bits == 8)
            read8((const struct quant8 *)blocks + at / QUANT_BLOCK, values);
        else
            read4((const struct quant4 *)blocks + at / QUANT_BLOCK, values);
        for (int64_t i = 0; i < size; i++)
            value_put(dtype, out, at + i, values[i]);
    }
}

DCP_VECTORS
static void dequantize(enum dcp_dtype dtype, int bits, const void *blocks, int64_t begin,
                       int64_t n, void *out)
{
    BY_DTYPE(dtype, dequantize_as, bits, blocks, begin, n, out);
}

void ops_host_dequantize(void *ctx, int bits, enum dcp_dtype dtype, int64_t n,
                         const void *blocks, void *out)
{
    (void)ctx;
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t at = 0; at < n; at += PART)
        dequantize(dtype, bits, blocks, at, size_at(n, at, PART), out);
}

void ops_host_values4(const struct quant4 *blocks, int64_t n, float *out)
{
    dequantize(DCP_F32, 4, blocks, 0, n, out);
}
