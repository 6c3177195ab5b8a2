#include "norm.h"
#include "simd.h"

#include <math.h>

#define UNIT_BITS 60 /* of the largest square */
#define BASE 4294967296.0

DCP_VECTORS
float norm_peak(float peak, const float *x, int64_t n)
{
    uint32_t max = norm_magnitude(peak);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = norm_magnitude(x[i]);
        max = bits > max ? bits : max;
    }
    memcpy(&peak, &max, sizeof peak);
    return peak;
}

/* peak < 2^e gives squares below 2^60. */
static int unit_exponent(float peak)
{
    int e = 0;
    frexpf(peak, &e);
    return UNIT_BITS - 2 * e;
}

double norm_scale(float peak)
{
    return peak == 0 ? 0 : ldexp(1, unit_exponent(peak));
}

DCP_VECTORS
void norm_add(struct norm *norm, float peak, const float *x, int64_t n)
{
    double scale = norm_scale(peak);
    struct norm_sums sums = { 0, 0 };
    for (int64_t i = 0; i < n; i++)
        norm_count(&sums, x[i], scale);
    norm_add_sums(norm->digits, sums);
}

void norm_merge(struct norm *norm, const struct norm *other)
{
    for (int d = 0; d < NORM_DIGITS; d++)
        norm->digits[d] += other->digits[d];
    norm_add_sums(norm->digits, (struct norm_sums){ 0, 0 });
}

double norm_value(const struct norm *norm, float peak)
{
    struct norm whole = *norm; /* after an all-reduce digits may exceed the base */
    double sum = 0;
    if (peak == 0)
        return 0;
    norm_add_sums(whole.digits, (struct norm_sums){ 0, 0 });
    for (int d = NORM_DIGITS - 1; d >= 0; d--)
        sum = sum * BASE + whole.digits[d];
    return sqrt(ldexp(sum, -unit_exponent(peak)));
}
