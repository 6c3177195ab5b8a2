/* lamb: a step of LAMB: each parameter's is as long as its weights are, which takes norms
 * of both. */
#include "own.h"

#include "base/mem.h"
#include <math.h>

static int run(struct shard *s, const struct shard_run *run, const void *with,
               struct dcp_error *err)
{
    const struct optim_params *params = with;
    struct optim_range range = shard_optim_range(s, run);
    (void)err;
    if (params->type != OPTIM_LAMB_STEP)
        range.weights = NULL;
    s->kernels.ops->optim(s->kernels.ctx, params, &range);
    return DCP_OK;
}

/* Of all that this rank owns of a parameter. */
static int in_windows(struct shard *s, const struct optim_params *groups, int param,
                      enum optim_type type, float trust, struct dcp_error *err)
{
    struct optim_params params = groups[s->at[param].group];
    const struct shard_run all = shard_run_of(s, param, 0, shard_n_own(s, param));
    params.type = type;
    params.trust = trust;
    return shard_in_windows(s, &all, false, run, &params, err);
}

/* Weights, and the direction that they go in. */
static void direction(struct shard *s, int param, int64_t at, int64_t n,
                      const void *groups, const float *out[SHARD_N_NORMS])
{
    struct optim_params params =
        ((const struct optim_params *)groups)[s->at[param].group];
    struct optim_range range = shard_param_range(s, param, at, n);
    float *to = s->norms.scratch[0];
    params.type = OPTIM_LAMB_DIRECTION;
    out[0] = range.master;
    out[1] = to;
    s->kernels.ops->copy(s->kernels.ctx, to, range.master, (uint64_t)n * sizeof *to);
    range.master = to;
    range.weights = NULL;
    s->kernels.ops->optim(s->kernels.ctx, &params, &range);
}

static float trust_of(const struct shard *s, int param, const struct optim_params *params)
{
    double weights = shard_norm(s, param, 0), step = shard_norm(s, param, 1);
    if (!(weights > 0 && step > 0))
        return 1;
    return (float)fmin(fmax(weights / step, params->min_trust), params->max_trust);
}

int shard_lamb(struct shard *s, const struct optim_params *groups, struct dcp_error *err)
{
    for (int p = 0; p < s->n_params; p++)
        DCP_TRY(in_windows(s, groups, p, OPTIM_LAMB, 0, err));
    DCP_TRY(shard_measure_norms(s, direction, groups, err));
    for (int p = 0; p < s->n_params; p++)
        DCP_TRY(in_windows(s, groups, p, OPTIM_LAMB_STEP,
                           trust_of(s, p, &groups[s->at[p].group]), err));
    return DCP_OK;
}
