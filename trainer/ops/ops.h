/* ops: the kernels of the trainer, a table of functions with three implementations:
 * ops_cpu, readable, double arithmetic, the oracle; ops_dnn, fast; ops_cuda, on a GPU.
 *
 * Arrays are dense and row-major, and lie in the memory of the kernels, which the host
 * may not be able to read; what lies elsewhere is called `host`. "T" marks an array in
 * the compute dtype (F32, BF16 or F16): weights, and activations that go into a matrix
 * product. Everything else is fp32, and every sum is kept in fp32 or better. Outputs may
 * be poisoned before; no input may overlap an output unless a comment allows it.
 *
 * Kernels run in the order of their calls, and may run later than their calls return. One
 * that fails then is reported by the next function of the context that can fail.
 *
 * Thread rule: a context belongs to one thread at a time; contexts are independent. A
 * kernel uses up to ops_threads() threads; with the same number of them the same input
 * gives the same bits. What a context needs beyond the caller's arrays (compiled
 * products, scratch) it makes when it first meets a shape, and keeps. */
#ifndef TRAINER_OPS_OPS_H
#define TRAINER_OPS_OPS_H

#include <dcp/tensor.h>

/* c[m,n] = op(a) op(b) + bias + add, where op(a) is m × k and op(b) is k × n. */
struct ops_matmul {
    enum dcp_dtype dtype; /* of a, b and bias */
    int64_t m, n, k;
    bool trans_a, trans_b; /* a lies as k × m, b as n × k */
};

/* Causal attention with n_head heads of head_size. Row r of a sequence sees rows 0 .. r;
 * the rows from `begin` on are computed. */
struct ops_attention {
    enum dcp_dtype dtype;
    int64_t batch, seq_len, n_head, head_size;
    int64_t begin; /* 0 in training; keys and values before it are kept ones */
};

/* Rotary positions (Su et al., "RoFormer", arXiv:2104.09864), in the order of Hugging
 * Face's Llama: elements c and c + head_size/2 of a head turn together, by the angle
 * position × base^(-2 c / head_size). Row r is at position begin + r mod seq_len; its
 * heads begin at element r × row_elems. */
struct ops_rope {
    int64_t rows, seq_len, begin;
    int64_t n_head, head_size, row_elems;
    double base;
};

/* Values that become part of a sum of exact.h: of n_parts arrays T, `stride` elements
 * apart. *reference and *peak are in the memory of the kernels; the largest value raises
 * the peak, as norm_peak does. */
struct ops_exact {
    enum dcp_dtype dtype;
    bool quantized; /* the parts are blocks of quant.h with 4 bits a number instead, and
                     * stride is a multiple of QUANT_BLOCK */
    int n_parts;    /* may be none */
    int64_t stride;
    int n_values; /* of the whole sum */
    const float *reference;
    float *peak;
};

enum ops_way { OPS_TO_HOST, OPS_FROM_HOST, OPS_N_WAYS };

/* n elements of a matrix from element `first` on, x T[n]. */
struct ops_matrix_part {
    int64_t columns, first, n;
};

struct factor_sum;
struct factor_units;
struct optim_params;
struct optim_range;

struct ops {
    const char *name; /* for people: what computes the products */
    int (*open)(void **out_ctx, struct dcp_error *err);
    void (*close)(void *ctx); /* NULL is fine */

    /* Memory of the kernels, aligned to 64 bytes at least. `what` it is for: "the
     * gradients of a layer". Errors: MEMORY. */
    int (*alloc)(void *ctx, uint64_t size_bytes, const char *what, void **out,
                 struct dcp_error *err);
    void (*free)(void *ctx, void *memory); /* NULL is fine */
    /* From the host, and to it. They are done when they return. */
    int (*put)(void *ctx, void *to, const void *host, uint64_t size_bytes,
               struct dcp_error *err);
    int (*get)(void *ctx, void *host, const void *from, uint64_t size_bytes,
               struct dcp_error *err);
    void (*copy)(void *ctx, void *to, const void *from, uint64_t size_bytes);
    void (*zero)(void *ctx, void *to, uint64_t size_bytes);
    /* All kernels so far are done. */
    int (*sync)(void *ctx, struct dcp_error *err);

    /* Copies beside the kernels: those to the host and those from it each in the order of
     * their calls, both at once. NULL, all five, where the kernels' memory is the host's.
     *
     * Memory of the host that is not paged out. Errors: MEMORY. */
    int (*pin)(void *ctx, uint64_t size_bytes, const char *what, void **out,
               struct dcp_error *err);
    void (*unpin)(void *ctx, void *memory); /* NULL is fine */
    /* Between the kernels' memory and pinned memory: begins when the kernels called so
     * far are done, and so many copies of the other way. Returns how many there are of
     * this way, with it. */
    uint64_t (*carry)(void *ctx, enum ops_way way, void *to, const void *from,
                      uint64_t size_bytes, uint64_t after);
    /* So many copies are done: kernels called from now on find it; the host finds it. */
    void (*carry_join)(void *ctx, enum ops_way way, uint64_t n_copies);
    int (*carry_wait)(void *ctx, enum ops_way way, uint64_t n_copies,
                      struct dcp_error *err);

