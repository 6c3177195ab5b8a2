/* The hooks: one unit's weights when the model needs them, and its gradients when they
 * are complete. */
#include "own.h"

#include "base/mem.h"

void shard_slots_fini(struct shard *s, struct shard_slots *slots)
{
    for (size_t i = 0; i < slots->n; i++) {
        s->kernels.ops->free(s->kernels.ctx, slots->items[i].data);
        s->kernels.ops->free(s->kernels.ctx, slots->items[i].landing);
    }
    free(slots->items);
    *slots = (struct shard_slots){ .items = NULL };
}

/* What is on its way still comes, before anything else does, and is not looked at. */
void shard_touch(struct shard *s)
{
    for (size_t i = 0; i < s->gathered.n; i++) {
        s->gathered.items[i].in_flight = false;
        s->gathered.items[i].unit = -1;
    }
}

static struct shard_slot *slot_of(struct shard_slots *slots, int unit)
{
    for (size_t i = 0; i < slots->n; i++)
        if (slots->items[i].unit == unit)
            return &slots->items[i];
    return NULL;
}

/* Two slots for units of which there are several alike: one can be gathered while the
 * other is used, and the last one used is still there when it comes next. */
static int slots_wanted(const struct shard *s, int unit)
{
    int alike = 0;
    for (int u = 0; u < s->n_units; u++)
        alike += shard_unit_room(s, u) == shard_unit_room(s, unit);
    return alike > 1 ? 2 : 1;
}

/* Room for a unit: of the free slots that fit, without wasting more than half, the one
 * that was used least recently, once there are as many as wanted. */
static int slot_take(struct shard *s, struct shard_slots *slots, int unit,
                     size_t size_bytes, int wanted, struct shard_slot **out_slot,
                     struct dcp_error *err)
{
    const char *what =
        slots == &s->gathered ? "the weights of a layer" : "the gradients of a layer";
    struct shard_slot *oldest = NULL;
    int fitting = 0;
    for (size_t i = 0; i < slots->n; i++) {
        struct shard_slot *slot = &slots->items[i];
        if (slot->size_bytes < size_bytes || slot->size_bytes / 2 > size_bytes)
            continue;
        fitting++;
        if (!slot->users && !slot->in_flight && (!oldest || slot->used < oldest->used))
            oldest = slot;
    }
    if (!oldest || fitting < wanted) {
        struct shard_slot *grown =
            dcp_mem_grow(slots->items, &slots->cap, slots->n + 1, sizeof *grown);
        if (!grown)
            return dcp_error_memory(err, what);
        slots->items = grown;
        void *data;
        DCP_TRY(s->kernels.ops->alloc(s->kernels.ctx, size_bytes, what, &data, err));
        oldest = &slots->items[slots->n++];
        *oldest = (struct shard_slot){ .data = data, .size_bytes = size_bytes };
    }
    oldest->unit = unit;
    *out_slot = oldest;
    return DCP_OK;
}

/* The places of a unit's parameters in a slot. */
static void slot_params(const struct shard *s, int unit, size_t item_bytes, char *data,
                        void **out)
{
    for (int p = s->unit_first[unit], i = 0; p < s->unit_first[unit + 1]; p++, i++) {
        out[i] = data;
        data += (size_t)shard_padded(s->params[p].n_elems) * item_bytes;
    }
}

/* What each rank owns of a unit, in elements; at stage 0, where all own all, an even
 * share. Returns where this rank's part begins. */
static int64_t unit_counts(struct shard *s, int unit)
{
    int64_t begin, end, own = 0, n = 0;
    for (int r = 0; r < s->inner->world_size; r++) {
        s->counts[r] = 0;
        for (int p = s->unit_first[unit]; p < s->unit_first[unit + 1]; p++) {
            shard_part(s, p, r, &begin, &end);
            s->counts[r] += end - begin;
        }
        own += r < s->inner->rank ? s->counts[r] : 0;
        n = s->counts[r];
    }
    if (s->options.stage)
        return own;
    return shard_cut_evenly(s, s->inner, n, dcp_part_ceil(n, s->inner->world_size));
}

