#include "own.h"

#include "base/mem.h"
#include "trainer/ops/ops.h"

#define INIT_ELEMS (1 << 18)
size_t shard_weight_bytes(const struct shard *s)
{
    return dcp_dtype_size(s->options.dtype);
}

bool shard_rounds(const struct shard *s)
{
    return s->options.dtype != DCP_F32 && !s->options.grad_fp32;
}

size_t shard_grad_bytes(const struct shard *s)
{
    return shard_rounds(s) ? 2 : 4;
}

enum dcp_dtype shard_grad_dtype(const struct shard *s)
{
    return shard_rounds(s) ? s->options.dtype : DCP_F32;
}

enum dcp_dtype shard_dtype(const struct shard *s)
{
    return s->options.dtype;
}

bool shard_has_master(const struct shard *s)
{
    return s->options.dtype != DCP_F32 && !s->options.weights_only;
}

int shard_stage(const struct shard *s)
{
    return s->options.stage;
}

int64_t shard_n_elems(const struct shard *s)
{
    return s->n_elems;
}

struct init_room {
    float values[INIT_ELEMS];
    uint16_t halves[INIT_ELEMS];
};

/* Where a border between ranks, at element `at` of a parameter, falls: no block is cut.
 */
static int64_t border(const struct shard *s, int param, int64_t at)
{
    int64_t n = s->params[param].n_elems;
    at = dcp_part_align(at, shard_block(s, param));
    return at < n ? at : n;
}

void shard_part(const struct shard *s, int param, int rank, int64_t *out_begin,
                int64_t *out_end)
{
    const struct shard_group *group = &s->groups[s->at[param].group];
    int64_t n = s->params[param].n_elems;
    struct dcp_part part;
    if (s->options.stage == 3)
        part = dcp_part_of(dcp_part_ceil(n, s->inner->world_size), rank, 0, n);
    else
        part = dcp_part_of(group->part, rank, s->at[param].full_at - group->begin, n);
    *out_begin = border(s, param, part.begin);
    *out_end = border(s, param, part.end);
}

/* Where a border at element `at` of a group falls. *p: the parameter that it was looked
 * for up to, from 0 on; borders come in order. */
static int64_t group_border(const struct shard *s, int group, int64_t at, int *p)
{
    const struct shard_group *g = &s->groups[group];
    if (at >= g->n)
        return g->n;
    while (s->at[*p].group != group ||
           s->at[*p].full_at + s->params[*p].n_elems <= g->begin + at)
        (*p)++;
    int64_t first = s->at[*p].full_at - g->begin;
    return first + border(s, *p, at - first);
}

int64_t shard_cut_group(struct shard *s, int group)
{
    int64_t begin = 0, own = 0;
    for (int r = 0, p = 0; r < s->all->world_size; r++) {
        int64_t end = group_border(s, group, (r + 1) * s->groups[group].part, &p);
        own = r == s->all->rank ? begin : own;
        s->counts[r] = end - begin;
        begin = end;
    }
    return own;
}

bool shard_gathers(const struct shard *s)
{
    return s->options.stage == 3 &&
           (s->inner->world_size > 1 || shard_quantizes_weights(s) || s->weights_apart);
}

static int near_size(const struct shard *s)
{
    return s->options.stage == 3 && s->options.near_size > 1 ? s->options.near_size : 1;
}

void shard_near_part(const struct shard *s, int param, int rank, int64_t *out_begin,
                     int64_t *out_end)
{
    int64_t n = s->params[param].n_elems;
    struct dcp_part part = dcp_part_of(dcp_part_ceil(n, near_size(s)), rank, 0, n);
    *out_begin = border(s, param, part.begin);
    *out_end = border(s, param, part.end);
}

/* Every rank has room for the largest share, the first one's, so that one plan fits all.
 */
