/* columns: sums over rows, column by column, in two steps: strips of rows, then
 * the strips in their order. */
#ifndef TRAINER_OPS_CUDA_COLUMNS_CUH
#define TRAINER_OPS_CUDA_COLUMNS_CUH

#include "kernel.cuh"

#define COLUMNS 32 /* of a block: a warp reads them side by side */
#define STRANDS 8  /* rows of a block at a time */
#define MAX_STRIPS 64

/* partial[strip][column][n_sums]. Source: void operator()(row, column, out[n_sums]). */
template <int n_sums, typename Source>
static __global__ void sum_strips(Source source, int64_t rows, int64_t width,
                                  int64_t strip_rows, float *partial)
{
    __shared__ float shared[STRANDS][COLUMNS][n_sums];
    int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    int64_t begin = (int64_t)blockIdx.y * strip_rows, end = begin + strip_rows;
    float sums[n_sums], values[n_sums];
    for (int s = 0; s < n_sums; s++)
        sums[s] = 0;
    for (int64_t row = begin + threadIdx.y; row < rows && row < end && column < width;
         row += STRANDS) {
        source(row, column, values);
        for (int s = 0; s < n_sums; s++)
            sums[s] += values[s];
    }
    for (int s = 0; s < n_sums; s++)
        shared[threadIdx.y][threadIdx.x][s] = sums[s];
    __syncthreads();
    if (threadIdx.y > 0 || column >= width)
        return;
    for (int s = 0; s < n_sums; s++) {
        float sum = 0;
        for (int strand = 0; strand < STRANDS; strand++)
            sum += shared[strand][threadIdx.x][s];
        partial[(blockIdx.y * width + column) * n_sums + s] = sum;
    }
}

/* Adds to out[0], and to out[1] when there are two sums. */
template <int n_sums>
static __global__ void add_strips(const float *partial, int n_strips, int64_t width,
                                  float *first, float *second)
{
    EACH_ELEMENT(column, width)
    {
        float sums[n_sums];
        for (int s = 0; s < n_sums; s++)
            sums[s] = 0;
        for (int strip = 0; strip < n_strips; strip++)
            for (int s = 0; s < n_sums; s++)
                sums[s] += partial[(strip * width + column) * n_sums + s];
        first[column] += sums[0];
        if (n_sums > 1)
            second[column] += sums[n_sums - 1];
    }
}

template <int n_sums, typename Source>
static void sum_columns(struct ops_cuda *cuda, Source source, int64_t rows, int64_t width,
                        float *first, float *second)
{
    int64_t strips = rows / (4 * STRANDS) + 1;
    int64_t n_strips = strips < MAX_STRIPS ? strips : MAX_STRIPS;
    int64_t strip_rows = (rows + n_strips - 1) / n_strips;
    uint64_t size_bytes = (uint64_t)(n_strips * width * n_sums) * sizeof(float);
    float *partial = (float *)ops_cuda_scratch(cuda, size_bytes);
    dim3 grid((unsigned)((width + COLUMNS - 1) / COLUMNS), (unsigned)n_strips);
    if (!partial || !rows || !width)
        return;
    LAUNCH(cuda, grid, dim3(COLUMNS, STRANDS), (sum_strips<n_sums, Source>), source, rows,
           width, strip_rows, partial);
    LAUNCH(cuda, blocks_for(width, BLOCK), BLOCK, add_strips<n_sums>, partial,
           (int)n_strips, width, first, second);
}

#endif
