/* ops_cuda: the kernels on ranges: the same bits as those of the host. No product is
 * fused with a sum here: the build says so. */
#include "kernel.cuh"
extern "C" {
#include "trainer/ops/exact.h"
#include "trainer/ops/factor.h"
#include "trainer/ops/norm.h"
#include "trainer/ops/optim_element.h"
}

/* --- casts and sums --- */

template <typename T>
static __global__ void cast_kernel(int64_t n, const float *x, T *out)
{
    EACH_ELEMENT(i, n)
    store(out, i, x[i]);
}

void ops_cuda_cast(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x, void *out)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (n)
        LAUNCH_BY(dtype, cuda, blocks_for(n, BLOCK), BLOCK, cast_kernel, n, x, out);
}

template <typename T>
static __global__ void widen_kernel(int64_t n, const T *x, float *out)
{
    EACH_ELEMENT(i, n)
    out[i] = load(x, i);
}

void ops_cuda_widen(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x, float *out)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (n)
        LAUNCH_BY(dtype, cuda, blocks_for(n, BLOCK), BLOCK, widen_kernel, n, x, out);
}

struct parts {
    const void *at[OPS_MAX_PARTS];
    int n;
};

template <typename T>
static __global__ void sum_kernel(int64_t n, const float *x, struct parts parts, T *out)
{
    EACH_ELEMENT(i, n)
    {
        float sum = x[i];
        for (int p = 0; p < parts.n; p++)
            sum += load((const T *)parts.at[p], i);
        store(out, i, sum);
    }
}

void ops_cuda_sum(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x,
                  const void *const *at, int n_parts, void *out)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    struct parts parts = {};
    parts.n = n_parts;
    for (int p = 0; p < n_parts; p++)
        parts.at[p] = at[p];
    if (n)
        LAUNCH_BY(dtype, cuda, blocks_for(n, BLOCK), BLOCK, sum_kernel, n, x, parts, out);
}

static __global__ void blend_kernel(int64_t n, float a, const float *x, float b,
                                    const float *y, float *out)
{
    EACH_ELEMENT(i, n)
    out[i] = optim_blend(a, x[i], b, y[i]);
}

void ops_cuda_blend(void *ctx, int64_t n, float a, const float *x, float b,
                    const float *y, float *out)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (n)
        LAUNCH(cuda, blocks_for(n, BLOCK), BLOCK, blend_kernel, n, a, x, b, y, out);
}

/* --- the largest of all --- */

#define NORM_BLOCKS 256 /* their results are one block's work */

static __device__ void keep_peak(uint32_t peak, uint32_t *peaks)
{
    peak = reduce_block(peak, max_values());
    if (threadIdx.x == 0)
        peaks[blockIdx.x] = peak;
}

template <typename T>
static __global__ void peak_kernel(int64_t n, const T *x, uint32_t *peaks)
{
    uint32_t peak = 0;
    EACH_ELEMENT(i, n)
    peak = max_values()(peak, norm_magnitude(load(x, i)));
    keep_peak(peak, peaks);
}

static __global__ void peak_end_kernel(const uint32_t *peaks, unsigned n, float *peak)
{
    uint32_t max = threadIdx.x < n ? peaks[threadIdx.x] : 0;
    max = reduce_block(max, max_values());
    uint32_t before = norm_magnitude(*peak);
    max = before > max ? before : max;
    if (threadIdx.x == 0)
        memcpy(peak, &max, sizeof max);
}

static unsigned norm_blocks(int64_t n)
{
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    return blocks < NORM_BLOCKS ? (unsigned)blocks : NORM_BLOCKS;
}

/* --- exact sums --- */

/* The i-th elements of all parts in units, and the largest of them and `peak`. */
template <typename T>
static __device__ int64_t sum_parts(const T *x, int64_t i, int n_parts, int64_t stride,
                                    double scale, uint32_t *peak)
{
    int64_t units = 0;
    for (int p = 0; p < n_parts; p++) {
        float value = load(x, p * stride + i);
        *peak = max_values()(*peak, norm_magnitude(value));
        units = exact_plus(units, exact_units(value, scale));
    }
    return units;
}

