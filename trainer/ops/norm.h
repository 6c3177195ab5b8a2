/* norm: the global gradient norm, with the same bits however the gradients are cut over
 * ranks.
 *
 * Every square is rounded down to a multiple of one unit, 2^-60 of the largest that can
 * occur, and the multiples are added as integers: no order and no cut can change the sum.
 * The part lost is at most n × 2^-58 of it. (Fixed-point reproducible summation; compare
 * Demmel and Nguyen, "Fast reproducible floating-point summation", ARITH 2013.) */
#ifndef TRAINER_OPS_NORM_H
#define TRAINER_OPS_NORM_H

#include "portable.h"
#include <stdint.h>
#include <string.h>

/* The largest |x[i]|, or at least `peak`; infinity or NaN when one is. Same on all ranks
 * once the largest of theirs is taken. */
float norm_peak(float peak, const float *x, int64_t n);

#define NORM_DIGITS 4
/* Digits in base 2^32 of the sum, lowest first, as doubles: an all-reduce of up to 2^20
 * ranks adds them exactly. Zero-initialise. */
struct norm {
    double digits[NORM_DIGITS];
};
/* Adds the squares of n values, none larger than peak, which is finite. */
void norm_add(struct norm *norm, float peak, const float *x, int64_t n);
/* Adds what another holds, with the same peak. */
void norm_merge(struct norm *norm, const struct norm *other);
/* The square root of the sum. */
double norm_value(const struct norm *norm, float peak);

/* --- what both passes are made of --- */

/* Without their sign, floats order as integers do; NaN comes last. */
PORTABLE uint32_t norm_magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

/* The power of two that squares are multiplied with to count units. */
double norm_scale(float peak);

/* Sums of the units' lower and upper halves: 2^32 values or more fit. */
struct norm_sums {
    uint64_t low, high;
};
PORTABLE void norm_count(struct norm_sums *sums, float x, double scale)
{
    uint64_t units = (uint64_t)(int64_t)((double)x * (double)x * scale);
    sums->low += units & 0xffffffff;
    sums->high += units >> 32;
}

/* Adds sums to digits, and brings these below the base; their value stays. */
PORTABLE void norm_add_sums(double *digits, struct norm_sums sums)
{
    const double base = 4294967296.0;
    digits[0] += (double)(sums.low & 0xffffffff);
    sums.high += sums.low >> 32;
    digits[1] += (double)(sums.high & 0xffffffff);
    digits[2] += (double)(sums.high >> 32);
    for (int d = 0; d + 1 < NORM_DIGITS; d++) {
        double over = (double)(int64_t)(digits[d] / base);
        digits[d] -= over * base;
        digits[d + 1] += over;
    }
}

#endif
