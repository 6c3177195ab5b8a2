/* dnn: rows or columns are shared out among threads; each is worked on by a function
 * that is compiled for every width of vectors, and for each dtype by being inlined with
 * a constant. No result depends on how many threads there are. */
#include "dnn.h"
#include "base/mem.h"
#include "matlib.h"
#include "trainer/ops/cpu/cpu.h"
#include "trainer/ops/host.h"
#include "trainer/ops/simd.h"
#include "trainer/ops/value.h"
#include <math.h>

#if DCP_HAS_ONEDNN || DCP_HAS_BLAS

#define ENOUGH (1 << 15) /* elements that are worth waking threads */
#define COLUMNS 128      /* columns whose sums a thread makes at a time */
#define PART 8192        /* elements of a long array that a thread takes at a time */
#define TERMS 512        /* of a long sum that are added up in fp32 */

#define SQRT_2_OVER_PI 0.797884561f
#define GELU_CUBIC 0.044715f

static const void *at(enum dcp_dtype dtype, const void *array, int64_t i)
{
    return (const char *)array + (size_t)i * dcp_dtype_size(dtype);
}

static void *at_out(enum dcp_dtype dtype, void *array, int64_t i)
{
    return (char *)array + (size_t)i * dcp_dtype_size(dtype);
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- matrix products --- */

INLINE void begin_row_as(enum dcp_dtype dtype, int64_t n, const void *bias,
                         const float *add, float *c)
{
    if (bias && add)
        for (int64_t j = 0; j < n; j++)
            c[j] = add[j] + value_get(dtype, bias, j);
    else if (bias)
        for (int64_t j = 0; j < n; j++)
            c[j] = value_get(dtype, bias, j);
    else
        memcpy(c, add, (size_t)n * sizeof *c);
}

DCP_VECTORS
static void begin_row(enum dcp_dtype dtype, int64_t n, const void *bias, const float *add,
                      float *c)
{
    BY_DTYPE(dtype, begin_row_as, n, bias, add, c);
}

static int matmul(void *ctx, const struct ops_matmul *s, const void *a, const void *b,
                  const void *bias, const float *add, float *c, struct dcp_error *err)
{
    struct ops_dnn *dnn = ctx;
    if (bias || (add && add != c)) {
        OPS_PARALLEL_FOR(s->m * s->n > ENOUGH)
        for (int64_t i = 0; i < s->m; i++)
            begin_row(s->dtype, s->n, bias, add ? add + i * s->n : NULL, c + i * s->n);
    }
    struct matmul_shape shape = { .dtype = s->dtype,
                                  .m = s->m,
                                  .n = s->n,
                                  .k = s->k,
                                  .lda = s->trans_a ? s->m : s->k,
                                  .ldb = s->trans_b ? s->k : s->n,
                                  .ldc = s->n,
                                  .trans_a = s->trans_a,
                                  .trans_b = s->trans_b,
                                  .accumulate = bias || add };
    return matmul_run(dnn->matmul, &shape, a, b, c, err);
}

/* --- embedding --- */

INLINE void embed_row_as(enum dcp_dtype dtype, int64_t width, const void *wte,
                         const void *wpe, float *out)
{
    for (int64_t j = 0; j < width; j++)
        out[j] = value_get(dtype, wte, j) + value_get(dtype, wpe, j);
}

DCP_VECTORS
static void embed_row(enum dcp_dtype dtype, int64_t width, const void *wte,
                      const void *wpe, float *out)
{
    BY_DTYPE(dtype, embed_row_as, width, wte, wpe, out);
}

static void embed(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t seq_len,
                  int64_t begin, int64_t width, const int32_t *tokens, const void *wte,
                  const void *wpe, float *out)
{
    (void)ctx;
    OPS_PARALLEL_FOR(rows * width > ENOUGH)
    for (int64_t r = 0; r < rows; r++)
        embed_row(dtype, width, at(dtype, wte, tokens[r] * width),
                  at(dtype, wpe, (begin + r % seq_len) * width), out + r * width);
}

DCP_VECTORS
static void add_to(float *sum, const float *x, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        sum[j] += x[j];
}

/* By columns: a token may occur in any row. */
static void embed_backward(void *ctx, int64_t rows, int64_t seq_len, int64_t width,
                           const int32_t *tokens, const float *dout, float *dwte,
                           float *dwpe)
{
    (void)ctx;
    OPS_PARALLEL_FOR(rows * width > ENOUGH)
    for (int64_t j = 0; j < width; j += COLUMNS) {
        int64_t n = min_i64(COLUMNS, width - j);
        for (int64_t r = 0; r < rows; r++) {
            add_to(dwte + tokens[r] * width + j, dout + r * width + j, n);
            add_to(dwpe + r % seq_len * width + j, dout + r * width + j, n);
        }
    }
}

/* --- layer norm --- */

INLINE void norm_row_as(enum dcp_dtype dtype, int64_t width, float eps, const float *x,
                        const void *weight, const void *bias, void *out, float *out_mean,
                        float *out_rstd)
{
    float sum = 0, squares = 0;
    OPS_SIMD_SUM(sum)
    for (int64_t j = 0; j < width; j++)
        sum += x[j];
    float mean = sum / (float)width;
    OPS_SIMD_SUM(squares)
    for (int64_t j = 0; j < width; j++)
        squares += (x[j] - mean) * (x[j] - mean);
    float rstd = 1 / sqrtf(squares / (float)width + eps);
    for (int64_t j = 0; j < width; j++)
        value_put(dtype, out, j,
                  (x[j] - mean) * rstd * value_get(dtype, weight, j) +
                      value_get(dtype, bias, j));
    *out_mean = mean;
    *out_rstd = rstd;
}

DCP_VECTORS
static void norm_row(enum dcp_dtype dtype, int64_t width, float eps, const float *x,
                     const void *weight, const void *bias, void *out, float *mean,
                     float *rstd)
{
    BY_DTYPE(dtype, norm_row_as, width, eps, x, weight, bias, out, mean, rstd);
}

static void layer_norm(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                       double eps, const float *x, const void *weight, const void *bias,
                       void *out, float *mean, float *rstd)
{
    (void)ctx;
    OPS_PARALLEL_FOR(rows * width > ENOUGH)
    for (int64_t r = 0; r < rows; r++)
        norm_row(dtype, width, (float)eps, x + r * width, weight, bias,
                 at_out(dtype, out, r * width), mean + r, rstd + r);
}

/* The formula stands in ops/cpu/cpu.c. */
INLINE void norm_row_backward_as(enum dcp_dtype dtype, int64_t width, const float *dout,
                                 const float *x, const void *weight, float mean,
                                 float rstd, float *dx)
{
    float g_sum = 0, gx_sum = 0;
    OPS_SIMD_SUM(g_sum, gx_sum)
    for (int64_t j = 0; j < width; j++) {
        float g = dout[j] * value_get(dtype, weight, j);
        g_sum += g;
        gx_sum += g * (x[j] - mean);
    }
    float g_mean = g_sum / (float)width, gx_mean = gx_sum * rstd / (float)width;
    OPS_SIMD
    for (int64_t j = 0; j < width; j++) {
        float g = dout[j] * value_get(dtype, weight, j);
        dx[j] += rstd * (g - g_mean - (x[j] - mean) * rstd * gx_mean);
    }
}

DCP_VECTORS
static void norm_row_backward(enum dcp_dtype dtype, int64_t width, const float *dout,
                              const float *x, const void *weight, float mean, float rstd,
                              float *dx)
{
    BY_DTYPE(dtype, norm_row_backward_as, width, dout, x, weight, mean, rstd, dx);
}

DCP_VECTORS
static void norm_columns_backward(int64_t rows, int64_t width, int64_t n,
                                  const float *dout, const float *x, const float *mean,
                                  const float *rstd, float *dweight, float *dbias)
{
    float w[COLUMNS] = { 0 }, b[COLUMNS] = { 0 };
    for (int64_t r = 0; r < rows; r++, dout += width, x += width) {
        float m = mean[r], s = rstd[r];
        OPS_SIMD
        for (int64_t j = 0; j < n; j++) {
            w[j] += dout[j] * ((x[j] - m) * s);
            b[j] += dout[j];
        }
    }
    for (int64_t j = 0; j < n; j++) {
        dweight[j] += w[j];
        dbias[j] += b[j];
    }
}

static void layer_norm_backward(void *ctx, enum dcp_dtype dtype, int64_t rows,
                                int64_t width, const float *dout, const float *x,
                                const void *weight, const float *mean, const float *rstd,
                                float *dx, float *dweight, float *dbias)
{
    (void)ctx;
    OPS_PARALLEL_FOR(rows * width > ENOUGH)
    for (int64_t r = 0; r < rows; r++)
        norm_row_backward(dtype, width, dout + r * width, x + r * width, weight, mean[r],
                          rstd[r], dx + r * width);
    OPS_PARALLEL_FOR(rows * width > ENOUGH)
    for (int64_t j = 0; j < width; j += COLUMNS)
        norm_columns_backward(rows, width, min_i64(COLUMNS, width - j), dout + j, x + j,
                              mean, rstd, dweight + j, dbias + j);
}

/* --- GELU --- */

/* (1 + tanh u) / 2 = 1 / (1 + exp(-2u)). */
INLINE float gelu_gate(float x)
{
    float u = SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x);
    return 1 / (1 + ops_exp(-2 * u));
}