template <typename T>
static __global__ void exact_add_kernel(int64_t n, const T *x, struct ops_exact sum,
                                        bool add, int64_t *units, uint32_t *peaks)
{
    double scale = exact_power(exact_shift(*sum.reference, sum.n_values));
    uint32_t peak = 0;
    EACH_ELEMENT(i, n)
    units[i] = exact_plus(add ? units[i] : 0,
                          sum_parts(x, i, sum.n_parts, sum.stride, scale, &peak));
    keep_peak(peak, peaks);
}

template <typename T, typename Out>
static __device__ void sum_values(int64_t n, const T *x, const struct ops_exact &sum,
                                  Out *out, uint32_t *peaks)
{
    int shift = exact_shift(*sum.reference, sum.n_values);
    double scale = exact_power(shift), unit = exact_power(-shift);
    uint32_t peak = 0;
    EACH_ELEMENT(i, n)
    store(out, i,
          exact_value(sum_parts(x, i, sum.n_parts, sum.stride, scale, &peak), unit));
    keep_peak(peak, peaks);
}

template <typename T>
static __global__ void exact_sum_kernel(int64_t n, const T *x, struct ops_exact sum,
                                        T *out, uint32_t *peaks)
{
    sum_values(n, x, sum, out, peaks);
}

template <typename T>
static __global__ void exact_sum_wide_kernel(int64_t n, const T *x, struct ops_exact sum,
                                             float *out, uint32_t *peaks)
{
    sum_values(n, x, sum, out, peaks);
}

template <typename Out>
static __global__ void exact_sum_blocks_kernel(int64_t n, const quant4 *x,
                                               struct ops_exact sum, Out *out,
                                               uint32_t *peaks)
{
    sum_values(n, x, sum, out, peaks);
}

void ops_cuda_exact_add(void *ctx, const struct ops_exact *sum, int64_t n, const void *x,
                        bool add, int64_t *units)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    uint32_t *peaks = (uint32_t *)ops_cuda_scratch(cuda, NORM_BLOCKS * sizeof *peaks);
    if (!n || !peaks)
        return;
    if (sum->quantized)
        LAUNCH(cuda, norm_blocks(n), BLOCK, exact_add_kernel<quant4>, n, x, *sum, add,
               units, peaks);
    else
        LAUNCH_BY(sum->dtype, cuda, norm_blocks(n), BLOCK, exact_add_kernel, n, x, *sum,
                  add, units, peaks);
    LAUNCH(cuda, 1, NORM_BLOCKS, peak_end_kernel, peaks, norm_blocks(n), sum->peak);
}

void ops_cuda_exact_sum(void *ctx, const struct ops_exact *sum, int64_t n, const void *x,
                        enum dcp_dtype out_dtype, void *out)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    uint32_t *peaks = (uint32_t *)ops_cuda_scratch(cuda, NORM_BLOCKS * sizeof *peaks);
    if (!n || !peaks)
        return;
    if (sum->quantized)
        LAUNCH_BY(out_dtype, cuda, norm_blocks(n), BLOCK, exact_sum_blocks_kernel, n, x,
                  *sum, out, peaks);
    else if (out_dtype == sum->dtype)
        LAUNCH_BY(sum->dtype, cuda, norm_blocks(n), BLOCK, exact_sum_kernel, n, x, *sum,
                  out, peaks);
    else
        LAUNCH_BY(sum->dtype, cuda, norm_blocks(n), BLOCK, exact_sum_wide_kernel, n, x,
                  *sum, (float *)out, peaks);
    LAUNCH(cuda, 1, NORM_BLOCKS, peak_end_kernel, peaks, norm_blocks(n), sum->peak);
}

static __global__ void exact_merge_kernel(int64_t n, const int64_t *more, int64_t *units)
{
    EACH_ELEMENT(i, n)
    units[i] = exact_plus(units[i], more[i]);
}

