/* cpu: the kernels as their formulas read, in double: the oracle of the others. */
#include "base/mem.h"
#include "own.h"
#include "trainer/ops/host.h"
#include <math.h>

#define SQRT_2_OVER_PI 0.7978845608028654
#define GELU_CUBIC 0.044715

static int open_cpu(void **out_ctx, struct dcp_error *err)
{
    (void)err;
    *out_ctx = NULL;
    return DCP_OK;
}

static void close_cpu(void *ctx)
{
    (void)ctx;
}

static int matmul(void *ctx, const struct ops_matmul *s, const void *a, const void *b,
                  const void *bias, const float *add, float *c, struct dcp_error *err)
{
    (void)ctx;
    (void)err;
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            double sum = bias ? get(s->dtype, bias, j) : 0;
            if (add)
                sum += (double)add[i * s->n + j];
            for (int64_t l = 0; l < s->k; l++)
                sum += get(s->dtype, a, s->trans_a ? l * s->m + i : i * s->k + l) *
                       get(s->dtype, b, s->trans_b ? j * s->k + l : l * s->n + j);
            c[i * s->n + j] = (float)sum;
        }
    return DCP_OK;
}

static void embed(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t seq_len,
                  int64_t begin, int64_t width, const int32_t *tokens, const void *wte,
                  const void *wpe, float *out)
{
    (void)ctx;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < width; j++)
            out[r * width + j] =
                (float)(get(dtype, wte, tokens[r] * width + j) +
                        get(dtype, wpe, (begin + r % seq_len) * width + j));
}

static void embed_backward(void *ctx, int64_t rows, int64_t seq_len, int64_t width,
                           const int32_t *tokens, const float *dout, float *dwte,
                           float *dwpe)
{
    (void)ctx;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < width; j++) {
            dwte[tokens[r] * width + j] += dout[r * width + j];
            dwpe[r % seq_len * width + j] += dout[r * width + j];
        }
}

static void layer_norm(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                       double eps, const float *x, const void *weight, const void *bias,
                       void *out, float *mean, float *rstd)
{
    (void)ctx;
    for (int64_t r = 0; r < rows; r++, x += width) {
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < width; j++)
            sum += (double)x[j];
        double m = sum / (double)width;
        for (int64_t j = 0; j < width; j++)
            squares += ((double)x[j] - m) * ((double)x[j] - m);
        double s = 1 / sqrt(squares / (double)width + eps);
        for (int64_t j = 0; j < width; j++)
            put(dtype, out, r * width + j,
                ((double)x[j] - m) * s * get(dtype, weight, j) + get(dtype, bias, j));
        mean[r] = (float)m;
        rstd[r] = (float)s;
    }
}

/* With xhat = (x - mean) rstd and g = dout × weight:
 * dx = rstd (g - mean(g) - xhat mean(g xhat)). */
static void layer_norm_backward(void *ctx, enum dcp_dtype dtype, int64_t rows,
                                int64_t width, const float *dout, const float *x,
                                const void *weight, const float *mean, const float *rstd,
                                float *dx, float *dweight, float *dbias)
{
    (void)ctx;
    for (int64_t r = 0; r < rows; r++, dout += width, x += width, dx += width) {
        double m = (double)mean[r], s = (double)rstd[r], g_mean = 0, gx_mean = 0;
        for (int64_t j = 0; j < width; j++) {
            double g = (double)dout[j] * get(dtype, weight, j);
            g_mean += g / (double)width;
            gx_mean += g * ((double)x[j] - m) * s / (double)width;
        }
        for (int64_t j = 0; j < width; j++) {
            double xhat = ((double)x[j] - m) * s;
            double g = (double)dout[j] * get(dtype, weight, j);
            dx[j] += (float)(s * (g - g_mean - xhat * gx_mean));
            dweight[j] += (float)((double)dout[j] * xhat);
            dbias[j] += dout[j];
        }
    }
}

static int linear_gelu(void *ctx, const struct ops_matmul *shape, const void *x_in,
                       const void *weight, const void *bias, void *kept, void *out,
                       struct dcp_error *err)
{
    const float *in = kept;
    int rc = matmul(ctx, shape, x_in, weight, bias, NULL, kept, err);
    for (int64_t i = 0; !rc && i < shape->m * shape->n; i++) {
        double x = (double)in[i];
        double t = tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
        put(shape->dtype, out, i, 0.5 * x * (1 + t));
    }
    return rc;
}

static void gelu_backward(void *ctx, enum dcp_dtype dtype, int64_t n, const void *kept,
                          const float *dout, void *dx)
{
    (void)ctx;
    const float *in = kept;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)in[i];
        double t = tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
        double du = SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x * x);
        put(dtype, dx, i, (double)dout[i] * 0.5 * (1 + t + x * (1 - t * t) * du));
    }
}

/* Where the parts of one row of one head begin in qkv, and the row's length. */
struct head {
    const float *q, *k, *v;
    int64_t width;     /* n_head × head_size */
    int64_t row_elems; /* 3 × width */
    double scale;
};

static struct head head_of(const struct ops_attention *s, const float *qkv, int64_t b,
                           int64_t h)
{
    int64_t width = s->n_head * s->head_size;
    const float *q = qkv + b * s->seq_len * 3 * width + h * s->head_size;
    return (struct head){ q,     q + width, q + 2 * width,
                          width, 3 * width, 1 / sqrt((double)s->head_size) };
}

static double score(const struct head *head, int64_t i, int64_t j, int64_t size)
{
    const float *q = head->q + i * head->row_elems, *k = head->k + j * head->row_elems;
    double sum = 0;
    for (int64_t c = 0; c < size; c++)
        sum += (double)q[c] * (double)k[c];
    return sum * head->scale;
}

