#include "apart.h"

#include "base/mem.h"

size_t shard_kept_bytes(const struct shard *s)
{
    return s->keeps_sums ? sizeof(int64_t) : shard_grad_bytes(s);
}

int64_t shard_unit_own(const struct shard *s, int unit)
{
    int64_t n = 0;
    for (int p = s->unit_first[unit]; p < s->unit_first[unit + 1]; p++)
        n += shard_n_own(s, p);
    return n;
}

static void join(struct shard *s, enum ops_way way, uint64_t copy)
{
    if (copy)
        s->kernels.ops->carry_join(s->kernels.ctx, way, copy);
}

static int wait_for(struct shard *s, enum ops_way way, uint64_t copy,
                    struct dcp_error *err)
{
    return copy ? s->kernels.ops->carry_wait(s->kernels.ctx, way, copy, err) : DCP_OK;
}

/* --- new weights --- */

int shard_out_begin(struct shard *s, const struct shard_home *home,
                    const struct shard_run *run, void **out_weights,
                    struct dcp_error *err)
{
    struct shard_room *room = &s->out[s->out_turn];
    *out_weights = shard_weight_at(s, run->weight_at);
    if (home->apart == s->weights_apart)
        return DCP_OK;
    *out_weights = room->data;
    if (home->apart)
        return wait_for(s, OPS_FROM_HOST, room->up, err);
    join(s, OPS_TO_HOST, room->down);
    return DCP_OK;
}

int shard_out_end(struct shard *s, const struct shard_home *home,
                  const struct shard_run *run, const void *weights, struct dcp_error *err)
{
    struct shard_room *room = &s->out[s->out_turn];
    void *to = shard_weight_at(s, run->weight_at);
    uint64_t size_bytes = (uint64_t)run->n * shard_weight_bytes(s);
    if (weights == to)
        return DCP_OK;
    s->out_turn = 1 - s->out_turn;
    if (home->apart)
        return ferry_up(s->ferry, to, weights, true, size_bytes, 0, &room->up, err);
    DCP_TRY(ferry_down(s->ferry, to,
                       !s->weight_swap && !s->options.offload_weights.pageable, weights,
                       size_bytes, &room->down, err));
    s->weights_down = room->down;
    return DCP_OK;
}

int shard_out_settle(struct shard *s, struct dcp_error *err)
{
    for (int i = 0; i < 2; i++)
        join(s, OPS_FROM_HOST, s->out[i].up);
    return wait_for(s, OPS_TO_HOST, s->weights_down, err);
}

/* Weights that are elsewhere come through the room of new ones. */
int shard_raise_run(struct shard *s, const struct shard_run *run, struct dcp_error *err)
{
    const struct shard_home *home = shard_home_at(s, run->own_at);
    const struct ops *ops = s->kernels.ops;
    float *master = shard_master_at(s, run->own_at);
    const void *weights = shard_weight_at(s, run->weight_at);
    uint64_t size_bytes = (uint64_t)run->n * shard_weight_bytes(s);
    void *room = s->out[0].data;
    if (!master)
        return DCP_OK;
    if (home->apart != s->weights_apart) {
        DCP_TRY(shard_out_settle(s, err));
        DCP_TRY(home->apart ? wait_for(s, OPS_FROM_HOST, s->out[0].up, err) : DCP_OK);
        DCP_TRY(home->apart ? ops->get(s->kernels.ctx, room, weights, size_bytes, err)
                            : ops->put(s->kernels.ctx, room, weights, size_bytes, err));
        weights = room;
    }
    home->kernels.ops->widen(home->kernels.ctx, s->options.dtype, run->n, weights,
                             master);
    return DCP_OK;
}

/* --- gradients for the optimizer --- */

static bool are_brought(const struct shard *s, const struct shard_run *run)
{
    return s->options.stage <= 1 && shard_home_at(s, run->own_at)->apart;
}

