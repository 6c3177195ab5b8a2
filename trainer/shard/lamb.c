/* lamb: a step of LAMB: each parameter's is as long as its weights are, which takes norms
 * over all of the parameter, wherever its parts are. They are sums of integers
 * (ops/norm.h), so that how it is cut does not show. */
#include "own.h"

#include "base/mem.h"
#include <math.h>

#define CHUNK ((int64_t)1 << 20) /* elements whose direction is made at a time */

/* Of each parameter, its weights and its direction. */
struct lamb {
    struct shard *s;
    const struct optim_params *groups;
    size_t n;       /* twice the parameters */
    float *scratch; /* CHUNK; this and the next two in the memory of the kernels */
    float *peaks;
    double *digits; /* NORM_DIGITS each */
    float *host_peaks;
    struct norm *norms;
};

static struct optim_range range_of(const struct shard *s, int param, int64_t at,
                                   int64_t n)
{
    const struct shard_run run = shard_run_of(s, param, at, n);
    return shard_optim_range(s, &run);
}

static void run(const struct lamb *l, int param, int64_t at, int64_t n,
                enum optim_type type, float trust, float *to)
{
    struct optim_params params = l->groups[l->s->at[param].group];
    struct optim_range range = range_of(l->s, param, at, n);
    params.type = type;
    params.trust = trust;
    if (type != OPTIM_LAMB_STEP)
        range.weights = NULL;
    if (to) {
        l->s->kernels.ops->copy(l->s->kernels.ctx, to, range.master,
                                (uint64_t)n * sizeof *to);
        range.master = to;
    }
    l->s->kernels.ops->optim(l->s->kernels.ctx, &params, &range);
}

/* Finds the peaks, or adds to the digits: the same passes. */
static void measure(const struct lamb *l, bool digits)
{
    const struct ops *ops = l->s->kernels.ops;
    void *ctx = l->s->kernels.ctx;
    for (int p = 0; p < l->s->n_params; p++) {
        int64_t all = l->s->at[p].end - l->s->at[p].begin;
        for (int64_t at = 0, n; at < all; at += n) {
            n = all - at < CHUNK ? all - at : CHUNK;
            const float *values[2] = { range_of(l->s, p, at, n).master, l->scratch };
            run(l, p, at, n, OPTIM_LAMB_DIRECTION, 0, l->scratch);
            for (int i = 0; i < 2; i++)
                if (digits)
                    ops->norm_add(ctx, DCP_F32, n, values[i], l->host_peaks[2 * p + i],
                                  l->digits + (2 * p + i) * NORM_DIGITS);
                else
                    ops->norm_peak(ctx, DCP_F32, n, values[i], &l->peaks[2 * p + i]);
        }
    }
}

static int share_peaks(const struct lamb *l, struct dcp_error *err)
{
    struct coll here;
    coll_self(&here);
    DCP_TRY(shard_largest(l->s, shard_is_cut(l->s) ? l->s->inner : &here, l->n, l->peaks,
                          l->host_peaks, err));
    for (size_t i = 0; i < l->n; i++) /* what is not finite has no norm */
        l->host_peaks[i] = isfinite(l->host_peaks[i]) ? l->host_peaks[i] : 0;
    return DCP_OK;
}

static int share_norms(const struct lamb *l, struct dcp_error *err)
{
    struct shard *s = l->s;
    size_t n = l->n * NORM_DIGITS;
    DCP_TRY(s->kernels.ops->get(s->kernels.ctx, l->norms, l->digits,
                                n * sizeof *l->digits, err));
    return shard_is_cut(s) ? coll_all_reduce(s->inner, l->norms->digits, (int)n, err)
                           : DCP_OK;
}

static float trust_of(const struct lamb *l, int param)
{
    const struct optim_params *params = &l->groups[l->s->at[param].group];
    double weights = norm_value(&l->norms[2 * param], l->host_peaks[2 * param]);
    double step = norm_value(&l->norms[2 * param + 1], l->host_peaks[2 * param + 1]);
    if (!(weights > 0 && step > 0))
        return 1;
    return (float)fmin(fmax(weights / step, params->min_trust), params->max_trust);
}

static int step(const struct lamb *l, struct dcp_error *err)
{
    const struct shard *s = l->s;
    for (int p = 0; p < s->n_params; p++)
        if (s->at[p].begin < s->at[p].end)
            run(l, p, 0, s->at[p].end - s->at[p].begin, OPTIM_LAMB, 0, NULL);
    measure(l, false);
    DCP_TRY(share_peaks(l, err));
    measure(l, true);
    DCP_TRY(share_norms(l, err));
    for (int p = 0; p < s->n_params; p++)
        if (s->at[p].begin < s->at[p].end)
            run(l, p, 0, s->at[p].end - s->at[p].begin, OPTIM_LAMB_STEP, trust_of(l, p),
                NULL);
    return DCP_OK;
}

int shard_lamb(struct shard *s, const struct optim_params *groups, struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops;
    struct lamb l = { .s = s, .groups = groups, .n = 2 * (size_t)s->n_params };
    uint64_t sizes[] = { CHUNK * sizeof *l.scratch, l.n * sizeof *l.peaks,
                         l.n * NORM_DIGITS * sizeof *l.digits };
    void *memory[DCP_ARRAY_LEN(sizes)] = { NULL };
    int rc = DCP_OK;
    l.host_peaks = dcp_mem_calloc(l.n, sizeof *l.host_peaks);
    l.norms = dcp_mem_calloc(l.n, sizeof *l.norms);
    if (!l.host_peaks || !l.norms)
        rc = dcp_error_memory(err, "norms of parameters");
    for (size_t i = 0; !rc && i < DCP_ARRAY_LEN(sizes); i++) {
        rc = ops->alloc(s->kernels.ctx, sizes[i], "norms of parameters", &memory[i], err);
        if (!rc)
            ops->zero(s->kernels.ctx, memory[i], sizes[i]);
    }
    l.scratch = memory[0];
    l.peaks = memory[1];
    l.digits = memory[2];
    if (!rc)
        rc = step(&l, err);
    for (size_t i = 0; i < DCP_ARRAY_LEN(sizes); i++)
        ops->free(s->kernels.ctx, memory[i]);
    free(l.host_peaks);
    free(l.norms);
    return rc;
}