void ops_cuda_exact_merge(void *ctx, int64_t n, const int64_t *more, int64_t *units)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (n)
        LAUNCH(cuda, blocks_for(n, BLOCK), BLOCK, exact_merge_kernel, n, more, units);
}

template <typename T>
static __global__ void exact_get_kernel(int64_t n, const int64_t *units,
                                        const float *reference, int n_values, T *out)
{
    double scale = exact_power(-exact_shift(*reference, n_values));
    EACH_ELEMENT(i, n)
    store(out, i, exact_value(units[i], scale));
}

/* One block of as many threads: all have read before the first writes. */
template <typename T>
static __global__ void exact_get_in_place_kernel(int64_t n, const int64_t *units,
                                                 const float *reference, int n_values,
                                                 T *out)
{
    double scale = exact_power(-exact_shift(*reference, n_values));
    float value = threadIdx.x < n ? exact_value(units[threadIdx.x], scale) : 0;
    __syncthreads();
    if (threadIdx.x < n)
        store(out, threadIdx.x, value);
}

void ops_cuda_exact_get(void *ctx, enum dcp_dtype dtype, int64_t n, const int64_t *units,
                        const float *reference, int n_values, void *out)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (n && n <= OPS_EXACT_IN_PLACE)
        LAUNCH_BY(dtype, cuda, 1, OPS_EXACT_IN_PLACE, exact_get_in_place_kernel, n, units,
                  reference, n_values, out);
    else if (n)
        LAUNCH_BY(dtype, cuda, blocks_for(n, BLOCK), BLOCK, exact_get_kernel, n, units,
                  reference, n_values, out);
}

/* --- the norm --- */

void ops_cuda_norm_peak(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                        float *peak)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    uint32_t *peaks = (uint32_t *)ops_cuda_scratch(cuda, NORM_BLOCKS * sizeof *peaks);
    if (!n || !peaks)
        return;
    LAUNCH_BY(dtype, cuda, norm_blocks(n), BLOCK, peak_kernel, n, x, peaks);
    LAUNCH(cuda, 1, NORM_BLOCKS, peak_end_kernel, peaks, norm_blocks(n), peak);
}

template <typename T>
static __global__ void count_kernel(int64_t n, const T *x, double scale,
                                    struct norm_sums *sums)
{
    struct norm_sums mine = { 0, 0 };
    EACH_ELEMENT(i, n)
    norm_count(&mine, load(x, i), scale);
    mine.low = reduce_block(mine.low, add_values());
    mine.high = reduce_block(mine.high, add_values());
    if (threadIdx.x == 0)
        sums[blockIdx.x] = mine;
}

static __global__ void count_end_kernel(const struct norm_sums *sums, unsigned n,
                                        double *digits)
{
    struct norm_sums all = { 0, 0 };
    if (threadIdx.x < n)
        all = sums[threadIdx.x];
    all.low = reduce_block(all.low, add_values());
    all.high = reduce_block(all.high, add_values());
    if (threadIdx.x == 0)
        norm_add_sums(digits, all);
}

void ops_cuda_norm_add(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                       float peak, double *digits)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    struct norm_sums *sums =
        (struct norm_sums *)ops_cuda_scratch(cuda, NORM_BLOCKS * sizeof *sums);
    if (!n || !sums)
        return;
    LAUNCH_BY(dtype, cuda, norm_blocks(n), BLOCK, count_kernel, n, x, norm_scale(peak),
              sums);
    LAUNCH(cuda, 1, NORM_BLOCKS, count_end_kernel, sums, norm_blocks(n), digits);
}

/* --- rows and columns of a matrix --- */

#define FACTOR_ROWS 64 /* that a block adds up */

static __device__ void add_sum(struct factor_sum *to, int64_t high, int64_t low)
{
    atomicAdd((unsigned long long *)&to->high, (unsigned long long)high);
    atomicAdd((unsigned long long *)&to->low, (unsigned long long)low);
}

