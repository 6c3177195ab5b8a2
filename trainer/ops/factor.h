/* factor: sums of squares over rows and over columns of a matrix, with the same bits
 * however it is cut over ranks.
 *
 * Every square is rounded down to a multiple of one unit, and multiples are added as
 * integers of two digits: no order and no cut can change the sums. The unit is at most
 * 2^-80 of the largest square where neither rows nor columns are more than 2^22, so a row
 * of gradients keeps 24 bits down to 2^-28 of the largest one. (As in norm.h.) */
#ifndef TRAINER_OPS_FACTOR_H
#define TRAINER_OPS_FACTOR_H

#include "portable.h"
#include <stdint.h>

struct factor_units {
    double scale;     /* squares times that are units */
    double base;      /* of the higher digit */
    double base_part; /* 1 / base */
};
/* For squares of values up to `peak`, which is finite, added up to n times. */
struct factor_units factor_units(float peak, int64_t n);

struct factor_sum {
    int64_t high, low;
};
PORTABLE struct factor_sum factor_count(float x, struct factor_units units)
{
    double squared = (double)x * (double)x * units.scale;
    struct factor_sum sum;
    sum.high = (int64_t)(squared * units.base_part);
    sum.low = (int64_t)(squared - (double)sum.high * units.base);
    return sum;
}

double factor_value(struct factor_sum sum, struct factor_units units);

#endif
