/* cuda: the kernels on a GPU, for this folder, and for coll/nccl.c, which works beside
 * them. Kernels are in families, one a file. Every sum runs in a fixed order: the
 * same input gives the same bits.
 *
 * All work goes to one stream. What fails there, or cannot be launched, is kept and
 * reported by the next function that can fail. */
#ifndef TRAINER_OPS_CUDA_CUDA_H
#define TRAINER_OPS_CUDA_CUDA_H

#include "trainer/ops/ops.h"
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ops_cuda {
    int device;
    cudaStream_t stream;
    struct ops_cuda_matmul *matmul; /* what products keep */
    struct ops_cuda_cudnn *cudnn;   /* what attention keeps, once cuDNN was asked */
    struct ops_cuda_carry *carry;   /* copies beside the kernels, once there was one */
    int64_t attention_bytes;        /* that a backward pass of cuDNN may need at once */
    void *scratch;                  /* of the kernel that was launched last */
    uint64_t scratch_bytes;
    struct dcp_error failed; /* the first failure that was not reported yet */
    /* What the host does now and then while it waits for the stream, which may wait for
     * other ranks: a failure ends the waiting. NULL: nothing. */
    int (*watch)(void *self, struct dcp_error *err);
    void *watch_self;
};

/* Keeps a failure; `act` is what could not be done: "launch layer_norm". Always an error
 * code. */
int ops_cuda_failed(struct ops_cuda *cuda, cudaError_t why, const char *act,
                    const char *file, int line);
#define OPS_CUDA_CHECK(cuda, call, act)                                       \
    do {                                                                      \
        cudaError_t ops_cuda_why = (call);                                    \
        if (ops_cuda_why)                                                     \
            ops_cuda_failed((cuda), ops_cuda_why, (act), __FILE__, __LINE__); \
    } while (0)
/* The kept failure, which is reported with this; with err NULL it stays. */
int ops_cuda_report(struct ops_cuda *cuda, struct dcp_error *err);

/* Before something in which CUDA would wait unwatched: all that was launched is done.
 * False: a failure that is kept. */
bool ops_cuda_settle(struct ops_cuda *cuda);
/* Waits for an event, or with NULL for all that was launched. */
int ops_cuda_wait(struct ops_cuda *cuda, cudaEvent_t event, struct dcp_error *err);
/* Memory that kernels launched next may use, until the next call. NULL: a failure that is
 * kept. */
void *ops_cuda_scratch(struct ops_cuda *cuda, uint64_t size_bytes);

/* Of the table; see ops/ops.h. */
int ops_cuda_pin(void *ctx, uint64_t size_bytes, const char *what, void **out,
                 struct dcp_error *err);
void ops_cuda_unpin(void *ctx, void *memory);
uint64_t ops_cuda_carry(void *ctx, enum ops_way way, void *to, const void *from,
                        uint64_t size_bytes, uint64_t after);
void ops_cuda_carry_join(void *ctx, enum ops_way way, uint64_t n_copies);
int ops_cuda_carry_wait(void *ctx, enum ops_way way, uint64_t n_copies,
                        struct dcp_error *err);
void ops_cuda_carry_close(struct ops_cuda *cuda); /* what was not opened is fine */
int ops_cuda_matmul_open(struct ops_cuda *cuda, struct dcp_error *err);
void ops_cuda_matmul_close(struct ops_cuda *cuda); /* what was not opened is fine */
int ops_cuda_matmul(void *ctx, const struct ops_matmul *shape, const void *a,
                    const void *b, const void *bias, const float *add, float *c,
                    struct dcp_error *err);
int ops_cuda_linear_gelu(void *ctx, const struct ops_matmul *shape, const void *x,
                         const void *weight, const void *bias, void *kept, void *out,
                         struct dcp_error *err);
void ops_cuda_embed(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t seq_len,
                    int64_t begin, int64_t width, const int32_t *tokens, const void *wte,
                    const void *wpe, float *out);
void ops_cuda_embed_backward(void *ctx, int64_t rows, int64_t seq_len, int64_t width,
                             const int32_t *tokens, const float *dout, float *dwte,
                             float *dwpe);
