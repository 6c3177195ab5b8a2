/* unit: one unit's weights when the model needs them. */
#include "apart.h"

#include "base/mem.h"

/* How a parameter is cut over ranks of all, or of the group that keeps a second copy. */
static shard_cut *part_of(bool is_near)
{
    return is_near ? shard_near_part : shard_part;
}

static void wait_for_copy(struct shard *s, uint64_t copy)
{
    if (copy)
        (void)s->kernels.ops->carry_wait(s->kernels.ctx, OPS_FROM_HOST, copy, NULL);
}

void shard_land(struct shard *s)
{
    for (size_t i = 0; i < s->gathered.n; i++) {
        struct shard_slot *slot = &s->gathered.items[i];
        if (slot->in_flight && slot->from_host)
            wait_for_copy(s, slot->call);
        (void)shard_slot_land(s, slot, NULL);
        slot->unit = -1;
    }
    for (int i = 0; i < 2; i++) {
        wait_for_copy(s, s->fetched[i].up);
        s->fetched[i].up = 0;
        s->fetched[i].unit = -1;
    }
}

void shard_forget(struct shard *s)
{
    shard_land(s);
    for (int u = 0; u < s->n_units; u++)
        s->near_there[u] = false;
}

void shard_touch(struct shard *s)
{
    shard_forget(s);
    s->masters_stale = s->options.dtype == DCP_F32;
}

bool shard_from_host(const struct shard *s)
{
    return s->weights_apart && s->inner->world_size == 1 && !shard_quantizes_weights(s);
}

bool shard_lands(const struct shard *s)
{
    return shard_overlaps(s) || shard_from_host(s);
}

/* --- a unit's weights as they travel --- */

/* Where a unit's share of the second copy begins. */
static char *near_of(const struct shard *s, int unit)
{
    size_t size_bytes = shard_weight_item(s, s->unit_first[unit]).size_bytes;
    return s->near_weights + (size_t)s->near_at[unit] * size_bytes;
}

/* What this rank gives of a unit: its weights, or where they are to be quantized these in
 * their place among the parts of all; s->counts are the items of each. */
static const char *own_items(struct shard *s, int unit, const char *weights,
                             char *staging)
{
    const struct ops *ops = s->kernels.ops;
    int first = s->unit_first[unit];
    if (!shard_quantizes_weights(s))
        return weights;
    for (int r = 0; r < s->inner->rank; r++)
        staging += (size_t)s->counts[r] * shard_weight_item(s, first).size_bytes;
    char *to = staging;
    for (int p = first; p < s->unit_first[unit + 1]; p++) {
        const struct shard_param *at = &s->at[p];
        const struct shard_item item = shard_weight_item(s, p);
        int64_t n = at->end - at->begin;
        if (item.quantized)
            ops->quantize(s->kernels.ctx, 8, s->options.dtype, n, weights,
                          s->options.dtype, to);
        else
            ops->copy(s->kernels.ctx, to, weights, shard_item_bytes(item, n));
        to += (size_t)shard_n_items(item, n) * item.size_bytes;
        weights += (size_t)n * shard_weight_bytes(s);
    }
    return staging;
}

/* A unit from a staging, where the parts of all ranks of a coll lie one rank behind the
 * other, to its parameters, each whole. */
static void unstage(struct shard *s, int unit, bool is_near, const char *staging,
                    void *const *params)
{
    const struct ops *ops = s->kernels.ops;
    int world_size = shard_coll_of(s, is_near)->world_size;
    for (int r = 0; r < world_size; r++)
        for (int p = s->unit_first[unit], i = 0; p < s->unit_first[unit + 1]; p++, i++) {
            const struct shard_item item = shard_weight_item(s, p);
            int64_t begin, end;
            part_of(is_near)(s, p, r, &begin, &end);
            char *to = (char *)params[i] + (size_t)begin * shard_weight_bytes(s);
            if (item.quantized)
                ops->dequantize(s->kernels.ctx, 8, s->options.dtype, end - begin, staging,
                                to);
            else
                ops->copy(s->kernels.ctx, to, staging,
                          shard_item_bytes(item, end - begin));
            staging += (size_t)shard_n_items(item, end - begin) * item.size_bytes;
        }
}

/* What a rank gave of a parameter, as far as it is in this rank's share. */
static void keep_part(struct shard *s, int param, int rank, const char *from, char *to)
{
    const struct shard_item item = shard_weight_item(s, param);
    int64_t begin, end, near_begin, near_end;
    shard_part(s, param, rank, &begin, &end);
    shard_near_part(s, param, s->near.rank, &near_begin, &near_end);
    int64_t first = begin > near_begin ? begin : near_begin,
            last = end < near_end ? end : near_end;
    if (first < last)
        s->kernels.ops->copy(s->kernels.ctx,
                             to + shard_item_bytes(item, first - near_begin),
                             from + shard_item_bytes(item, first - begin),
                             shard_item_bytes(item, last - first));
}

