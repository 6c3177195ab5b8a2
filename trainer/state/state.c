#include "state.h"

#include "base/arena.h"
#include "base/mem.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

void state_fini(struct state *state)
{
    dcp_arena_free(state->arena);
    *state = (struct state){ .arena = NULL };
}

static const char *layout_name(const struct shard *shard)
{
    static const char *const names[] = { "replicated", "zero1", "zero2", "zero3" };
    return names[shard_stage(shard)];
}

/* Room for four tensors a parameter. */
static int begin(struct state *state, const struct shard *shard,
                 const struct model *model, int world_size, struct dcp_error *err)
{
    int n_params;
    const struct model_param *params = model_params(model, &n_params);
    *state = (struct state){ .arena = dcp_arena_new(), .shard = shard, .params = params };
    state->cap_locals = 4 * (size_t)n_params;
    if (state->arena)
        state->dcp.locals =
            dcp_arena_alloc(state->arena, state->cap_locals, sizeof *state->dcp.locals);
    if (!state->dcp.locals) {
        state_fini(state);
        return dcp_error_memory(err, "the list of tensors");
    }
    state->dcp.layout = layout_name(shard);
    state->dcp.mesh = (struct dcp_mesh){ world_size, 1, 1 };
    return DCP_OK;
}

/* Adds what this rank holds of one tensor. `name` is copied. */
static int add(struct state *state, const struct model_param *param, const char *name,
               enum dcp_role role, enum dcp_dtype dtype, const struct shard_range *held,
               struct dcp_error *err)
{
    char *copy = dcp_arena_text(state->arena, name);
    if (!copy || state->dcp.n_locals == state->cap_locals)
        return dcp_error_memory(err, "the list of tensors");
    struct dcp_region region = { .kind = DCP_FLAT,
                                 .begin = held->begin,
                                 .end = held->end };
    if (held->begin == 0 && held->end == param->n_elems)
        region = (struct dcp_region){ .kind = DCP_WHOLE };
    if (held->begin == held->end)
        region = (struct dcp_region){ .kind = DCP_FLAT };
    struct dcp_local_tensor *locals = (struct dcp_local_tensor *)state->dcp.locals;
    locals[state->dcp.n_locals++] = (struct dcp_local_tensor){
        .name = copy,
        .param = param->name,
        .role = role,
        .dtype = dtype,
        .ndim = param->ndim,
        .shape = param->shape,
        .group = shard_group(state->shard, (int)(param - state->params)),
        .region = region,
        .data = held->begin == held->end ? NULL : held->data,
    };
    return DCP_OK;
}

/* A kind of tensor that there may be of every parameter: weights have no key, of the
 * optimizer's it is the name of the role, or of the state. */
struct kind {
    enum dcp_role role;
    const char *key;
};
static const struct kind weights = { DCP_ROLE_MODEL, NULL },
                         masters = { DCP_ROLE_MASTER, "master" };

static bool has_state(const struct shard *shard, int i, int param)
{
    return i < optim_n_kept(shard_optimizer(shard, param));
}

/* A parameter's i-th state. */
static struct kind state_of(const struct shard *shard, int i, int param)
{
    const char *name = optim_states[shard_optimizer(shard, param)][i];
    int role = dcp_role_parse(name);
    return (struct kind){ role < 0 ? DCP_ROLE_OPTIM : (enum dcp_role)role, name };
}

/* A state that was added last, where it has not the shape of its weight: all ranks have
 * it whole. */
static int reshape(struct state *state, const struct shard *shard, int i, int param,
                   struct dcp_error *err)
{
    struct dcp_local_tensor *last =
        (struct dcp_local_tensor *)&state->dcp.locals[state->dcp.n_locals - 1];
    if (shard_optimizer(shard, param) != OPTIM_FACTORED)
        return DCP_OK;
    int64_t *shape = dcp_arena_alloc(state->arena, 2, sizeof *shape);
    if (!shape)
        return dcp_error_memory(err, "the list of tensors");
    optim_state_shape(OPTIM_FACTORED, i, last->shape, shape);
    last->shape = shape;
    last->region = (struct dcp_region){ .kind = DCP_WHOLE };
    return DCP_OK;
}

