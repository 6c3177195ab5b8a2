/* optim: the optimizer's files. A state stands under the name of its weight, or
 * under a number; then the model tells which weight that is, if it can. */
#include "formats/common/optim.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/optim_unordered.h"
#include "formats/common/training.h"
#include "formats/pickle/json.h"
#include "fsdp.h"
#include <stdio.h>
#include <string.h>

#define CONTAINER "optimizer"

/* One rank's file. */
struct optim {
    struct dcp_fsdp_reader *r;
    struct dcp_torch_file *file;
    int file_index, rank;
    json_t *groups; /* param_groups of the first rank, or NULL */
    json_t *steps;  /* that are numbers, by the names they have as objects */
    json_t *told;   /* updates of each state, by its key: as the first rank has them */
    struct dcp_optim_counts updates;
    struct dcp_error *err;
};

/* One state: whose it is. */
struct owner {
    const char *id;    /* as the file spells it */
    const char *param; /* NULL: nobody knows */
    int group;
    int weight; /* index of the tensor, or -1 */
};

static const char *key_text(struct optim *o, const struct dcp_pickle_node *key)
{
    char number[32];

    if (key->kind == DCP_PICKLE_STR && !memchr(key->text.data, 0, key->text.size_bytes))
        return dcp_arena_text_n(o->file->arena, key->text.data, key->text.size_bytes);
    if (key->kind != DCP_PICKLE_INT)
        return NULL;
    snprintf(number, sizeof number, "%lld", (long long)key->number);
    return dcp_arena_text(o->file->arena, number);
}

/* -- which weight -------------------------------------------------------------------- */

/* The shape of a number's parameter, from its moments. */
static int find_shape(struct optim *o, const struct dcp_pickle_node *state,
                      struct dcp_optim_shape *out)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(state);

    for (size_t i = 0; pairs && i + 1 < pairs->n; i += 2) {
        const char *key = key_text(o, pairs->items[i]);
        struct dcp_fsdp_piece piece;
        bool found;
        DCP_TRY(dcp_fsdp_view(o->file, pairs->items[i + 1], o->rank, "of the optimizer",
                              &found, &piece, o->err));
        if (found && key)
            dcp_optim_shape_see(out, key, piece.ndim, piece.shape);
    }
    return DCP_OK;
}

static int find_shapes(struct optim *o, const struct dcp_pickle_list *states, size_t n,
                       struct dcp_optim_shape *shapes)
{
    for (size_t i = 0; i + 1 < states->n; i += 2) {
        const struct dcp_pickle_node *id = states->items[i];
        if (id->kind == DCP_PICKLE_INT && id->number >= 0 && (uint64_t)id->number < n)
            DCP_TRY(find_shape(o, states->items[i + 1], &shapes[id->number]));
    }
    return DCP_OK;
}

/* Weights that the optimizer may have, in the order of the model. */
static size_t list_weights(const struct dcp_fsdp_reader *r, size_t n_weights,
                           bool plain_too, size_t *out)
{
    size_t n = 0;

    for (size_t i = 0; i < n_weights; i++) {
        size_t t = r->order ? r->order[i] : i;
        const struct dcp_tensor *tensor = &r->catalog->tensors[t];
        if (dcp_optim_may_have(tensor) && (plain_too || !r->known[t].plain))
            out[n++] = t;
    }
    return n;
}

/* What stands in one piece in a sharded model is no parameter, as a rule. */
static int find_ids(struct optim *o, size_t n_weights,
                    const struct dcp_optim_shape *shapes)
{
    struct dcp_fsdp_reader *r = o->r;
    DCP_CLEANUP_FREE size_t *weights = dcp_mem_calloc(n_weights, sizeof *weights);
    int rc = weights ? DCP_OK : dcp_error_memory(o->err, "an optimizer");

    for (int plain_too = 0; plain_too < 2 && !rc && !r->ids.found; plain_too++) {
        size_t n = list_weights(r, n_weights, plain_too, weights);
        dcp_optim_ids_fini(&r->ids);
        rc = dcp_optim_ids_find(r->catalog, weights, n, o->groups, shapes, &r->ids,
                                o->err);
        if (!rc && r->unordered)
            dcp_optim_unordered(r->catalog, weights, n, shapes, &r->ids);
        if (!rc)
            rc = dcp_optim_say_order(r->catalog, weights, n, shapes, &r->ids, o->err);
    }
    for (size_t i = 0; i < r->ids.n && !rc; i++)
        if (r->ids.weight[i] >= 0)
            r->catalog->tensors[r->ids.weight[i]].group = r->ids.group[i];
    return rc;
}

