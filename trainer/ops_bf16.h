/* bf16: the upper half of an fp32. */
#ifndef TRAINER_OPS_BF16_H
#define TRAINER_OPS_BF16_H

#include <stdint.h>
#include <string.h>

static inline float bf16_to_f32(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* To nearest, ties to even; NaN becomes 0x7fc0. */
static inline uint16_t bf16_from_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

#endif
