/* gradient: what becomes of a unit's gradients of a micro-batch: they are summed over
 * micro-batches and ranks in units of ops/exact.h, so that no order shows in the bits.
 *
 * A sum that is complete after one reduction is kept as a gradient at once. Where there
 * are several rounds of micro-batches, or copies of the model, sums stay integers until
 * the step ends: of this rank's micro-batches at stages 0 and 1, which are reduced with
 * the last one; of all ranks' from stage 2 on, where each micro-batch is reduced. */
#include "own.h"

#include "base/mem.h"

bool shard_is_idle(const struct shard *s)
{
    return shard_micro(s, s->all->rank, s->micro) >= s->options.n_micros;
}

/* Sums over this rank's micro-batches come before those over ranks. */
static bool sums_here(const struct shard *s)
{
    return s->keeps_sums && (s->options.stage <= 1 || s->inner->world_size == 1);
}

/* Where a parameter's part that this rank owns begins in the gradients. */
static int64_t grad_at(const struct shard *s, const struct shard_param *at)
{
    return s->options.stage <= 1 ? at->full_at + at->begin : at->own_at;
}

int shard_grad_begin(void *self, int unit, float **out_grads, struct dcp_error *err)
{
    struct shard *s = self;
    size_t size_bytes = (size_t)shard_unit_room(s, unit) * sizeof(float);
    struct shard_slot *slot;
    void *params[MODEL_MAX_UNIT_PARAMS];
    if (shard_is_idle(s))
        return DCP_OK;
    DCP_TRY(shard_slot_take(s, &s->unit_grads, unit, size_bytes, 1, &slot, err));
    s->kernels.ops->zero(s->kernels.ctx, slot->data, size_bytes);
    slot->users = 1;
    slot->used = ++s->unit_grads.calls;
    shard_slot_params(s, unit, sizeof(float), slot->data, params);
    for (int i = 0; i < s->unit_first[unit + 1] - s->unit_first[unit]; i++)
        out_grads[i] = params[i];
    return DCP_OK;
}

/* --- references --- */

static void measure_unit(struct shard *s, int unit, void *const *grads)
{
    for (int p = s->unit_first[unit], i = 0; p < s->unit_first[unit + 1]; p++, i++)
        s->kernels.ops->norm_peak(s->kernels.ctx, DCP_F32, s->params[p].n_elems, grads[i],
                                  &s->peaks[p]);
}

/* The first micro-batch of a step is rank 0's; all get its peaks. */
static int share_references(struct shard *s, int unit, struct dcp_error *err)
{
    int first = s->unit_first[unit];
    if (s->micro > 0 || s->references_given)
        return DCP_OK;
    for (int r = 0; r < s->all->world_size; r++)
        s->counts[r] = r ? 0 : s->unit_first[unit + 1] - first;
    return coll_all_gather(s->all, &s->peaks[first], s->counts, sizeof *s->peaks,
                           &s->references[first], err);
}

/* --- sums of this rank --- */

/* A unit's gradients join the sums; those of an idle rank are none. */
static void add_unit(struct shard *s, int unit, void *const *grads)
{
    const struct ops *ops = s->kernels.ops;
    for (int p = s->unit_first[unit], i = 0; p < s->unit_first[unit + 1]; p++, i++) {
        int64_t n = s->params[p].n_elems,
                *sums = shard_sum_at(s, grad_at(s, &s->at[p]) - s->at[p].begin);
        if (grads)
            ops->exact_add(s->kernels.ctx, n, grads[i], &s->references[p],
                           s->options.n_micros, s->micro > 0, sums);
        else if (s->micro == 0)
            ops->zero(s->kernels.ctx, sums, (uint64_t)n * sizeof *sums);
    }
}

/* --- sums over ranks --- */

/* n elements of a parameter from `begin` on, for the one who owns them. */
static void stage_part(struct shard *s, int param, const float *grads, int64_t begin,
                       int64_t n, int64_t *staging)
{
    const struct ops *ops = s->kernels.ops;
    if (!n)
        return;
    if (sums_here(s))
        ops->copy(s->kernels.ctx, staging, shard_sum_at(s, s->at[param].full_at + begin),
                  (uint64_t)n * sizeof *staging);
    else if (grads)
        ops->exact_add(s->kernels.ctx, n, grads + begin, &s->references[param],
                       s->options.n_micros, false, staging);
    else
        ops->zero(s->kernels.ctx, staging, (uint64_t)n * sizeof *staging);
}

/* A unit's parts of all ranks, one rank behind the other; at stage 0, where each rank has
 * all, the unit. */
static void stage_unit(struct shard *s, int unit, void *const *grads, int64_t *staging)
{
    for (int r = 0; r < (s->options.stage ? s->inner->world_size : 1); r++)
        for (int p = s->unit_first[unit], i = 0; p < s->unit_first[unit + 1]; p++, i++) {
            int64_t begin, end;
            shard_part(s, p, r, &begin, &end);
            stage_part(s, p, grads ? grads[i] : NULL, begin, end - begin, staging);
            staging += end - begin;
        }
}

