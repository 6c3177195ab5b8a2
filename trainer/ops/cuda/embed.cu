/* ops_cuda: token and position embeddings. */
#include "kernel.cuh"

template <typename T>
static __global__ void embed_kernel(int64_t rows, int64_t seq_len, int64_t begin,
                                    int64_t width, const int32_t *tokens, const T *wte,
                                    const T *wpe, float *out)
{
    EACH_ELEMENT(i, rows * width)
    {
        int64_t row = i / width, column = i % width;
        out[i] = load(wte, tokens[row] * width + column) +
                 load(wpe, (begin + row % seq_len) * width + column);
    }
}

void ops_cuda_embed(void *ctx, enum dcp_dtype dtype, int64_t rows, int64_t seq_len,
                    int64_t begin, int64_t width, const int32_t *tokens, const void *wte,
                    const void *wpe, float *out)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (rows)
        LAUNCH_BY(dtype, cuda, blocks_for(rows * width, BLOCK), BLOCK, embed_kernel, rows,
                  seq_len, begin, width, tokens, wte, wpe, out);
}

/* Rows with the same token are added in their order by the block of the first of them.
 * The rows after it are looked through once for all columns: BLOCK at a time, whoever
 * finds one says so. */
static __global__ void token_grads_kernel(int64_t rows, int64_t width,
                                          const int32_t *tokens, const float *dout,
                                          float *dwte)
{
    __shared__ bool found[BLOCK];
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        int32_t token = tokens[row];
        int before = 0;
        for (int64_t r = threadIdx.x; r < row; r += BLOCK)
            before |= tokens[r] == token;
        if (reduce_block(before, max_values()))
            continue;
        for (int64_t first = row; first < rows; first += BLOCK) {
            int64_t mine = first + threadIdx.x;
            int64_t n = rows - first < BLOCK ? rows - first : BLOCK;
            __syncthreads(); /* of the rows before */
            found[threadIdx.x] = mine < rows && tokens[mine] == token;
            __syncthreads();
            for (int64_t k = 0; k < n; k++)
                for (int64_t j = threadIdx.x; found[k] && j < width; j += BLOCK)
                    dwte[token * width + j] += dout[(first + k) * width + j];
        }
    }
}

static __global__ void position_grads_kernel(int64_t rows, int64_t seq_len, int64_t width,
                                             const float *dout, float *dwpe)
{
    int64_t positions = rows < seq_len ? rows : seq_len;
    EACH_ELEMENT(i, positions * width)
    {
        float sum = 0;
        for (int64_t at = i; at < rows * width; at += seq_len * width)
            sum += dout[at];
        dwpe[i] += sum;
    }
}

void ops_cuda_embed_backward(void *ctx, int64_t rows, int64_t seq_len, int64_t width,
                             const int32_t *tokens, const float *dout, float *dwte,
                             float *dwpe)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (!rows)
        return;
    LAUNCH(cuda, blocks_for(rows, 1), BLOCK, token_grads_kernel, rows, width, tokens,
           dout, dwte);
    LAUNCH(cuda, blocks_for(seq_len * width, BLOCK), BLOCK, position_grads_kernel, rows,
           seq_len, width, dout, dwpe);
}
