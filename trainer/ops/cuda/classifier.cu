/* ops_cuda: softmax, cross-entropy and its gradient in one kernel. A block works on a
 * row. */
#include "kernel.cuh"

template <typename T>
static __global__ void classifier_kernel(int64_t rows, int64_t n, const float *logits,
                                         const int32_t *targets, float scale,
                                         double *losses, T *dlogits)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *x = logits + row * n;
        int64_t target = targets[row];
        float own = x[target], max = -INFINITY, sum = 0;
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
            max = x[j] > max ? x[j] : max;
        max = reduce_block(max, max_values());
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
            sum += expf(x[j] - max);
        sum = reduce_block(sum, add_values());
        if (threadIdx.x == 0)
            losses[row] = (double)max + log((double)sum) - (double)own;
        if (!dlogits)
            continue;
        /* In F32 the gradient may take the place of the logits: `own` is read by then,
         * the barriers of the sum lie between. */
        float share = scale / sum;
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
            store(dlogits, row * n + j,
                  expf(x[j] - max) * share - (j == target ? scale : 0));
    }
}

void ops_cuda_cross_entropy(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t n,
                            const float *logits, const int32_t *targets, float scale,
                            double *losses, void *dlogits)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (rows)
        LAUNCH_BY(dtype, cuda, blocks_for(rows, 1), BLOCK, classifier_kernel, rows, n,
                  logits, targets, scale, losses, dlogits);
}
