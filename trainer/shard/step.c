/* The end of a step: gradients summed over ranks, their norm, the optimizer, the new
 * weights. */
#include "base/mem.h"
#include "own.h"

#include "trainer/ops/adamw.h"
#include <math.h>
#include <string.h>

void shard_begin(struct shard *s)
{
    s->micro = 0;
}

int shard_end_micro(struct shard *s, struct dcp_error *err)
{
    int rc = shard_settle_reduction(s, err);
    s->micro++;
    return rc;
}

/* Ranks that are summed before a rank's own micro-batches are (stage 2 and 3: at once,
 * unit by unit) stand next to each other in the tree; below them its own micro-batches;
 * below those the other ranks. */
int64_t shard_micro(const struct shard *s, int rank, int i)
{
    int together = s->options.stage >= 2 ? s->inner->world_size : 1;
    int64_t block = rank / together, place = rank % together;
    return (block * s->options.accumulation + i) * together + place;
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

/* Gradients in bf16 are summed over the copies in fp32, a bucket at a time, cut as
 * s->counts says. */
static int reduce_bf16(struct shard *s, int64_t own, struct dcp_error *err)
{
    struct coll *coll = &s->outer;
    const struct ops *ops = s->kernels.ops;
    void *ctx = s->kernels.ctx;
    int64_t items = SHARD_BUCKET / coll->world_size, max = s->counts[0];
    int rc = DCP_OK;
    for (int64_t done = 0; !rc && done < max; done += items) {
        int64_t from = 0, to = 0, own_to = 0;
        for (int r = 0; r < coll->world_size; r++) {
            int64_t left = s->counts[r] - done;
            int64_t n = left < 0 ? 0 : left < items ? left : items;
            ops->widen(ctx, DCP_BF16, n, shard_grad_at(s, 0, from + done),
                       s->staging[0] + to);
            own_to = r == coll->rank ? to : own_to;
            s->round[r] = n;
            from += s->counts[r];
            to += n;
        }
        float *sum = s->staging[0] + own_to;
        rc = coll_reduce_scatter(coll, s->staging[0], s->round, sum, err);
        if (!rc)
            ops->cast(ctx, DCP_BF16, s->round[coll->rank], sum,
                      shard_grad_at(s, 0, own + done));
    }
    return rc;
}

/* Sums the gradients that this rank holds over the copies of the model. */
static int reduce_copies(struct shard *s, struct dcp_error *err)
{
    struct coll *coll = &s->outer;
    int64_t n = s->n_grads;
    int64_t own = shard_cut_evenly(s, coll, n, dcp_part_ceil(n, coll->world_size));
    void *sums = shard_grad_at(s, 0, own);
    int rc = shard_grads_fp32(s)
                 ? coll_reduce_scatter(coll, s->grads[0], s->counts, sums, err)
                 : reduce_bf16(s, own, err);
    if (!rc)
        rc =
            coll_all_gather(coll, sums, s->counts, shard_grad_bytes(s), s->grads[0], err);
    return rc;
}

/* Passes over what this rank counts in the norm, at stage 0 an even share of all: finds
 * the peak, or adds to the digits. */
static void for_norm(const struct shard *s, bool digits, float peak)
{
    const struct ops *ops = s->kernels.ops;
    enum dcp_dtype dtype = shard_grad_dtype(s);
    int64_t world_size = s->world_size->world_size, rank = s->world_size->rank;
    int64_t share = dcp_part_ceil(s->n_own, world_size);
    for (size_t i = 0; i < s->n_runs; i++) {
        const struct shard_run *run = &s->runs[i];
        struct dcp_part part = s->options.stage
                                   ? (struct dcp_part){ 0, run->n }
                                   : dcp_part_of(share, rank, run->own_at, run->n);
        const void *grads = shard_grad_at(s, 0, run->grad_at + part.begin);
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

/* The norm of all gradients, the same bits at every cut. Ranks of other copies hold the
 * same gradients, so they do not count. */
static int measure(struct shard *s, double *out_norm, struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops;
    struct norm norm;
    float peak;
    int world_size = s->inner->world_size;
    ops->zero(s->kernels.ctx, s->measure, sizeof *s->measure);
    for_norm(s, false, 0);
    int rc = ops->get(s->kernels.ctx, &peak, &s->measure->peak, sizeof peak, err);
    memset(s->peaks, 0, (size_t)world_size * sizeof *s->peaks);
    s->peaks[s->inner->rank] = (double)peak;
    if (!rc)
        rc = coll_all_reduce(s->inner, s->peaks, world_size, err);
    if (rc)
        return rc;
    for (int r = 0; r < world_size; r++) {
        float theirs = (float)s->peaks[r];
        peak = norm_peak(peak, &theirs, 1);
    }
    *out_norm = (double)peak;
    if (!isfinite(peak))
        return DCP_OK;
    for_norm(s, true, peak);
    rc = ops->get(s->kernels.ctx, norm.digits, s->measure->digits, sizeof norm.digits,
                  err);
    if (!rc)
        rc = coll_all_reduce(s->inner, norm.digits, NORM_DIGITS, err);
    if (rc)
        return rc;
    *out_norm = norm_value(&norm, peak);
    return rc;
}

/* Sums that were kept in fp32 become what they would be had nobody kept partial ones. */
static void round_sums(struct shard *s)
{
    if (!shard_rounds(s) || !shard_grads_fp32(s))
        return;
    for (size_t i = 0; i < s->n_runs; i++)
        s->kernels.ops->round(s->kernels.ctx, s->runs[i].n,
                              shard_grad_at(s, 0, s->runs[i].grad_at));
}

int shard_reduce(struct shard *s, double *out_norm, struct dcp_error *err)
{
    if (s->outer.ops)
        DCP_TRY(reduce_copies(s, err));
    round_sums(s);
    return measure(s, out_norm, err);
}

/* Stages 1 and 2: every rank gets the parts of the others. Begun for a group, and ended
 * for both. */
static bool gathers(const struct shard *s)
{
    return (s->options.stage == 1 || s->options.stage == 2) &&
           s->world_size->world_size > 1;
}

static int gather_begin(struct shard *s, int g, uint64_t *out_call, struct dcp_error *err)
{
    const struct shard_group *group = &s->groups[g];
    if (!gathers(s))
        return DCP_OK;
    int64_t own = shard_cut_evenly(s, s->world_size, group->n, group->part);
    return coll_all_gather_begin(s->world_size, shard_weight_at(s, group->begin + own),
                                 s->counts, shard_weight_bytes(s),
                                 shard_weight_at(s, group->begin), out_call, err);
}

static int gather_end(struct shard *s, const uint64_t *calls, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (int g = 0; !rc && gathers(s) && g < SHARD_N_GROUPS; g++)
        rc = coll_wait(s->world_size, calls[g], err);
    return rc;
}

/* The new weights of one run. */
static void update_run(struct shard *s, const struct shard_run *run,
                       const struct adamw_params *params)
{
    void *weights = shard_weight_at(s, run->weight_at);
    const struct adamw_range range = {
        .master = s->master ? s->master + run->own_at : weights,
        .m = s->m + run->own_at,
        .v = s->v + run->own_at,
        .grad = shard_grad_at(s, 0, run->grad_at),
        .grad_dtype = shard_grad_dtype(s),
        .weights = s->master ? weights : NULL,
        .n = run->n,
        .first = run->full_at,
    };
    s->kernels.ops->adamw(s->kernels.ctx, params, &range);
}

/* bf16: the weights of one run from its masters. */
static void spread_run(struct shard *s, const struct shard_run *run,
                       const struct adamw_params *params)
{
    (void)params;
    s->kernels.ops->cast(s->kernels.ctx, DCP_BF16, run->n, s->master + run->own_at,
                         shard_weight_at(s, run->weight_at));
}

/* New weights, group by group: one is on its way to all while the next is made. */
static int renew(struct shard *s,
                 void (*make)(struct shard *s, const struct shard_run *run,
                              const struct adamw_params *params),
                 const struct adamw_params *const params[SHARD_N_GROUPS],
                 struct dcp_error *err)
{
    uint64_t calls[SHARD_N_GROUPS] = { 0 };
    shard_touch(s);
    for (int g = 0; g < SHARD_N_GROUPS; g++) {
        for (size_t i = 0; make && i < s->n_runs; i++)
            if (s->runs[i].decay == (g == 0))
                make(s, &s->runs[i], params[g]);
        DCP_TRY(gather_begin(s, g, &calls[g], err));
    }
    return gather_end(s, calls, err);
}

int shard_spread(struct shard *s, struct dcp_error *err)
{
    static const struct adamw_params *const none[SHARD_N_GROUPS];
    return renew(s, s->master ? spread_run : NULL, none, err);
}

void shard_raise(struct shard *s)
{
    for (size_t i = 0; s->master && i < s->n_runs; i++) {
        const struct shard_run *run = &s->runs[i];
        s->kernels.ops->widen(s->kernels.ctx, DCP_BF16, run->n,
                              shard_weight_at(s, run->weight_at),
                              s->master + run->own_at);
    }
}

int shard_update(struct shard *s, const struct adamw_params *params,
                 struct dcp_error *err)
{
    struct adamw_params plain = *params;
    plain.weight_decay = 0;
    const struct adamw_params *const groups[SHARD_N_GROUPS] = { params, &plain };
    return renew(s, update_run, groups, err);
}
