/* matlib: the door to the library that multiplies matrices. onednn.c or
 * blas.c stands behind it. */
#ifndef TRAINER_OPS_DNN_MATLIB_H
#define TRAINER_OPS_DNN_MATLIB_H

#include "matmul.h"

/* What the library keeps between products. Thread rule: one at a time. */
struct matlib;
/* serial: see matmul_new. Errors: MEMORY, UNSUPPORTED. */
int matlib_new(bool serial, struct matlib **out, struct dcp_error *err);
void matlib_free(struct matlib *lib);

/* An fp32 product. */
int matlib_sgemm(const struct matmul_shape *shape, const float *a, const float *b,
                 float *c, struct dcp_error *err);
/* A bf16 product. *out_done is false, and c untouched, when the library or this CPU has
 * no arithmetic for it that is faster than fp32. */
int matlib_bf16(struct matlib *lib, const struct matmul_shape *shape, const uint16_t *a,
                const uint16_t *b, float *c, bool *out_done, struct dcp_error *err);

/* As ops_set_threads, for a library that has threads of its own. */
void matlib_set_threads(int n);
/* Around a parallel region in which products run: those threads rest. */
void matlib_region_begin(void);
void matlib_region_end(void);

#endif
