/* exact: sums of gradients that have the same bits in any order, over any number of
 * ranks.
 *
 * Each value is rounded to a multiple of a unit, a power of two, and multiples are added
 * as 64-bit integers. The unit of a tensor follows from a value near its largest, the
 * reference: that of the first micro-batch of a step, which is the same however samples
 * are dealt out. Values up to EXACT_HEADROOM times the reference fit; a step in which a
 * larger one turns up is computed again with the largest of all as the reference. The
 * rounding is at most 2^-43 of the reference, where gradients of fp32 are known to 2^-24
 * of themselves. (Fixed-point reproducible summation; compare Demmel and Nguyen, "Fast
 * reproducible floating-point summation", ARITH 2013.) */
#ifndef TRAINER_OPS_EXACT_H
#define TRAINER_OPS_EXACT_H

#include "portable.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define EXACT_HEADROOM 256.0f /* a power of two */
#define EXACT_MAX_VALUES (1 << 30)

/* 2^exponent, for -1022 .. 1023. */
PORTABLE double exact_power(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* e with |x| < 2^e; of zero that of 2^-21. Infinities and NaN have one that is never
 * used. */
PORTABLE int exact_exponent(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0x7fffffff;
    if (!bits)
        return -20;
    if (bits >> 23)
        return (int)(bits >> 23) - 126;
    int e = -126;
    while (!(bits & 0x400000)) {
        bits <<= 1;
        e--;
    }
    return e;
}

/* Units are 2^-shift, for sums of up to n_values. Values below 2^51 units are made by an
 * addition; more than 2^11 of them want smaller ones. */
PORTABLE int exact_shift(float reference, int n_values)
{
    int room = 51;
    for (int n = n_values - 1; n >> 11; n >>= 1)
        room--;
    return room - 8 - exact_exponent(reference);
}

/* Whether a value, or the largest of some, has no place beside that reference. */
PORTABLE bool exact_overflows(float reference, float peak)
{
    double limit = exact_power(exact_exponent(reference) + 8);
    double size = (double)peak < 0 ? -(double)peak : (double)peak;
    return !(size < limit);
}

/* x in units, scale = 2^shift; zero when it has no place. */
PORTABLE int64_t exact_units(float x, double scale)
{
    const double magic = 6755399441055744.0; /* 1.5 × 2^52: its unit is 1 */
    double units = (double)x * scale;
    units = units < 2251799813685248.0 && units > -2251799813685248.0 ? units : 0;
    double shifted = units + magic;
    int64_t bits, zero;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&zero, &magic, sizeof zero);
    return bits - zero;
}

/* Wraps around: what has no place is found by its peak, not here. */
PORTABLE int64_t exact_plus(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

/* The value of a sum, scale = 2^-shift. */
PORTABLE float exact_value(int64_t units, double scale)
{
    return (float)((double)units * scale);
}

#endif