const void *shard_optim_grad(const struct shard *s, const struct shard_run *run)
{
    const struct shard_home *home = shard_home_at(s, run->own_at);
    if (!are_brought(s, run))
        return shard_grad_at(s, run->grad_at);
    return (const char *)home->grads +
           (size_t)(run->own_at - home->begin) * shard_grad_bytes(s);
}

/* Whether gradients on the host are pinned. */
static bool grads_pinned(const struct shard *s)
{
    return !s->optim_swapped && !s->options.offload_optimizer.pageable;
}

int shard_bring_grads(struct shard *s, const struct shard_run *run, uint64_t *out_call,
                      struct dcp_error *err)
{
    *out_call = 0;
    if (!are_brought(s, run))
        return DCP_OK;
    return ferry_down(s->ferry, (void *)(uintptr_t)shard_optim_grad(s, run),
                      grads_pinned(s), shard_grad_at(s, run->grad_at),
                      (uint64_t)run->n * shard_grad_bytes(s), out_call, err);
}

int shard_grads_brought(struct shard *s, uint64_t call, struct dcp_error *err)
{
    return wait_for(s, OPS_TO_HOST, call, err);
}

/* --- gradients of a unit --- */

static bool has_apart(const struct shard *s, int unit)
{
    bool has = false;
    for (int p = s->unit_first[unit]; p < s->unit_first[unit + 1]; p++)
        has = has || (s->at[p].begin < s->at[p].end && shard_grads_apart(s, p));
    return has;
}

/* Calls `act` with each part of a unit that is in one piece on the host, of what this
 * rank owns: own elements at .. at + n, the first of them number `first` of the unit. */
static int for_pieces(struct shard *s, struct shard_room *room,
                      int (*act)(struct shard *s, struct shard_room *room, int64_t first,
                                 int64_t at, int64_t n, struct dcp_error *err),
                      struct dcp_error *err)
{
    int64_t first = 0, begin = 0, at = 0, n = 0; /* of the piece: begin, at, n */
    for (int p = s->unit_first[room->unit]; p < s->unit_first[room->unit + 1]; p++) {
        const struct shard_param *param = &s->at[p];
        int64_t size = param->end - param->begin;
        if (size && shard_grads_apart(s, p)) {
            if (n && at + n != param->own_at) {
                DCP_TRY(act(s, room, begin, at, n, err));
                n = 0;
            }
            begin = n ? begin : first;
            at = n ? at : param->own_at;
            n += size;
        }
        first += size;
    }
    return n ? act(s, room, begin, at, n, err) : DCP_OK;
}

static int piece_down(struct shard *s, struct shard_room *room, int64_t first, int64_t at,
                      int64_t n, struct dcp_error *err)
{
    size_t item = shard_kept_bytes(s);
    return ferry_down(s->ferry, shard_item_at(s, at, item), grads_pinned(s),
                      (char *)room->data + (size_t)first * item, (uint64_t)n * item,
                      &room->down, err);
}

static int piece_up(struct shard *s, struct shard_room *room, int64_t first, int64_t at,
                    int64_t n, struct dcp_error *err)
{
    size_t item = shard_kept_bytes(s);
    uint64_t after = s->passages[room->unit].down;
    after = room->down > after ? room->down : after;
    return ferry_up(s->ferry, (char *)room->data + (size_t)first * item,
                    shard_item_at(s, at, item), grads_pinned(s), (uint64_t)n * item,
                    after, &room->up, err);
}

/* The room that is not the last one's. What it had is on the host before the kernels
 * write there again. */
int shard_room_open(struct shard *s, int unit, struct shard_room **out,
                    struct dcp_error *err)
{
    struct shard_room *room = &s->rooms[s->room_turn];
    *out = NULL;
    if (s->options.stage <= 1 || !has_apart(s, unit))
        return DCP_OK;
    s->room_turn = 1 - s->room_turn;
    join(s, OPS_TO_HOST, room->down);
    if (s->micro > 0 && room->unit != unit) { /* nobody knew that it would come */
        room->unit = unit;
        DCP_TRY(for_pieces(s, room, piece_up, err));
    }
    room->unit = unit;
    if (s->micro > 0)
        join(s, OPS_FROM_HOST, room->up);
    *out = room;
    return DCP_OK;
}

