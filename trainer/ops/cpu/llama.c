/* ops_cpu: the families that Llama has and GPT-2 has not, as their formulas read. */
#include "own.h"
#include <math.h>

void ops_cpu_rms_norm(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                      double eps, const float *x, const void *weight, void *out,
                      float *rstd)
{
    (void)ctx;
    for (int64_t r = 0; r < rows; r++, x += width) {
        double squares = 0;
        for (int64_t j = 0; j < width; j++)
            squares += (double)x[j] * (double)x[j];
        double s = 1 / sqrt(squares / (double)width + eps);
        for (int64_t j = 0; j < width; j++)
            put(dtype, out, r * width + j, (double)x[j] * s * get(dtype, weight, j));
        rstd[r] = (float)s;
    }
}

/* With xhat = x rstd and g = dout × weight: dx = rstd (g - xhat mean(g xhat)). */
void ops_cpu_rms_norm_backward(void *ctx, enum dcp_dtype dtype, int64_t rows,
                               int64_t width, const float *dout, const float *x,
                               const void *weight, const float *rstd, float *dx,
                               float *dweight)
{
    (void)ctx;
    for (int64_t r = 0; r < rows; r++, dout += width, x += width, dx += width) {
        double s = (double)rstd[r], gx_mean = 0;
        for (int64_t j = 0; j < width; j++)
            gx_mean += (double)dout[j] * get(dtype, weight, j) * (double)x[j] * s /
                       (double)width;
        for (int64_t j = 0; j < width; j++) {
            double xhat = (double)x[j] * s;
            double g = (double)dout[j] * get(dtype, weight, j);
            dx[j] += (float)(s * (g - xhat * gx_mean));
            dweight[j] += (float)((double)dout[j] * xhat);
        }
    }
}

void ops_cpu_swiglu(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                    const float *x, void *out)
{
    (void)ctx;
    for (int64_t r = 0; r < rows; r++, x += 2 * width)
        for (int64_t j = 0; j < width; j++) {
            double gate = (double)x[j], up = (double)x[width + j];
            put(dtype, out, r * width + j, gate / (1 + exp(-gate)) * up);
        }
}

void ops_cpu_swiglu_backward(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                             const float *x, const float *dout, void *dx)
{
    (void)ctx;
    for (int64_t r = 0; r < rows; r++, x += 2 * width, dout += width)
        for (int64_t j = 0; j < width; j++) {
            double gate = (double)x[j], up = (double)x[width + j], d = (double)dout[j];
            double sigmoid = 1 / (1 + exp(-gate));
            put(dtype, dx, 2 * r * width + j,
                d * up * sigmoid * (1 + gate * (1 - sigmoid)));
            put(dtype, dx, (2 * r + 1) * width + j, d * gate * sigmoid);
        }
}

void ops_cpu_rope(void *ctx, const struct ops_rope *s, bool inverse, float *x)
{
    (void)ctx;
    int64_t half = s->head_size / 2;
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t h = 0; h < s->n_head; h++)
            for (int64_t c = 0; c < half; c++) {
                float *a = x + r * s->row_elems + h * s->head_size + c, *b = a + half;
                double position = (double)(s->begin + r % s->seq_len);
                double angle = position * pow(s->base, -(double)c / (double)half);
                double cosine = cos(angle), sine = inverse ? -sin(angle) : sin(angle);
                double first = (double)*a, second = (double)*b;
                *a = (float)(first * cosine - second * sine);
                *b = (float)(second * cosine + first * sine);
            }
}
