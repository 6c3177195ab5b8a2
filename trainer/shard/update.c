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
    if (s->master)
        act(s->optim_swap, s->master + run->own_at, size_bytes);
    for (int i = 0; i < optim_n_states(run->type); i++)
        act(s->optim_swap, s->state[i] + run->state_at[i], size_bytes);
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

void shard_in_windows(struct shard *s, const struct shard_run *run, shard_work *work,
                      const void *with)
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
        work(s, &now, with);
        shard_leave(s, &now);
    }
}

struct optim_range shard_optim_range(const struct shard *s, const struct shard_run *run)
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
    for (int i = 0; i < optim_n_states(run->type); i++)
        range.state[i] = s->state[i] + run->state_at[i];
    return range;
}

/* The new weights of one run. */
static void update_run(struct shard *s, const struct shard_run *run, const void *params)
{
    struct optim_range range = shard_optim_range(s, run);
    s->kernels.ops->optim(s->kernels.ctx, params, &range);
}

/* 16 bits: the weights of one run from its masters. */
static void spread_run(struct shard *s, const struct shard_run *run, const void *unused)
{
    (void)unused;
    s->kernels.ops->cast(s->kernels.ctx, s->options.dtype, run->n,
                         s->master + run->own_at, shard_weight_at(s, run->weight_at));
}

/* Whether one pass over the elements of a run is all of a step. */
static bool is_one_pass(enum optim_type type)
{
    return type != OPTIM_LAMB && type != OPTIM_MUON && type != OPTIM_ADAFACTOR &&
           type != OPTIM_FACTORED;
}

/* New weights, group by group: one is on its way to all while the next is made; by the
 * optimizer with the parameters of each group, or (NULL) from the masters. */
static int renew(struct shard *s, const struct optim_params *groups,
                 struct dcp_error *err)
{
    uint64_t calls[SHARD_N_GROUPS] = { 0 };
    shard_touch(s);
    for (int g = 0; g < SHARD_N_GROUPS; g++) {
        for (size_t i = 0; i < s->n_runs; i++) {
            const struct shard_run *run = &s->runs[i];
            if (run->group != g)
                continue;
            if (groups && is_one_pass(run->type))
                shard_in_windows(s, run, update_run, &groups[g]);
            else if (!groups && s->master)
                shard_in_windows(s, run, spread_run, NULL);
        }
        DCP_TRY(gather_begin(s, g, &calls[g], err));
    }
    return gather_end(s, calls, err);
}

int shard_spread(struct shard *s, struct dcp_error *err)
{
    return renew(s, NULL, err);
}

static void raise_run(struct shard *s, const struct shard_run *run, const void *unused)
{
    (void)unused;
    s->kernels.ops->widen(s->kernels.ctx, s->options.dtype, run->n,
                          shard_weight_at(s, run->weight_at), s->master + run->own_at);
}

void shard_raise(struct shard *s)
{
    for (size_t i = 0; s->master && i < s->n_runs; i++)
        shard_in_windows(s, &s->runs[i], raise_run, NULL);
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
    if (s->options.optimizer == OPTIM_LAMB)
        DCP_TRY(shard_lamb(s, groups, err));
    if (s->options.optimizer == OPTIM_MUON)
        DCP_TRY(shard_muon(s, &groups[0], err));
    if (s->options.optimizer == OPTIM_ADAFACTOR)
        DCP_TRY(shard_adafactor(s, groups, err));
    return renew(s, groups, err);
}
