#include "own.h"

#include "base/mem.h"
#include "trainer/ops/ops.h"

#define INIT_ELEMS (1 << 18)

size_t shard_weight_bytes(const struct shard *s)
{
    return s->options.bf16 ? 2 : 4;
}

bool shard_rounds(const struct shard *s)
{
    return s->options.bf16 && !s->options.grad_fp32;
}

/* What is added to something that was rounded already would depend on who added before.
 */
bool shard_grads_fp32(const struct shard *s)
{
    bool copies = s->inner->world_size != s->world_size->world_size;
    bool adds = s->options.accumulation > 1 || copies;
    return !shard_rounds(s) || (adds && !s->options.grad_bf16);
}

size_t shard_grad_bytes(const struct shard *s)
{
    return shard_grads_fp32(s) ? 4 : 2;
}

enum dcp_dtype shard_grad_dtype(const struct shard *s)
{
    return shard_grads_fp32(s) ? DCP_F32 : DCP_BF16;
}

enum dcp_dtype shard_dtype(const struct shard *s)
{
    return s->options.bf16 ? DCP_BF16 : DCP_F32;
}

bool shard_has_master(const struct shard *s)
{
    return s->options.bf16 && !s->options.weights_only;
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
    uint16_t bf16[INIT_ELEMS];
};

void shard_part(const struct shard *s, int param, int rank, int64_t *out_begin,
                int64_t *out_end)
{
    const struct shard_group *group = &s->groups[s->at[param].group];
    int64_t n = s->params[param].n_elems;
    struct dcp_part part = { 0, n };
    if (s->options.stage == 3)
        part = dcp_part_of(dcp_part_ceil(n, s->inner->world_size), rank, 0, n);
    else if (s->options.stage)
        part = dcp_part_of(group->part, rank, s->at[param].full_at - group->begin, n);
    *out_begin = part.begin;
    *out_end = part.end;
}

int64_t shard_unit_room(const struct shard *s, int unit)
{
    int64_t room = 0;
    for (int p = s->unit_first[unit]; p < s->unit_first[unit + 1]; p++)
        room += shard_padded(s->params[p].n_elems);
    return room;
}

/* Partial sums that are alive at once while `n` parts are added in the tree: after i
 * parts, one for each bit of i. */
static int levels_for(int n)
{
    int levels = 1;
    while ((n - 1) >> levels > 0)
        levels++;
    return levels;
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
        group->part = dcp_part_zero(group->n, s->world_size->world_size);
    }
}

static void add_run(struct shard *s, int group, int64_t own_at, int64_t full_at,
                    int64_t n)
{
    int64_t weight_at = s->options.stage == 3 ? own_at : full_at;
    bool full_grads = s->options.stage <= 1;
    struct shard_run *last = s->n_runs ? &s->runs[s->n_runs - 1] : NULL;
    if (!n)
        return;
    if (last && last->decay == (group == 0) && last->own_at + last->n == own_at &&
        last->full_at + last->n == full_at) {
        last->n += n;
        return;
    }
    s->runs[s->n_runs++] = (struct shard_run){
        .own_at = own_at,
        .weight_at = weight_at,
        .grad_at = full_grads ? full_at : own_at,
        .full_at = full_at,
        .n = n,
        .decay = group == 0,
    };
}

/* Own order, and the runs in it. */
static void place_own(struct shard *s)
{
    int stage = s->options.stage;
    for (int g = 0; g < SHARD_N_GROUPS; g++)
        for (int p = 0; p < s->n_params; p++) {
            struct shard_param *at = &s->at[p];
            if (stage < 3 ? at->group != g : g != 0)
                continue;
            at->begin = 0;
            at->end = s->params[p].n_elems;
            if (stage > 0)
                shard_part(s, p, s->inner->rank, &at->begin, &at->end);
            at->own_at = s->n_own;
            int64_t n = at->end - at->begin;
            add_run(s, at->group, at->own_at, at->full_at + at->begin, n);
            s->n_own += n;
        }
    s->n_weights = stage == 3 ? s->n_own : s->n_elems;
    s->n_grads = stage >= 2 ? s->n_own : s->n_elems;
}

