/* What a .cu file needs beside the functions of the runtime: words of the language, the
 * launch of a kernel, and what a thread may call. */
#ifndef CUDA_FAKE_RUNTIME_H
#define CUDA_FAKE_RUNTIME_H

#include "cuda_runtime_api.h"
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
/* One block runs at a time, so what is shared by its threads may be static. */
#define __shared__ static

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

/* Of the thread that runs. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
#define warpSize 32

/* Of the threads of the block; of the lanes in `mask`, who offer a value each: that of
 * `lane`. */
void __syncthreads();
void cuda_warp_sync(unsigned mask);
uint64_t cuda_warp_exchange(unsigned mask, uint64_t offer, unsigned lane);

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    cuda_warp_sync(mask);
}

template <typename T> static inline T cuda_exchange(unsigned mask, T value, unsigned lane)
{
    static_assert(sizeof(T) <= 8, "a shuffle is of at most 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = cuda_warp_exchange(mask, bits, lane);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int lanes)
{
    return cuda_exchange(mask, value, (threadIdx.x % 32) ^ (unsigned)lanes);
}
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int lane)
{
    return cuda_exchange(mask, value, (unsigned)lane % 32);
}

static inline unsigned long long atomicAdd(unsigned long long *to,
                                           unsigned long long more)
{
    return __atomic_fetch_add(to, more, __ATOMIC_RELAXED);
}

static inline float rsqrtf(float x)
{
    return 1 / std::sqrt(x);
}
using std::isinf;
using std::isnan;

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    void *attrs;
    unsigned numAttrs;
};

cudaError_t cuda_launch(const cudaLaunchConfig_t *config, std::function<void()> thread);

template <typename... Wanted, typename... Given>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                                             void (*kernel)(Wanted...), Given... given)
{
    return cuda_launch(config, [=] { kernel(static_cast<Wanted>(given)...); });
}

#endif
