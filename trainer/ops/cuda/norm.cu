/* ops_cuda: layer norm and RMSNorm. A block works on a row; what is summed over rows is
 * summed column by column. */
#include "columns.cuh"

/* --- layer norm --- */

template <typename T>
static __global__ void layer_norm_kernel(int64_t rows, int64_t width, float eps,
                                         const float *x, const T *weight, const T *bias,
                                         T *out, float *mean, float *rstd)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *in = x + row * width;
        float sum = 0, squares = 0;
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x)
            sum += in[j];
        float m = reduce_block(sum, add_values()) / (float)width;
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x)
            squares += (in[j] - m) * (in[j] - m);
        float variance = reduce_block(squares, add_values()) / (float)width;
        float s = 1 / sqrtf(variance + eps);
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x)
            store(out, row * width + j,
                  (in[j] - m) * s * load(weight, j) + load(bias, j));
        if (threadIdx.x == 0) {
            mean[row] = m;
            rstd[row] = s;
        }
    }
}

void ops_cuda_layer_norm(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                         double eps, const float *x, const void *weight, const void *bias,
                         void *out, float *mean, float *rstd)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (rows)
        LAUNCH_BY(dtype, cuda, blocks_for(rows, 1), BLOCK, layer_norm_kernel, rows, width,
                  eps, x, weight, bias, out, mean, rstd);
}

/* As in ops_cpu: dx = rstd (g - mean(g) - xhat mean(g xhat)). RMSNorm has no mean. */
template <typename T, bool with_mean>
static __device__ __forceinline__ void norm_backward(int64_t rows, int64_t width,
                                                     const float *dout, const float *x,
                                                     const T *weight, const float *mean,
                                                     const float *rstd, float *dx)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *in = x + row * width, *d = dout + row * width;
        float m = with_mean ? mean[row] : 0, s = rstd[row], g_sum = 0, gx_sum = 0;
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
            float g = d[j] * load(weight, j);
            g_sum += g;
            gx_sum += g * ((in[j] - m) * s);
        }
        float g_mean = with_mean ? reduce_block(g_sum, add_values()) / (float)width : 0;
        float gx_mean = reduce_block(gx_sum, add_values()) / (float)width;
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
            float xhat = (in[j] - m) * s;
            dx[row * width + j] += s * (d[j] * load(weight, j) - g_mean - xhat * gx_mean);
        }
    }
}

template <typename T>
static __global__ void layer_norm_backward_kernel(int64_t rows, int64_t width,
                                                  const float *dout, const float *x,
                                                  const T *weight, const float *mean,
                                                  const float *rstd, float *dx)
{
    norm_backward<T, true>(rows, width, dout, x, weight, mean, rstd, dx);
}

/* What the gradients of weight and bias are sums of. */
struct layer_norm_terms {
    const float *dout, *x, *mean, *rstd;
    int64_t width;
    __device__ void operator()(int64_t row, int64_t column, float *out) const
    {
        int64_t i = row * width + column;
        out[0] = dout[i] * ((x[i] - mean[row]) * rstd[row]);
        out[1] = dout[i];
    }
};

void ops_cuda_layer_norm_backward(void *ctx, enum dcp_dtype dtype, int64_t rows,
                                  int64_t width, const float *dout, const float *x,
                                  const void *weight, const float *mean,
                                  const float *rstd, float *dx, float *dweight,
                                  float *dbias)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    struct layer_norm_terms terms = { dout, x, mean, rstd, width };
    if (!rows)
        return;
    LAUNCH_BY(dtype, cuda, blocks_for(rows, 1), BLOCK, layer_norm_backward_kernel, rows,
              width, dout, x, weight, mean, rstd, dx);
    sum_columns<2>(cuda, terms, rows, width, dweight, dbias);
}

/* --- RMSNorm --- */

template <typename T>
static __global__ void rms_norm_kernel(int64_t rows, int64_t width, float eps,
                                       const float *x, const T *weight, T *out,
                                       float *rstd)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *in = x + row * width;
        float squares = 0;
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x)
            squares += in[j] * in[j];
        float s = 1 / sqrtf(reduce_block(squares, add_values()) / (float)width + eps);
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x)
            store(out, row * width + j, in[j] * s * load(weight, j));
        if (threadIdx.x == 0)
            rstd[row] = s;
    }
}

void ops_cuda_rms_norm(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                       double eps, const float *x, const void *weight, void *out,
                       float *rstd)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (rows)
        LAUNCH_BY(dtype, cuda, blocks_for(rows, 1), BLOCK, rms_norm_kernel, rows, width,
                  eps, x, weight, out, rstd);
}

template <typename T>
static __global__ void rms_norm_backward_kernel(int64_t rows, int64_t width,
                                                const float *dout, const float *x,
                                                const T *weight, const float *rstd,
                                                float *dx)
{
    norm_backward<T, false>(rows, width, dout, x, weight, NULL, rstd, dx);
}

struct rms_norm_terms {
    const float *dout, *x, *rstd;
    int64_t width;
    __device__ void operator()(int64_t row, int64_t column, float *out) const
    {
        int64_t i = row * width + column;
        out[0] = dout[i] * (x[i] * rstd[row]);
    }
};

void ops_cuda_rms_norm_backward(void *ctx, enum dcp_dtype dtype, int64_t rows,
                                int64_t width, const float *dout, const float *x,
                                const void *weight, const float *rstd, float *dx,
                                float *dweight)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    struct rms_norm_terms terms = { dout, x, rstd, width };
    if (!rows)
        return;
    LAUNCH_BY(dtype, cuda, blocks_for(rows, 1), BLOCK, rms_norm_backward_kernel, rows,
              width, dout, x, weight, rstd, dx);
    sum_columns<1>(cuda, terms, rows, width, dweight, (float *)NULL);
}

/* --- plain sums --- */

template <typename T> struct row_terms {
    const T *x;
    int64_t width;
    __device__ void operator()(int64_t row, int64_t column, float *out) const
    {
        out[0] = load(x, row * width + column);
    }
};

template <typename T>
static void sum_rows(struct ops_cuda *cuda, int64_t rows, int64_t n, const void *x,
                     float *sums)
{
    struct row_terms<T> terms = {
        (const T *)x, n
    };
    sum_columns<1>(cuda, terms, rows, n, sums, (float *)NULL);
}

void ops_cuda_sum_rows(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t n,
                       const void *x, float *sums)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (dtype == DCP_BF16)
        sum_rows<bf16>(cuda, rows, n, x, sums);
    else if (dtype == DCP_F16)
        sum_rows<f16>(cuda, rows, n, x, sums);
    else
        sum_rows<float>(cuda, rows, n, x, sums);
}