static int place(struct shard *s, struct dcp_error *err)
{
    s->params = model_params(s->model, &s->n_params);
    s->n_units = model_n_units(s->model);
    s->at = dcp_mem_calloc((size_t)s->n_params, sizeof *s->at);
    s->runs = dcp_mem_calloc((size_t)s->n_params, sizeof *s->runs);
    s->unit_first = dcp_mem_calloc((size_t)s->n_units + 1, sizeof *s->unit_first);
    s->next_unit = dcp_mem_calloc(3 * (size_t)s->n_units, sizeof *s->next_unit);
    s->counts = dcp_mem_calloc((size_t)s->world_size->world_size, sizeof *s->counts);
    s->round = dcp_mem_calloc((size_t)s->world_size->world_size, sizeof *s->round);
    s->peaks = dcp_mem_calloc((size_t)s->world_size->world_size, sizeof *s->peaks);
    if (!s->at || !s->runs || !s->unit_first || !s->next_unit || !s->counts ||
        !s->round || !s->peaks)
        return dcp_error_memory(err, "the places of parameters");
    for (int i = 0; i < 3 * s->n_units; i++)
        s->next_unit[i] = -1;
    s->last_unit = s->before_unit = s->reduction.unit = -1;
    for (int p = s->n_params - 1, u = s->n_units; p >= -1; p--)
        while (u > (p < 0 ? -1 : s->params[p].unit))
            s->unit_first[u--] = p + 1;
    for (int p = 0; p < s->n_params; p++)
        s->at[p].group = s->params[p].decay ? 0 : 1;
    place_full(s);
    place_own(s);
    if (!s->options.weights_only)
        s->n_levels = shard_grads_fp32(s) ? levels_for(s->options.accumulation) : 1;
    return DCP_OK;
}

static int alloc(struct shard *s, void **out, int64_t n, size_t size_bytes,
                 struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops;
    size_t total;
    if (n < 0 || !dcp_mul_size((size_t)n, size_bytes, &total))
        total = SIZE_MAX;
    DCP_TRY(ops->alloc(s->kernels.ctx, total, "parts of the model state", out, err));
    ops->zero(s->kernels.ctx, *out, total);
    return DCP_OK;
}

static size_t staging_bytes(const struct shard *s)
{
    if (s->world_size->world_size == 1)
        return 0;
    size_t bytes = 0;
    if (s->options.stage == 3 || !s->options.weights_only)
        for (int u = 0; u < s->n_units; u++) {
            size_t need = (size_t)shard_unit_room(s, u) * sizeof(float);
            bytes = need > bytes ? need : bytes;
        }
    bool buckets = !shard_grads_fp32(s) && s->outer.ops;
    size_t bucket = (size_t)(SHARD_BUCKET + s->world_size->world_size) * sizeof(float);
    return buckets && bucket > bytes ? bucket : bytes;
}

static int allocate(struct shard *s, struct dcp_error *err)
{
    int rc = alloc(s, &s->weights, s->n_weights, shard_weight_bytes(s), err);
    s->staging_bytes = staging_bytes(s);
    for (int i = 0; !rc && s->staging_bytes && i < (coll_overlaps(s->inner) ? 2 : 1); i++)
        rc = alloc(s, (void **)&s->staging[i], (int64_t)s->staging_bytes, 1, err);
    if (!rc)
        rc = alloc(s, (void **)&s->measure, 1, sizeof *s->measure, err);
    if (rc || s->options.weights_only)
        return rc;
    if (s->options.bf16)
        rc = alloc(s, (void **)&s->master, s->n_own, sizeof(float), err);
    if (!rc)
        rc = alloc(s, (void **)&s->m, s->n_own, sizeof(float), err);
    if (!rc)
        rc = alloc(s, (void **)&s->v, s->n_own, sizeof(float), err);
    for (int l = 0; !rc && l < s->n_levels; l++)
        rc = alloc(s, &s->grads[l], s->n_grads, shard_grad_bytes(s), err);
    return rc;
}

/* Ranks of one copy of the model stand side by side. */
static int check_groups(int world_size, int size, struct dcp_error *err)
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
    int size = s->options.shard_size, rank = s->world_size->rank;
    s->inner = s->world_size;
    int rc = check_groups(s->world_size->world_size, size, err);
    if (rc || s->options.stage < 3 || size == 0 || size == s->world_size->world_size)
        return rc;
    rc = coll_split(s->world_size, rank / size, rank, &s->split_in, err);
    if (!rc)
        rc = coll_split(s->world_size, rank % size, rank, &s->outer, err);
    s->inner = &s->split_in;
    return rc;
}

