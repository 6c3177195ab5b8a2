/* step: its end: gradients summed over ranks, their norm, the optimizer, the new
 * weights. */
#include "base/mem.h"
#include "own.h"

#include "trainer/ops/exact.h"
#include <math.h>
#include <string.h>

void shard_begin(struct shard *s)
{
    size_t size_bytes = (size_t)s->n_params * sizeof *s->peaks;
    s->micro = 0;
    s->references_given = s->again;
    s->again = false;
    s->kernels.ops->zero(s->kernels.ctx, s->peaks, size_bytes);
}

int shard_n_rounds(const struct shard *s)
{
    return s->n_rounds;
}

int shard_end_micro(struct shard *s, struct dcp_error *err)
{
    int rc = shard_settle_exchange(s, err);
    s->micro++;
    return rc;
}

/* Dealt out one by one, so that no rank has two more than another. */
int64_t shard_micro(const struct shard *s, int rank, int i)
{
    return (int64_t)i * s->all->world_size + rank;
}

int64_t shard_cut_evenly(struct shard *s, const struct coll *coll, int64_t n,
                         int64_t part)
{
    int64_t own = 0;
    for (int r = 0; r < coll->world_size; r++) {
        struct dcp_part mine = dcp_part_of(part, r, 0, n);
        s->counts[r] = mine.end - mine.begin;
        own += r < coll->rank ? s->counts[r] : 0;
    }
    return own;
}

/* --- what ranks have summed becomes one --- */

/* Stages 0 and 1: each rank gets its part of the sums of all. */
static int reduce_sums(struct shard *s, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (int g = 0; !rc && g < SHARD_N_GROUPS; g++) {
        const struct shard_group *group = &s->groups[g];
        int64_t own = shard_cut_evenly(s, s->all, group->n, group->part);
        int64_t *sums = shard_sum_at(s, group->begin);
        rc = coll_reduce_scatter(s->all, sums, s->counts, sums + own, err);
    }
    return rc;
}

/* Adds the sums that this rank holds to those of the other copies of the model. */
static int reduce_copies(struct shard *s, struct dcp_error *err)
{
    struct coll *coll = &s->outer;
    int64_t n = s->n_grads;
    int64_t own = shard_cut_evenly(s, coll, n, dcp_part_ceil(n, coll->world_size));
    int64_t *sums = shard_sum_at(s, 0), *mine = sums + own;
    DCP_TRY(coll_reduce_scatter(coll, sums, s->counts, mine, err));
    return coll_all_gather(coll, mine, s->counts, sizeof *sums, sums, err);
}

/* Stage 0: every rank gets the gradients of all. */
static int gather_gradients(struct shard *s, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (int g = 0; !rc && g < SHARD_N_GROUPS; g++) {
        const struct shard_group *group = &s->groups[g];
        int64_t own = shard_cut_evenly(s, s->all, group->n, group->part);
        rc = coll_all_gather(s->all, shard_grad_at(s, group->begin + own), s->counts,
                             shard_grad_bytes(s), shard_grad_at(s, group->begin), err);
    }
    return rc;
}

static int complete_gradients(struct shard *s, struct dcp_error *err)
{
    bool several = s->all->world_size > 1;
    if (s->outer.ops)
        DCP_TRY(reduce_copies(s, err));
    else if (several && shard_sums_here(s))
        DCP_TRY(reduce_sums(s, err));
    shard_settle_sums(s);
    return several && s->options.stage == 0 ? gather_gradients(s, err) : DCP_OK;
}

/* --- their size --- */

/* Passes over what this rank counts in the norm, at stage 0 an even share of all: finds
 * the peak, or adds to the digits. */
static void for_norm(const struct shard *s, bool digits, float peak)
{
    const struct ops *ops = s->kernels.ops;
    enum dcp_dtype dtype = shard_grad_dtype(s);
    int64_t world_size = s->all->world_size, rank = s->all->rank;
    int64_t share = dcp_part_ceil(s->n_own, world_size);
    for (size_t i = 0; i < s->n_runs; i++) {
        const struct shard_run *run = &s->runs[i];
        struct dcp_part part = s->options.stage
                                   ? (struct dcp_part){ 0, run->n }
                                   : dcp_part_of(share, rank, run->own_at, run->n);
        const void *grads = shard_grad_at(s, run->grad_at + part.begin);
        if (part.begin == part.end)
            continue;
        if (digits)
            ops->norm_add(s->kernels.ctx, dtype, part.end - part.begin, grads, peak,
                          s->measure->digits);
        else
            ops->norm_peak(s->kernels.ctx, dtype, part.end - part.begin, grads,
                           &s->measure->peak);
    }
}

/* --- what ranks tell each other of their gradients --- */

enum verdict { FITS, TOO_LARGE, INFINITE, NOT_A_NUMBER };