static void place_near(struct shard *s)
{
    int64_t at = 0;
    for (int u = 0; u < s->n_units; u++) {
        s->near_at[u] = at;
        for (int p = s->unit_first[u]; near_size(s) > 1 && p < s->unit_first[u + 1];
             p++) {
            int64_t begin, end;
            shard_near_part(s, p, 0, &begin, &end);
            at += shard_n_items(shard_weight_item(s, p), end - begin);
        }
    }
    s->near_at[s->n_units] = at;
}

int64_t shard_unit_room(const struct shard *s, int unit)
{
    int64_t room = 0;
    for (int p = s->unit_first[unit]; p < s->unit_first[unit + 1]; p++)
        room += shard_padded(s->params[p].n_elems);
    return room;
}

static void place_full(struct shard *s)
{
    for (int g = 0; g < SHARD_N_GROUPS; g++) {
        struct shard_group *group = &s->groups[g];
        group->begin = s->n_elems;
        for (int p = 0; p < s->n_params; p++) {
            if (s->at[p].group != g)
                continue;
            s->at[p].full_at = s->n_elems;
            s->n_elems += s->params[p].n_elems;
        }
        group->n = s->n_elems - group->begin;
        group->part = dcp_part_zero(group->n, s->all->world_size);
    }
}

struct shard_run shard_run_of(const struct shard *s, int param, int64_t at, int64_t n)
{
    const struct shard_param *p = &s->at[param];
    int64_t own = p->own_at + at, full = p->full_at + p->begin + at;
    return (struct shard_run){
        .own_at = own,
        .weight_at = s->options.stage == 3 ? own : full,
        .grad_at = s->options.stage <= 1 ? full : own,
        .state_at = { p->state_at[0] + at, p->state_at[1] + at },
        .full_at = full,
        .n = n,
        .group = p->group,
        .type = p->type,
    };
}

/* Whether a run goes on where another ends. */
static bool follows(const struct shard_run *run, const struct shard_run *last)
{
    bool follows = run->group == last->group && run->type == last->type &&
                   run->own_at == last->own_at + last->n &&
                   run->full_at == last->full_at + last->n;
    for (int i = 0; i < optim_n_states(run->type); i++)
        follows = follows && run->state_at[i] == last->state_at[i] + last->n;
    return follows;
}

static void add_run(struct shard *s, const struct shard_run *run)
{
    struct shard_run *last = s->n_runs ? &s->runs[s->n_runs - 1] : NULL;
    if (last && follows(run, last) && run->own_at != s->homes[SHARD_AWAY].begin)
        last->n += run->n;
    else if (run->n)
        s->runs[s->n_runs++] = *run;
}

/* At stage 3 the first parameters stay with the kernels, as many as fit into the part of
 * the optimizer's state that is not offloaded. */
static int64_t stays(const struct shard *s)
{
    const struct shard_offload *away = &s->options.offload_optimizer;
    int64_t most = (int64_t)(away->stays * (double)s->n_own), n = 0;
    bool apart = s->kernels.ops->carry;
    if (s->options.weights_only || (!away->folder && !(away->host && apart)))
        return s->n_own;
    for (int p = 0; s->options.stage == 3 && p < s->n_params; p++) {
        int64_t end = s->at[p].own_at + shard_n_own(s, p);
        if (end > most)
            break;
        n = end;
    }
    return n;
}

static void place_homes(struct shard *s)
{
    struct shard_home *here = &s->homes[SHARD_HERE], *away = &s->homes[SHARD_AWAY];
    const struct shard_offload *weights = &s->options.offload_weights;
    bool apart = s->kernels.ops->carry;
    here->kernels = away->kernels = s->kernels;
    here->end = away->begin = stays(s);
    away->end = s->n_own;
    away->apart = apart && away->begin < away->end;
    if (away->apart)
        away->kernels = s->host;
    s->optim_swapped = s->options.offload_optimizer.folder;
    s->weights_apart =
        apart && s->options.stage == 3 && (weights->host || weights->folder);
    for (int p = 0; p < s->n_params; p++)
        for (int i = 0; i < optim_n_kept(s->at[p].type); i++) {
            struct shard_range held;
            shard_state(s, i, p, &held);
            bool is_here = shard_home_at(s, s->at[p].own_at) == here;
            *(is_here ? &here->n_state[i] : &away->n_state[i]) += held.end - held.begin;
        }
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
        away->state_begin[i] = here->n_state[i];
}

