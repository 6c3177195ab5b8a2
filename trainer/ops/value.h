/* value: single numbers of T arrays, for loops. Where the dtype is a constant the
 * compiler leaves only its own case; BY_DTYPE makes it one. */
#ifndef TRAINER_OPS_VALUE_H
#define TRAINER_OPS_VALUE_H

#include "bf16.h"
#include "f16.h"
#include <dcp/tensor.h>

INLINE float value_get(enum dcp_dtype dtype, const void *array, int64_t i)
{
    if (dtype == DCP_BF16)
        return bf16_to_f32(((const uint16_t *)array)[i]);
    if (dtype == DCP_F16)
        return f16_to_f32(((const uint16_t *)array)[i]);
    return ((const float *)array)[i];
}

INLINE void value_put(enum dcp_dtype dtype, void *array, int64_t i, float value)
{
    if (dtype == DCP_BF16)
        ((uint16_t *)array)[i] = bf16_from_f32(value);
    else if (dtype == DCP_F16)
        ((uint16_t *)array)[i] = f16_from_f32(value);
    else
        ((float *)array)[i] = value;
}

/* Calls a function with the dtype as a constant, so that each case is compiled on its
 * own. */
#define BY_DTYPE(dtype, call, ...)       \
    do {                                 \
        if ((dtype) == DCP_BF16)         \
            call(DCP_BF16, __VA_ARGS__); \
        else if ((dtype) == DCP_F16)     \
            call(DCP_F16, __VA_ARGS__);  \
        else                             \
            call(DCP_F32, __VA_ARGS__);  \
    } while (0)

#endif
