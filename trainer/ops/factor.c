#include "factor.h"
#include <math.h>

#define DIGIT_BITS 46 /* of a sum of few; 2 digits and 53 bits of a double overlap */

/* peak < 2^e gives squares below 2^(2 digits). */
struct factor_units factor_units(float peak, int64_t n)
{
    int e = 0, bits = DIGIT_BITS;
    while (bits > 1 && n > INT64_MAX >> bits)
        bits--;
    frexpf(peak, &e);
    return (struct factor_units){ .scale = peak == 0 ? 0 : ldexp(1, 2 * bits - 2 * e),
                                  .base = ldexp(1, bits),
                                  .base_part = ldexp(1, -bits) };
}

double factor_value(struct factor_sum sum, struct factor_units units)
{
    double value = (double)sum.high * units.base + (double)sum.low;
    return units.scale > 0 ? value / units.scale : 0;
}
