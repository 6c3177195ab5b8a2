/* ops_cuda: causal attention without its matrix of scores, which is made again where it
 * is needed, a tile at a time. (Dao et al., "FlashAttention", arXiv:2205.14135; the
 * gradient as in section 3.1 of arXiv:2307.08691.)
 *
 * A warp works on one row of a head: a lane has one of the WARP rows of a tile while
 * products are made, and every WARP-th element of the row while they are used. The warps
 * of a block share the tiles, which lie in shared memory one after the other. */
#include "cudnn.h"
#include "kernel.cuh"

#define PAD 1 /* so that the rows of a tile begin in different banks */

/* What a block has: `max` is the largest head, `n` how many rows it works on. */
template <int max, int n> struct room {
    float tile[WARP][max + PAD];
    float own[2][n][max]; /* rows of the warps, of one or two parts */
};

/* Where things are. Rows are of [batch,seq_len,n_head,head_size], parts of
 * qkv[batch,seq_len,3,n_head,head_size]. */
struct place {
    int64_t seq_len, n_head, size;
    float scale;
    enum part { q, k, v };
    __device__ int64_t row(int64_t i) const
    {
        return ((blockIdx.z * seq_len + i) * n_head + blockIdx.y) * size;
    }
    __device__ int64_t row(int64_t i, int part) const
    {
        return (((blockIdx.z * seq_len + i) * 3 + part) * n_head + blockIdx.y) * size;
    }
    /* Of [batch,n_head,seq_len]. */
    __device__ int64_t one(int64_t i) const
    {
        return (blockIdx.z * n_head + blockIdx.y) * seq_len + i;
    }
};

/* Rows first .. first + WARP of a part of qkv (or of dout, for part -1); those from `end`
 * on are zero. All threads of the block, and a barrier before and after. */
template <int max>
static __device__ void load_tile(float (*tile)[max + PAD], const struct place &at,
                                 const float *from, int part, int64_t first, int64_t end)
{
    __syncthreads();
    for (int64_t i = threadIdx.x; i < WARP * at.size; i += blockDim.x) {
        int64_t row = i / at.size, c = i % at.size, source = first + row;
        tile[row][c] = source >= end ? 0
                       : part < 0    ? from[at.row(source) + c]
                                     : from[at.row(source, part) + c];
    }
    __syncthreads();
}

/* The row of this warp, for after the next barrier. Not there: zeros. */
static __device__ void load_own(float *own, const float *row, bool there, int64_t size)
{
    for (int64_t c = threadIdx.x % WARP; c < size; c += WARP)
        own[c] = there ? row[c] : 0;
}

static __device__ __forceinline__ float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += a[c] * b[c];
    return sum;
}

/* sums[e] += the sum over the tile's rows r of (lane r's weight) × element lane + e WARP.
 */
template <int max>
static __device__ __forceinline__ void add_weighted(float *sums, float weight,
                                                    const float (*tile)[max + PAD],
                                                    int64_t size)
{
    for (int r = 0; r < WARP; r++) {
        float w = __shfl_sync(ALL_LANES, weight, r);
        for (int e = 0; e < max / WARP; e++) {
            int64_t c = threadIdx.x % WARP + e * WARP;
            if (c < size)
                sums[e] += w * tile[r][c];
        }
    }
}

template <int max, typename T>
static __device__ void store_row(T *to, int64_t at, const float *sums, float factor,
                                 int64_t size)
{
    for (int e = 0; e < max / WARP; e++) {
        int64_t c = threadIdx.x % WARP + e * WARP;
        if (c < size)
            store(to, at + c, sums[e] * factor);
    }
}

/* --- forward --- */

/* With a running maximum m and sum of exp(s - m), both of the whole warp's row. */
template <int max, int n, typename T>
static __global__ void attention_kernel(struct place at, int64_t begin, const float *qkv,
                                        T *out, float *lse)
{
    __shared__ struct room<max, n> room;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t first_row = begin + (int64_t)blockIdx.x * n, i = first_row + warp;
    int64_t end = first_row + n < at.seq_len ? first_row + n : at.seq_len;
    bool there = i < at.seq_len;
    float m = -INFINITY, sum = 0, mix[max / WARP] = {};
    load_own(room.own[0][warp], qkv + at.row(there ? i : 0, place::q), there, at.size);
    for (int64_t first = 0; first < end; first += WARP) {
        load_tile<max>(room.tile, at, qkv, place::k, first, end);
        bool seen = first + lane <= i;
        float s = dot(room.own[0][warp], room.tile[lane], at.size) * at.scale;
        float before = m;
        m = reduce_warp(seen ? s : -INFINITY, max_values());
        m = before > m ? before : m;
        float p = seen ? expf(s - m) : 0, shrink = expf(before - m);
        sum = sum * shrink + reduce_warp(p, add_values());
        for (int e = 0; e < max / WARP; e++)
            mix[e] *= shrink;
        load_tile<max>(room.tile, at, qkv, place::v, first, end);
        add_weighted<max>(mix, p, room.tile, at.size);
    }
    if (!there)
        return;
    store_row<max>(out, at.row(i), mix, 1 / sum, at.size);
    if (lane == 0)
        lse[at.one(i)] = m + logf(sum);
}

