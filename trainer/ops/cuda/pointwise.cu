/* ops_cuda: GELU, SwiGLU and rotary positions. */
#include "kernel.cuh"

#define SQRT_2_OVER_PI 0.797884561f
#define GELU_CUBIC 0.044715f

/* --- GELU --- */

/* (1 + tanh u) / 2 = 1 / (1 + exp(-2u)). */
static __device__ __forceinline__ float gelu_gate(float x)
{
    float u = SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x);
    return 1 / (1 + expf(-2 * u));
}

template <typename T>
static __global__ void gelu_kernel(int64_t n, const float *y, T *kept, T *out)
{
    EACH_ELEMENT(i, n)
    {
        store(kept, i, y[i]);
        float x = load(kept, i); /* what the backward pass will see */
        store(out, i, x * gelu_gate(x));
    }
}

void ops_cuda_gelu(struct ops_cuda *cuda, enum dcp_dtype dtype, int64_t n, const float *y,
                   void *kept, void *out)
{
    LAUNCH_BY(dtype, cuda, blocks_for(n, BLOCK), BLOCK, gelu_kernel, n, y, kept, out);
}

template <typename T>
static __global__ void gelu_backward_kernel(int64_t n, const T *kept, const float *dout,
                                            T *dy)
{
    EACH_ELEMENT(i, n)
    {
        float x = load(kept, i), gate = gelu_gate(x);
        float du = SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x * x);
        /* Where the gate is shut or open all the way, du may be infinite. */
        float slope = gate * (1 - gate) > 0 ? 2 * x * gate * (1 - gate) * du : 0;
        store(dy, i, dout[i] * (gate + slope));
    }
}

void ops_cuda_gelu_backward(void *ctx, enum dcp_dtype dtype, int64_t n, const void *kept,
                            const float *dout, void *dy)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (n)
        LAUNCH_BY(dtype, cuda, blocks_for(n, BLOCK), BLOCK, gelu_backward_kernel, n, kept,
                  dout, dy);
}

/* --- SwiGLU --- */

template <typename T>
static __global__ void swiglu_kernel(int64_t rows, int64_t width, const float *x, T *out)
{
    EACH_ELEMENT(i, rows * width)
    {
        int64_t row = i / width, at = row * 2 * width + i % width;
        float gate = x[at], up = x[at + width];
        store(out, i, gate / (1 + expf(-gate)) * up);
    }
}

void ops_cuda_swiglu(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t width,
                     const float *x, void *out)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (rows)
        LAUNCH_BY(dtype, cuda, blocks_for(rows * width, BLOCK), BLOCK, swiglu_kernel,
                  rows, width, x, out);
}

template <typename T>
static __global__ void swiglu_backward_kernel(int64_t rows, int64_t width, const float *x,
                                              const float *dout, T *dx)
{
    EACH_ELEMENT(i, rows * width)
    {
        int64_t row = i / width, at = row * 2 * width + i % width;
        float gate = x[at], up = x[at + width], d = dout[i];
        float sigmoid = 1 / (1 + expf(-gate));
        store(dx, at, d * up * sigmoid * (1 + gate * (1 - sigmoid)));
        store(dx, at + width, d * gate * sigmoid);
    }
}

void ops_cuda_swiglu_backward(void *ctx, enum dcp_dtype dtype, int64_t rows,
                              int64_t width, const float *x, const float *dout, void *dx)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (rows)
        LAUNCH_BY(dtype, cuda, blocks_for(rows * width, BLOCK), BLOCK,
                  swiglu_backward_kernel, rows, width, x, dout, dx);
}

/* --- rotary positions --- */

static __global__ void rope_kernel(struct ops_rope s, bool inverse, float *x)
{
    int64_t half = s.head_size / 2, pairs = s.n_head * half;
    EACH_ELEMENT(i, s.rows * pairs)
    {
        int64_t row = i / pairs, head = i % pairs / half, c = i % half;
        float *a = x + row * s.row_elems + head * s.head_size + c, *b = a + half;
        /* In double: of an angle of 100,000 an fp32 keeps two digits behind the point. */
        double position = (double)(s.begin + row % s.seq_len), sine, cosine;
        sincos(position * pow(s.base, -(double)c / (double)half), &sine, &cosine);
        float turn = inverse ? -(float)sine : (float)sine;
        float first = *a, second = *b;
        *a = first * (float)cosine - second * turn;
        *b = second * (float)cosine + first * turn;
    }
}

void ops_cuda_rope(void *ctx, const struct ops_rope *shape, bool inverse, float *x)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    int64_t n = shape->rows * shape->n_head * (shape->head_size / 2);
    if (n)
        LAUNCH(cuda, blocks_for(n, BLOCK), BLOCK, rope_kernel, *shape, inverse, x);
}
