/* f16: IEEE half precision: 5 bits of exponent, 10 of fraction. Its largest number is
 * 65504, its smallest 2^-24; below 2^-14 they are subnormal, and are kept.
 *
 * Whole numbers do most of it, so that every compiler and device gives the same bits and
 * loops become vectors. */
#ifndef TRAINER_OPS_F16_H
#define TRAINER_OPS_F16_H

#include "portable.h"
#include <stdint.h>
#include <string.h>

#define F16_INFINITY 0x7c00
#define F16_QUIET 0x0200 /* of a NaN */

/* NaN keeps its sign and its upper bits, and is quiet. */
PORTABLE float f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = x & 0x7fff;
    /* The exponent counts from 127 instead of 15. */
    uint32_t normal = (magnitude << 13) + 0x38000000;
    uint32_t quiet = magnitude > F16_INFINITY ? F16_QUIET << 13 : 0;
    uint32_t special = magnitude << 13 | 0x7f800000 | quiet;
    float small = (float)(int32_t)magnitude * 0x1p-24f, out;
    uint32_t bits;
    memcpy(&bits, &small, sizeof bits);
    bits = magnitude < 0x0400 ? bits : normal;
    bits = magnitude >= F16_INFINITY ? special : bits;
    bits |= sign;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* To nearest, ties to even; from 65520 on it is infinity. NaN keeps its sign and its
 * upper bits, as in torch. */
PORTABLE uint16_t f16_from_f32(float x)
{
    uint32_t bits, small_bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude - 0x38000000 + 0x0fff + (magnitude >> 13 & 1)) >> 13;
    uint32_t nan = F16_INFINITY | F16_QUIET | (magnitude >> 13 & 0x03ff);
    /* Behind 0.5 the last bit of an fp32 is the last of a subnormal half: the sum is
     * rounded there. */
    float small;
    memcpy(&small, &magnitude, sizeof small);
    small += 0.5f;
    memcpy(&small_bits, &small, sizeof small_bits);
    uint32_t out = magnitude < 0x38800000 ? small_bits - 0x3f000000 : normal;
    out = magnitude >= 0x477ff000 ? F16_INFINITY : out;
    out = magnitude > 0x7f800000 ? nan : out;
    return (uint16_t)(sign | out);
}

#endif
