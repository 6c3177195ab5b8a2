/* update: the optimizer, and the new weights to who needs them. */
#include "apart.h"

#include "base/mem.h"

/* Stages 1 and 2: every rank gets the parts of the others. Begun for a group, and ended
 * for all. */
static bool gathers(const struct shard *s)
{
    return (s->options.stage == 1 || s->options.stage == 2) && s->all->world_size > 1;
}

static int gather_begin(struct shard *s, int g, uint64_t *out_call, struct dcp_error *err)
{
    const struct shard_group *group = &s->groups[g];
    if (!gathers(s) || !group->n)
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
        if (s->groups[g].n)
            rc = coll_wait(s->all, calls[g], err);
    return rc;
}

/* What of a run's state comes next, or is done with. */
static void for_arrays(struct shard *s, const struct shard_run *run,
                       void (*act)(struct swap *swap, const void *from,
                                   uint64_t size_bytes))
{
    uint64_t size_bytes = (uint64_t)run->n * sizeof(float);
    if (shard_master_at(s, run->own_at))
        act(s->optim_swap, shard_master_at(s, run->own_at), size_bytes);
    for (int i = 0; i < optim_n_states(run->type); i++)
        act(s->optim_swap, shard_state_at(s, i, run->own_at, run->state_at[i]),
            size_bytes);
    act(s->optim_swap, shard_grad_at(s, run->grad_at),
        (uint64_t)run->n * shard_grad_bytes(s));
    shard_swap_weights(s, run->weight_at, run->n, act);
}

void shard_leave(struct shard *s, const struct shard_run *run)
{
    if (s->optim_swap || s->weight_swap)
        for_arrays(s, run, swap_leave);
}

static struct shard_run window_of(const struct shard_run *run, int64_t at, int64_t most)
{
    struct shard_run window = *run;
    window.own_at += at;
    window.weight_at += at;
    window.grad_at += at;
    window.full_at += at;
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
        window.state_at[i] += at;
    window.n = run->n - at < most ? run->n - at : most;
    return window;
}

int shard_in_windows(struct shard *s, const struct shard_run *run, bool grads,
                     shard_work *work, const void *with, struct dcp_error *err)
{
    bool swapped = s->optim_swap || s->weight_swap;
    int64_t most = shard_window(s, shard_home_at(s, run->own_at));
    struct shard_run next = window_of(run, 0, most);
    uint64_t brought = 0, coming = 0;
    if (grads)
        DCP_TRY(shard_bring_grads(s, &next, &brought, err));
    for (int64_t at = 0; at < run->n; at += most) {
        struct shard_run now = next;
        bool is_last = at + most >= run->n;
        if (!is_last)
            next = window_of(run, at + most, most);
        if (!is_last && swapped)
            for_arrays(s, &next, swap_want);
        if (!is_last && grads)
            DCP_TRY(shard_bring_grads(s, &next, &coming, err));
        DCP_TRY(shard_grads_brought(s, brought, err));
        DCP_TRY(work(s, &now, with, err));
        brought = coming;
        shard_leave(s, &now);
    }
    return DCP_OK;
}

/* `weights`: where new ones go. */
static struct optim_range range_of(const struct shard *s, const struct shard_run *run,
                                   void *weights)
{
    float *master = shard_master_at(s, run->own_at);
    struct optim_range range = {
        .master = master ? master : weights,
        .grad = shard_optim_grad(s, run),
        .grad_dtype = shard_grad_dtype(s),
        .weights = s->options.dtype == DCP_F32 ? NULL : weights,
        .weight_dtype = s->options.dtype,
        .n = run->n,
        .first = run->full_at,
    };
    for (int i = 0; i < optim_n_states(run->type); i++)
        range.state[i] = shard_state_at(s, i, run->own_at, run->state_at[i]);
    return range;
}

struct optim_range shard_optim_range(const struct shard *s, const struct shard_run *run)
{
    return range_of(s, run, shard_weight_at(s, run->weight_at));
}

struct optim_range shard_param_range(const struct shard *s, int param, int64_t at,
                                     int64_t n)
{
    const struct shard_run run = shard_run_of(s, param, at, n);
    return shard_optim_range(s, &run);
}