/* The groups, and the numbers' weights, from the first rank's file. */
static int read_groups(struct optim *o, const struct dcp_pickle_list *states,
                       size_t n_weights)
{
    const struct dcp_pickle_node *groups = dcp_pickle_get(o->file->tree, "param_groups");
    int rc = groups ? dcp_pickle_to_json(groups, o->file->arena, NULL, &o->groups, o->err)
                    : DCP_OK;

    if (rc) {
        dcp_error_prefix(o->err, "'%s'", o->file->in.shown);
        return rc;
    }
    size_t n = dcp_optim_ids_count(o->groups);
    DCP_CLEANUP_FREE struct dcp_optim_shape *shapes = dcp_mem_calloc(n, sizeof *shapes);
    if (!shapes)
        return dcp_error_memory(o->err, "an optimizer");
    rc = find_shapes(o, states, n, shapes);
    return rc || !n ? rc : find_ids(o, n_weights, shapes);
}

static int find_owner(struct optim *o, const struct dcp_pickle_node *key,
                      struct owner *out)
{
    const struct dcp_optim_ids *ids = &o->r->ids;

    *out = (struct owner){ .id = key_text(o, key), .weight = -1 };
    if (!out->id)
        return dcp_error_set(o->err, DCP_E_UNSUPPORTED,
                             "'%s' has a state under a key that is no name",
                             o->file->in.shown);
    if (key->kind == DCP_PICKLE_INT) {
        if (key->number >= 0 && (uint64_t)key->number < ids->n) {
            out->weight = ids->weight[key->number];
            out->group = ids->group[key->number];
        }
        if (out->weight >= 0)
            out->param = o->r->catalog->tensors[out->weight].param;
        return DCP_OK;
    }
    out->weight = dcp_catalog_find(o->r->catalog, out->id);
    out->param = dcp_fsdp_param(o->r->catalog, out->id);
    return out->param ? DCP_OK : dcp_error_memory(o->err, "an optimizer");
}

/* -- tensors ------------------------------------------------------------------------- */

static enum dcp_role role_of(const char *key)
{
    int role = dcp_role_parse(key);

    return role >= 0 && dcp_role_is_optim((enum dcp_role)role) ? (enum dcp_role)role
                                                               : DCP_ROLE_OPTIM;
}

/* A plain tensor that is no parameter's is what FSDP's flat parameters leave to a rank:
 * each has its own. */
static bool is_local(const struct optim *o, const struct owner *owner,
                     const struct dcp_fsdp_piece *piece)
{
    if (!piece->plain || !piece->ndim || o->r->folder.world_size == 1)
        return false;
    if (owner->weight < 0)
        return true;
    const struct dcp_tensor *weight = &o->r->catalog->tensors[owner->weight];
    if (weight->ndim != piece->ndim)
        return true;
    for (int d = 0; d < piece->ndim; d++)
        if (weight->shape[d] != piece->shape[d])
            return true;
    return false;
}

/* "optimizer.exp_avg.<param>"; without a weight "optimizer.state.3.exp_avg", of one rank
 * "optimizer.rank_1.state.3.exp_avg". */
static char *make_name(struct optim *o, const struct owner *owner, const char *key,
                       bool local)
{
    size_t n = strlen(owner->id) + strlen(key) +
               (owner->param ? strlen(owner->param) : 0) + sizeof CONTAINER + 64;
    char *name = dcp_arena_alloc(o->file->arena, n, 1);

    if (!name)
        return NULL;
    if (local)
        snprintf(name, n, CONTAINER ".rank_%d.state.%s.%s", o->rank, owner->id, key);
    else if (owner->param)
        snprintf(name, n, CONTAINER ".%s.%s", key, owner->param);
    else
        snprintf(name, n, CONTAINER ".state.%s.%s", owner->id, key);
    return name;
}