/* Own order, and where of it the optimizer's state is. */
static void place_own(struct shard *s)
{
    int stage = s->options.stage;
    for (int g = 0; g < SHARD_N_GROUPS; g++)
        for (int p = 0; p < s->n_params; p++) {
            struct shard_param *at = &s->at[p];
            if (!shard_in_turn(s, p, g))
                continue;
            at->begin = 0;
            at->end = s->params[p].n_elems;
            if (stage > 0)
                shard_part(s, p, s->inner->rank, &at->begin, &at->end);
            at->own_at = s->n_own;
            s->n_own += at->end - at->begin;
            for (int i = 0; i < optim_n_kept(at->type); i++) {
                struct shard_range held;
                at->state_at[i] = s->n_state[i];
                shard_state(s, i, p, &held);
                s->n_state[i] += held.end - held.begin;
            }
        }
    s->n_weights = stage == 3 ? s->n_own : s->n_elems;
    s->n_grads = stage >= 2 ? s->n_own : s->n_elems;
    place_homes(s);
}

static void place_runs(struct shard *s)
{
    for (int g = 0; g < SHARD_N_GROUPS; g++)
        for (int p = 0; p < s->n_params; p++) {
            const struct shard_run run = shard_run_of(s, p, 0, shard_n_own(s, p));
            if (shard_in_turn(s, p, g))
                add_run(s, &run);
        }
}

/* What follows from the number of micro-batches. */
void shard_count_rounds(struct shard *s)
{
    s->n_rounds = (int)dcp_part_ceil(s->options.n_micros, s->all->world_size);
    s->keeps_sums = (s->n_rounds > 1 && !s->options.grad_bf16) ||
                    s->inner->world_size != s->all->world_size;
}

/* What takes several passes, or other ranks, is not made where the kernels are not. */
static int check_optimizer(const struct shard *s, struct dcp_error *err)
{
    bool apart = s->weights_apart || s->homes[SHARD_AWAY].apart;
    if (!apart || s->options.weights_only || shard_is_one_pass(s->options.optimizer))
        return DCP_OK;
    dcp_error_set(
        err, DCP_E_UNSUPPORTED,
        "zero_optimization.offload_... with a GPU needs an optimizer of single "
        "elements, such as AdamW, SGD, Lion or Adagrad; Lamb, Muon and Adafactor "
        "look at whole parameters");
    dcp_error_hint(err, "another optimizer, or no offload");
    return DCP_E_UNSUPPORTED;
}

