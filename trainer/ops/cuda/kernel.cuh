/* kernel: what all families of kernels need: launching, values of each dtype,
 * sums over a block. */
#ifndef TRAINER_OPS_CUDA_KERNEL_CUH
#define TRAINER_OPS_CUDA_KERNEL_CUH

#include "cuda.h"
#include "trainer/ops/bf16.h"
#include "trainer/ops/f16.h"
#include <cuda_runtime.h>
extern "C" {
#include "trainer/ops/quant.h"
}

#define WARP 32
#define ALL_LANES 0xffffffffu
#define BLOCK 256       /* threads of most kernels */
#define MAX_GRID 65535u /* blocks; what is more is looped over */

/* --- launching --- */

template <typename... Wanted, typename... Given>
static void ops_cuda_launch(struct ops_cuda *cuda, const char *act, const char *file,
                            int line, dim3 grid, dim3 block, void (*kernel)(Wanted...),
                            Given... args)
{
    cudaLaunchConfig_t config = {};
    if (cuda->failed.code)
        return;
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = cuda->stream;
    cudaError_t why = cudaLaunchKernelEx(&config, kernel, static_cast<Wanted>(args)...);
    if (why)
        ops_cuda_failed(cuda, why, act, file, line);
}
#define LAUNCH(cuda, grid, block, kernel, ...)                                      \
    ops_cuda_launch((cuda), "launch " #kernel, __FILE__, __LINE__, (grid), (block), \
                    kernel, __VA_ARGS__)

/* Calls LAUNCH with `kernel` for the type of the dtype. */
#define LAUNCH_BY(dtype, cuda, grid, block, kernel, ...)           \
    do {                                                           \
        if ((dtype) == DCP_BF16)                                   \
            LAUNCH(cuda, grid, block, kernel<bf16>, __VA_ARGS__);  \
        else if ((dtype) == DCP_F16)                               \
            LAUNCH(cuda, grid, block, kernel<f16>, __VA_ARGS__);   \
        else                                                       \
            LAUNCH(cuda, grid, block, kernel<float>, __VA_ARGS__); \
    } while (0)

/* Blocks for n items, `per_block` each. */
static inline unsigned blocks_for(int64_t n, int64_t per_block)
{
    int64_t blocks = (n + per_block - 1) / per_block;
    return blocks > MAX_GRID ? MAX_GRID : (unsigned)blocks;
}

/* The elements i of n that a thread works on, with all others of the grid. */
#define EACH_ELEMENT(i, n)                                                    \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); \
         i += (int64_t)gridDim.x * blockDim.x)

/* --- values --- */

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

static __device__ __forceinline__ float load(const float *x, int64_t i)
{
    return x[i];
}
static __device__ __forceinline__ float load(const bf16 *x, int64_t i)
{
    return bf16_to_f32(x[i].bits);
}
static __device__ __forceinline__ float load(const f16 *x, int64_t i)
{
    return f16_to_f32(x[i].bits);
}
static __device__ __forceinline__ float load(const quant8 *x, int64_t i)
{
    return quant8_value(&x[i / QUANT_BLOCK], (int)(i % QUANT_BLOCK));
}
static __device__ __forceinline__ float load(const quant4 *x, int64_t i)
{
    return quant4_value(&x[i / QUANT_BLOCK], (int)(i % QUANT_BLOCK));
}
static __device__ __forceinline__ void store(float *x, int64_t i, float value)
{
    x[i] = value;
}
static __device__ __forceinline__ void store(bf16 *x, int64_t i, float value)
{
    x[i].bits = bf16_from_f32(value);
}
static __device__ __forceinline__ void store(f16 *x, int64_t i, float value)
{
    x[i].bits = f16_from_f32(value);
}

/* --- sums --- */

struct add_values {
    template <typename V> __device__ V operator()(V a, V b) const
    {
        return a + b;
    }
};
struct max_values {
    template <typename V> __device__ V operator()(V a, V b) const
    {
        return a > b ? a : b;
    }
};

/* Over the lanes of a warp; every lane gets it. */
template <typename V, typename Op>
static __device__ __forceinline__ V reduce_warp(V value, Op op)
{
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        value = op(value, __shfl_xor_sync(ALL_LANES, value, lanes));
    return value;
}

/* Over all threads of a block, whole warps of them; every thread gets it. */
template <typename V, typename Op> static __device__ V reduce_block(V value, Op op)
{
    __shared__ V warps[WARP];
    unsigned n_warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    value = reduce_warp(value, op);
    __syncthreads(); /* of the sum before */
    if (lane == 0)
        warps[threadIdx.x / WARP] = value;
    __syncthreads();
    value = warps[0];
    for (unsigned w = 1; w < n_warps; w++)
        value = op(value, warps[w]);
    return value;
}

#endif
