/* dnn: the fast kernels: products by a library, the rest in vectorised loops. */
#ifndef TRAINER_OPS_DNN_DNN_H
#define TRAINER_OPS_DNN_DNN_H

#include "trainer/ops/ops.h"

/* NULL when no library for products is compiled in. */
const struct ops *ops_dnn(void);
/* What ops_set_threads does beyond OpenMP. */
void ops_dnn_set_threads(int n);

/* One thread's own products and scratch, inside a parallel region. */
struct ops_dnn_worker {
    struct matmul *matmul;
    void *scratch;
    size_t scratch_bytes;
    int rc; /* of the work in this region, with its sentence */
    struct dcp_error error;
};

/* The context of the kernels. */
struct ops_dnn {
    struct matmul *matmul; /* products that use all threads */
    struct ops_dnn_worker *workers;
    size_t n_workers, cap_workers;
};

/* Attention by blocks of rows: the scores of a head are never whole in memory. */
int ops_dnn_attention(void *ctx, const struct ops_attention *shape, const float *qkv,
                      void *out, float *lse, struct dcp_error *err);
int ops_dnn_attention_backward(void *ctx, const struct ops_attention *shape,
                               const float *qkv, const void *out, const float *lse,
                               const float *dout, void *dqkv, struct dcp_error *err);

#endif