static int attention(void *ctx, const struct ops_attention *s, const float *qkv,
                     void *out, float *lse, struct dcp_error *err)
{
    (void)ctx;
    (void)err;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->n_head; h++)
            for (int64_t i = s->begin; i < s->seq_len; i++) {
                struct head head = head_of(s, qkv, b, h);
                double max = -INFINITY, sum = 0;
                for (int64_t j = 0; j <= i; j++)
                    max = fmax(max, score(&head, i, j, s->head_size));
                for (int64_t j = 0; j <= i; j++)
                    sum += exp(score(&head, i, j, s->head_size) - max);
                double log_sum = max + log(sum);
                lse[(b * s->n_head + h) * s->seq_len + i] = (float)log_sum;

                int64_t at = (b * s->seq_len + i) * head.width + h * s->head_size;
                for (int64_t c = 0; c < s->head_size; c++) {
                    double mix = 0;
                    for (int64_t j = 0; j <= i; j++)
                        mix += exp(score(&head, i, j, s->head_size) - log_sum) *
                               (double)head.v[j * head.row_elems + c];
                    put(s->dtype, out, at + c, mix);
                }
            }
    return DCP_OK;
}

/* One row's part of the gradient. With p the row's softmax, dp = dout · v and
 * d = sum(p dp): the score's gradient is p (dp - d), times scale for q and k. Sums are
 * kept in grads[3][seq_len][head_size]. */
static void attention_row_backward(const struct ops_attention *s, const struct head *head,
                                   int64_t i, double lse, const float *dout,
                                   double *grads)
{
    int64_t size = s->head_size, part = s->seq_len * size;
    double *dq = grads + i * size, *dk = grads + part, *dv = grads + 2 * part;
    double d = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = 0; j <= i; j++) {
            const float *k = head->k + j * head->row_elems;
            const float *v = head->v + j * head->row_elems;
            double p = exp(score(head, i, j, size) - lse), dp = 0;
            for (int64_t c = 0; c < size; c++)
                dp += (double)dout[c] * (double)v[c];
            if (pass == 0) {
                d += p * dp;
                continue;
            }
            double ds = p * (dp - d) * head->scale;
            for (int64_t c = 0; c < size; c++) {
                dq[c] += ds * (double)k[c];
                dk[j * size + c] += ds * (double)head->q[i * head->row_elems + c];
                dv[j * size + c] += p * (double)dout[c];
            }
        }
}

static int attention_backward(void *ctx, const struct ops_attention *s, const float *qkv,
                              const void *out, const float *lse, const float *dout,
                              void *dqkv, struct dcp_error *err)
{
    (void)ctx, (void)out;
    size_t n = (size_t)(3 * s->seq_len * s->head_size);
    DCP_CLEANUP_FREE double *grads = dcp_mem_calloc(n, sizeof *grads);
    if (!grads)
        return dcp_error_memory(err, "the gradient of attention");
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->n_head; h++) {
            struct head head = head_of(s, qkv, b, h);
            memset(grads, 0, n * sizeof *grads);
            for (int64_t i = 0; i < s->seq_len; i++)
                attention_row_backward(
                    s, &head, i, (double)lse[(b * s->n_head + h) * s->seq_len + i],
                    dout + (b * s->seq_len + i) * head.width + h * s->head_size, grads);
            for (int64_t part = 0; part < 3; part++)
                for (int64_t i = 0; i < s->seq_len; i++)
                    for (int64_t c = 0; c < s->head_size; c++)
                        put(s->dtype, dqkv,
                            (b * s->seq_len + i) * head.row_elems + part * head.width +
                                h * s->head_size + c,
                            grads[(part * s->seq_len + i) * s->head_size + c]);
        }
    return DCP_OK;
}

static void cross_entropy(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t n,
                          const float *logits, const int32_t *targets, float scale,
                          double *losses, void *dlogits)
{
    (void)ctx;
    for (int64_t r = 0; r < rows; r++, logits += n) {
        double max = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++)
            max = fmax(max, (double)logits[j]);
        for (int64_t j = 0; j < n; j++)
            sum += exp((double)logits[j] - max);
        double lse = max + log(sum);
        losses[r] = lse - (double)logits[targets[r]];
        for (int64_t j = 0; dlogits && j < n; j++)
            put(dtype, dlogits, r * n + j,
                (double)scale * (exp((double)logits[j] - lse) - (j == targets[r])));
    }
}

static void sum_rows(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t n,
                     const void *x, float *sums)
{
    (void)ctx;
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += get(dtype, x, r * n + j);
        sums[j] += (float)sum;
    }
}

static void cast(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x, void *out)
{
    (void)ctx;
    for (int64_t i = 0; i < n; i++)
        put(dtype, out, i, (double)x[i]);
}

const struct ops *ops_cpu(void)
{
    static const struct ops table = {
        .name = "plain C",
        .open = open_cpu,
        .close = close_cpu,
        .matmul = matmul,
        .embed = embed,
        .embed_backward = embed_backward,
        .layer_norm = layer_norm,
        .layer_norm_backward = layer_norm_backward,
        .linear_gelu = linear_gelu,
        .gelu_backward = gelu_backward,
        .attention = attention,
        .attention_backward = attention_backward,
        .cross_entropy = cross_entropy,
        .sum_rows = sum_rows,
        .cast = cast,
        OPS_CPU_LLAMA,
        OPS_HOST,
    };
    return &table;
}