int shard_place(struct shard *s, struct dcp_error *err)
{
    s->params = model_params(s->model, &s->n_params);
    s->n_units = model_n_units(s->model);
    s->at = dcp_mem_calloc((size_t)s->n_params, sizeof *s->at);
    s->runs = dcp_mem_calloc((size_t)s->n_params, sizeof *s->runs);
    s->unit_first = dcp_mem_calloc((size_t)s->n_units + 1, sizeof *s->unit_first);
    s->near_at = dcp_mem_calloc((size_t)s->n_units + 1, sizeof *s->near_at);
    s->near_there = dcp_mem_calloc((size_t)s->n_units, sizeof *s->near_there);
    s->next_unit = dcp_mem_calloc(3 * (size_t)s->n_units, sizeof *s->next_unit);
    s->matrices = dcp_mem_calloc((size_t)s->n_params, sizeof *s->matrices);
    s->counts = dcp_mem_calloc((size_t)s->all->world_size, sizeof *s->counts);
    s->passages = dcp_mem_calloc((size_t)s->n_units, sizeof *s->passages);
    s->told = dcp_mem_calloc(2 * (size_t)s->all->world_size, sizeof *s->told);
    s->host_peaks = dcp_mem_calloc(2 * (size_t)s->n_params, sizeof *s->host_peaks);
    if (!s->at || !s->runs || !s->unit_first || !s->near_at || !s->near_there ||
        !s->next_unit || !s->matrices || !s->counts || !s->passages || !s->told ||
        !s->host_peaks)
        return dcp_error_memory(err, "the places of parameters");
    for (int i = 0; i < 3 * s->n_units; i++)
        s->next_unit[i] = -1;
    s->last_unit = s->before_unit = s->last_ended = s->exchange.unit = -1;
    for (int u = 0; u < s->n_units; u++)
        s->passages[u].next = -1;
    for (int p = s->n_params - 1, u = s->n_units; p >= -1; p--)
        while (u > (p < 0 ? -1 : s->params[p].unit))
            s->unit_first[u--] = p + 1;
    for (int p = 0; p < s->n_params; p++) {
        s->at[p].group = shard_group_of(s->model, s->options.optimizer, p);
        s->at[p].type = optim_of(s->options.optimizer, s->params[p].ndim,
                                 model_is_hidden(s->model, p));
    }
    place_near(s);
    place_full(s);
    place_own(s);
    place_runs(s);
    shard_muon_place(s);
    shard_adafactor_place(s);
    shard_count_rounds(s);
    return check_optimizer(s, err);
}

/* Ranks of one copy of the model stand side by side. */
int shard_check_groups(int world_size, int size, struct dcp_error *err)
{
    if (size >= 0 && (size == 0 || world_size % size == 0))
        return DCP_OK;
    return dcp_error_set(err, DCP_E_USAGE,
                         "%d ranks cannot be cut into groups of %d that share one copy "
                         "of the model",
                         world_size, size);
}

static int split(struct shard *s, struct dcp_error *err)
{
    int size = s->options.shard_size, rank = s->all->rank;
    s->inner = s->all;
    if (size && near_size(s) > 1)
        return dcp_error_set(err, DCP_E_USAGE,
                             "ranks that share one copy of the model keep no second copy "
                             "of the weights");
    int rc = shard_check_groups(s->all->world_size, size, err);
    if (!rc && near_size(s) > 1) {
        rc = shard_check_groups(s->all->world_size, near_size(s), err);
        if (!rc)
            rc = coll_split(s->all, rank / near_size(s), rank, &s->near, err);
    }
    if (rc || s->options.stage < 3 || size == 0 || size == s->all->world_size)
        return rc;
    rc = coll_split(s->all, rank / size, rank, &s->split_in, err);
    if (!rc)
        rc = coll_split(s->all, rank % size, rank, &s->outer, err);
    s->inner = &s->split_in;
    return rc;
}

int shard_new(const struct model *model, const struct shard_options *options,
              struct coll *coll, struct shard **out_shard, struct dcp_error *err)
{
    *out_shard = NULL;
    struct shard *s = dcp_mem_calloc(1, sizeof *s);
    if (!s)
        return dcp_error_memory(err, "model state");
    s->options = *options;
    s->model = model;
    s->kernels = model_kernels(model);
    s->host.ops = ops_cpu();
    s->all = coll;
    int rc = split(s, err);
    if (!rc)
        rc = shard_open_swaps(s, err);
    if (!rc)
        rc = shard_place(s, err);
    if (!rc)
        rc = shard_allocate(s, err);
    if (!rc) /* others write there next, on streams of their own */
        rc = s->kernels.ops->sync(s->kernels.ctx, err);
    if (rc) {
        shard_free(s);
        return rc;
    }
    *out_shard = s;
    return DCP_OK;
}