    /* bias: T[n] or NULL. add: [m,n] or NULL; it may be c, which then accumulates. */
    int (*matmul)(void *ctx, const struct ops_matmul *shape, const void *a, const void *b,
                  const void *bias, const float *add, float *c, struct dcp_error *err);

    /* out[r] = wte[tokens[r]] + wpe[begin + r mod seq_len]; wte T[.,width], wpe T. */
    void (*embed)(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t seq_len,
                  int64_t begin, int64_t width, const int32_t *tokens, const void *wte,
                  const void *wpe, float *out);
    /* Adds dout[r] to dwte[tokens[r]] and to dwpe[r mod seq_len]. */
    void (*embed_backward)(void *ctx, int64_t rows, int64_t seq_len, int64_t width,
                           const int32_t *tokens, const float *dout, float *dwte,
                           float *dwpe);

    /* out T[rows,width] = (x - mean) / sqrt(variance + eps) × weight T + bias T; keeps
     * mean[rows] and rstd[rows] = 1 / sqrt(…). */
    void (*layer_norm)(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                       double eps, const float *x, const void *weight, const void *bias,
                       void *out, float *mean, float *rstd);
    /* Adds to dx[rows,width], dweight and dbias. */
    void (*layer_norm_backward)(void *ctx, enum dcp_dtype dtype, int64_t rows,
                                int64_t width, const float *dout, const float *x,
                                const void *weight, const float *mean, const float *rstd,
                                float *dx, float *dweight, float *dbias);

    /* The first half of an MLP: out T[m,n] = gelu(y) with y = x · weight + bias as matmul
     * has it, trans_a and trans_b false, and gelu(y) = y/2 (1 + tanh(sqrt(2/pi) (y +
     * 0.044715 y^3))): Hendrycks and Gimpel, "Gaussian error linear units", the tanh
     * form. Keeps what its backward needs in `kept`, 4 bytes an element. */
    int (*linear_gelu)(void *ctx, const struct ops_matmul *shape, const void *x,
                       const void *weight, const void *bias, void *kept, void *out,
                       struct dcp_error *err);
    /* From gelu's output to its input: dy T[n]; in F32 it may be dout. */
    void (*gelu_backward)(void *ctx, enum dcp_dtype dtype, int64_t n, const void *kept,
                          const float *dout, void *dy);

    /* qkv[batch,seq_len,3,n_head,head_size] to out T[batch,seq_len,n_head,head_size]:
     * softmax(q k^T / sqrt(head_size)) v. Keeps lse[batch,n_head,seq_len], the logarithm
     * of each row's sum of exponentials. */
    int (*attention)(void *ctx, const struct ops_attention *shape, const float *qkv,
                     void *out, float *lse, struct dcp_error *err);
    /* dqkv T; out and lse are what attention made, begin is 0. */
    int (*attention_backward)(void *ctx, const struct ops_attention *shape,
                              const float *qkv, const void *out, const float *lse,
                              const float *dout, void *dqkv, struct dcp_error *err);

    /* out T[rows,width] = x × rstd × weight T, rstd[rows] = 1 / sqrt(mean(x^2) + eps),
     * which is kept. (Zhang and Sennrich, "Root mean square layer normalization", 2019.)
     */
    void (*rms_norm)(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                     double eps, const float *x, const void *weight, void *out,
                     float *rstd);
    /* Adds to dx and dweight. */
    void (*rms_norm_backward)(void *ctx, enum dcp_dtype dtype, int64_t rows,
                              int64_t width, const float *dout, const float *x,
                              const void *weight, const float *rstd, float *dx,
                              float *dweight);
    /* out T[rows,width] = silu(gate) × up, x[rows,2,width] their values, silu(y) = y / (1
     * + exp(-y)). (Shazeer, "GLU variants improve transformer", 2020.) */
    void (*swiglu)(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                   const float *x, void *out);
    /* dx T[rows,2,width]. */
    void (*swiglu_backward)(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                            const float *x, const float *dout, void *dx);
    /* Turns the heads of x in place; backwards when `inverse`, which is its gradient. */
    void (*rope)(void *ctx, const struct ops_rope *shape, bool inverse, float *x);

    /* losses[rows] = -log softmax(logits[rows,n])[target], in nats. When dlogits T is not
     * NULL: dlogits = scale × (softmax - onehot(target)); in F32 it may be logits. */
    void (*cross_entropy)(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t n,
                          const float *logits, const int32_t *targets, float scale,
                          double *losses, void *dlogits);