/* The new weights of one run. */
static int update_run(struct shard *s, const struct shard_run *run, const void *params,
                      struct dcp_error *err)
{
    const struct shard_home *home = shard_home_at(s, run->own_at);
    const struct ops *ops = home->kernels.ops;
    void *weights;
    DCP_TRY(shard_out_begin(s, home, run, &weights, err));
    struct optim_range range = range_of(s, run, weights);
    ops->optim(home->kernels.ctx, params, &range);
    if (!range.weights && range.master != weights)
        ops->copy(home->kernels.ctx, weights, range.master,
                  (uint64_t)run->n * sizeof *range.master);
    return shard_out_end(s, home, run, weights, err);
}

/* 16 bits: the weights of one run from its masters. */
static int spread_run(struct shard *s, const struct shard_run *run, const void *unused,
                      struct dcp_error *err)
{
    const struct shard_home *home = shard_home_at(s, run->own_at);
    void *weights;
    (void)unused;
    DCP_TRY(shard_out_begin(s, home, run, &weights, err));
    home->kernels.ops->cast(home->kernels.ctx, s->options.dtype, run->n,
                            shard_master_at(s, run->own_at), weights);
    return shard_out_end(s, home, run, weights, err);
}

/* The masters of one run from its weights. */
static int raise_run(struct shard *s, const struct shard_run *run, const void *unused,
                     struct dcp_error *err)
{
    (void)unused;
    return shard_raise_run(s, run, err);
}

/* Those of a group, by the optimizer with its parameters or (NULL) from the masters. What
 * is with the kernels comes first: they work on it while the host does its part. */
static int renew_group(struct shard *s, int g, const struct optim_params *params,
                       struct dcp_error *err)
{
    for (size_t i = 0; i < s->n_runs; i++) {
        const struct shard_run *run = &s->runs[i];
        if (run->group != g)
            continue;
        if (params && shard_is_one_pass(run->type))
            DCP_TRY(shard_in_windows(s, run, true, update_run, params, err));
        else if (!params && shard_has_master(s))
            DCP_TRY(shard_in_windows(s, run, false, spread_run, NULL, err));
    }
    return shard_out_settle(s, err);
}

/* New weights, group by group: one is on its way to all while the next is made. */
static int renew(struct shard *s, const struct optim_params *groups,
                 struct dcp_error *err)
{
    uint64_t calls[SHARD_N_GROUPS] = { 0 };
    shard_forget(s);
    for (int g = 0; g < SHARD_N_GROUPS; g++) {
        DCP_TRY(renew_group(s, g, groups ? &groups[g] : NULL, err));
        DCP_TRY(gather_begin(s, g, &calls[g], err));
    }
    return gather_end(s, calls, err);
}

int shard_spread(struct shard *s, struct dcp_error *err)
{
    return renew(s, NULL, err);
}

static int raise_all(struct shard *s, struct dcp_error *err)
{
    for (size_t i = 0; i < s->n_runs; i++)
        DCP_TRY(shard_in_windows(s, &s->runs[i], false, raise_run, NULL, err));
    s->masters_stale = false;
    return DCP_OK;
}

int shard_raise(struct shard *s, struct dcp_error *err)
{
    return shard_has_master(s) ? raise_all(s, err) : DCP_OK;
}

/* Of each group. */
static void params_of_groups(const struct shard *s, const struct optim_params *params,
                             struct optim_params out[SHARD_N_GROUPS])
{
    bool muon = s->options.optimizer == OPTIM_MUON;
    for (int g = 0; g < SHARD_N_GROUPS; g++) {
        bool adam = muon && g > 0, decays = params->decay_all || g < (muon ? 2 : 1);
        out[g] = *params;
        out[g].type = adam ? OPTIM_ADAM : s->options.optimizer;
        out[g].lr = adam ? params->adam_lr : params->lr;
        out[g].weight_decay = decays ? params->weight_decay : 0;
    }
}

int shard_update(struct shard *s, const struct optim_params *params,
                 struct dcp_error *err)
{
    struct optim_params groups[SHARD_N_GROUPS];
    params_of_groups(s, params, groups);
    shard_land(s); /* it may still read weights, and the coll */
    if (s->masters_stale)
        DCP_TRY(raise_all(s, err));
    if (s->options.optimizer == OPTIM_LAMB)
        DCP_TRY(shard_lamb(s, groups, err));
    if (s->options.optimizer == OPTIM_MUON)
        DCP_TRY(shard_muon(s, &groups[0], err));
    if (s->options.optimizer == OPTIM_ADAFACTOR)
        DCP_TRY(shard_adafactor(s, groups, err));
    return renew(s, groups, err);
}