void shard_free(struct shard *s)
{
    if (!s)
        return;
    shard_land(s);
    shard_release(s);
    free(s->at);
    free(s->runs);
    free(s->unit_first);
    free(s->near_at);
    free(s->near_there);
    free(s->next_unit);
    free(s->matrices);
    free(s->counts);
    free(s->passages);
    free(s->told);
    free(s->host_peaks);
    coll_free(&s->near);
    coll_free(&s->split_in);
    coll_free(&s->outer);
    free(s);
}

/* The initial values of a range, made on the host a part at a time; `kernels`: whose
 * memory it is. */
static int init_range(struct shard *s, const struct kernels *kernels, uint64_t seed,
                      int param, const struct shard_range *held, enum dcp_dtype dtype,
                      struct init_room *room, struct dcp_error *err)
{
    bool is_cast = dtype != DCP_F32;
    size_t item = dcp_dtype_size(dtype);
    for (int64_t i = held->begin; i < held->end; i += INIT_ELEMS) {
        int64_t left = held->end - i, n = left < INIT_ELEMS ? left : INIT_ELEMS;
        model_init_values(s->model, param, seed, i, n, room->values);
        if (is_cast)
            ops_to_16bit(dtype, room->values, room->halves, n);
        DCP_TRY(kernels->ops->put(kernels->ctx,
                                  (char *)held->data + (size_t)(i - held->begin) * item,
                                  is_cast ? (const void *)room->halves : room->values,
                                  (uint64_t)n * item, err));
    }
    return DCP_OK;
}

int shard_init(struct shard *s, uint64_t seed, struct dcp_error *err)
{
    struct shard_range held;
    DCP_CLEANUP_FREE struct init_room *room = dcp_mem_calloc(1, sizeof *room);
    int rc = room ? DCP_OK : dcp_error_memory(err, "initial values");
    for (int p = 0; !rc && p < s->n_params; p++) {
        shard_weights(s, p, &held);
        rc = init_range(s, s->weights_apart ? &s->host : &s->kernels, seed, p, &held,
                        s->options.dtype, room, err);
        shard_master(s, p, &held);
        if (!rc && held.data)
            rc = init_range(s, &shard_home_at(s, s->at[p].own_at)->kernels, seed, p,
                            &held, DCP_F32, room, err);
    }
    shard_touch(s);
    return rc;
}

void shard_weights(const struct shard *s, int param, struct shard_range *out_range)
{
    const struct shard_param *at = &s->at[param];
    if (s->options.stage == 3)
        *out_range =
            (struct shard_range){ at->begin, at->end, shard_weight_at(s, at->own_at) };
    else
        *out_range = (struct shard_range){ 0, s->params[param].n_elems,
                                           shard_weight_at(s, at->full_at) };
}

/* fp32 weights are the masters, also where the optimizer has a copy of them. */
void shard_master(const struct shard *s, int param, struct shard_range *out_range)
{
    const struct shard_param *at = &s->at[param];
    float *data = shard_has_master(s) ? shard_master_at(s, at->own_at) : NULL;
    *out_range = (struct shard_range){ at->begin, at->end, data };
}

void shard_state(const struct shard *s, int i, int param, struct shard_range *out_range)
{
    const struct shard_param *at = &s->at[param];
    int64_t shape[2];
    *out_range =
        (struct shard_range){ at->begin, at->end,
                              shard_state_at(s, i, at->own_at, at->state_at[i]) };
    if (at->type != OPTIM_FACTORED)
        return;
    optim_state_shape(OPTIM_FACTORED, i, s->params[param].shape, shape);
    out_range->begin = 0;
    out_range->end = shape[0] * shape[1];
}

int shard_group(const struct shard *s, int param)
{
    return s->at[param].group;
}

enum optim_type shard_optimizer(const struct shard *s, int param)
{
    return s->at[param].type;
}

int shard_group_of(const struct model *model, enum optim_type optimizer, int param)
{
    int n;
    int plain = model_params(model, &n)[param].decay ? 0 : 1;
    if (optimizer != OPTIM_MUON)
        return plain;
    return model_is_hidden(model, param) ? 0 : 1 + plain;
}
