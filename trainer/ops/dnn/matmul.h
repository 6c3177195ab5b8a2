/* matmul: matrix products by a library, in fp32, bf16 and fp16. */
#ifndef TRAINER_OPS_DNN_MATMUL_H
#define TRAINER_OPS_DNN_MATMUL_H

#include <dcp/tensor.h>

/* c = op(a) op(b), or c += …, with fp32 sums. Rows of the arrays, as they lie, are lda,
 * ldb and ldc elements apart. */
struct matmul_shape {
    enum dcp_dtype dtype; /* of a and b: F32, BF16 or F16 */
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    bool trans_a, trans_b; /* a lies as k × m, b as n × k */
    bool accumulate;
};

/* Rows or columns of c that one thread computes, of n: whatever the number of threads. */
int64_t matmul_strip(int64_t n);

/* What products need and keep: compiled kernels, scratch. Thread rule: one at a time. */
struct matmul;

/* A serial one computes on the calling thread, and may run inside a parallel region that
 * stands between matlib_region_begin and _end. Errors: MEMORY, UNSUPPORTED. */
int matmul_new(bool serial, struct matmul **out, struct dcp_error *err);
void matmul_free(struct matmul *matmul);
/* Errors: MEMORY, UNSUPPORTED (the library refuses; says what). */
int matmul_run(struct matmul *matmul, const struct matmul_shape *shape, const void *a,
               const void *b, float *c, struct dcp_error *err);

#endif
