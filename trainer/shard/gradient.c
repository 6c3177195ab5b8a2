/* gradient: what becomes of a unit's gradients of a micro-batch: they are summed over
 * micro-batches and ranks in units of ops/exact.h, so that no order shows in the bits.
 *
 * At stages 0 and 1 a rank sums its own micro-batches, and ranks put their sums together
 * when the step ends (step.c). From stage 2 on, or where a rank has but one micro-batch,
 * ranks exchange each micro-batch's gradients in the dtype that these are kept in, and
 * the owner of a part sums what all have given. A sum of which nothing is missing becomes
 * a gradient at once; others stay integers until the step ends. */
#include "apart.h"

#include "base/mem.h"

bool shard_is_idle(const struct shard *s)
{
    return shard_micro(s, s->all->rank, s->micro) >= s->options.n_micros;
}

bool shard_sums_here(const struct shard *s)
{
    return s->keeps_sums && (s->options.stage <= 1 || s->inner->world_size == 1);
}

int64_t shard_grad_place(const struct shard *s, int param)
{
    int64_t begin, end;
    if (s->options.stage > 1)
        return s->at[param].own_at;
    shard_part(s, param, s->inner->rank, &begin, &end);
    return s->at[param].full_at + begin;
}

/* Gradients of a unit, or sums, that are wanted next, or not until the next micro-batch,
 * where they are in a file. */
static void swap_grads(struct shard *s, int unit,
                       void (*act)(struct swap *swap, const void *from,
                                   uint64_t size_bytes))
{
    size_t item_bytes = shard_kept_bytes(s);
    bool whole = s->options.stage <= 1 && shard_sums_here(s);
    for (int p = s->unit_first[unit]; s->optim_swap && p < s->unit_first[unit + 1]; p++) {
        int64_t begin = 0, end = s->params[p].n_elems,
                at = whole ? s->at[p].full_at : shard_grad_place(s, p);
        if (!whole)
            shard_part(s, p, s->inner->rank, &begin, &end);
        act(s->optim_swap, shard_item_at(s, at, item_bytes),
            (uint64_t)(end - begin) * item_bytes);
    }
}

