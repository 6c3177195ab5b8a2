/* slots: memory for the weights, or the gradients, of whole units, used again and again.
 */
#include "apart.h"

#include "base/mem.h"
#include <limits.h>

void shard_slots_fini(struct shard *s, struct shard_slots *slots)
{
    for (size_t i = 0; i < slots->n; i++) {
        s->kernels.ops->free(s->kernels.ctx, slots->items[i].data);
        s->kernels.ops->free(s->kernels.ctx, slots->items[i].landing);
    }
    free(slots->items);
    *slots = (struct shard_slots){ .items = NULL };
}

struct shard_slot *shard_slot_of(struct shard_slots *slots, int unit)
{
    for (size_t i = 0; i < slots->n; i++)
        if (slots->items[i].unit == unit)
            return &slots->items[i];
    return NULL;
}

/* Whether one more unit may stay gathered. */
static bool may_live(const struct shard *s, int64_t room)
{
    size_t item = shard_weight_bytes(s);
    for (size_t i = 0; i < s->gathered.n; i++)
        room += (int64_t)(s->gathered.items[i].size_bytes / item);
    return room <= s->options.max_live;
}

/* Two slots for units of which there are several alike: one can be gathered while the
 * other is used, and the last one used is still there when it comes next. More where
 * more are wished. */
int shard_slots_wanted(const struct shard *s, int unit)
{
    int64_t room = shard_unit_room(s, unit), alike = 0, most = 2;
    if (may_live(s, room))
        return INT_MAX;
    for (int u = 0; u < s->n_units; u++)
        alike += shard_unit_room(s, u) == room;
    if (shard_lands(s) && s->options.prefetch > room)
        most = 1 + dcp_part_ceil(s->options.prefetch, room);
    return (int)(alike < most ? alike : most);
}

/* What is on its way to a slot has come. */
int shard_slot_land(struct shard *s, struct shard_slot *slot, struct dcp_error *err)
{
    if (!slot->in_flight)
        return DCP_OK;
    slot->in_flight = false;
    if (!slot->from_host)
        return coll_wait(shard_coll_of(s, slot->is_near), slot->call, err);
    s->kernels.ops->carry_join(s->kernels.ctx, OPS_FROM_HOST, slot->call);
    return DCP_OK;
}

/* Of two free slots that fit: an empty one, of these the smaller, so that a larger unit
 * still finds room; else the one that was used less recently. */
static bool is_better(const struct shard_slot *a, const struct shard_slot *b)
{
    bool empty = a->unit < 0;
    if (empty != (b->unit < 0))
        return empty;
    return empty && a->size_bytes != b->size_bytes ? a->size_bytes < b->size_bytes
                                                   : a->used < b->used;
}

/* Room for a unit: of the free slots that fit, without wasting more than half, an empty
 * one, or, once there are as many as wanted, the one that was used least recently; at
 * last one to which a unit is on its way that did not come next. */
int shard_slot_take(struct shard *s, struct shard_slots *slots, int unit,
                    size_t size_bytes, int wanted, struct shard_slot **out_slot,
                    struct dcp_error *err)
{
    const char *what =
        slots == &s->gathered ? "the weights of a layer" : "the gradients of a layer";
    struct shard_slot *oldest = NULL, *guessed = NULL;
    int fitting = 0;
    for (size_t i = 0; i < slots->n; i++) {
        struct shard_slot *slot = &slots->items[i];
        if (slot->size_bytes < size_bytes || slot->size_bytes / 2 > size_bytes)
            continue;
        fitting++;
        if (slot->users)
            continue;
        if (slot->in_flight)
            guessed = slot;
        else if (!oldest || is_better(slot, oldest))
            oldest = slot;
    }
    if (!oldest && guessed && fitting >= wanted) {
        oldest = guessed;
        oldest->unit = -1;
        DCP_TRY(shard_slot_land(s, oldest, err));
    }
    if (!oldest || (oldest->unit >= 0 && fitting < wanted)) {
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

/* A slot may have any unit that fits. */
int shard_slot_landing(struct shard *s, struct shard_slot *slot, struct dcp_error *err)
{
    size_t size_bytes = shard_quantizes_weights(s) ? 0 : slot->size_bytes;
    if (!shard_lands(s) || slot->landing)
        return DCP_OK;
    for (int u = 0; shard_quantizes_weights(s) && u < s->n_units; u++) {
        size_t room = (size_t)shard_unit_room(s, u) * shard_weight_bytes(s),
               travels = shard_travel_bytes(s, u, shard_weight_item);
        if (room <= slot->size_bytes && travels > size_bytes)
            size_bytes = travels;
    }
    slot->landing_bytes = size_bytes;
    return s->kernels.ops->alloc(s->kernels.ctx, size_bytes,
                                 "the weights of a layer on their way", &slot->landing,
                                 err);
}

/* The places of a unit's parameters in a slot. */
void shard_slot_params(const struct shard *s, int unit, size_t item_bytes, char *data,
                       void **out)
{
    for (int p = s->unit_first[unit], i = 0; p < s->unit_first[unit + 1]; p++, i++) {
        out[i] = data;
        data += (size_t)shard_padded(s->params[p].n_elems) * item_bytes;
    }
}
