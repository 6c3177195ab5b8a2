/* quant: numbers in 8 or 4 bits, in blocks with one step each, for what goes from rank to
 * rank (ZeRO++'s qwZ and qgZ: Wang et al., "ZeRO++: extremely efficient collective
 * communication for giant model training", arXiv:2306.10209).
 *
 * A block is QUANT_BLOCK numbers of one parameter that begin at a multiple of that; the
 * last one of a parameter may have fewer, and is filled up with zeros. Its step is its
 * largest number divided by `top`, 127 or 7, and each number is the nearest multiple of
 * the step, ties to even, at most `top` of them: within half a step of what it was, but
 * for the rounding of fp32 (2^-146 where steps are that small).
 *
 * A block with infinity or NaN has that for its step, and every number in it becomes
 * that. It depends on nothing but its numbers, so that no cut at a block's border shows
 * in the bits. */
#ifndef TRAINER_OPS_QUANT_H
#define TRAINER_OPS_QUANT_H

#include "bf16.h"
#include "f16.h"
#include "norm.h"
#include <dcp/tensor.h>

#define QUANT_BLOCK 128
#define QUANT_TOP8 127
#define QUANT_TOP4 7

struct quant8 {
    float step;
    int8_t numbers[QUANT_BLOCK];
};
/* A pair is number i, and above it number i + QUANT_BLOCK / 2, both raised by 8. */
struct quant4 {
    float step;
    uint8_t pairs[QUANT_BLOCK / 2];
};

/* Of a block whose largest number, without its sign, is `peak`. That is rounded to `as`
 * first: what is too large for that dtype is infinite, what is too small is zero. */
PORTABLE float quant_step(float peak, enum dcp_dtype as, int top)
{
    const uint32_t nan = 0x7fc00000;
    if (as == DCP_BF16)
        peak = bf16_to_f32(bf16_from_f32(peak));
    else if (as == DCP_F16)
        peak = f16_to_f32(f16_from_f32(peak));
    peak /= (float)top;
    if (norm_magnitude(peak) > 0x7f800000) /* one NaN for every device */
        memcpy(&peak, &nan, sizeof peak);
    return peak;
}

/* x in steps. */
PORTABLE int quant_number(float x, float step, int top)
{
    const float magic = 12582912.0f; /* 1.5 × 2^23: its unit is 1 */
    const uint32_t zero = 0x4b400000;
    float most = (float)top, steps = x / (step > 0 ? step : 1);
    steps = steps < most ? steps : most;
    steps = steps > -most ? steps : -most;
    steps += magic;
    uint32_t bits;
    memcpy(&bits, &steps, sizeof bits);
    return norm_magnitude(step) >= 0x7f800000 ? 1 : (int)(bits - zero);
}

PORTABLE uint8_t quant_pair(int low, int high)
{
    return (uint8_t)((low + 8) | (high + 8) << 4);
}

/* The i-th number of a block. */
PORTABLE float quant8_value(const struct quant8 *block, int i)
{
    return (float)block->numbers[i] * block->step;
}
PORTABLE float quant4_value(const struct quant4 *block, int i)
{
    const int half = QUANT_BLOCK / 2;
    int pair = block->pairs[i % half];
    return (float)((i < half ? pair & 15 : pair >> 4) - 8) * block->step;
}

#endif
