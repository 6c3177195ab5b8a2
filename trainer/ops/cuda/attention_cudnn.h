/* attention_cudnn: causal attention and its gradient as graphs of cuDNN. (Dao et al.,
 * "FlashAttention", arXiv:2205.14135: cuDNN knows these graphs, and fuses them.) */
#ifndef TRAINER_OPS_CUDA_ATTENTION_CUDNN_H
#define TRAINER_OPS_CUDA_ATTENTION_CUDNN_H

#include "graph_cudnn.h"
#include <dcp/tensor.h>
#include <stdbool.h>

/* What a run names. Of 16 bits: parts of qkv[batch,seq_len,3,n_head,head_size] and of
 * dqkv, likewise; out and dout [batch,seq_len,n_head,head_size]. Of fp32: lse and, for
 * the gradient, delta [batch,n_head,seq_len], which it makes. Numbers: the scale of
 * scores, what scores become that are not seen, and one. */
enum cudnn_attention_id {
    CUDNN_ATTENTION_Q = 1,
    CUDNN_ATTENTION_K,
    CUDNN_ATTENTION_V,
    CUDNN_ATTENTION_OUT,
    CUDNN_ATTENTION_LSE,
    CUDNN_ATTENTION_SCALE,
    CUDNN_ATTENTION_UNSEEN,
    CUDNN_ATTENTION_FORWARD_END, /* of those a forward pass names */
    CUDNN_ATTENTION_DOUT = CUDNN_ATTENTION_FORWARD_END,
    CUDNN_ATTENTION_DQ,
    CUDNN_ATTENTION_DK,
    CUDNN_ATTENTION_DV,
    CUDNN_ATTENTION_DELTA,
    CUDNN_ATTENTION_ONE,
    CUDNN_ATTENTION_END
};

struct cudnn_attention {
    int64_t batch, seq_len, n_head, head_size;
    bool backward;
    enum dcp_dtype dtype; /* BF16 or F16 */
};

/* Workspace of a plan, for each sequence: a gradient that has the same bits each time
 * keeps that of all scores, in 16 bits. A little more comes on top. */
int64_t cudnn_attention_bytes(const struct cudnn_attention *shape);

/* See cudnn_plan_init. */
int cudnn_attention_plan(const struct cudnn_attention *shape,
                         const struct cudnn_target *target, struct cudnn_plan *out_plan,
                         struct dcp_error *err);

#endif