/* n elements between a parameter and a staging; the latter may be fp32 where the former
 * is bf16. */
static void move(struct shard *s, enum dcp_dtype dtype, enum dcp_dtype staged,
                 void *whole, void *part, int64_t n, bool to_staging)
{
    const struct ops *ops = s->kernels.ops;
    if (!n)
        return;
    if (dtype == staged)
        ops->copy(s->kernels.ctx, to_staging ? part : whole, to_staging ? whole : part,
                  (size_t)n * dcp_dtype_size(dtype));
    else if (to_staging)
        ops->widen(s->kernels.ctx, dtype, n, whole, part);
    else
        ops->cast(s->kernels.ctx, dtype, n, part, whole);
}

/* A unit between its parameters, each whole, and a staging, where the parts of all ranks
 * lie one rank behind the other; at stage 0 they are whole there, too. */
static void restage(struct shard *s, int unit, void *const *params, enum dcp_dtype dtype,
                    enum dcp_dtype staged, void *staging, bool to_staging)
{
    size_t item = dcp_dtype_size(dtype);
    char *part = staging;
    for (int r = 0; r < (s->options.stage ? s->inner->world_size : 1); r++)
        for (int p = s->unit_first[unit], i = 0; p < s->unit_first[unit + 1]; p++, i++) {
            int64_t begin, end;
            shard_part(s, p, r, &begin, &end);
            move(s, dtype, staged, (char *)params[i] + (size_t)begin * item, part,
                 end - begin, to_staging);
            part += (size_t)(end - begin) * dcp_dtype_size(staged);
        }
}

/* Begins to gather a unit of stage 3 into a slot of its own. */
static int gather_begin(struct shard *s, int unit, struct shard_slot **out_slot,
                        struct dcp_error *err)
{
    size_t item = shard_weight_bytes(s),
           size_bytes = (size_t)shard_unit_room(s, unit) * item;
    struct shard_slot *slot;
    int rc =
        slot_take(s, &s->gathered, unit, size_bytes, slots_wanted(s, unit), &slot, err);
    if (!rc && coll_overlaps(s->inner) && !slot->landing)
        rc = s->kernels.ops->alloc(s->kernels.ctx, slot->size_bytes,
                                   "the weights of a layer on their way", &slot->landing,
                                   err);
    if (rc)
        return rc;
    unit_counts(s, unit);
    const void *own = shard_weight_at(s, s->at[s->unit_first[unit]].own_at);
    rc = coll_all_gather_begin(s->inner, own, s->counts, item,
                               slot->landing ? slot->landing : s->staging[0], &slot->call,
                               err);
    slot->unit = rc ? -1 : unit;
    slot->in_flight = !rc;
    *out_slot = slot;
    return rc;
}

/* The unit's parameters are whole in the slot. */
static int gather_end(struct shard *s, struct shard_slot *slot, struct dcp_error *err)
{
    void *params[MODEL_MAX_UNIT_PARAMS];
    size_t item = shard_weight_bytes(s);
    if (!slot->in_flight)
        return DCP_OK;
    int rc = coll_wait(s->inner, slot->call, err);
    slot->in_flight = false;
    if (rc) {
        slot->unit = -1;
        return rc;
    }
    slot_params(s, slot->unit, item, slot->data, params);
    restage(s, slot->unit, params, shard_dtype(s), shard_dtype(s),
            slot->landing ? slot->landing : s->staging[0], false);
    return DCP_OK;
}

/* Where the table keeps what came after `unit`, when `before` came before it. */
static int *next_of(struct shard *s, int before, int unit)
{
    return &s->next_unit[3 * unit + (before < 0 ? 2 : before < unit ? 0 : 1)];
}

