/* host: ranges are worked on in parts, in threads when there are several. */
#include "host.h"
#include "base/mem.h"
#include "exact.h"
#include "norm.h"
#include "optim_element.h"
#include "quant.h"
#include "simd.h"
#include "value.h"

#define ALIGN 64
#define PART (INT64_C(1) << 18)  /* elements that a thread takes at a time */
#define COPY (UINT64_C(1) << 20) /* bytes likewise, that are copied */
#define BLOCK 1024 /* elements that are kept in the cache between two passes */
#define TURN 64    /* parts that are worked on before their results are put together */

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

static size_t copied_at(uint64_t size_bytes, uint64_t at)
{
    return (size_t)(size_bytes - at < COPY ? size_bytes - at : COPY);
}

void ops_host_copy(void *ctx, void *to, const void *from, uint64_t size_bytes)
{
    (void)ctx;
    OPS_PARALLEL_FOR(size_bytes > COPY)
    for (uint64_t at = 0; at < size_bytes; at += COPY)
        memcpy((char *)to + at, (const char *)from + at, copied_at(size_bytes, at));
}

void ops_host_zero(void *ctx, void *to, uint64_t size_bytes)
{
    (void)ctx;
    OPS_PARALLEL_FOR(size_bytes > COPY)
    for (uint64_t at = 0; at < size_bytes; at += COPY)
        memset((char *)to + at, 0, copied_at(size_bytes, at));
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

INLINE void narrow_as(enum dcp_dtype dtype, const float *x, void *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        value_put(dtype, out, i, x[i]);
}

DCP_VECTORS
static void narrow(enum dcp_dtype dtype, const float *x, void *out, int64_t n)
{
    BY_DTYPE(dtype, narrow_as, x, out, n);
}

INLINE void widen_as(enum dcp_dtype dtype, const void *x, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = value_get(dtype, x, i);
}

DCP_VECTORS
static void widen(enum dcp_dtype dtype, const void *x, float *out, int64_t n)
{
    BY_DTYPE(dtype, widen_as, x, out, n);
}

INLINE void add_as(enum dcp_dtype dtype, float *sum, const void *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += value_get(dtype, x, i);
}

DCP_VECTORS
static void add(enum dcp_dtype dtype, float *sum, const void *x, int64_t n)
{
    BY_DTYPE(dtype, add_as, sum, x, n);
}

static const void *at(enum dcp_dtype dtype, const void *array, int64_t i)
{
    return (const char *)array + (size_t)i * dcp_dtype_size(dtype);
}

static void *at_out(enum dcp_dtype dtype, void *array, int64_t i)
{
    return (char *)array + (size_t)i * dcp_dtype_size(dtype);
}

static const float *as_f32(enum dcp_dtype dtype, const void *x, int64_t begin, int64_t n,
                           float *room)
{
    if (dtype == DCP_F32)
        return (const float *)x + begin;
    widen(dtype, at(dtype, x, begin), room, n);
    return room;
}

void ops_to_16bit(enum dcp_dtype dtype, const float *x, uint16_t *out, int64_t n)
{
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts_of(n); p++)
        narrow(dtype, x + p * PART, out + p * PART, size_at(n, p * PART, PART));
}

void ops_from_16bit(enum dcp_dtype dtype, const uint16_t *x, float *out, int64_t n)
{
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts_of(n); p++)
        widen(dtype, x + p * PART, out + p * PART, size_at(n, p * PART, PART));
}

void ops_host_widen(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x, float *out)
{
    if (dtype == DCP_F32)
        ops_host_copy(ctx, out, x, (uint64_t)n * sizeof *out);
    else
        ops_from_16bit(dtype, x, out, n);
}

static void sum_block(enum dcp_dtype dtype, int64_t begin, int64_t n, const float *x,
                      const void *const *parts, int n_parts, void *out)
{
    float sum[BLOCK];
    memcpy(sum, x + begin, (size_t)n * sizeof *sum);
    for (int k = 0; k < n_parts; k++)
        add(dtype, sum, at(dtype, parts[k], begin), n);
    narrow(dtype, sum, at_out(dtype, out, begin), n);
}

void ops_host_sum(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x,
                  const void *const *parts, int n_parts, void *out)
{
    (void)ctx;
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t at = 0; at < n; at += BLOCK)
        sum_block(dtype, at, size_at(n, at, BLOCK), x, parts, n_parts, out);
}

DCP_VECTORS
static void blend(float a, const float *x, float b, const float *y, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = optim_blend(a, x[i], b, y[i]);
}

void ops_host_blend(void *ctx, int64_t n, float a, const float *x, float b,
                    const float *y, float *out)
{
    (void)ctx;
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts_of(n); p++)
        blend(a, x + p * PART, b, y + p * PART, out + p * PART,
              size_at(n, p * PART, PART));
}

/* --- exact sums --- */

DCP_VECTORS
static void add_units_of(const float *x, double scale, int64_t *units, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        units[i] = exact_plus(units[i], exact_units(x[i], scale));
}

