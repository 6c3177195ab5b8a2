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
    model_params(model, &n_params);
    *state = (struct state){ .arena = dcp_arena_new() };
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
        .group = param->decay ? 0 : 1,
        .region = region,
        .data = held->begin == held->end ? NULL : held->data,
    };
    return DCP_OK;
}

static void default_name(char *out, size_t cap, enum dcp_role role, const char *param)
{
    if (role == DCP_ROLE_MODEL)
        snprintf(out, cap, "%s", param);
    else
        snprintf(out, cap, "optimizer.%s.%s", dcp_role_name(role), param);
}

static const enum dcp_role optim_roles[] = { DCP_ROLE_MASTER, DCP_ROLE_EXP_AVG,
                                             DCP_ROLE_EXP_AVG_SQ };
#define N_OPTIM_ROLES (sizeof optim_roles / sizeof *optim_roles)

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
    for (size_t r = shard_has_master(shard) ? 0 : 1; r < N_OPTIM_ROLES; r++)
        for (int p = 0; !rc && p < n_params; p++) {
            char name[160];
            default_name(name, sizeof name, optim_roles[r], params[p].name);
            shard_optim(shard, optim_roles[r], p, &held);
            rc = add(state, &params[p], name, optim_roles[r], DCP_F32, &held, err);
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

/* A tensor of a catalog by what it is. Weights also go without the name of the model that
 * the head was put on. -1: not there. */
static int find(const struct dcp_catalog *catalog, enum dcp_role role, const char *param)
{
    static const char prefix[] = "transformer.";
    char name[160];
    default_name(name, sizeof name, role, param);
    int found = dcp_catalog_find(catalog, name);
    const char *bare = dcp_str_starts(param, prefix) ? param + sizeof prefix - 1 : param;
    if (found < 0 && role == DCP_ROLE_MODEL)
        found = dcp_catalog_find(catalog, bare);
    for (size_t t = 0; found < 0 && t < catalog->n_tensors; t++)
        if (catalog->tensors[t].role == role &&
            (!strcmp(catalog->tensors[t].param, param) ||
             !strcmp(catalog->tensors[t].param, bare)))
            found = (int)t;
    return found;
}

/* Whether the catalog has that tensor of every parameter. */
static bool has_all(const struct dcp_catalog *catalog, const struct model *model,
                    enum dcp_role role)
{
    int n_params, n = 0;
    const struct model_param *params = model_params(model, &n_params);
    while (n < n_params && find(catalog, role, params[n].name) >= 0)
        n++;
    return n == n_params;
}

static bool all_bf16(const struct dcp_catalog *catalog, const struct model *model)
{
    int n_params;
    const struct model_param *params = model_params(model, &n_params);
    for (int p = 0; p < n_params; p++) {
        int found = find(catalog, DCP_ROLE_MODEL, params[p].name);
        if (found < 0 || catalog->tensors[found].dtype != DCP_BF16)
            return false;
    }
    return true;
}

static int add_found(struct state *state, const struct dcp_catalog *catalog,
                     enum dcp_role stored, const struct model_param *param,
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
    bool has_master = has_all(catalog, model, DCP_ROLE_MASTER) &&
                      (moments || !has_all(catalog, model, DCP_ROLE_MODEL));
    bool is_bf16 = all_bf16(catalog, model), keeps = shard_has_master(shard);
    struct state_want want = {
        .moments = moments && has_all(catalog, model, DCP_ROLE_EXP_AVG) &&
                   has_all(catalog, model, DCP_ROLE_EXP_AVG_SQ),
        .master = has_master,
        .weights = is_bf16,
    };
    int rc = begin(state, shard, model, catalog->world_size, err);
    if (rc)
        return rc;
    enum dcp_role exact = want.master ? DCP_ROLE_MASTER : DCP_ROLE_MODEL;
    for (int p = 0; !rc && p < n_params; p++) {
        shard_weights(shard, p, &held);
        if (!keeps && shard_dtype(shard) == DCP_F32) /* fp32 weights are the masters */
            rc = add_found(state, catalog, exact, &params[p], DCP_ROLE_MODEL, DCP_F32,
                           &held, err);
        else if (want.weights || !keeps)
            rc = add_found(state, catalog, DCP_ROLE_MODEL, &params[p], DCP_ROLE_MODEL,
                           DCP_BF16, &held, err);
        if (rc || !keeps || (want.weights && !want.master))
            continue; /* then masters are made from the weights */
        shard_optim(shard, DCP_ROLE_MASTER, p, &held);
        rc = add_found(state, catalog, exact, &params[p], DCP_ROLE_MASTER, DCP_F32, &held,
                       err);
    }
    for (size_t r = 1; want.moments && r < N_OPTIM_ROLES; r++)
        for (int p = 0; !rc && p < n_params; p++) {
            shard_optim(shard, optim_roles[r], p, &held);
            rc = add_found(state, catalog, optim_roles[r], &params[p], optim_roles[r],
                           DCP_F32, &held, err);
        }
    if (rc)
        state_fini(state);
    *out_want = want;
    return rc;
}