/* Ranks update their parts of a weight together. */
static int see_updates(struct optim *o, const struct owner *owner, int64_t updates)
{
    const json_t *told = json_object_get(o->told, owner->id);

    if (updates < 0)
        return DCP_OK;
    if (told && json_integer_value(told) != updates) {
        dcp_error_set(o->err, DCP_E_CORRUPT,
                      "'%s' has %lld updates of '%s', and the file of a rank before it "
                      "%lld: they are of two saves",
                      o->file->in.shown, (long long)updates,
                      DCP_SHOWN(owner->param ? owner->param : owner->id),
                      (long long)json_integer_value(told));
        dcp_error_hint(o->err, "every file must be of the same save");
        return DCP_E_CORRUPT;
    }
    dcp_optim_count(&o->updates, updates);
    if (!o->told)
        o->told = json_object();
    return told || !json_object_set_new(o->told, owner->id, json_integer(updates))
               ? DCP_OK
               : dcp_error_memory(o->err, "an optimizer");
}

/* The number of updates in a tensor of one element. */
static int see_step(struct optim *o, const struct owner *owner,
                    const struct dcp_torch_view *view)
{
    double number;
    bool found;

    DCP_TRY(dcp_torch_number(o->file, view, &found, &number, o->err));
    return found ? see_updates(o, owner, dcp_optim_updates(number)) : DCP_OK;
}

static int take_tensor(struct optim *o, const struct owner *owner, const char *key,
                       const struct dcp_fsdp_piece *piece)
{
    bool local = is_local(o, owner, piece);
    struct dcp_tensor tensor = { .role = local ? DCP_ROLE_OPTIM : role_of(key),
                                 .param = local ? NULL : owner->param,
                                 .group = owner->group,
                                 .name = make_name(o, owner, key, local) };

    if (!tensor.name)
        return dcp_error_memory(o->err, "an optimizer");
    if (!strcmp(key, "step") && piece->plain)
        DCP_TRY(see_step(o, owner, &piece->view));
    return dcp_fsdp_add(o->r, o->file, o->file_index, o->rank, &tensor, piece, o->err);
}

/* A step that is a number. */
static int take_step(struct optim *o, const struct owner *owner, int64_t step)
{
    char *name = make_name(o, owner, "step", false);

    DCP_TRY(see_updates(o, owner, step));
    if (!o->steps)
        o->steps = json_object();
    return name && !json_object_set_new(o->steps, name, json_integer((json_int_t)step))
               ? DCP_OK
               : dcp_error_memory(o->err, "an optimizer");
}

/* {"exp_avg": tensor, "step": tensor or number, …} */
static int take_state(struct optim *o, const struct dcp_pickle_node *id,
                      const struct dcp_pickle_node *state)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(state);
    struct owner owner;

    DCP_TRY(find_owner(o, id, &owner));
    for (size_t i = 0; pairs && i + 1 < pairs->n; i += 2) {
        const struct dcp_pickle_node *value = pairs->items[i + 1];
        const char *key = key_text(o, pairs->items[i]);
        struct dcp_fsdp_piece piece;
        bool found;
        if (!key)
            return dcp_error_set(o->err, DCP_E_UNSUPPORTED,
                                 "'%s' has a state under a key that is no name",
                                 o->file->in.shown);
        DCP_TRY(dcp_fsdp_view(o->file, value, o->rank, owner.id, &found, &piece, o->err));
        if (found)
            DCP_TRY(take_tensor(o, &owner, key, &piece));
        else if (value->kind == DCP_PICKLE_INT && !strcmp(key, "step"))
            DCP_TRY(take_step(o, &owner, value->number));
        else if (o->rank == 0) {
            char *name = make_name(o, &owner, key, false);
            DCP_TRY(name ? dcp_fsdp_add_value(o->r, o->file, name, value, o->err)
                         : dcp_error_memory(o->err, "an optimizer"));
        }
    }
    return DCP_OK;
}