/* This rank's share of a unit that was gathered from all, for the second copy. */
static void keep_near(struct shard *s, int unit, const char *staging)
{
    for (int r = 0; r < s->inner->world_size; r++) {
        char *to = near_of(s, unit);
        for (int p = s->unit_first[unit]; p < s->unit_first[unit + 1]; p++) {
            const struct shard_item item = shard_weight_item(s, p);
            int64_t begin, end;
            keep_part(s, p, r, staging, to);
            shard_part(s, p, r, &begin, &end);
            staging += (size_t)shard_n_items(item, end - begin) * item.size_bytes;
            shard_near_part(s, p, s->near.rank, &begin, &end);
            to += (size_t)shard_n_items(item, end - begin) * item.size_bytes;
        }
    }
    s->near_there[unit] = true;
}

/* --- gathering --- */

static char *landing_of(const struct shard *s, const struct shard_slot *slot)
{
    return slot->landing ? slot->landing : s->staging[0];
}

/* What this rank gives of a unit; from the host it is waited for. */
static int own_part(struct shard *s, int unit, char *landing, const char **out,
                    struct shard_room **out_room, struct dcp_error *err)
{
    const char *weights = shard_weight_at(s, s->at[s->unit_first[unit]].own_at);
    *out_room = NULL;
    if (s->weights_apart) {
        DCP_TRY(shard_fetch_part(s, unit, out_room, err));
        s->kernels.ops->carry_join(s->kernels.ctx, OPS_FROM_HOST, (*out_room)->up);
        weights = (*out_room)->data;
    }
    *out = own_items(s, unit, weights, landing);
    return DCP_OK;
}

static int gather_from_ranks(struct shard *s, int unit, struct shard_slot *slot,
                             struct dcp_error *err)
{
    struct coll *coll = shard_coll_of(s, slot->is_near);
    struct shard_room *room = NULL;
    const char *own = slot->is_near ? near_of(s, unit) : NULL;
    shard_count_items(s, unit, coll->world_size, part_of(slot->is_near),
                      shard_weight_item);
    if (!own)
        DCP_TRY(own_part(s, unit, landing_of(s, slot), &own, &room, err));
    DCP_TRY(coll_all_gather_begin(coll, own, s->counts,
                                  shard_weight_item(s, s->unit_first[unit]).size_bytes,
                                  landing_of(s, slot), &slot->call, err));
    if (room)
        room->call = slot->call;
    return DCP_OK;
}

/* Begins to gather a unit of stage 3 into a slot of its own. */
static int gather_begin(struct shard *s, int unit, struct shard_slot **out_slot,
                        struct dcp_error *err)
{
    size_t size_bytes = (size_t)shard_unit_room(s, unit) * shard_weight_bytes(s);
    struct shard_slot *slot;
    DCP_TRY(shard_slot_take(s, &s->gathered, unit, size_bytes,
                            shard_slots_wanted(s, unit), &slot, err));
    slot->unit = -1; /* until it is on its way */
    DCP_TRY(shard_slot_landing(s, slot, err));
    slot->is_near = s->near.ops && s->near_there[unit];
    slot->from_host = shard_from_host(s);
    int rc = slot->from_host ? shard_fetch(s, unit, slot->landing, &slot->call, err)
                             : gather_from_ranks(s, unit, slot, err);
    slot->unit = rc ? -1 : unit;
    slot->in_flight = !rc;
    *out_slot = slot;
    return rc;
}

/* The unit's parameters are whole in the slot. */
static int gather_end(struct shard *s, struct shard_slot *slot, struct dcp_error *err)
{
    void *params[MODEL_MAX_UNIT_PARAMS];
    const char *landing = landing_of(s, slot);
    if (!slot->in_flight)
        return DCP_OK;
    int rc = shard_slot_land(s, slot, err);
    if (rc) {
        slot->unit = -1;
        return rc;
    }
    shard_slot_params(s, slot->unit, shard_weight_bytes(s), slot->data, params);
    unstage(s, slot->unit, slot->is_near, landing, params);
    if (s->near.ops && !slot->is_near)
        keep_near(s, slot->unit, landing);
    return DCP_OK;
}

/* Where the table keeps what came after `unit`, when `before` came before it. */
static int *next_of(struct shard *s, int before, int unit)
{
    return &s->next_unit[3 * unit + (before < 0 ? 2 : before < unit ? 0 : 1)];
}