INLINE void gelu_part_as(enum dcp_dtype dtype, int64_t n, const float *x, void *out)
{
    OPS_SIMD
    for (int64_t i = 0; i < n; i++)
        value_put(dtype, out, i, x[i] * gelu_gate(x[i]));
}

DCP_VECTORS
static void gelu_part(enum dcp_dtype dtype, int64_t n, const float *x, void *out)
{
    BY_DTYPE(dtype, gelu_part_as, n, x, out);
}

static int linear_gelu(void *ctx, const struct ops_matmul *shape, const void *x,
                       const void *weight, const void *bias, void *kept, void *out,
                       struct dcp_error *err)
{
    int64_t n = shape->m * shape->n;
    const float *y = kept;
    DCP_TRY(matmul(ctx, shape, x, weight, bias, NULL, kept, err));
    OPS_PARALLEL_FOR(n > ENOUGH)
    for (int64_t i = 0; i < n; i += PART)
        gelu_part(shape->dtype, min_i64(PART, n - i), y + i,
                  at_out(shape->dtype, out, i));
    return DCP_OK;
}

INLINE void gelu_part_backward_as(enum dcp_dtype dtype, int64_t n, const float *x,
                                  const float *dout, void *dx)
{
    OPS_SIMD
    for (int64_t i = 0; i < n; i++) {
        float gate = gelu_gate(x[i]);
        float du = SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x[i] * x[i]);
        value_put(dtype, dx, i, dout[i] * (gate + 2 * x[i] * gate * (1 - gate) * du));
    }
}