int shard_room_close(struct shard *s, struct shard_room *room, struct dcp_error *err)
{
    if (!room)
        return DCP_OK;
    DCP_TRY(for_pieces(s, room, piece_down, err));
    s->passages[room->unit].down = room->down;
    room->unit = -1;
    return DCP_OK;
}

int shard_room_ahead(struct shard *s, int unit, struct dcp_error *err)
{
    struct shard_room *room = &s->rooms[s->room_turn];
    if (s->options.stage <= 1)
        return DCP_OK;
    if (s->last_ended >= 0)
        s->passages[s->last_ended].next = unit;
    s->last_ended = unit;
    s->passages[unit].ended = s->micro;
    int next = s->passages[unit].next;
    if (next < 0 || next == unit || !has_apart(s, next))
        return DCP_OK;
    int micro = s->passages[next].ended == s->micro ? s->micro + 1 : s->micro;
    if (micro == 0 || micro >= s->n_rounds)
        return DCP_OK;
    room->unit = next;
    return for_pieces(s, room, piece_up, err);
}

void *shard_room_at(const struct shard *s, const struct shard_room *room, int param,
                    int64_t first, int64_t i)
{
    size_t item = shard_kept_bytes(s);
    if (!shard_grads_apart(s, param))
        return shard_item_at(s, shard_grad_place(s, param) + i, item);
    return (char *)room->data + (size_t)(first + i) * item;
}

int shard_window_up(struct shard *s, const int64_t *sums, int64_t n, int64_t **out,
                    struct dcp_error *err)
{
    struct shard_room *room = &s->rooms[0];
    *out = room->data;
    DCP_TRY(ferry_up(s->ferry, room->data, sums, grads_pinned(s),
                     (uint64_t)n * sizeof *sums, room->down, &room->up, err));
    join(s, OPS_FROM_HOST, room->up);
    return DCP_OK;
}

int shard_window_down(struct shard *s, int64_t *sums, int64_t n, struct dcp_error *err)
{
    struct shard_room *room = &s->rooms[0];
    DCP_TRY(ferry_down(s->ferry, sums, grads_pinned(s), room->data,
                       (uint64_t)n * sizeof *sums, &room->down, err));
    return wait_for(s, OPS_TO_HOST, room->down, err);
}

int shard_rooms_settle(struct shard *s, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (int i = 0; i < 2; i++) {
        s->rooms[i].unit = -1; /* what came ahead is of no use any more */
        rc = rc ? rc : wait_for(s, OPS_FROM_HOST, s->rooms[i].up, err);
        rc = rc ? rc : wait_for(s, OPS_TO_HOST, s->rooms[i].down, err);
    }
    return rc;
}

/* --- weights of a unit --- */

int shard_fetch(struct shard *s, int unit, void *to, uint64_t *out_up,
                struct dcp_error *err)
{
    int64_t at = s->at[s->unit_first[unit]].own_at;
    return ferry_up(s->ferry, to, shard_weight_at(s, at),
                    !s->weight_swap && !s->options.offload_weights.pageable,
                    (uint64_t)shard_unit_own(s, unit) * shard_weight_bytes(s),
                    s->weights_down, out_up, err);
}

/* One of two rooms; the coll may still read what it had. */
int shard_fetch_part(struct shard *s, int unit, struct shard_room **out,
                     struct dcp_error *err)
{
    struct shard_room *room = &s->fetched[s->fetched[0].unit == unit ? 0 : 1];
    *out = room;
    if (room->unit == unit)
        return DCP_OK;
    *out = room = &s->fetched[s->fetch_turn];
    s->fetch_turn = 1 - s->fetch_turn;
    if (room->call)
        DCP_TRY(coll_wait(s->inner, room->call, err));
    room->call = 0;
    room->unit = unit;
    return shard_fetch(s, unit, room->data, &room->up, err);
}