/* --- backward --- */

/* p and dp of row i and row j of the tiles; p is 0 where i does not see j. */
static __device__ __forceinline__ float softmax_of(float score, float lse, bool seen)
{
    return seen ? expf(score - lse) : 0;
}

/* delta[i] = sum over j of p dp, then dq[i] = sum over j of p (dp - delta) k[j] scale. */
template <int max, int n, typename T>
static __global__ void attention_rows_kernel(struct place at, const float *qkv,
                                             const float *lse, const float *dout,
                                             float *delta, T *dqkv)
{
    __shared__ struct room<max, n> room;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t first_row = (int64_t)blockIdx.x * n, i = first_row + warp;
    int64_t end = first_row + n < at.seq_len ? first_row + n : at.seq_len;
    bool there = i < at.seq_len;
    float d = 0, dq[max / WARP] = {}, row_lse = there ? lse[at.one(i)] : 0;
    load_own(room.own[0][warp], qkv + at.row(there ? i : 0, place::q), there, at.size);
    load_own(room.own[1][warp], dout + at.row(there ? i : 0), there, at.size);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t first = 0; first < end; first += WARP) {
            load_tile<max>(room.tile, at, qkv, place::v, first, end);
            float dp = dot(room.own[1][warp], room.tile[lane], at.size);
            load_tile<max>(room.tile, at, qkv, place::k, first, end);
            float s = dot(room.own[0][warp], room.tile[lane], at.size) * at.scale;
            float p = softmax_of(s, row_lse, there && first + lane <= i);
            if (pass == 0)
                d += reduce_warp(p * dp, add_values());
            else
                add_weighted<max>(dq, p * (dp - d), room.tile, at.size);
        }
    if (!there)
        return;
    store_row<max>(dqkv, at.row(i, place::q), dq, at.scale, at.size);
    if (lane == 0)
        delta[at.one(i)] = d;
}

/* dk[j] = sum over i of p (dp - delta[i]) q[i] scale; dv[j] = sum over i of p dout[i]. */
template <int max, int n, typename T>
static __global__ void attention_columns_kernel(struct place at, const float *qkv,
                                                const float *lse, const float *dout,
                                                const float *delta, T *dqkv)
{
    __shared__ struct room<max, n> room;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t first_row = (int64_t)blockIdx.x * n, j = first_row + warp;
    bool there = j < at.seq_len;
    float dk[max / WARP] = {}, dv[max / WARP] = {};
    load_own(room.own[0][warp], qkv + at.row(there ? j : 0, place::k), there, at.size);
    load_own(room.own[1][warp], qkv + at.row(there ? j : 0, place::v), there, at.size);
    for (int64_t first = first_row; first < at.seq_len; first += WARP) {
        int64_t i = first + lane;
        bool seen = there && i < at.seq_len && j <= i;
        load_tile<max>(room.tile, at, qkv, place::q, first, at.seq_len);
        float s = dot(room.own[0][warp], room.tile[lane], at.size) * at.scale;
        float p = softmax_of(s, seen ? lse[at.one(i)] : 0, seen);
        load_tile<max>(room.tile, at, dout, -1, first, at.seq_len);
        float dp = dot(room.own[1][warp], room.tile[lane], at.size);
        add_weighted<max>(dv, p, room.tile, at.size);
        float ds = seen ? p * (dp - delta[at.one(i)]) : 0;
        load_tile<max>(room.tile, at, qkv, place::q, first, at.seq_len);
        add_weighted<max>(dk, ds, room.tile, at.size);
    }
    if (!there)
        return;
    store_row<max>(dqkv, at.row(j, place::k), dk, at.scale, at.size);
    store_row<max>(dqkv, at.row(j, place::v), dv, 1, at.size);
}

/* --- launching --- */

/* Small heads leave room for more rows. */
#define SMALL 128
#define SMALL_ROWS 16
#define LARGE 256
#define LARGE_ROWS 4

