/* norms: over all of a parameter, wherever its parts are. They are sums of integers
 * (ops/norm.h), so that how it is cut does not show. */
#include "own.h"

#include "base/mem.h"
#include <math.h>

static int index_of(int param, int i)
{
    return SHARD_N_NORMS * param + i;
}

/* Of n elements: finds the peaks, or adds to the digits. */
static void measure(struct shard *s, int param, int64_t n,
                    const float *const values[SHARD_N_NORMS], bool digits)
{
    const struct shard_norms *norms = &s->norms;
    const struct kernels *k = &s->kernels;
    for (int i = 0; i < SHARD_N_NORMS; i++) {
        int at = index_of(param, i);
        if (digits)
            k->ops->norm_add(k->ctx, DCP_F32, n, values[i], norms->host_peaks[at],
                             norms->digits + at * NORM_DIGITS);
        else
            k->ops->norm_peak(k->ctx, DCP_F32, n, values[i], &norms->peaks[at]);
    }
}

/* The same passes for both. */
static void for_values(struct shard *s, shard_values *make, const void *with, bool digits)
{
    for (int p = 0; p < s->n_params; p++) {
        int64_t all = shard_n_own(s, p), most = s->norms.n_scratch;
        for (int64_t at = 0, n; at < all; at += n) {
            const float *values[SHARD_N_NORMS];
            n = all - at < most ? all - at : most;
            make(s, p, at, n, with, values);
            measure(s, p, n, values, digits);
            struct shard_run run = shard_run_of(s, p, at, n);
            shard_leave(s, &run);
        }
    }
}

static int share_peaks(struct shard *s, size_t n, struct dcp_error *err)
{
    DCP_TRY(shard_largest(s, shard_is_cut(s) ? s->inner : NULL, n, s->norms.peaks,
                          s->norms.host_peaks, err));
    for (size_t i = 0; i < n; i++)
        if (!isfinite(s->norms.host_peaks[i]))
            s->norms.host_peaks[i] = 0;
    return DCP_OK;
}

int shard_measure_norms(struct shard *s, shard_values *values, const void *with,
                        struct dcp_error *err)
{
    struct shard_norms *norms = &s->norms;
    const struct kernels *k = &s->kernels;
    size_t n = (size_t)index_of(s->n_params, 0), n_digits = n * NORM_DIGITS;
    k->ops->zero(k->ctx, norms->peaks, n * sizeof *norms->peaks);
    k->ops->zero(k->ctx, norms->digits, n_digits * sizeof *norms->digits);
    for_values(s, values, with, false);
    DCP_TRY(share_peaks(s, n, err));
    for_values(s, values, with, true);
    DCP_TRY(k->ops->get(k->ctx, norms->norms, norms->digits,
                        n_digits * sizeof *norms->digits, err));
    return shard_is_cut(s)
               ? coll_all_reduce(s->inner, norms->norms->digits, (int)n_digits, err)
               : DCP_OK;
}

double shard_norm(const struct shard *s, int param, int i)
{
    int at = index_of(param, i);
    return norm_value(&s->norms.norms[at], s->norms.host_peaks[at]);
}