/* Remembers that `unit` came now, and begins to gather what came after it last time. All
 * ranks ask for the same units, so they guess alike. */
static int look_ahead(struct shard *s, int unit, struct dcp_error *err)
{
    struct shard_slot *slot;
    if (unit == s->last_unit || !coll_overlaps(s->inner))
        return DCP_OK;
    if (s->last_unit >= 0)
        *next_of(s, s->before_unit, s->last_unit) = unit;
    s->before_unit = s->last_unit;
    s->last_unit = unit;
    int next = *next_of(s, s->before_unit, unit);
    return next < 0 || slot_of(&s->gathered, next) ? DCP_OK
                                                   : gather_begin(s, next, &slot, err);
}

static int acquire(void *self, int unit, const void **out_weights, struct dcp_error *err)
{
    struct shard *s = self;
    int first = s->unit_first[unit], n = s->unit_first[unit + 1] - first;
    if (s->options.stage < 3 || s->inner->world_size == 1) {
        for (int i = 0; i < n; i++) {
            struct shard_range held;
            shard_weights(s, first + i, &held);
            out_weights[i] = held.data;
        }
        return DCP_OK;
    }
    void *params[MODEL_MAX_UNIT_PARAMS];
    struct shard_slot *slot = slot_of(&s->gathered, unit);
    if (!slot)
        DCP_TRY(gather_begin(s, unit, &slot, err));
    DCP_TRY(gather_end(s, slot, err));
    slot->users++;
    slot->used = ++s->gathered.calls;
    slot_params(s, unit, shard_weight_bytes(s), slot->data, params);
    for (int i = 0; i < n; i++)
        out_weights[i] = params[i];
    return look_ahead(s, unit, err);
}

static void release(void *self, int unit)
{
    struct shard *s = self;
    struct shard_slot *slot = slot_of(&s->gathered, unit);
    if (slot && slot->users > 0)
        slot->users--;
}

static int grad_begin(void *self, int unit, float **out_grads, struct dcp_error *err)
{
    struct shard *s = self;
    size_t size_bytes = (size_t)shard_unit_room(s, unit) * sizeof(float);
    struct shard_slot *slot;
    void *params[MODEL_MAX_UNIT_PARAMS];
    DCP_TRY(slot_take(s, &s->unit_grads, unit, size_bytes, 1, &slot, err));
    s->kernels.ops->zero(s->kernels.ctx, slot->data, size_bytes);
    slot->users = 1;
    slot->used = ++s->unit_grads.calls;
    slot_params(s, unit, sizeof(float), slot->data, params);
    for (int i = 0; i < s->unit_first[unit + 1] - s->unit_first[unit]; i++)
        out_grads[i] = params[i];
    return DCP_OK;
}

/* Adds n gradients of the micro-batch to the sums at element `at` of the grads.
 *
 * Adding in the tree is counting in binary: after i micro-batches there is a partial sum
 * for each bit of i, of that many. The next one takes in the sums of the low bits that
 * are set; the last one takes in all that are left. In bf16 there is one sum, which takes
 * in each. */
static void add(struct shard *s, const float *grads, int64_t at, int64_t n)
{
    const void *parts[SHARD_MAX_LEVELS];
    unsigned done = (unsigned)s->micro;
    int n_parts = 0, level = 0;
    if (shard_grads_fp32(s)) {
        bool last = s->micro == s->options.accumulation - 1;
        for (; done >> level; level++) {
            if (done >> level & 1)
                parts[n_parts++] = shard_grad_at(s, level, at);
            else if (!last)
                break;
        }
        level = last ? 0 : level;
    } else if (done) {
        parts[n_parts++] = shard_grad_at(s, 0, at);
    }
    s->kernels.ops->sum(s->kernels.ctx, shard_grad_dtype(s), n, grads, parts, n_parts,
                        shard_grad_at(s, level, at));
}