static void default_name(char *out, size_t cap, struct kind kind, const char *param)
{
    if (!kind.key)
        snprintf(out, cap, "%s", param);
    else
        snprintf(out, cap, "optimizer.%s.%s", kind.key, param);
}

static int add_optim(struct state *state, const struct model_param *param,
                     struct kind kind, const struct shard_range *held,
                     struct dcp_error *err)
{
    char name[160];
    default_name(name, sizeof name, kind, param->name);
    return add(state, param, name, kind.role, DCP_F32, held, err);
}

static int add_tensors(struct state *state, const struct shard *shard,
                       const struct model *model, struct dcp_error *err)
{
    int n_params, rc = DCP_OK;
    const struct model_param *params = model_params(model, &n_params);
    struct shard_range held;
    for (int p = 0; !rc && p < n_params; p++) {
        shard_weights(shard, p, &held);
        rc = add(state, &params[p], params[p].name, DCP_ROLE_MODEL, shard_dtype(shard),
                 &held, err);
    }
    for (int p = 0; !rc && shard_has_master(shard) && p < n_params; p++) {
        shard_master(shard, p, &held);
        rc = add_optim(state, &params[p], masters, &held, err);
    }
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
        for (int p = 0; !rc && p < n_params; p++) {
            if (!has_state(shard, i, p))
                continue;
            shard_state(shard, i, p, &held);
            rc = add_optim(state, &params[p], state_of(shard, i, p), &held, err);
            if (!rc)
                rc = reshape(state, shard, i, p, err);
        }
    return rc;
}

int state_init(struct state *out_state, const struct shard *shard,
               const struct model *model, int world_size, const struct settings *settings,
               const struct state_progress *progress, struct dcp_error *err)
{
    DCP_TRY(begin(out_state, shard, model, world_size, err));
    int rc = add_tensors(out_state, shard, model, err);
    if (!rc)
        rc = state_objects(out_state, model, settings, progress, err);
    if (rc)
        state_fini(out_state);
    return rc;
}

/* Whether a tensor is of that kind: those without a role of their own go by the first or
 * last part of what stands around their parameter: "optimizer.sum.P", "state.P.sum". */
static bool is_of(const struct dcp_tensor *tensor, struct kind kind)
{
    char middle[64], end[64];
    if (tensor->role != kind.role || kind.role != DCP_ROLE_OPTIM)
        return tensor->role == kind.role;
    snprintf(middle, sizeof middle, "optimizer.%s.", kind.key);
    snprintf(end, sizeof end, ".%s", kind.key);
    return dcp_str_starts(tensor->name, middle) || dcp_str_ends(tensor->name, end);
}

/* A tensor of a catalog by what it is. Weights also go without the name of the model that
 * the head was put on. -1: not there. */
static int find(const struct dcp_catalog *catalog, struct kind kind, const char *param)
{
    static const char prefix[] = "transformer.";
    char name[160];
    default_name(name, sizeof name, kind, param);
    int found = dcp_catalog_find(catalog, name);
    const char *bare = dcp_str_starts(param, prefix) ? param + sizeof prefix - 1 : param;
    if (found < 0 && kind.role == DCP_ROLE_MODEL)
        found = dcp_catalog_find(catalog, bare);
    for (size_t t = 0; found < 0 && t < catalog->n_tensors; t++)
        if (is_of(&catalog->tensors[t], kind) &&
            (!strcmp(catalog->tensors[t].param, param) ||
             !strcmp(catalog->tensors[t].param, bare)))
            found = (int)t;
    return found;
}

/* Whether the catalog has that tensor of every parameter. */
static bool has_all(const struct dcp_catalog *catalog, const struct model *model,
                    struct kind kind)
{
    int n_params, n = 0;
    const struct model_param *params = model_params(model, &n_params);
    while (n < n_params && find(catalog, kind, params[n].name) >= 0)
        n++;
    return n == n_params;
}