static struct place place_of(const struct ops_attention *s)
{
    struct place at = { s->seq_len, s->n_head, s->head_size, 0 };
    at.scale = (float)(1 / sqrt((double)s->head_size));
    return at;
}

static int check(const struct ops_attention *s, struct dcp_error *err)
{
    if (s->head_size <= LARGE && s->batch <= MAX_GRID && s->n_head <= MAX_GRID)
        return DCP_OK;
    return dcp_error_set(err, DCP_E_UNSUPPORTED,
                         "attention on a GPU takes heads of up to %d elements, not %lld",
                         LARGE, (long long)s->head_size);
}

template <typename T> struct attention {
    template <int max, int n>
    static void forward(struct ops_cuda *cuda, const struct ops_attention *s,
                        const float *qkv, void *out, float *lse)
    {
        dim3 grid((unsigned)((s->seq_len - s->begin + n - 1) / n), (unsigned)s->n_head,
                  (unsigned)s->batch);
        LAUNCH(cuda, grid, n * WARP, (attention_kernel<max, n, T>), place_of(s), s->begin,
               qkv, out, lse);
    }

    template <int max, int n>
    static void backward(struct ops_cuda *cuda, const struct ops_attention *s,
                         const float *qkv, const float *lse, const float *dout,
                         float *delta, void *dqkv)
    {
        dim3 grid((unsigned)((s->seq_len + n - 1) / n), (unsigned)s->n_head,
                  (unsigned)s->batch);
        LAUNCH(cuda, grid, n * WARP, (attention_rows_kernel<max, n, T>), place_of(s), qkv,
               lse, dout, delta, dqkv);
        LAUNCH(cuda, grid, n * WARP, (attention_columns_kernel<max, n, T>), place_of(s),
               qkv, lse, dout, delta, dqkv);
    }
};

template <typename T>
static void forward(struct ops_cuda *cuda, const struct ops_attention *s,
                    const float *qkv, void *out, float *lse)
{
    if (s->head_size <= SMALL)
        attention<T>::template forward<SMALL, SMALL_ROWS>(cuda, s, qkv, out, lse);
    else
        attention<T>::template forward<LARGE, LARGE_ROWS>(cuda, s, qkv, out, lse);
}

template <typename T>
static void backward(struct ops_cuda *cuda, const struct ops_attention *s,
                     const float *qkv, const float *lse, const float *dout, float *delta,
                     void *dqkv)
{
    if (s->head_size <= SMALL)
        attention<T>::template backward<SMALL, SMALL_ROWS>(cuda, s, qkv, lse, dout, delta,
                                                           dqkv);
    else
        attention<T>::template backward<LARGE, LARGE_ROWS>(cuda, s, qkv, lse, dout, delta,
                                                           dqkv);
}

int ops_cuda_attention(void *ctx, const struct ops_attention *shape, const float *qkv,
                       void *out, float *lse, struct dcp_error *err)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    bool done = false;
    int rc = check(shape, err);
    if (!rc)
        rc = ops_cuda_cudnn_attention(cuda, shape, qkv, out, lse, &done, err);
    if (rc || done)
        return rc;
    if (shape->dtype == DCP_BF16)
        forward<bf16>(cuda, shape, qkv, out, lse);
    else if (shape->dtype == DCP_F16)
        forward<f16>(cuda, shape, qkv, out, lse);
    else
        forward<float>(cuda, shape, qkv, out, lse);
    return ops_cuda_report(cuda, err);
}

int ops_cuda_attention_backward(void *ctx, const struct ops_attention *shape,
                                const float *qkv, const void *out, const float *lse,
                                const float *dout, void *dqkv, struct dcp_error *err)
{
    struct ops_cuda *cuda = (struct ops_cuda *)ctx;
    uint64_t rows = (uint64_t)(shape->batch * shape->n_head * shape->seq_len);
    bool done = false;
    int rc = check(shape, err);
    if (!rc)
        rc = ops_cuda_cudnn_attention_backward(cuda, shape, qkv, out, lse, dout, dqkv,
                                               &done, err);
    if (rc || done)
        return rc;
    float *delta = (float *)ops_cuda_scratch(cuda, rows * sizeof *delta);
    if (delta && shape->dtype == DCP_BF16)
        backward<bf16>(cuda, shape, qkv, lse, dout, delta, dqkv);
    else if (delta && shape->dtype == DCP_F16)
        backward<f16>(cuda, shape, qkv, lse, dout, delta, dqkv);
    else if (delta)
        backward<float>(cuda, shape, qkv, lse, dout, delta, dqkv);
    return ops_cuda_report(cuda, err);
}
