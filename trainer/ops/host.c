/* host: ranges are worked on in parts, in threads when there are several. */
#include "host.h"
#include "adamw.h"
#include "base/mem.h"
#include "bf16.h"
#include "norm.h"
#include "simd.h"

#define ALIGN 64
#define PART (INT64_C(1) << 18) /* elements that a thread takes at a time */
#define BLOCK 1024 /* elements that are kept in the cache between two passes */

/* --- memory --- */

int ops_host_alloc(void *ctx, uint64_t size_bytes, const char *what, void **out,
                   struct dcp_error *err)
{
    (void)ctx;
    *out = size_bytes > SIZE_MAX / 2 ? NULL : dcp_mem_aligned(ALIGN, (size_t)size_bytes);
    return *out ? DCP_OK
                : dcp_error_set(err, DCP_E_MEMORY, "out of memory: %s need %.1f MiB",
                                what, (double)size_bytes / (1 << 20));
}

void ops_host_free(void *ctx, void *memory)
{
    (void)ctx;
    free(memory);
}

int ops_host_put(void *ctx, void *to, const void *from, uint64_t size_bytes,
                 struct dcp_error *err)
{
    (void)err;
    ops_host_copy(ctx, to, from, size_bytes);
    return DCP_OK;
}

void ops_host_copy(void *ctx, void *to, const void *from, uint64_t size_bytes)
{
    (void)ctx;
    if (size_bytes)
        memcpy(to, from, (size_t)size_bytes);
}

void ops_host_zero(void *ctx, void *to, uint64_t size_bytes)
{
    (void)ctx;
    if (size_bytes)
        memset(to, 0, (size_t)size_bytes);
}

int ops_host_sync(void *ctx, struct dcp_error *err)
{
    (void)ctx;
    (void)err;
    return DCP_OK;
}

/* --- ranges --- */

static int64_t n_parts_of(int64_t n)
{
    return (n + PART - 1) / PART;
}

static int64_t size_at(int64_t n, int64_t begin, int64_t size)
{
    return n - begin < size ? n - begin : size;
}

OPS_CLONES
static void to_bf16(const float *x, uint16_t *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_from_f32(x[i]);
}

OPS_CLONES
static void from_bf16(const uint16_t *x, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_to_f32(x[i]);
}

OPS_CLONES
static void round_bf16(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = bf16_to_f32(bf16_from_f32(x[i]));
}

OPS_CLONES
static void add(float *sum, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

OPS_CLONES
static void add_bf16(float *sum, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += bf16_to_f32(x[i]);
}

void ops_to_bf16(const float *x, uint16_t *out, int64_t n)
{
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts_of(n); p++)
        to_bf16(x + p * PART, out + p * PART, size_at(n, p * PART, PART));
}

void ops_from_bf16(const uint16_t *x, float *out, int64_t n)
{
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts_of(n); p++)
        from_bf16(x + p * PART, out + p * PART, size_at(n, p * PART, PART));
}

void ops_host_widen(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x, float *out)
{
    if (dtype == DCP_BF16)
        ops_from_bf16(x, out, n);
    else
        ops_host_copy(ctx, out, x, (uint64_t)n * sizeof *out);
}

void ops_host_round(void *ctx, int64_t n, float *x)
{
    (void)ctx;
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts_of(n); p++)
        round_bf16(x + p * PART, size_at(n, p * PART, PART));
}

static void sum_block(bool bf16, int64_t at, int64_t n, const float *x,
                      const void *const *parts, int n_parts, void *out)
{
    float sum[BLOCK];
    memcpy(sum, x + at, (size_t)n * sizeof *sum);
    for (int k = 0; k < n_parts; k++) {
        if (bf16)
            add_bf16(sum, (const uint16_t *)parts[k] + at, n);
        else
            add(sum, (const float *)parts[k] + at, n);
    }
    if (bf16)
        to_bf16(sum, (uint16_t *)out + at, n);
    else
        memcpy((float *)out + at, sum, (size_t)n * sizeof *sum);
}

void ops_host_sum(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x,
                  const void *const *parts, int n_parts, void *out)
{
    (void)ctx;
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t at = 0; at < n; at += BLOCK)
        sum_block(dtype == DCP_BF16, at, size_at(n, at, BLOCK), x, parts, n_parts, out);
}

/* --- the norm --- */

enum { TURN = 64 }; /* parts that are worked on before their results are put together */

static const float *as_f32(bool bf16, const void *x, int64_t at, int64_t n, float *room)
{
    if (!bf16)
        return (const float *)x + at;
    from_bf16((const uint16_t *)x + at, room, n);
    return room;
}

/* Of one part; with digits it adds, without it finds the peak. */
static float norm_part(bool bf16, const void *x, int64_t begin, int64_t n, float peak,
                       struct norm *norm)
{
    float room[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t size = size_at(n, at, BLOCK);
        const float *values = as_f32(bf16, x, begin + at, size, room);
        if (norm)
            norm_add(norm, peak, values, size);
        else
            peak = norm_peak(peak, values, size);
    }
    return peak;
}

void ops_host_norm_peak(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                        float *peak)
{
    (void)ctx;
    for (int64_t first = 0; first < n_parts_of(n); first += TURN) {
        float peaks[TURN] = { 0 };
        OPS_PARALLEL_FOR(n > PART)
        for (int64_t p = first; p < first + size_at(n_parts_of(n), first, TURN); p++)
            peaks[p - first] = norm_part(dtype == DCP_BF16, x, p * PART,
                                         size_at(n, p * PART, PART), 0, NULL);
        *peak = norm_peak(*peak, peaks, TURN);
    }
}

void ops_host_norm_add(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                       float peak, double *digits)
{
    (void)ctx;
    struct norm sum;
    memcpy(sum.digits, digits, sizeof sum.digits);
    for (int64_t first = 0; first < n_parts_of(n); first += TURN) {
        struct norm norms[TURN] = { { { 0 } } };
        OPS_PARALLEL_FOR(n > PART)
        for (int64_t p = first; p < first + size_at(n_parts_of(n), first, TURN); p++)
            norm_part(dtype == DCP_BF16, x, p * PART, size_at(n, p * PART, PART), peak,
                      &norms[p - first]);
        for (int t = 0; t < TURN; t++)
            norm_merge(&sum, &norms[t]);
    }
    memcpy(digits, sum.digits, sizeof sum.digits);
}

/* --- the optimizer --- */

void ops_host_adamw(void *ctx, const struct adamw_params *params,
                    const struct adamw_range *range)
{
    (void)ctx;
    adamw_step(range, params);
}