    /* sums[j] += the sum of x T[rows,n] over its rows. */
    void (*sum_rows)(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t n,
                     const void *x, float *sums);
    /* out T[n] = x[n]; in F32 a copy. */
    void (*cast)(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x, void *out);

    /* The kernels on ranges of sharded data: an element's result depends on nothing but
     * its inputs and has the same bits in every table, so a range may be cut anywhere. */

    /* out[n] = x T[n]. */
    void (*widen)(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x, float *out);
    /* out[n] = a x[n] + b y[n], each operation rounded; out may be x or y. */
    void (*blend)(void *ctx, int64_t n, float a, const float *x, float b, const float *y,
                  float *out);
    /* out T[n] = x + parts[0] + parts[1] + …, in this order, parts T[n] each; the sum is
     * fp32 until it is stored. out may be x or a part. At most OPS_MAX_PARTS. */
    void (*sum)(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x,
                const void *const *parts, int n_parts, void *out);
    /* units[n] of the parts of x, or added to what units has. */
    void (*exact_add)(void *ctx, const struct ops_exact *sum, int64_t n, const void *x,
                      bool add, int64_t *units);
    /* out T[n] = the values of the sums: the dtype of `sum`, or F32. */
    void (*exact_sum)(void *ctx, const struct ops_exact *sum, int64_t n, const void *x,
                      enum dcp_dtype out_dtype, void *out);
    /* units[n] += more[n]. */
    void (*exact_merge)(void *ctx, int64_t n, const int64_t *more, int64_t *units);
    /* out T[n] = the values of the sums. It may overlap `units`, and begin before them,
     * when n is at most OPS_EXACT_IN_PLACE. */
    void (*exact_get)(void *ctx, enum dcp_dtype dtype, int64_t n, const int64_t *units,
                      const float *reference, int n_values, void *out);
    /* Blocks of quant.h, of `bits` (8 or 4) bits a number, of x T[n], each block's
     * largest number rounded to `as`; out T[n] = the numbers of blocks. A range begins
     * where a block does. */
    void (*quantize)(void *ctx, int bits, enum dcp_dtype dtype, int64_t n, const void *x,
                     enum dcp_dtype as, void *blocks);
    void (*dequantize)(void *ctx, int bits, enum dcp_dtype dtype, int64_t n,
                       const void *blocks, void *out);
    /* norm_peak and norm_add of norm.h for x T[n]; *peak and digits[NORM_DIGITS] are in
     * the memory of the kernels. */
    void (*norm_peak)(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                      float *peak);
    void (*norm_add)(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                     float peak, double *digits);
    /* Adds the squares of grad_scale × x, in units of factor.h, to the sums of their rows
     * and their columns. */
    void (*factor_add)(void *ctx, enum dcp_dtype dtype,
                       const struct ops_matrix_part *part, const void *x,
                       float grad_scale, const struct factor_units *units,
                       struct factor_sum *rows, struct factor_sum *columns);
    /* out[part] = rows × columns / mean, of the row and the column that each is in. */
    void (*factored)(void *ctx, const struct ops_matrix_part *part, const float *rows,
                     const float *columns, float mean, float *out);
    /* optim_step of optim.h. */
    void (*optim)(void *ctx, const struct optim_params *params,
                  const struct optim_range *range);
};
#define OPS_MAX_PARTS 32
#define OPS_EXACT_IN_PLACE 64

/* A table with its context. */
struct kernels {
    const struct ops *ops;
    void *ctx;
};

/* The oracle, which needs no library. */
const struct ops *ops_cpu(void);
/* The fastest of this build: oneDNN's products, else a BLAS's, else ops_cpu. */
const struct ops *ops_best(void);
/* On the GPU that is CUDA's current device of the thread that opens it. Only with
 * DCP_HAS_CUDA. */
const struct ops *ops_cuda(void);

/* Threads that kernels called by this thread may use from now on, at least 1; before, as
 * many as OpenMP's default (OMP_NUM_THREADS or the cores). Ranks that share a machine
 * must share its cores: with more threads than cores everything waits. */
void ops_set_threads(int n);
int ops_threads(void);
/* Starts those threads, and they take no signals: a handler on the stack of a kernel that
 * oneDNN compiled overwrites what the kernel keeps there. Call before the first kernel.
 */
void ops_start_threads(void);

/* Between fp32 and BF16 or F16 in host memory, as cast and widen do it. Rounds to
 * nearest, ties to even; what is larger than the largest becomes infinity. NaN becomes
 * 0x7fc0 of BF16, and keeps its sign and its upper bits in F16, as in torch. */
void ops_to_16bit(enum dcp_dtype dtype, const float *x, uint16_t *out, int64_t n);
void ops_from_16bit(enum dcp_dtype dtype, const uint16_t *x, float *out, int64_t n);

#endif
