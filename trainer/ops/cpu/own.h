/* own: the inside of the plain kernels, for this folder only. */
#ifndef TRAINER_OPS_CPU_OWN_H
#define TRAINER_OPS_CPU_OWN_H

#include "cpu.h"
#include "trainer/ops/value.h"

/* Element i of a T array. */
static inline double get(enum dcp_dtype dtype, const void *array, int64_t i)
{
    return (double)value_get(dtype, array, i);
}

static inline void put(enum dcp_dtype dtype, void *array, int64_t i, double value)
{
    value_put(dtype, array, i, (float)value);
}

#endif