/* A thread has a column of some rows: integers, so no order shows. */
template <typename T>
static __global__ void factor_kernel(struct ops_matrix_part part, const T *x,
                                     float grad_scale, struct factor_units units,
                                     struct factor_sum *rows, struct factor_sum *columns)
{
    int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
            first = part.first / part.columns + (int64_t)blockIdx.y * FACTOR_ROWS;
    struct factor_sum all = { 0, 0 };
    for (int64_t row = first; row < first + FACTOR_ROWS; row++) {
        int64_t i = row * part.columns + column - part.first;
        struct factor_sum one = { 0, 0 };
        if (column < part.columns && i >= 0 && i < part.n)
            one = factor_count(load(x, i) * grad_scale, units);
        all.high += one.high;
        all.low += one.low;
        uint64_t high = reduce_block((uint64_t)one.high, add_values()),
                 low = reduce_block((uint64_t)one.low, add_values());
        if (threadIdx.x == 0 && (high || low))
            add_sum(&rows[row], (int64_t)high, (int64_t)low);
    }
    if (column < part.columns)
        add_sum(&columns[column], all.high, all.low);
}

void ops_cuda_factor_add(void *ctx, enum dcp_dtype dtype,
                         const struct ops_matrix_part *part, const void *x,
                         float grad_scale, const struct factor_units *units,
                         struct factor_sum *rows, struct factor_sum *columns)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    int64_t n_rows = part->n ? (part->first + part->n - 1) / part->columns + 1 -
                                   part->first / part->columns
                             : 0;
    dim3 grid((unsigned)((part->columns + BLOCK - 1) / BLOCK),
              (unsigned)((n_rows + FACTOR_ROWS - 1) / FACTOR_ROWS));
    if (n_rows)
        LAUNCH_BY(dtype, cuda, grid, BLOCK, factor_kernel, *part, x, grad_scale, *units,
                  rows, columns);
}

static __global__ void factored_kernel(struct ops_matrix_part part, const float *rows,
                                       const float *columns, float mean, float *out)
{
    EACH_ELEMENT(i, part.n)
    out[i] = optim_factored(rows[(part.first + i) / part.columns],
                            columns[(part.first + i) % part.columns], mean);
}

void ops_cuda_factored(void *ctx, const struct ops_matrix_part *part, const float *rows,
                       const float *columns, float mean, float *out)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    if (part->n)
        LAUNCH(cuda, blocks_for(part->n, BLOCK), BLOCK, factored_kernel, *part, rows,
               columns, mean, out);
}

/* --- the optimizer --- */

struct optim_work {
    enum optim_type type;
    struct optim_range range;
    struct optim_factors factors;
    bool stochastic;
    uint64_t seed;
    int64_t step;
};

template <typename T> static __global__ void optim_kernel(struct optim_work work)
{
    const struct optim_range r = work.range;
    int n_states = optim_n_states(work.type);
    EACH_ELEMENT(i, r.n)
    {
        float a = n_states > 0 ? r.state[0][i] : 0, b = n_states > 1 ? r.state[1][i] : 0;
        float w = optim_element(work.type, work.factors, r.master[i], &a, &b,
                                load((const T *)r.grad, i));
        if (n_states > 0)
            r.state[0][i] = a;
        if (n_states > 1)
            r.state[1][i] = b;
        r.master[i] = w;
        if (r.weights)
            r.weights[i] = work.stochastic
                               ? optim_round(w, work.seed, work.step, r.first + i)
                           : r.weight_dtype == DCP_F16 ? f16_from_f32(w)
                                                       : bf16_from_f32(w);
    }
}

void ops_cuda_optim(void *ctx, const struct optim_params *params,
                    const struct optim_range *range)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    struct optim_work work = {};
    work.type = params->type;
    work.range = *range;
    work.factors = optim_factors(params);
    work.stochastic = params->stochastic;
    work.seed = params->seed;
    work.step = params->step;
    if (range->n)
        LAUNCH_BY(range->grad_dtype, cuda, blocks_for(range->n, BLOCK), BLOCK,
                  optim_kernel, work);
}