/* Sums that are complete become gradients; partial sums that are bf16 take them in. */
static void keep_values(struct shard *s, int param, const int64_t *sums, int64_t n)
{
    const struct ops *ops = s->kernels.ops;
    void *grads = shard_grad_at(s, grad_at(s, &s->at[param]));
    if (s->micro == 0) {
        ops->exact_get(s->kernels.ctx, shard_grad_dtype(s), n, sums,
                       &s->references[param], s->options.n_micros, grads);
        return;
    }
    const void *parts[] = { grads };
    ops->exact_get(s->kernels.ctx, DCP_F32, n, sums, &s->references[param],
                   s->options.n_micros, s->wide);
    ops->sum(s->kernels.ctx, shard_grad_dtype(s), n, s->wide, parts, 1, grads);
}

/* What this rank owns of a parameter, summed over ranks. */
static void keep(struct shard *s, int param, const int64_t *sums, int64_t n)
{
    const struct ops *ops = s->kernels.ops;
    int64_t *kept = shard_sum_at(s, grad_at(s, &s->at[param]));
    if (!n)
        return;
    if (!s->keeps_sums)
        keep_values(s, param, sums, n);
    else if (sums_here(s) || s->micro == 0)
        ops->copy(s->kernels.ctx, kept, sums, (uint64_t)n * sizeof *sums);
    else
        ops->exact_merge(s->kernels.ctx, n, sums, kept);
}

int shard_settle_reduction(struct shard *s, struct dcp_error *err)
{
    struct shard_reduction *r = &s->reduction;
    const int64_t *sums = r->sums;
    if (r->unit < 0)
        return DCP_OK;
    int rc = coll_wait(s->inner, r->call, err);
    for (int p = s->unit_first[r->unit]; !rc && p < s->unit_first[r->unit + 1]; p++) {
        int64_t n = s->at[p].end - s->at[p].begin;
        keep(s, p, sums, n);
        sums += n;
    }
    r->unit = -1;
    return rc;
}

/* Begins to sum a unit over ranks, each rank its own part; at stage 0 all get all of it.
 * What came of the unit before is kept meanwhile. */
static int reduce_unit(struct shard *s, int unit, void *const *grads,
                       struct dcp_error *err)
{
    bool overlap = s->staging[1] != NULL, to_all = s->options.stage == 0;
    int64_t *staging = s->staging[s->turn], *own = staging + shard_unit_counts(s, unit);
    struct shard_reduction now = { .unit = unit, .sums = to_all ? staging : own };
    stage_unit(s, unit, grads, staging);
    int rc = coll_reduce_scatter_begin(s->inner, staging, s->counts, own, &now.call, err);
    if (!rc && to_all)
        rc = coll_all_gather_begin(s->inner, own, s->counts, sizeof *own, staging,
                                   &now.call, err);
    if (!rc)
        rc = shard_settle_reduction(s, err);
    if (rc)
        return rc;
    s->reduction = now;
    s->turn = overlap ? 1 - s->turn : 0;
    return overlap ? DCP_OK : shard_settle_reduction(s, err);
}

int shard_grad_end(void *self, int unit, struct dcp_error *err)
{
    struct shard *s = self;
    bool idle = shard_is_idle(s);
    struct shard_slot *slot = idle ? NULL : shard_slot_of(&s->unit_grads, unit);
    void *of_slot[MODEL_MAX_UNIT_PARAMS], *const *grads = slot ? of_slot : NULL;
    if (!slot && !idle)
        return dcp_error_set(err, DCP_E_USAGE,
                             "gradients were finished that were not started");
    if (slot) {
        shard_slot_params(s, unit, sizeof(float), slot->data, of_slot);
        if (shard_rounds(s))
            s->kernels.ops->round(s->kernels.ctx, s->options.dtype,
                                  shard_unit_room(s, unit), slot->data);
        measure_unit(s, unit, grads);
    }
    int rc = share_references(s, unit, err);
    bool last = s->micro == s->n_rounds - 1;
    if (!rc && sums_here(s))
        add_unit(s, unit, grads);
    if (!rc && (!sums_here(s) || (last && s->inner->world_size > 1)))
        rc = reduce_unit(s, unit, grads, err);
    if (slot) {
        slot->users = 0;
        slot->unit = -1;
    }
    return rc;
}

/* --- the end of a step --- */

/* One parameter's sums become gradients in the same memory, which they need half of or
 * less: from the front, and so much at once that nothing unread is written over. */
static void settle_param(struct shard *s, int param)
{
    int64_t at = grad_at(s, &s->at[param]),
            end = at + s->at[param].end - s->at[param].begin, next;
    for (; at < end; at = next) {
        next = at < OPS_EXACT_IN_PLACE ? OPS_EXACT_IN_PLACE : 2 * at;
        next = next < end ? next : end;
        s->kernels.ops->exact_get(s->kernels.ctx, shard_grad_dtype(s), next - at,
                                  shard_sum_at(s, at), &s->references[param],
                                  s->options.n_micros, shard_grad_at(s, at));
    }
}

void shard_settle_sums(struct shard *s)
{
    for (int g = 0; s->keeps_sums && g < SHARD_N_GROUPS; g++)
        for (int p = 0; p < s->n_params; p++)
            if (shard_in_turn(s, p, g))
                settle_param(s, p);
}