void ops_cuda_layer_norm(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                         double eps, const float *x, const void *weight, const void *bias,
                         void *out, float *mean, float *rstd);
void ops_cuda_layer_norm_backward(void *ctx, enum dcp_dtype dtype, int64_t rows,
                                  int64_t width, const float *dout, const float *x,
                                  const void *weight, const float *mean,
                                  const float *rstd, float *dx, float *dweight,
                                  float *dbias);
void ops_cuda_rms_norm(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                       double eps, const float *x, const void *weight, void *out,
                       float *rstd);
void ops_cuda_rms_norm_backward(void *ctx, enum dcp_dtype dtype, int64_t rows,
                                int64_t width, const float *dout, const float *x,
                                const void *weight, const float *rstd, float *dx,
                                float *dweight);
/* What linear_gelu does after a product y that had no epilogue; it keeps y as T. */
void ops_cuda_gelu(struct ops_cuda *cuda, enum dcp_dtype dtype, int64_t n, const float *y,
                   void *kept, void *out);
void ops_cuda_gelu_backward(void *ctx, enum dcp_dtype dtype, int64_t n, const void *kept,
                            const float *dout, void *dy);
void ops_cuda_swiglu(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                     const float *x, void *out);
void ops_cuda_swiglu_backward(void *ctx, enum dcp_dtype dtype, int64_t rows,
                              int64_t width, const float *x, const float *dout, void *dx);
void ops_cuda_rope(void *ctx, const struct ops_rope *shape, bool inverse, float *x);
int ops_cuda_attention(void *ctx, const struct ops_attention *shape, const float *qkv,
                       void *out, float *lse, struct dcp_error *err);
int ops_cuda_attention_backward(void *ctx, const struct ops_attention *shape,
                                const float *qkv, const void *out, const float *lse,
                                const float *dout, void *dqkv, struct dcp_error *err);
void ops_cuda_cross_entropy(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t n,
                            const float *logits, const int32_t *targets, float scale,
                            double *losses, void *dlogits);
void ops_cuda_sum_rows(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t n,
                       const void *x, float *sums);
void ops_cuda_cast(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x, void *out);
void ops_cuda_widen(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                    float *out);
void ops_cuda_sum(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x,
                  const void *const *parts, int n_parts, void *out);
void ops_cuda_blend(void *ctx, int64_t n, float a, const float *x, float b,
                    const float *y, float *out);
void ops_cuda_exact_add(void *ctx, const struct ops_exact *sum, int64_t n, const void *x,
                        bool add, int64_t *units);
void ops_cuda_exact_sum(void *ctx, const struct ops_exact *sum, int64_t n, const void *x,
                        enum dcp_dtype out_dtype, void *out);
void ops_cuda_exact_merge(void *ctx, int64_t n, const int64_t *more, int64_t *units);
void ops_cuda_exact_get(void *ctx, enum dcp_dtype dtype, int64_t n, const int64_t *units,
                        const float *reference, int n_values, void *out);
void ops_cuda_quantize(void *ctx, int bits, enum dcp_dtype dtype, int64_t n,
                       const void *x, enum dcp_dtype as, void *blocks);
void ops_cuda_dequantize(void *ctx, int bits, enum dcp_dtype dtype, int64_t n,
                         const void *blocks, void *out);
void ops_cuda_norm_peak(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                        float *peak);
void ops_cuda_norm_add(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                       float peak, double *digits);
void ops_cuda_factor_add(void *ctx, enum dcp_dtype dtype,
                         const struct ops_matrix_part *part, const void *x,
                         float grad_scale, const struct factor_units *units,
                         struct factor_sum *rows, struct factor_sum *columns);
void ops_cuda_factored(void *ctx, const struct ops_matrix_part *part, const float *rows,
                       const float *columns, float mean, float *out);
void ops_cuda_optim(void *ctx, const struct optim_params *params,
                    const struct optim_range *range);

#ifdef __cplusplus
}
#endif
#endif
