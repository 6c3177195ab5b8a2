#include "norm.h"

#include <math.h>
#include <string.h>

#define UNIT_BITS 60 /* of the largest square */
#define BASE 4294967296.0

float norm_peak(float peak, const float *x, int64_t n)
{
    /* Without their sign, floats order as integers do; NaN comes last. */
    uint32_t max;
    memcpy(&max, &peak, sizeof max);
    max &= 0x7fffffff;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffff;
        max = bits > max ? bits : max;
    }
    memcpy(&peak, &max, sizeof peak);
    return peak;
}

/* The power of two that squares are multiplied with: peak < 2^e gives squares below
 * 2^60. */
static int unit_exponent(float peak)
{
    int e = 0;
    frexpf(peak, &e);
    return UNIT_BITS - 2 * e;
}

/* Brings the digits below the base; their value stays. */
static void carry(double *digits)
{
    for (int d = 0; d + 1 < NORM_DIGITS; d++) {
        double over = floor(digits[d] / BASE);
        digits[d] -= over * BASE;
        digits[d + 1] += over;
    }
}

void norm_add(struct norm *norm, float peak, const float *x, int64_t n)
{
    if (peak == 0)
        return;
    double scale = ldexp(1, unit_exponent(peak));
    uint64_t low = 0, high = 0;
    for (int64_t i = 0; i < n; i++) {
        double square = (double)x[i] * x[i] * scale;
        uint64_t units = (uint64_t)(int64_t)square;
        low += units & 0xffffffff;
        high += units >> 32;
    }
    norm->digits[0] += (double)(low & 0xffffffff);
    high += low >> 32;
    norm->digits[1] += (double)(high & 0xffffffff);
    norm->digits[2] += (double)(high >> 32);
    carry(norm->digits);
}

double norm_value(const struct norm *norm, float peak)
{
    double digits[NORM_DIGITS], sum = 0;
    if (peak == 0)
        return 0;
    memcpy(digits, norm->digits, sizeof digits);
    carry(digits);
    for (int d = NORM_DIGITS - 1; d >= 0; d--)
        sum = sum * BASE + digits[d];
    return sqrt(ldexp(sum, -unit_exponent(peak)));
}
