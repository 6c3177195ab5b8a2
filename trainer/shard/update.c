/* update: the optimizer, and the new weights to who needs them. */
#include "own.h"

#include "base/mem.h"

/* Stages 1 and 2: every rank gets the parts of the others. Begun for a group, and ended
 * for both. */
static bool gathers(const struct shard *s)
{
    return (s->options.stage == 1 || s->options.stage == 2) && s->all->world_size > 1;
}

static int gather_begin(struct shard *s, int g, uint64_t *out_call, struct dcp_error *err)
{
    const struct shard_group *group = &s->groups[g];
    if (!gathers(s))
        return DCP_OK;
    int64_t own = shard_cut_group(s, g);
    DCP_TRY(coll_all_gather_begin(s->all, shard_weight_at(s, group->begin + own),
                                  s->counts, shard_weight_bytes(s),
                                  shard_weight_at(s, group->begin), out_call, err));
    return shard_overlaps(s) ? DCP_OK : coll_wait(s->all, *out_call, err);
}

static int gather_end(struct shard *s, const uint64_t *calls, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (int g = 0; !rc && gathers(s) && g < SHARD_N_GROUPS; g++)
        rc = coll_wait(s->all, calls[g], err);
    return rc;
}

/* What of a run's state comes next, or is done with. */
static void for_arrays(struct shard *s, const struct shard_run *run,
                       void (*act)(struct swap *swap, const void *from,
                                   uint64_t size_bytes))
{
    uint64_t size_bytes = (uint64_t)run->n * sizeof(float);
    if (s->master)
        act(s->optim_swap, s->master + run->own_at, size_bytes);
    for (int i = 0; i < optim_n_states(s->options.optimizer); i++)
        act(s->optim_swap, s->state[i] + run->own_at, size_bytes);
    shard_swap_weights(s, run->weight_at, run->n, act);
}

static struct shard_run window_of(const struct shard_run *run, int64_t at, int64_t most)
{
    struct shard_run window = *run;
    window.own_at += at;
    window.weight_at += at;
    window.grad_at += at;
    window.full_at += at;
    window.n = run->n - at < most ? run->n - at : most;
    return window;
}

/* As much of a run at a time as a buffer holds, where its state is in a file. */
static void in_windows(struct shard *s, const struct shard_run *run,
                       void (*work)(struct shard *s, const struct shard_run *run,
                                    const struct optim_params *params),
                       const struct optim_params *params)
{
    bool swapped = s->optim_swap || s->weight_swap;
    int64_t most = !swapped        ? run->n
                   : s->optim_swap ? s->options.offload_optimizer.window
                                   : s->options.offload_weights.window;
    for (int64_t at = 0; at < run->n; at += most) {
        struct shard_run now = window_of(run, at, most), next;
        if (swapped && at + most < run->n) {
            next = window_of(run, at + most, most);
            for_arrays(s, &next, swap_want);
        }
        work(s, &now, params);
        if (swapped)
            for_arrays(s, &now, swap_leave);
    }
}

/* The new weights of one run. */
static void update_run(struct shard *s, const struct shard_run *run,
                       const struct optim_params *params)
{
    void *weights = shard_weight_at(s, run->weight_at);
    struct optim_range range = {
        .master = s->master ? s->master + run->own_at : weights,
        .grad = shard_grad_at(s, run->grad_at),
        .grad_dtype = shard_grad_dtype(s),
        .weights = s->master ? weights : NULL,
        .weight_dtype = s->options.dtype,
        .n = run->n,
        .first = run->full_at,
    };
    for (int i = 0; i < optim_n_states(s->options.optimizer); i++)
        range.state[i] = s->state[i] + run->own_at;
    s->kernels.ops->optim(s->kernels.ctx, params, &range);
}

/* 16 bits: the weights of one run from its masters. */
static void spread_run(struct shard *s, const struct shard_run *run,
                       const struct optim_params *params)
{
    (void)params;
    s->kernels.ops->cast(s->kernels.ctx, s->options.dtype, run->n,
                         s->master + run->own_at, shard_weight_at(s, run->weight_at));
}

/* New weights, group by group: one is on its way to all while the next is made. */
static int renew(struct shard *s,
                 void (*make)(struct shard *s, const struct shard_run *run,
                              const struct optim_params *params),
                 const struct optim_params *const params[SHARD_N_GROUPS],
                 struct dcp_error *err)
{
    uint64_t calls[SHARD_N_GROUPS] = { 0 };
    shard_touch(s);
    for (int g = 0; g < SHARD_N_GROUPS; g++) {
        for (size_t i = 0; make && i < s->n_runs; i++)
            if (s->runs[i].decay == (g == 0))
                in_windows(s, &s->runs[i], make, params[g]);
        DCP_TRY(gather_begin(s, g, &calls[g], err));
    }
    return gather_end(s, calls, err);
}

int shard_spread(struct shard *s, struct dcp_error *err)
{
    static const struct optim_params *const none[SHARD_N_GROUPS];
    return renew(s, s->master ? spread_run : NULL, none, err);
}

static void raise_run(struct shard *s, const struct shard_run *run,
                      const struct optim_params *params)
{
    (void)params;
    s->kernels.ops->widen(s->kernels.ctx, s->options.dtype, run->n,
                          shard_weight_at(s, run->weight_at), s->master + run->own_at);
}

void shard_raise(struct shard *s)
{
    for (size_t i = 0; s->master && i < s->n_runs; i++)
        in_windows(s, &s->runs[i], raise_run, NULL);
}

int shard_update(struct shard *s, const struct optim_params *params,
                 struct dcp_error *err)
{
    struct optim_params plain = *params;
    if (!params->decay_all)
        plain.weight_decay = 0;
    const struct optim_params *const groups[SHARD_N_GROUPS] = { params, &plain };
    bool lamb = s->options.optimizer == OPTIM_LAMB;
    if (lamb)
        DCP_TRY(shard_lamb(s, groups, err));
    return renew(s, lamb ? NULL : update_run, groups, err);
}