int shard_plan(const struct model *model, const struct shard_options *options,
               int world_size, struct shard_bytes *out_bytes, struct dcp_error *err)
{
    struct coll all = { .world_size = world_size },
                copy = { .world_size = options->shard_size };
    struct shard *s = dcp_mem_calloc(1, sizeof *s);
    if (!s)
        return dcp_error_memory(err, "a plan of the model state");
    s->options = *options;
    s->model = model;
    s->kernels = model_kernels(model);
    s->world_size = &all;
    s->inner = options->stage == 3 && options->shard_size ? &copy : &all;
    int rc = check_groups(world_size, options->shard_size, err);
    if (!rc)
        rc = place(s, err);
    if (!rc)
        shard_memory(s, out_bytes);
    shard_free(s);
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
    s->world_size = coll;
    int rc = split(s, err);
    if (!rc)
        rc = place(s, err);
    if (!rc)
        rc = allocate(s, err);
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
    void *const memory[] = { s->weights, s->master,     s->m,         s->v,
                             s->measure, s->staging[0], s->staging[1] };
    for (size_t i = 0; i < DCP_ARRAY_LEN(memory); i++)
        s->kernels.ops->free(s->kernels.ctx, memory[i]);
    for (int l = 0; l < SHARD_MAX_LEVELS; l++)
        s->kernels.ops->free(s->kernels.ctx, s->grads[l]);
    shard_slots_fini(s, &s->gathered);
    shard_slots_fini(s, &s->unit_grads);
    free(s->at);
    free(s->runs);
    free(s->unit_first);
    free(s->next_unit);
    free(s->counts);
    free(s->round);
    free(s->peaks);
    coll_free(&s->split_in);
    coll_free(&s->outer);
    free(s);
}

/* The initial values of a range, made on the host a part at a time. */
static int init_range(struct shard *s, uint64_t seed, int param,
                      const struct shard_range *held, bool bf16, struct init_room *room,
                      struct dcp_error *err)
{
    size_t item = bf16 ? sizeof *room->bf16 : sizeof *room->values;
    for (int64_t i = held->begin; i < held->end; i += INIT_ELEMS) {
        int64_t left = held->end - i, n = left < INIT_ELEMS ? left : INIT_ELEMS;
        model_init_values(s->model, param, seed, i, n, room->values);
        if (bf16)
            ops_to_bf16(room->values, room->bf16, n);
        DCP_TRY(s->kernels.ops->put(
            s->kernels.ctx, (char *)held->data + (size_t)(i - held->begin) * item,
            bf16 ? (const void *)room->bf16 : room->values, (uint64_t)n * item, err));
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
        rc = init_range(s, seed, p, &held, s->options.bf16, room, err);
        shard_optim(s, DCP_ROLE_MASTER, p, &held);
        if (!rc && held.data)
            rc = init_range(s, seed, p, &held, false, room, err);
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

void shard_optim(const struct shard *s, enum dcp_role role, int param,
                 struct shard_range *out_range)
{
    const struct shard_param *at = &s->at[param];
    float *array = role == DCP_ROLE_MASTER    ? s->master
                   : role == DCP_ROLE_EXP_AVG ? s->m
                                              : s->v;
    *out_range =
        (struct shard_range){ at->begin, at->end, array ? array + at->own_at : NULL };
}

static uint64_t slots_bytes(const struct shard_slots *slots)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < slots->n; i++)
        bytes += slots->items[i].size_bytes * (slots->items[i].landing ? 2 : 1);
    return bytes;
}

void shard_memory(const struct shard *s, struct shard_bytes *out_bytes)
{
    uint64_t optim = s->options.weights_only ? 0 : s->options.bf16 ? 12 : 8;
    *out_bytes = (struct shard_bytes){
        .weights = (uint64_t)s->n_weights * shard_weight_bytes(s),
        .gradients = (uint64_t)s->n_grads * shard_grad_bytes(s) * (uint64_t)s->n_levels,
        .optimizer = (uint64_t)s->n_own * optim,
        .transient = slots_bytes(&s->gathered) + slots_bytes(&s->unit_grads) +
                     s->staging_bytes * (s->staging[1] ? 2 : 1),
    };
}