DCP_VECTORS
static void merge(const int64_t *more, int64_t *units, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        units[i] = exact_plus(units[i], more[i]);
}

DCP_VECTORS
static void values_of(const int64_t *units, double scale, float *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        values[i] = exact_value(units[i], scale);
}

/* A block of sums. */
static void put_values(const int64_t *units, int64_t n, double scale,
                       enum dcp_dtype dtype, void *out)
{
    float values[BLOCK];
    values_of(units, scale, values, n);
    narrow(dtype, values, out, n);
}

/* n values of all parts from the i-th on, as they lie or in `room`. */
static const float *parts_as_f32(const struct ops_exact *sum, const void *x, int64_t i,
                                 int64_t n, float *room)
{
    if (!sum->quantized)
        return as_f32(sum->dtype, x, i, n, room);
    ops_host_values4((const struct quant4 *)x + i / QUANT_BLOCK, n, room);
    return room;
}

/* A block of all parts joins units; the largest of them and `peak`. */
static float add_parts(const struct ops_exact *sum, const void *x, int64_t begin,
                       int64_t n, double scale, float peak, int64_t *units)
{
    float room[BLOCK];
    for (int p = 0; p < sum->n_parts; p++) {
        const float *values = parts_as_f32(sum, x, p * sum->stride + begin, n, room);
        peak = norm_peak(peak, values, n);
        add_units_of(values, scale, units, n);
    }
    return peak;
}

/* What becomes of the sums: they are kept in units, or are values at once. */
struct sums {
    int64_t *units;
    bool add;
    enum dcp_dtype dtype;
    void *values;
};

static float sum_part(const struct ops_exact *sum, const void *x, int64_t begin,
                      int64_t n, const struct sums *out)
{
    int shift = exact_shift(*sum->reference, sum->n_values);
    float peak = 0;
    for (int64_t at = begin; at < begin + n; at += BLOCK) {
        int64_t room[BLOCK], size = size_at(begin + n, at, BLOCK);
        int64_t *units = out->units ? out->units + at : room;
        if (!out->add)
            memset(units, 0, (size_t)size * sizeof *units);
        peak = add_parts(sum, x, at, size, exact_power(shift), peak, units);
        if (!out->units)
            put_values(units, size, exact_power(-shift), out->dtype,
                       at_out(out->dtype, out->values, at));
    }
    return peak;
}

static void sum_parts(const struct ops_exact *sum, int64_t n, const void *x,
                      const struct sums *out)
{
    for (int64_t first = 0; first < n_parts_of(n); first += TURN) {
        float peaks[TURN] = { 0 };
        OPS_PARALLEL_FOR(n > PART)
        for (int64_t p = first; p < first + size_at(n_parts_of(n), first, TURN); p++)
            peaks[p - first] =
                sum_part(sum, x, p * PART, size_at(n, p * PART, PART), out);
        *sum->peak = norm_peak(*sum->peak, peaks, TURN);
    }
}

void ops_host_exact_add(void *ctx, const struct ops_exact *sum, int64_t n, const void *x,
                        bool add, int64_t *units)
{
    (void)ctx;
    sum_parts(sum, n, x, &(struct sums){ .units = units, .add = add });
}

void ops_host_exact_sum(void *ctx, const struct ops_exact *sum, int64_t n, const void *x,
                        enum dcp_dtype out_dtype, void *out)
{
    (void)ctx;
    sum_parts(sum, n, x, &(struct sums){ .dtype = out_dtype, .values = out });
}

void ops_host_exact_merge(void *ctx, int64_t n, const int64_t *more, int64_t *units)
{
    (void)ctx;
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts_of(n); p++)
        merge(more + p * PART, units + p * PART, size_at(n, p * PART, PART));
}

void ops_host_exact_get(void *ctx, enum dcp_dtype dtype, int64_t n, const int64_t *units,
                        const float *reference, int n_values, void *out)
{
    (void)ctx;
    double scale = exact_power(-exact_shift(*reference, n_values));
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t at = 0; at < n; at += BLOCK)
        put_values(units + at, size_at(n, at, BLOCK), scale, dtype,
                   at_out(dtype, out, at));
}

/* --- the norm --- */

/* Of one part; with digits it adds, without it finds the peak. */
static float norm_part(enum dcp_dtype dtype, const void *x, int64_t begin, int64_t n,
                       float peak, struct norm *norm)
{
    float room[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t size = size_at(n, at, BLOCK);
        const float *values = as_f32(dtype, x, begin + at, size, room);
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
            peaks[p - first] =
                norm_part(dtype, x, p * PART, size_at(n, p * PART, PART), 0, NULL);
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
            norm_part(dtype, x, p * PART, size_at(n, p * PART, PART), peak,
                      &norms[p - first]);
        for (int t = 0; t < TURN; t++)
            norm_merge(&sum, &norms[t]);
    }
    memcpy(digits, sum.digits, sizeof sum.digits);
}

/* --- the optimizer --- */

void ops_host_optim(void *ctx, const struct optim_params *params,
                    const struct optim_range *range)
{
    (void)ctx;
    optim_step(range, params);
}
