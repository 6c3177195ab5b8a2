/* cudnn: attention of cuDNN, fused and on tensor cores. For bf16 and fp16 in training, at
 * the sizes that cuDNN takes; the kernels of attention.cu do the others. */
#ifndef TRAINER_OPS_CUDA_CUDNN_H
#define TRAINER_OPS_CUDA_CUDNN_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What both do, and whether they did: with *out_done false nothing has happened. Inputs
 * are those of the table (ops/ops.h), and `out` what attention made. */
#if DCP_HAS_CUDNN
int ops_cuda_cudnn_attention(struct ops_cuda *cuda, const struct ops_attention *shape,
                             const float *qkv, void *out, float *lse, bool *out_done,
                             struct dcp_error *err);
int ops_cuda_cudnn_attention_backward(struct ops_cuda *cuda,
                                      const struct ops_attention *shape, const float *qkv,
                                      const void *out, const float *lse,
                                      const float *dout, void *dqkv, bool *out_done,
                                      struct dcp_error *err);
void ops_cuda_cudnn_close(struct ops_cuda *cuda); /* what was not opened is fine */
#else
static inline int ops_cuda_cudnn_attention(struct ops_cuda *cuda,
                                           const struct ops_attention *shape,
                                           const float *qkv, void *out, float *lse,
                                           bool *out_done, struct dcp_error *err)
{
    (void)cuda, (void)shape, (void)qkv, (void)out, (void)lse, (void)err;
    *out_done = false;
    return DCP_OK;
}
static inline int ops_cuda_cudnn_attention_backward(struct ops_cuda *cuda,
                                                    const struct ops_attention *shape,
                                                    const float *qkv, const void *out,
                                                    const float *lse, const float *dout,
                                                    void *dqkv, bool *out_done,
                                                    struct dcp_error *err)
{
    (void)cuda, (void)shape, (void)qkv, (void)out, (void)lse, (void)dout, (void)dqkv;
    (void)err;
    *out_done = false;
    return DCP_OK;
}
static inline void ops_cuda_cudnn_close(struct ops_cuda *cuda)
{
    (void)cuda;
}
#endif

#ifdef __cplusplus
}
#endif
#endif