DCP_VECTORS
static void gelu_part_backward(enum dcp_dtype dtype, int64_t n, const float *x,
                               const float *dout, void *dx)
{
    BY_DTYPE(dtype, gelu_part_backward_as, n, x, dout, dx);
}

static void gelu_backward(void *ctx, enum dcp_dtype dtype, int64_t n, const void *kept,
                          const float *dout, void *dx)
{
    (void)ctx;
    const float *x = kept;
    OPS_PARALLEL_FOR(n > ENOUGH)
    for (int64_t i = 0; i < n; i += PART)
        gelu_part_backward(dtype, min_i64(PART, n - i), x + i, dout + i,
                           at_out(dtype, dx, i));
}

/* --- classifier --- */

INLINE float max_of(int64_t n, const float *x)
{
    float max = x[0];
    OPS_SIMD_MAX(max)
    for (int64_t j = 0; j < n; j++)
        max = x[j] > max ? x[j] : max;
    return max;
}

/* The sum of exp(x - max), in fp32 for TERMS terms, then in double. */
INLINE double sum_exp(int64_t n, const float *x, float max)
{
    double total = 0;
    for (int64_t i = 0; i < n; i += TERMS) {
        int64_t end = min_i64(i + TERMS, n);
        float sum = 0;
        OPS_SIMD_SUM(sum)
        for (int64_t j = i; j < end; j++)
            sum += ops_exp(x[j] - max);
        total += (double)sum;
    }
    return total;
}

INLINE void scaled_exp_as(enum dcp_dtype dtype, int64_t n, const float *x, float max,
                          float factor, void *out)
{
    OPS_SIMD
    for (int64_t j = 0; j < n; j++)
        value_put(dtype, out, j, factor * ops_exp(x[j] - max));
}