/* Whether the catalog has what the optimizer keeps. The first moment beside a second one
 * is Adam's, and not what Lion calls so. */
static bool has_states(const struct dcp_catalog *catalog, const struct shard *shard,
                       const struct model *model)
{
    static const struct kind second = { DCP_ROLE_EXP_AVG_SQ, "exp_avg_sq" };
    bool has = true;
    int n_params;
    const struct model_param *params = model_params(model, &n_params);
    for (int p = 0; has && p < n_params; p++) {
        for (int i = 0; has && has_state(shard, i, p); i++)
            has = find(catalog, state_of(shard, i, p), params[p].name) >= 0;
        if (shard_optimizer(shard, p) == OPTIM_LION)
            has = has && find(catalog, second, params[p].name) < 0;
    }
    return has;
}

/* Whether the weights are stored in this dtype. */
static bool all_are(const struct dcp_catalog *catalog, const struct model *model,
                    enum dcp_dtype dtype)
{
    int n_params;
    const struct model_param *params = model_params(model, &n_params);
    for (int p = 0; p < n_params; p++) {
        int found = find(catalog, weights, params[p].name);
        if (found < 0 || catalog->tensors[found].dtype != dtype)
            return false;
    }
    return true;
}

static int add_found(struct state *state, const struct dcp_catalog *catalog,
                     struct kind stored, const struct model_param *param,
                     enum dcp_role role, enum dcp_dtype dtype,
                     const struct shard_range *held, struct dcp_error *err)
{
    int found = find(catalog, stored, param->name);
    if (found < 0)
        return dcp_error_of_tensor(err, DCP_E_MISMATCH, param->name,
                                   "the checkpoint has no tensor '%s'", param->name);
    return add(state, param, catalog->tensors[found].name, role, dtype, held, err);
}

int state_init_load(struct state *out_state, const struct shard *shard,
                    const struct model *model, const struct dcp_catalog *catalog,
                    bool moments, struct state_want *out_want, struct dcp_error *err)
{
    int n_params;
    const struct model_param *params = model_params(model, &n_params);
    struct state *state = out_state;
    struct shard_range held;
    /* ZeRO-3 stores a model as its masters. */
    bool has_master = has_all(catalog, model, masters) &&
                      (moments || !has_all(catalog, model, weights));
    enum dcp_dtype dtype = shard_dtype(shard);
    bool keeps = shard_has_master(shard);
    struct state_want want = {
        .moments = moments && has_states(catalog, shard, model),
        .master = has_master,
        .weights = all_are(catalog, model, dtype),
    };
    int rc = begin(state, shard, model, catalog->world_size, err);
    if (rc)
        return rc;
    struct kind exact = want.master ? masters : weights;
    for (int p = 0; !rc && p < n_params; p++) {
        shard_weights(shard, p, &held);
        if (!keeps && dtype == DCP_F32) /* fp32 weights are the masters */
            rc = add_found(state, catalog, exact, &params[p], DCP_ROLE_MODEL, DCP_F32,
                           &held, err);
        else if (want.weights || !keeps)
            rc = add_found(state, catalog, weights, &params[p], DCP_ROLE_MODEL, dtype,
                           &held, err);
        if (rc || !keeps || (want.weights && !want.master))
            continue; /* then masters are made from the weights */
        shard_master(shard, p, &held);
        rc = add_found(state, catalog, exact, &params[p], DCP_ROLE_MASTER, DCP_F32, &held,
                       err);
    }
    for (int i = 0; want.moments && i < OPTIM_MAX_STATES; i++)
        for (int p = 0; !rc && p < n_params; p++) {
            if (!has_state(shard, i, p))
                continue;
            struct kind kind = state_of(shard, i, p);
            shard_state(shard, i, p, &held);
            rc = add_found(state, catalog, kind, &params[p], kind.role, DCP_F32, &held,
                           err);
            if (!rc)
                rc = reshape(state, shard, i, p, err);
        }
    if (rc)
        state_fini(state);
    *out_want = want;
    return rc;
}
