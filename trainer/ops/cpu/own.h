/* own: the inside of the plain kernels, for this folder only. */
#ifndef TRAINER_OPS_CPU_OWN_H
#define TRAINER_OPS_CPU_OWN_H

#include "cpu.h"
#include "trainer/ops/bf16.h"

/* Element i of a T array. */
static inline double get(enum dcp_dtype dtype, const void *array, int64_t i)
{
    if (dtype == DCP_BF16)
        return (double)bf16_to_f32(((const uint16_t *)array)[i]);
    return (double)((const float *)array)[i];
}

static inline void put(enum dcp_dtype dtype, void *array, int64_t i, double value)
{
    if (dtype == DCP_BF16)
        ((uint16_t *)array)[i] = bf16_from_f32((float)value);
    else
        ((float *)array)[i] = (float)value;
}

#endif
