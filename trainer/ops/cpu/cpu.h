/* cpu: families of plain kernels that stand in other tables too: no model of the
 * trainer needs them yet. */
#ifndef TRAINER_OPS_CPU_CPU_H
#define TRAINER_OPS_CPU_CPU_H

#include "trainer/ops/ops.h"

/* Entries of a table. */
#define OPS_CPU_LLAMA                                                             \
    .rms_norm = ops_cpu_rms_norm, .rms_norm_backward = ops_cpu_rms_norm_backward, \
    .swiglu = ops_cpu_swiglu, .swiglu_backward = ops_cpu_swiglu_backward,         \
    .rope = ops_cpu_rope

void ops_cpu_rms_norm(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                      double eps, const float *x, const void *weight, void *out,
                      float *rstd);
void ops_cpu_rms_norm_backward(void *ctx, enum dcp_dtype dtype, int64_t rows,
                               int64_t width, const float *dout, const float *x,
                               const void *weight, const float *rstd, float *dx,
                               float *dweight);
void ops_cpu_swiglu(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                    const float *x, void *out);
void ops_cpu_swiglu_backward(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                             const float *x, const float *dout, void *dx);
void ops_cpu_rope(void *ctx, const struct ops_rope *shape, bool inverse, float *x);

#endif