/* Remembers that `unit` came now, and begins to gather what came after it last time: the
 * next unit, and more until they are as much as the prefetch. From the host this rank's
 * part of the one after the next is fetched, so that the next gather need not wait for
 * it. All ranks ask for the same units, so they guess alike. */
static int look_ahead(struct shard *s, int unit, struct dcp_error *err)
{
    struct shard_slot *slot;
    struct shard_room *room;
    bool fetches = s->weights_apart && !shard_from_host(s);
    if (unit == s->last_unit || !(shard_lands(s) || fetches))
        return DCP_OK;
    if (s->last_unit >= 0)
        *next_of(s, s->before_unit, s->last_unit) = unit;
    s->before_unit = s->last_unit;
    s->last_unit = unit;
    int64_t left = s->options.prefetch;
    for (int before = s->before_unit, at = unit, n = 0; n < s->n_units; n++) {
        int next = *next_of(s, before, at);
        if (next < 0 || (next > at ? s->options.no_forward_prefetch
                                   : s->options.no_backward_prefetch))
            break;
        bool enough = !shard_lands(s) || (n ? left <= 0 : left < 0),
             is_there = shard_slot_of(&s->gathered, next) != NULL;
        if (fetches && (enough || n > 0))
            return is_there || s->near_there[next]
                       ? DCP_OK
                       : shard_fetch_part(s, next, &room, err);
        if (enough)
            break;
        if (!is_there)
            DCP_TRY(gather_begin(s, next, &slot, err));
        left -= shard_unit_room(s, next);
        before = at;
        at = next;
    }
    return DCP_OK;
}

void shard_swap_weights(struct shard *s, int64_t begin, int64_t n,
                        void (*act)(struct swap *swap, const void *from,
                                    uint64_t size_bytes))
{
    int64_t kept = s->options.offload_weights.kept, end = begin + n;
    begin = begin > kept ? begin : kept;
    if (s->weight_swap && begin < end)
        act(s->weight_swap, shard_weight_at(s, begin),
            (uint64_t)(end - begin) * shard_weight_bytes(s));
}

/* What this rank owns of a unit's weights. */
static void swap_unit(struct shard *s, int unit,
                      void (*act)(struct swap *swap, const void *from,
                                  uint64_t size_bytes))
{
    if (!s->weight_swap || unit < 0 || unit >= s->n_units)
        return;
    for (int p = s->unit_first[unit]; p < s->unit_first[unit + 1]; p++) {
        const struct shard_param *at = &s->at[p];
        shard_swap_weights(s, at->own_at, at->end - at->begin, act);
    }
}

/* Units come one after the other, up and down again. What goes on to a GPU is read before
 * it is fetched. */
static void swap_ahead(struct shard *s, int unit)
{
    int ahead = !s->weights_apart ? 1 : shard_overlaps(s) ? 3 : 2;
    swap_unit(s, unit + (unit < s->swapped_unit ? -ahead : ahead), swap_want);
    s->swapped_unit = unit;
}

static int acquire(void *self, int unit, const void **out_weights, struct dcp_error *err)
{
    struct shard *s = self;
    int first = s->unit_first[unit], n = s->unit_first[unit + 1] - first;
    swap_ahead(s, unit);
    if (!shard_gathers(s)) {
        for (int i = 0; i < n; i++) {
            struct shard_range held;
            shard_weights(s, first + i, &held);
            out_weights[i] = held.data;
        }
        return DCP_OK;
    }
    void *params[MODEL_MAX_UNIT_PARAMS];
    struct shard_slot *slot = shard_slot_of(&s->gathered, unit);
    if (!slot)
        DCP_TRY(gather_begin(s, unit, &slot, err));
    DCP_TRY(gather_end(s, slot, err));
    slot->users++;
    slot->used = ++s->gathered.calls;
    shard_slot_params(s, unit, shard_weight_bytes(s), slot->data, params);
    for (int i = 0; i < n; i++)
        out_weights[i] = params[i];
    return look_ahead(s, unit, err);
}

static void release(void *self, int unit)
{
    struct shard *s = self;
    struct shard_slot *slot = shard_slot_of(&s->gathered, unit);
    if (slot && slot->users > 0)
        slot->users--;
    swap_unit(s, unit, swap_leave);
}

void shard_hooks(struct shard *s, struct model_hooks *out_hooks)
{
    *out_hooks = (struct model_hooks){
        .self = s,
        .acquire = acquire,
        .release = release,
        .grad_begin = shard_grad_begin,
        .grad_end = shard_grad_end,
    };
}