int shard_grad_begin(void *self, int unit, float **out_grads, struct dcp_error *err)
{
    struct shard *s = self;
    size_t size_bytes = (size_t)shard_unit_room(s, unit) * sizeof(float);
    struct shard_slot *slot;
    void *params[MODEL_MAX_UNIT_PARAMS];
    if (s->micro > 0)
        swap_grads(s, unit, swap_want);
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

/* --- a unit's gradients of this rank's micro-batch, as they are given away --- */

/* Elements of a parameter for one of those whom they are cut for. Returns the bytes that
 * they take: sums of this rank want them as they lie in a slot, if nothing is quantized.
 */
static size_t piece_of(const struct shard *s, int param, int owner, int64_t *out_begin,
                       int64_t *out_end)
{
    struct shard_item item = shard_grad_item(s, param);
    int64_t n = s->params[param].n_elems;
    *out_begin = 0;
    *out_end = n;
    if (shard_sums_here(s) && !shard_quantizes_grads(s))
        return (size_t)shard_padded(n) * shard_grad_bytes(s);
    if (!shard_sums_here(s))
        shard_part(s, param, owner, out_begin, out_end);
    return (size_t)shard_n_items(item, *out_end - *out_begin) * item.size_bytes;
}

static int n_owners(const struct shard *s)
{
    return shard_sums_here(s) ? 1 : s->inner->world_size;
}

/* The pieces of all owners, one owner's behind the other. */
static const char *pack_unit(struct shard *s, int unit, const struct shard_slot *slot)
{
    void *grads[MODEL_MAX_UNIT_PARAMS];
    char *staging = s->staging[s->packed], *packed = staging;
    const struct ops *ops = s->kernels.ops;
    enum dcp_dtype dtype = shard_grad_dtype(s);
    if (shard_sums_here(s) && dtype == DCP_F32 && !shard_quantizes_grads(s))
        return slot->data;
    shard_slot_params(s, unit, sizeof(float), slot->data, grads);
    for (int r = 0; r < n_owners(s); r++)
        for (int p = s->unit_first[unit], i = 0; p < s->unit_first[unit + 1]; p++, i++) {
            int64_t begin, end;
            size_t size_bytes = piece_of(s, p, r, &begin, &end);
            const float *piece = (const float *)grads[i] + begin;
            if (shard_grad_item(s, p).quantized)
                ops->quantize(s->kernels.ctx, 4, DCP_F32, end - begin, piece, dtype,
                              packed);
            else
                ops->cast(s->kernels.ctx, dtype, end - begin, piece, packed);
            packed += size_bytes;
        }
    return staging;
}

static void find_peaks(struct shard *s, int unit, const struct shard_slot *slot,
                       const char *packed)
{
    const struct ops *ops = s->kernels.ops;
    void *grads[MODEL_MAX_UNIT_PARAMS];
    int first = s->unit_first[unit], end = s->unit_first[unit + 1];
    shard_slot_params(s, unit, sizeof(float), slot->data, grads);
    for (int p = first; shard_quantizes_grads(s) && p < end; p++)
        ops->norm_peak(s->kernels.ctx, DCP_F32, s->params[p].n_elems, grads[p - first],
                       &s->peaks[p]);
    for (int r = 0; !shard_quantizes_grads(s) && r < n_owners(s); r++)
        for (int p = first; p < end; p++) {
            int64_t from, to;
            size_t size_bytes = piece_of(s, p, r, &from, &to);
            ops->norm_peak(s->kernels.ctx, shard_grad_dtype(s), to - from, packed,
                           &s->peaks[p]);
            packed += size_bytes;
        }
}

/* The first micro-batch of a step is rank 0's; all get its peaks. */
static int share_references(struct shard *s, int unit, const struct shard_slot *slot,
                            const char *packed, struct dcp_error *err)
{
    int first = s->unit_first[unit], end = s->unit_first[unit + 1];
    if (s->micro > 0 || s->references_given)
        return DCP_OK;
    if (s->all->rank == 0)
        find_peaks(s, unit, slot, packed);
    for (int r = 0; r < s->all->world_size; r++)
        s->counts[r] = r ? 0 : end - first;
    return coll_all_gather(s->all, &s->peaks[first], s->counts, sizeof *s->peaks,
                           &s->references[first], err);
}

/* --- sums --- */

static struct ops_exact sum_of(struct shard *s, int param, int n_parts, int64_t stride)
{
    return (struct ops_exact){ .dtype = shard_grad_dtype(s),
                               .quantized = shard_grad_item(s, param).quantized,
                               .n_parts = n_parts,
                               .stride = stride,
                               .n_values = s->options.n_micros,
                               .reference = &s->references[param],
                               .peak = &s->peaks[param] };
}

/* A unit joins the sums of this rank; NULL: it is idle, and nothing does. */
static int add_unit(struct shard *s, int unit, const char *packed, struct dcp_error *err)
{
    size_t from = 0;
    int64_t first = 0;
    struct shard_room *room;
    DCP_TRY(shard_room_open(s, unit, &room, err));
    for (int p = s->unit_first[unit]; p < s->unit_first[unit + 1]; p++) {
        int64_t begin, end;
        void *to = s->options.stage <= 1 ? shard_sum_at(s, s->at[p].full_at)
                                         : shard_room_at(s, room, p, first, 0);
        struct ops_exact sum = sum_of(s, p, packed ? 1 : 0, 0);
        size_t size_bytes = piece_of(s, p, 0, &begin, &end);
        s->kernels.ops->exact_add(s->kernels.ctx, &sum, end,
                                  packed ? packed + from : NULL, s->micro > 0, to);
        from += size_bytes;
        first += end;
    }
    swap_grads(s, unit, swap_leave);
    return shard_room_close(s, room, err);
}

/* n elements of a parameter that this rank owns: what all have given is summed. Partial
 * sums that are bf16 take it in. */
static void sum_parts(struct shard *s, int param, void *grads, int64_t n,
                      const char *parts, const struct shard_exchange *x)
{
    const struct ops *ops = s->kernels.ops;
    struct ops_exact sum =
        sum_of(s, param, x->n_parts, x->n * shard_grad_item(s, param).n);
    if (s->keeps_sums) {
        ops->exact_add(s->kernels.ctx, &sum, n, parts, s->micro > 0, grads);
    } else if (s->micro == 0) {
        ops->exact_sum(s->kernels.ctx, &sum, n, parts, sum.dtype, grads);
    } else {
        const void *const before[] = { grads };
        ops->exact_sum(s->kernels.ctx, &sum, n, parts, DCP_F32, s->wide);
        ops->sum(s->kernels.ctx, sum.dtype, n, s->wide, before, 1, grads);
    }
}

/* A parameter whose items that this rank owns are first .. last of its items of the unit:
 * those that are in the exchange are summed. `elems`: what it owns of those before it. */
static void settle_items(struct shard *s, int param, int64_t first, int64_t last,
                         int64_t elems, const struct shard_exchange *x)
{
    const struct shard_item item = shard_grad_item(s, param);
    int64_t begin, end;
    struct dcp_part now = { first < x->begin ? x->begin : first,
                            last < x->begin + x->n ? last : x->begin + x->n };
    if (now.begin >= now.end)
        return;
    shard_part(s, param, s->inner->rank, &begin, &end);
    int64_t from = (now.begin - first) * item.n, to = (now.end - first) * item.n;
    to = to < end - begin ? to : end - begin;
    sum_parts(s, param, shard_room_at(s, x->room, param, elems, from), to - from,
              x->parts + (size_t)(now.begin - x->begin) * item.size_bytes, x);
}

int shard_settle_exchange(struct shard *s, struct dcp_error *err)
{
    struct shard_exchange *x = &s->exchange;
    int64_t first = 0, elems = 0; /* before a parameter */
    if (x->unit < 0)
        return DCP_OK;
    int rc = x->call ? coll_wait(s->inner, x->call, err) : DCP_OK;
    for (int p = s->unit_first[x->unit]; !rc && p < s->unit_first[x->unit + 1]; p++) {
        int64_t begin, end;
        shard_part(s, p, s->inner->rank, &begin, &end);
        int64_t last = first + shard_n_items(shard_grad_item(s, p), end - begin);
        settle_items(s, p, first, last, elems, x);
        first = last;
        elems += end - begin;
    }
    if (!rc && x->ends)
        swap_grads(s, x->unit, swap_leave);
    x->unit = -1;
    return rc || !x->ends ? rc : shard_room_close(s, x->room, err);
}

/* Ranks of this copy of the model that have a micro-batch: the first of them. */
static int n_active(const struct shard *s)
{
    int first = s->all->rank - s->inner->rank, n = 0;
    while (n < s->inner->world_size &&
           shard_micro(s, first + n, s->micro) < s->options.n_micros)
        n++;
    return n;
}

/* Ranks give each other their gradients of a unit, as much at a time as there is room
 * for. What came before is summed meanwhile. */
static int exchange_unit(struct shard *s, int unit, const char *packed,
                         struct dcp_error *err)
{
    bool overlap = s->landing[1] != NULL, alone = s->inner->world_size == 1;
    size_t item_bytes = shard_grad_item(s, s->unit_first[unit]).size_bytes;
    int64_t most = (int64_t)(s->landing_bytes / item_bytes) / s->inner->world_size,
            longest = shard_count_items(s, unit, s->inner->world_size, shard_part,
                                        shard_grad_item);
    int n_parts = n_active(s);
    struct shard_room *room;
    int rc = shard_room_open(s, unit, &room, err);
    const char *given = packed ? packed : s->staging[s->packed]; /* nobody looks */
    if (alone || !n_parts)
        most = longest;
    for (int64_t begin = 0; !rc && begin < longest; begin += most) {
        struct shard_exchange now = {
            .unit = unit,
            .begin = begin,
            .n = coll_in_round(s->counts[s->inner->rank], begin, most),
            .n_parts = n_parts,
            .parts = alone ? packed : s->landing[s->turn],
            .ends = begin + most >= longest,
            .room = room,
        };
        if (!alone && n_parts)
            rc = coll_all_to_all_begin(s->inner, given, s->counts, begin, most,
                                       item_bytes, s->landing[s->turn], &now.call, err);
        if (!rc)
            rc = shard_settle_exchange(s, err);
        if (rc)
            return rc;
        s->exchange = now;
        s->turn = overlap ? 1 - s->turn : 0;
        if (!overlap)
            rc = shard_settle_exchange(s, err);
    }
    return rc;
}

int shard_grad_end(void *self, int unit, struct dcp_error *err)
{
    struct shard *s = self;
    bool idle = shard_is_idle(s);
    struct shard_slot *slot = idle ? NULL : shard_slot_of(&s->unit_grads, unit);
    if (!slot && !idle)
        return dcp_error_set(err, DCP_E_USAGE,
                             "gradients were finished that were not started");
    const char *packed = slot ? pack_unit(s, unit, slot) : NULL;
    int rc = share_references(s, unit, slot, packed, err);
    if (!rc && shard_sums_here(s))
        rc = add_unit(s, unit, packed, err);
    else if (!rc)
        rc = exchange_unit(s, unit, packed, err);
    if (!rc)
        rc = shard_room_ahead(s, unit, err);
    s->packed = s->staging[1] ? 1 - s->packed : 0;
    if (slot) {
        slot->users = 0;
        slot->unit = -1;
    }
    return rc;
}

/* --- the end of a step --- */

/* One parameter's sums become gradients in the same memory, which they need half of or
 * less: from the front of the array, and so much at once that nothing unread is written
 * over. */
static void settle_param(struct shard *s, int param)
{
    const struct shard_home *home = shard_home_at(s, s->at[param].own_at);
    bool apart = shard_grads_apart(s, param);
    const struct kernels *kernels = apart ? &home->kernels : &s->kernels;
    const float *reference =
        apart ? &s->host_peaks[s->n_params + param] : &s->references[param];
    int64_t front = s->options.stage > 1 ? home->begin : 0;
    int64_t begin, end, at = shard_grad_place(s, param) - front, next;
    shard_part(s, param, s->inner->rank, &begin, &end);
    for (end = at + end - begin; at < end; at = next) {
        next = at < OPS_EXACT_IN_PLACE ? OPS_EXACT_IN_PLACE : 2 * at;
        next = next < end ? next : end;
        int64_t n = next - at, *sums = shard_sum_at(s, front + at);
        void *grads = shard_grad_at(s, front + at);
        kernels->ops->exact_get(kernels->ctx, shard_grad_dtype(s), n, sums, reference,
                                s->options.n_micros, grads);
        swap_leave(s->optim_swap, sums, (uint64_t)n * sizeof *sums);
        swap_leave(s->optim_swap, grads, (uint64_t)n * shard_grad_bytes(s));
    }
}

void shard_settle_sums(struct shard *s)
{
    for (int g = 0; s->keeps_sums && g < SHARD_N_GROUPS; g++)
        for (int p = 0; p < s->n_params; p++)
            if (shard_in_turn(s, p, g))
                settle_param(s, p);
}