/* -- what is no tensor --------------------------------------------------------------- */

/* The object; when nobody knows what the numbers are, the groups as they stand, under
 * another name. */
static int add_groups(struct optim *o)
{
    bool named;
    DCP_CLEANUP_JSON json_t *groups =
        dcp_optim_groups_of(o->r->catalog, o->groups, &o->r->ids, &named);

    if (!groups)
        return dcp_error_memory(o->err, "an optimizer");
    return named ? dcp_optim_add(o->r->catalog, NULL, o->updates, groups, o->err)
                 : dcp_training_add(o->r->catalog, CONTAINER ".param_groups",
                                    json_incref(groups), o->err);
}

/* Steps, where one is not what the others are. */
static int add_steps(struct optim *o)
{
    const char *name;
    json_t *step;
    bool differ = o->updates.least != o->updates.most;

    json_object_foreach(o->steps, name, step)
    {
        if (differ && dcp_catalog_find_object(o->r->catalog, name) < 0)
            DCP_TRY(dcp_training_add(o->r->catalog, name, json_incref(step), o->err));
    }
    return DCP_OK;
}

/* Whatever stands beside state and param_groups. */
static int add_rest(struct optim *o)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(o->file->tree);

    for (size_t i = 0; pairs && i + 1 < pairs->n; i += 2) {
        const char *key = key_text(o, pairs->items[i]);
        size_t n = key ? strlen(key) + sizeof CONTAINER + 1 : 1;
        if (!key || !strcmp(key, "state") || !strcmp(key, "param_groups"))
            continue;
        char *name = dcp_arena_alloc(o->file->arena, n, 1);
        if (!name)
            return dcp_error_memory(o->err, "an optimizer");
        snprintf(name, n, CONTAINER ".%s", key);
        DCP_TRY(dcp_fsdp_add_value(o->r, o->file, name, pairs->items[i + 1], o->err));
    }
    return DCP_OK;
}

/* -- the files ----------------------------------------------------------------------- */

static int index_rank(struct optim *o, size_t n_weights)
{
    const struct dcp_pickle_list *states =
        dcp_pickle_pairs(dcp_pickle_get(o->file->tree, "state"));

    if (!states)
        return dcp_error_set(o->err, DCP_E_CORRUPT,
                             "'%s' holds no optimizer's state dict", o->file->in.shown);
    if (o->rank == 0)
        DCP_TRY(read_groups(o, states, n_weights));
    for (size_t i = 0; i + 1 < states->n; i += 2)
        DCP_TRY(take_state(o, states->items[i], states->items[i + 1]));
    if (o->rank == 0)
        return add_rest(o);
    return DCP_OK;
}

static int end(struct optim *o, int rc)
{
    if (!rc && o->groups)
        rc = add_groups(o);
    if (!rc)
        rc = add_steps(o);
    json_decref(o->groups);
    json_decref(o->steps);
    json_decref(o->told);
    return rc;
}

int dcp_fsdp_index_optim(struct dcp_fsdp_reader *r, size_t n_weights,
                         struct dcp_error *err)
{
    struct optim o = { .r = r, .err = err };
    int rc = DCP_OK;

    for (; o.rank < r->folder.world_size && !rc && r->folder.has[DCP_FSDP_OPTIM];
         o.rank++) {
        DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
        o.file = &file;
        rc = dcp_fsdp_open_file(r, DCP_FSDP_OPTIM, o.rank, &file, &o.file_index, err);
        if (!rc)
            rc = index_rank(&o, n_weights);
    }
    return end(&o, rc);
}

int dcp_fsdp_index_whole_optim(struct dcp_fsdp_reader *r, const char *name,
                               size_t n_weights, struct dcp_error *err)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
    struct optim o = { .r = r, .file = &file, .err = err };

    int rc = dcp_fsdp_open_name(r, name, 0, &file, &o.file_index, err);
    return end(&o, rc ? rc : index_rank(&o, n_weights));
}