/* Adds a part of the sums over ranks to the gradients; at stages 0 and 1 those are of
 * this rank, and it takes their place. */
static void keep(struct shard *s, const struct shard_param *at, float *sums, int64_t n)
{
    if (s->options.stage >= 2)
        add(s, sums, at->own_at, n);
    else
        move(s, shard_grad_dtype(s), DCP_F32,
             shard_grad_at(s, 0, at->full_at + at->begin), sums, n, false);
}

int shard_settle_reduction(struct shard *s, struct dcp_error *err)
{
    struct shard_reduction *r = &s->reduction;
    float *sums = r->sums;
    if (r->unit < 0)
        return DCP_OK;
    int rc = coll_wait(s->inner, r->call, err);
    for (int p = s->unit_first[r->unit]; !rc && p < s->unit_first[r->unit + 1]; p++) {
        int64_t n = s->at[p].end - s->at[p].begin;
        keep(s, &s->at[p], sums, n);
        sums += n;
    }
    r->unit = -1;
    return rc;
}

/* Begins to sum a unit's gradients over ranks, each rank its own part; at stage 0 all get
 * all of it. What came of the unit before is kept meanwhile. */
static int reduce_unit(struct shard *s, int unit, void *const *grads,
                       enum dcp_dtype dtype, struct dcp_error *err)
{
    bool overlap = s->staging[1] != NULL, to_all = s->options.stage == 0;
    float *staging = s->staging[s->turn], *own = staging + unit_counts(s, unit);
    struct shard_reduction now = { .unit = unit, .sums = to_all ? staging : own };
    int64_t n = 0;
    for (int r = 0; r < s->inner->world_size; r++)
        n += s->counts[r];
    restage(s, unit, grads, dtype, DCP_F32, staging, true);
    if (shard_rounds(s) && s->options.stage >= 2)
        s->kernels.ops->round(s->kernels.ctx, n, staging);
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

/* Adds this rank's gradients of a unit; those of the last micro-batch of stages 0 and 1
 * make the sums whole. */
static int add_unit(struct shard *s, int unit, void *const *grads, int64_t room,
                    struct dcp_error *err)
{
    void *sums[MODEL_MAX_UNIT_PARAMS];
    bool full = s->options.stage <= 1;
    if (shard_rounds(s))
        s->kernels.ops->round(s->kernels.ctx, room, grads[0]);
    for (int p = s->unit_first[unit], i = 0; p < s->unit_first[unit + 1]; p++, i++) {
        int64_t at = full ? s->at[p].full_at : s->at[p].own_at;
        add(s, grads[i], at, s->params[p].n_elems);
        sums[i] = shard_grad_at(s, 0, at);
    }
    if (s->inner->world_size == 1 || s->micro < s->options.accumulation - 1)
        return DCP_OK;
    return reduce_unit(s, unit, sums, shard_grad_dtype(s), err);
}

static int grad_end(void *self, int unit, struct dcp_error *err)
{
    struct shard *s = self;
    struct shard_slot *slot = slot_of(&s->unit_grads, unit);
    void *grads[MODEL_MAX_UNIT_PARAMS];
    if (!slot)
        return dcp_error_set(err, DCP_E_USAGE,
                             "gradients were finished that were not started");
    slot_params(s, unit, sizeof(float), slot->data, grads);
    int rc = s->options.stage >= 2 && s->inner->world_size > 1
                 ? reduce_unit(s, unit, grads, DCP_F32, err)
                 : add_unit(s, unit, grads, shard_unit_room(s, unit), err);
    slot->users = 0;
    slot->unit = -1;
    return rc;
}

void shard_hooks(struct shard *s, struct model_hooks *out_hooks)
{
    *out_hooks = (struct model_hooks){
        .self = s,
        .acquire = acquire,
        .release = release,
        .grad_begin = grad_begin,
        .grad_end = grad_end,
    };
}