/* Of this rank's micro-batches. */
static int judge(struct shard *s, enum verdict *out, struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops;
    size_t n = (size_t)s->n_params, size_bytes = n * sizeof *s->peaks;
    const float *peaks = s->host_peaks, *references = s->host_peaks + n;
    *out = FITS;
    DCP_TRY(ops->get(s->kernels.ctx, s->host_peaks, s->peaks, size_bytes, err));
    DCP_TRY(ops->get(s->kernels.ctx, s->host_peaks + n, s->references, size_bytes, err));
    for (size_t p = 0; p < n; p++) {
        enum verdict now = isnan(peaks[p])                            ? NOT_A_NUMBER
                           : isinf(peaks[p])                          ? INFINITE
                           : exact_overflows(references[p], peaks[p]) ? TOO_LARGE
                                                                      : FITS;
        *out = now > *out ? now : *out;
    }
    return DCP_OK;
}

/* The largest peak, and the worst verdict, of all ranks. */
static int share(struct shard *s, float *peak, enum verdict *verdict,
                 struct dcp_error *err)
{
    int n = s->all->world_size;
    memset(s->told, 0, 2 * (size_t)n * sizeof *s->told);
    s->told[s->all->rank] = (double)*peak;
    s->told[n + s->all->rank] = *verdict;
    DCP_TRY(coll_all_reduce(s->all, s->told, 2 * n, err));
    for (int r = 0; r < n; r++) {
        float theirs = (float)s->told[r];
        *peak = norm_peak(*peak, &theirs, 1);
        if (s->told[n + r] > (double)*verdict)
            *verdict = (enum verdict)(int)s->told[n + r];
    }
    return DCP_OK;
}

/* The step's references become the largest peaks of all ranks. */
static int share_peaks(struct shard *s, struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops;
    size_t n = (size_t)s->n_params, world_size = (size_t)s->all->world_size;
    size_t size_bytes = n * world_size * sizeof(float);
    DCP_CLEANUP_FREE float *host = dcp_mem_calloc(n * world_size, sizeof *host);
    void *all = NULL;
    int rc = host ? DCP_OK : dcp_error_memory(err, "the gradients' peaks");
    if (!rc)
        rc = ops->alloc(s->kernels.ctx, size_bytes, "the gradients' peaks", &all, err);
    for (size_t r = 0; r < world_size; r++)
        s->counts[r] = s->n_params;
    if (!rc)
        rc = coll_all_gather(s->all, s->peaks, s->counts, sizeof *host, all, err);
    if (!rc)
        rc = ops->get(s->kernels.ctx, host, all, size_bytes, err);
    for (size_t p = 0; !rc && p < n; p++)
        for (size_t r = 1; r < world_size; r++)
            host[p] = norm_peak(host[p], &host[r * n + p], 1);
    if (!rc)
        rc = ops->put(s->kernels.ctx, s->references, host, n * sizeof *host, err);
    ops->free(s->kernels.ctx, all);
    s->again = !rc;
    return rc;
}

/* The norm of all gradients, none above peak, the same bits at every cut. Ranks of other
 * copies hold the same gradients, so they do not count. */
static int measure(struct shard *s, float peak, double *out_norm, struct dcp_error *err)
{
    struct norm norm;
    s->kernels.ops->zero(s->kernels.ctx, s->measure, sizeof *s->measure);
    for_norm(s, true, peak);
    DCP_TRY(s->kernels.ops->get(s->kernels.ctx, norm.digits, s->measure->digits,
                                sizeof norm.digits, err));
    DCP_TRY(coll_all_reduce(s->inner, norm.digits, NORM_DIGITS, err));
    *out_norm = norm_value(&norm, peak);
    return DCP_OK;
}

int shard_reduce(struct shard *s, double *out_norm, bool *out_again,
                 struct dcp_error *err)
{
    enum verdict verdict;
    float peak;
    *out_again = false;
    DCP_TRY(complete_gradients(s, err));
    s->kernels.ops->zero(s->kernels.ctx, s->measure, sizeof *s->measure);
    for_norm(s, false, 0);
    DCP_TRY(
        s->kernels.ops->get(s->kernels.ctx, &peak, &s->measure->peak, sizeof peak, err));
    DCP_TRY(judge(s, &verdict, err));
    DCP_TRY(share(s, &peak, &verdict, err));
    *out_norm = verdict == NOT_A_NUMBER ? (double)NAN : (double)INFINITY;
    if (verdict > TOO_LARGE)
        return DCP_OK;
    if (verdict == TOO_LARGE) {
        *out_again = true;
        return share_peaks(s, err);
    }
    *out_norm = (double)peak;
    return isfinite(peak) ? measure(s, peak, out_norm, err) : DCP_OK;
}

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
    int64_t own = shard_cut_evenly(s, s->all, group->n, group->part);
    return coll_all_gather_begin(s->all, shard_weight_at(s, group->begin + own),
                                 s->counts, shard_weight_bytes(s),
                                 shard_weight_at(s, group->begin), out_call, err);
}

static int gather_end(struct shard *s, const uint64_t *calls, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (int g = 0; !rc && gathers(s) && g < SHARD_N_GROUPS; g++)
        rc = coll_wait(s->all, calls[g], err);
    return rc;
}

/* --- the optimizer --- */

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
    act(s->weight_swap, shard_weight_at(s, run->weight_at),
        (uint64_t)run->n * shard_weight_bytes(s));
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

void shard_in_windows(struct shard *s, const struct shard_run *run,
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
                shard_in_windows(s, &s->runs[i], make, params[g]);
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
        shard_in_windows(s, &s->runs[i], raise_run, NULL);
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
