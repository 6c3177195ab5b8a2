/* host: what tables have in common whose kernels work in the host's memory: memory,
 * and the kernels on ranges. */
#ifndef TRAINER_OPS_HOST_H
#define TRAINER_OPS_HOST_H

#include "ops.h"

struct quant4;

/* Entries of a table. */
#define OPS_HOST                                                          \
    .alloc = ops_host_alloc, .free = ops_host_free, .put = ops_host_put,  \
    .get = ops_host_put, .copy = ops_host_copy, .zero = ops_host_zero,    \
    .sync = ops_host_sync, .widen = ops_host_widen, .sum = ops_host_sum,  \
    .blend = ops_host_blend, .exact_add = ops_host_exact_add,             \
    .exact_sum = ops_host_exact_sum, .exact_merge = ops_host_exact_merge, \
    .exact_get = ops_host_exact_get, .quantize = ops_host_quantize,       \
    .dequantize = ops_host_dequantize, .norm_peak = ops_host_norm_peak,   \
    .norm_add = ops_host_norm_add, .optim = ops_host_optim,               \
    .factor_add = ops_host_factor_add, .factored = ops_host_factored

int ops_host_alloc(void *ctx, uint64_t size_bytes, const char *what, void **out,
                   struct dcp_error *err);
void ops_host_free(void *ctx, void *memory);
/* put and get. */
int ops_host_put(void *ctx, void *to, const void *from, uint64_t size_bytes,
                 struct dcp_error *err);
void ops_host_copy(void *ctx, void *to, const void *from, uint64_t size_bytes);
void ops_host_zero(void *ctx, void *to, uint64_t size_bytes);
int ops_host_sync(void *ctx, struct dcp_error *err);
void ops_host_widen(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                    float *out);
void ops_host_sum(void *ctx, enum dcp_dtype dtype, int64_t n, const float *x,
                  const void *const *parts, int n_parts, void *out);
void ops_host_blend(void *ctx, int64_t n, float a, const float *x, float b,
                    const float *y, float *out);
void ops_host_exact_add(void *ctx, const struct ops_exact *sum, int64_t n, const void *x,
                        bool add, int64_t *units);
void ops_host_exact_sum(void *ctx, const struct ops_exact *sum, int64_t n, const void *x,
                        enum dcp_dtype out_dtype, void *out);
void ops_host_exact_merge(void *ctx, int64_t n, const int64_t *more, int64_t *units);
void ops_host_exact_get(void *ctx, enum dcp_dtype dtype, int64_t n, const int64_t *units,
                        const float *reference, int n_values, void *out);
void ops_host_quantize(void *ctx, int bits, enum dcp_dtype dtype, int64_t n,
                       const void *x, enum dcp_dtype as, void *blocks);
void ops_host_dequantize(void *ctx, int bits, enum dcp_dtype dtype, int64_t n,
                         const void *blocks, void *out);
/* The same of blocks with 4 bits a number, by the thread that calls. */
void ops_host_values4(const struct quant4 *blocks, int64_t n, float *out);
void ops_host_norm_peak(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                        float *peak);
void ops_host_norm_add(void *ctx, enum dcp_dtype dtype, int64_t n, const void *x,
                       float peak, double *digits);
void ops_host_factor_add(void *ctx, enum dcp_dtype dtype,
                         const struct ops_matrix_part *part, const void *x,
                         float grad_scale, const struct factor_units *units,
                         struct factor_sum *rows, struct factor_sum *columns);
void ops_host_factored(void *ctx, const struct ops_matrix_part *part, const float *rows,
                       const float *columns, float mean, float *out);
void ops_host_optim(void *ctx, const struct optim_params *params,
                    const struct optim_range *range);

#endif
