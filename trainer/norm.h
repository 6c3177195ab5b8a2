/* norm: the global gradient norm, with the same bits however the gradients are cut over
 * ranks.
 *
 * Every square is rounded down to a multiple of one unit, 2^-60 of the largest that can
 * occur, and the multiples are added as integers: no order and no cut can change the sum.
 * The part lost is at most n × 2^-58 of it. (Fixed-point reproducible summation; compare
 * Demmel and Nguyen, "Fast reproducible floating-point summation", ARITH 2013.) */
#ifndef TRAINER_NORM_H
#define TRAINER_NORM_H

#include <stdint.h>

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
/* The square root of the sum. */
double norm_value(const struct norm *norm, float peak);

#endif
