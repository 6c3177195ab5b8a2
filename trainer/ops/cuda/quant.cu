/* ops_cuda: numbers in blocks of quant.h, with the bits of the host's. A warp makes a
 * block; what is in one is taken out number by number. */
#include "kernel.cuh"

#define EACH (QUANT_BLOCK / WARP) /* numbers of a lane: lane, lane + WARP, and so on */
static_assert(EACH == 4, "the pairs of a block");

static __device__ __forceinline__ void put_numbers(struct quant8 *block, int lane,
                                                   const int *numbers)
{
    for (int k = 0; k < EACH; k++)
        block->numbers[lane + k * WARP] = (int8_t)numbers[k];
}

static __device__ __forceinline__ void put_numbers(struct quant4 *block, int lane,
                                                   const int *numbers)
{
    block->pairs[lane] = quant_pair(numbers[0], numbers[2]);
    block->pairs[lane + WARP] = quant_pair(numbers[1], numbers[3]);
}

template <int top, typename T, typename Block>
static __device__ void quantize(int64_t n, const T *x, enum dcp_dtype as, Block *blocks)
{
    int64_t n_blocks = (n + QUANT_BLOCK - 1) / QUANT_BLOCK;
    int64_t warps = (int64_t)gridDim.x * blockDim.x / WARP;
    int lane = (int)(threadIdx.x % WARP);
    for (int64_t b = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
         b < n_blocks; b += warps) {
        float values[EACH], peak;
        int numbers[EACH];
        uint32_t bits = 0;
        for (int k = 0; k < EACH; k++) {
            int64_t i = b * QUANT_BLOCK + lane + k * WARP;
            values[k] = i < n ? load(x, i) : 0;
            bits = max_values()(bits, norm_magnitude(values[k]));
        }
        bits = reduce_warp(bits, max_values());
        memcpy(&peak, &bits, sizeof peak);
        float step = quant_step(peak, as, top);
        for (int k = 0; k < EACH; k++)
            numbers[k] = quant_number(values[k], step, top);
        put_numbers(&blocks[b], lane, numbers);
        if (lane == 0)
            blocks[b].step = step;
    }
}

template <typename T>
static __global__ void quantize8_kernel(int64_t n, const T *x, enum dcp_dtype as,
                                        struct quant8 *blocks)
{
    quantize<QUANT_TOP8>(n, x, as, blocks);
}

template <typename T>
static __global__ void quantize4_kernel(int64_t n, const T *x, enum dcp_dtype as,
                                        struct quant4 *blocks)
{
    quantize<QUANT_TOP4>(n, x, as, blocks);
}

void ops_cuda_quantize(void *ctx, int bits, enum dcp_dtype dtype, int64_t n,
                       const void *x, enum dcp_dtype as, void *blocks)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    unsigned grid = blocks_for(n, BLOCK * EACH);
    if (n && bits == 8)
        LAUNCH_BY(dtype, cuda, grid, BLOCK, quantize8_kernel, n, x, as, blocks);
    else if (n)
        LAUNCH_BY(dtype, cuda, grid, BLOCK, quantize4_kernel, n, x, as, blocks);
}

template <typename T>
static __global__ void dequantize8_kernel(int64_t n, const struct quant8 *blocks, T *out)
{
    EACH_ELEMENT(i, n)
    store(out, i, load(blocks, i));
}

template <typename T>
static __global__ void dequantize4_kernel(int64_t n, const struct quant4 *blocks, T *out)
{
    EACH_ELEMENT(i, n)
    store(out, i, load(blocks, i));
}

void ops_cuda_dequantize(void *ctx, int bits, enum dcp_dtype dtype, int64_t n,
                         const void *blocks, void *out)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    unsigned grid = blocks_for(n, BLOCK);
    if (n && bits == 8)
        LAUNCH_BY(dtype, cuda, grid, BLOCK, dequantize8_kernel, n, blocks, out);
    else if (n)
        LAUNCH_BY(dtype, cuda, grid, BLOCK, dequantize4_kernel, n, blocks, out);
}
