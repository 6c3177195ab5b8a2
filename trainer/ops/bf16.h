/* bf16: the upper half of an fp32. */
#ifndef TRAINER_OPS_BF16_H
#define TRAINER_OPS_BF16_H

#include "portable.h"
#include <stdint.h>
#include <string.h>

PORTABLE float bf16_to_f32(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

#define BF16_NAN 0x7fc0
PORTABLE int bf16_is_nan(uint32_t bits)
{
    return (bits & 0x7fffffff) > 0x7f800000;
}

/* To nearest, ties to even; NaN becomes 0x7fc0. */
PORTABLE uint16_t bf16_from_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(bf16_is_nan(bits) ? BF16_NAN : rounded);
}

/* To one of the two neighbours, the nearer the likelier, when `random` is uniform in
 * 0 .. 65535: the mean over many roundings is x. Infinity stays, NaN becomes 0x7fc0. */
PORTABLE uint16_t bf16_stochastic(float x, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bf16_is_nan(bits) ? BF16_NAN : (bits + random) >> 16);
}

#endif