DCP_VECTORS
static double cross_entropy_row(enum dcp_dtype dtype, int64_t n, const float *logits,
                                int32_t target, float scale, void *dlogits)
{
    float max = max_of(n, logits), at_target = logits[target];
    double sum = sum_exp(n, logits, max);
    double loss = log(sum) - ((double)at_target - (double)max);
    if (dlogits) {
        BY_DTYPE(dtype, scaled_exp_as, n, logits, max, (float)((double)scale / sum),
                 dlogits);
        value_put(dtype, dlogits, target, scale * (float)expm1(-loss));
    }
    return loss;
}

static void cross_entropy(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t n,
                          const float *logits, const int32_t *targets, float scale,
                          double *losses, void *dlogits)
{
    (void)ctx;
    OPS_PARALLEL_FOR(rows * n > ENOUGH)
    for (int64_t r = 0; r < rows; r++)
        losses[r] = cross_entropy_row(dtype, n, logits + r * n, targets[r], scale,
                                      dlogits ? at_out(dtype, dlogits, r * n) : NULL);
}

/* --- the rest --- */

INLINE void sum_columns_as(enum dcp_dtype dtype, int64_t rows, int64_t width, int64_t n,
                           const void *x, float *sums)
{
    float sum[COLUMNS] = { 0 };
    for (int64_t r = 0; r < rows; r++) {
        OPS_SIMD
        for (int64_t j = 0; j < n; j++)
            sum[j] += value_get(dtype, x, r * width + j);
    }
    for (int64_t j = 0; j < n; j++)
        sums[j] += sum[j];
}

DCP_VECTORS
static void sum_columns(enum dcp_dtype dtype, int64_t rows, int64_t width, int64_t n,
                        const void *x, float *sums)
{
    BY_DTYPE(dtype, sum_columns_as, rows, width, n, x, sums);
}

static void sum_rows(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t n,
                     const void *x, float *sums)
{
    (void)ctx;
    OPS_PARALLEL_FOR(rows * n > ENOUGH)
    for (int64_t j = 0; j < n; j += COLUMNS)
        sum_columns(dtype, rows, n, min_i64(COLUMNS, n - j), at(dtype, x, j), sums + j);
}

static void cast(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x, void *out)
{
    (void)ctx;
    if (dtype == DCP_F32)
        memcpy(out, x, (size_t)n * sizeof *x);
    else
        ops_to_16bit(dtype, x, out, n);
}

/* --- the context --- */

static void close_dnn(void *ctx)
{
    struct ops_dnn *dnn = ctx;
    if (!dnn)
        return;
    for (size_t i = 0; i < dnn->n_workers; i++) {
        matmul_free(dnn->workers[i].matmul);
        free(dnn->workers[i].scratch);
    }
    free(dnn->workers);
    matmul_free(dnn->matmul);
    free(dnn);
}

static int open_dnn(void **out_ctx, struct dcp_error *err)
{
    struct ops_dnn *dnn = dcp_mem_calloc(1, sizeof *dnn);
    if (!dnn)
        return dcp_error_memory(err, "the context of kernels");
    int rc = matmul_new(false, &dnn->matmul, err);
    if (rc) {
        close_dnn(dnn);
        return rc;
    }
    *out_ctx = dnn;
    return DCP_OK;
}

void ops_dnn_set_threads(int n)
{
    matlib_set_threads(n);
}

const struct ops *ops_dnn(void)
{
    static const struct ops table = {
#if DCP_HAS_ONEDNN
        .name = "oneDNN",
#else
        .name = "BLAS",
#endif
        .open = open_dnn,
        .close = close_dnn,
        .matmul = matmul,
        .embed = embed,
        .embed_backward = embed_backward,
        .layer_norm = layer_norm,
        .layer_norm_backward = layer_norm_backward,
        .linear_gelu = linear_gelu,
        .gelu_backward = gelu_backward,
        .attention = ops_dnn_attention,
        .attention_backward = ops_dnn_attention_backward,
        .cross_entropy = cross_entropy,
        .sum_rows = sum_rows,
        .cast = cast,
        OPS_CPU_LLAMA,
        OPS_HOST,
    };
    return &table;
}

#else

const struct ops *ops_dnn(void)
{
    return NULL;
}

void ops_dnn_set_threads(int n)
{
    (void)n;
}

#endif
