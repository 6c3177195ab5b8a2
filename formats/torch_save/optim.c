/* optim: optimizers in a file: which weights their numbers stand for, and the
 * object "optimizer" of common/training.h. */
#include "formats/common/optim.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/common/optim_unordered.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include "formats/torch/torch.h"
#include "torch_save.h"
#include <string.h>

struct finder {
    struct dcp_torch_file *file;
    struct dcp_catalog *catalog;
    size_t *piece; /* of each tensor: 1 + the index of its piece */
    size_t *model; /* of each tensor: dcp_torch_models */
    size_t n_optims;
    int rc; /* of the first value that could not be read */
    struct dcp_error *err;
};

/* One optimizer. */
struct optim {
    const char *container;   /* where it stands */
    json_t *groups, *states; /* states: pairs, or a dict by names */
    size_t n;                /* numbers */
    struct dcp_optim_ids ids;
    struct dcp_optim_counts updates;
};

static int tensor_of(const struct finder *f, const json_t *value)
{
    const char *name = dcp_py_tensor(value);

    return name ? dcp_catalog_find(f->catalog, name) : -1;
}

/* -- updates ------------------------------------------------------------------------- */

/* The number in a tensor of one element; -1: it is none. A corrupt one ends the act. */
static int64_t read_number(struct finder *f, int tensor)
{
    if (f->rc || !f->piece[tensor])
        return -1;
    const struct dcp_tensor *t = &f->catalog->tensors[tensor];
    const struct dcp_piece *piece = &f->catalog->pieces[f->piece[tensor] - 1];
    struct dcp_torch_view view = { .dtype = t->dtype,
                                   .ndim = t->ndim,
                                   .has_data = true,
                                   .offset = piece->offset,
                                   .stored_size = piece->stored_size,
                                   .codec = piece->codec,
                                   .skip = piece->skip,
                                   .memory = piece->file < 0 ? piece->data : NULL };
    double number = -1;
    bool found;
    memcpy(view.shape, t->shape, (size_t)t->ndim * sizeof *view.shape);
    f->rc = dcp_torch_number(f->file, &view, &found, &number, f->err);
    return found ? dcp_optim_updates(number) : -1;
}

static void see_step(struct finder *f, const json_t *state, struct optim *o)
{
    const json_t *step = json_object_get(state, "step");
    int at = tensor_of(f, step);
    int64_t updates = at >= 0                 ? read_number(f, at)
                      : json_is_integer(step) ? json_integer_value(step)
                                              : -1;

    dcp_optim_count(&o->updates, updates);
}

/* -- numbers ------------------------------------------------------------------------- */

/* The shape of a parameter, from a state: {"exp_avg": tensor, …}. */
static void find_shape(const struct finder *f, json_t *state, struct dcp_optim_shape *out)
{
    const char *key;
    json_t *item;

    json_object_foreach(state, key, item)
    {
        int at = tensor_of(f, item);
        if (at >= 0)
            dcp_optim_shape_see(out, key, f->catalog->tensors[at].ndim,
                                f->catalog->tensors[at].shape);
    }
}

/* Tensors of a state belong to that weight; without one, to nobody: a number is no name.
 */
static void set_param(const struct finder *f, json_t *state, int weight, int group)
{
    const char *key;
    json_t *item;

    json_object_foreach(state, key, item)
    {
        int at = tensor_of(f, item);
        if (at < 0)
            continue;
        struct dcp_tensor *tensor = &f->catalog->tensors[at];
        tensor->param = weight >= 0 ? f->catalog->tensors[weight].param : tensor->name;
        tensor->group = group;
    }
}

/* The number of a state, or -1. */
static int number_of(const json_t *pair, size_t n)
{
    const json_t *key = json_array_get(pair, 0);
    json_int_t id = json_is_integer(key) ? json_integer_value(key) : -1;

    return id >= 0 && (uint64_t)id < n ? (int)id : -1;
}

static void take_numbers(struct finder *f, struct optim *o)
{
    for (size_t i = 0; i < json_array_size(o->states); i++) {
        const json_t *pair = json_array_get(o->states, i);
        json_t *state = json_array_get(pair, 1);
        int id = number_of(pair, o->n), weight = id < 0 ? -1 : o->ids.weight[id];
        int group = id < 0 ? 0 : o->ids.group[id];
        see_step(f, state, o);
        if (json_is_integer(json_array_get(pair, 0)))
            set_param(f, state, weight, group);
        if (weight >= 0)
            f->catalog->tensors[weight].group = group;
    }
}

static int match(struct finder *f, struct optim *o)
{
    DCP_CLEANUP_FREE struct dcp_optim_shape *shapes = NULL;
    DCP_CLEANUP_FREE size_t *weights =
        dcp_mem_calloc(f->catalog->n_tensors, sizeof *weights);

    o->n = dcp_optim_ids_count(o->groups);
    shapes = dcp_mem_calloc(o->n, sizeof *shapes);
    if (!shapes || !weights)
        return dcp_error_memory(f->err, "an optimizer");
    for (size_t i = 0; i < json_array_size(o->states); i++) {
        const json_t *pair = json_array_get(o->states, i);
        int id = number_of(pair, o->n);
        if (id >= 0)
            find_shape(f, json_array_get(pair, 1), &shapes[id]);
    }
    size_t n = dcp_optim_weights(f->catalog, weights);
    DCP_TRY(dcp_torch_optim_ids(f->catalog, f->model, weights, n, o->groups, shapes,
                                &o->ids, f->err));
    DCP_TRY(dcp_optim_say_order(f->catalog, weights, n, shapes, &o->ids, f->err));
    take_numbers(f, o);
    return f->rc;
}

/* -- the object ---------------------------------------------------------------------- */

/* The object, when every parameter is known by name. */
static int add_object(const struct finder *f, const struct optim *o)
{
    bool named;
    DCP_CLEANUP_JSON json_t *groups =
        dcp_optim_groups_of(f->catalog, o->groups, &o->ids, &named);

    if (!groups)
        return dcp_error_memory(f->err, "an optimizer");
    return named ? dcp_optim_add_of(f->catalog, f->n_optims > 1 ? o->container : NULL,
                                    o->updates, groups, f->err)
                 : DCP_OK;
}

static int take_optimizer(struct finder *f, json_t *groups, json_t *states,
                          const char *container)
{
    struct optim o = { .container = container, .groups = groups };
    const char *key;
    json_t *state;
    int rc = DCP_OK;

    o.states = dcp_py_pairs(states);
    if (o.states)
        rc = match(f, &o);
    else
        json_object_foreach(states, key, state)
        {
            see_step(f, state, &o);
        }
    rc = rc ? rc : f->rc;
    if (!rc && dcp_catalog_find_object(f->catalog, DCP_TRAINING_OPTIMIZER) < 0)
        rc = add_object(f, &o);
    dcp_optim_ids_fini(&o.ids);
    return rc;
}

/* Wherever {"state": …, "param_groups": …} stands, that is an optimizer. `path`: of the
 * value, as names of objects have it. */
static int each_optimizer(struct finder *f, json_t *value, struct dcp_buf *path,
                          bool take)
{
    json_t *groups = json_object_get(value, "param_groups"),
           *states = json_object_get(value, "state");
    struct dcp_py_parts parts = dcp_py_parts(value);
    size_t n = path->size_bytes;
    int rc = DCP_OK;

    if (groups && states) {
        f->n_optims += !take;
        return take ? take_optimizer(f, groups, states, (const char *)path->data)
                    : DCP_OK;
    }
    while (!rc && dcp_py_next(&parts)) {
        dcp_buf_add_fmt(path, "%s%s", n ? "." : "", parts.name ? parts.name : "");
        rc = dcp_buf_check(path, f->err);
        if (!rc)
            rc = each_optimizer(f, parts.value, path, take);
        path->size_bytes = n;
    }
    return rc;
}

int dcp_torch_optimizers(struct dcp_torch_file *file, struct dcp_catalog *catalog,
                         json_t *tree, struct dcp_error *err)
{
    DCP_CLEANUP_FREE size_t *piece = dcp_mem_calloc(catalog->n_tensors, sizeof *piece);
    DCP_CLEANUP_BUF struct dcp_buf path = { 0 };
    DCP_CLEANUP_FREE size_t *model = dcp_torch_models(catalog, tree);
    struct finder f = {
        .file = file, .catalog = catalog, .piece = piece, .model = model, .err = err
    };

    if (!piece || !model)
        return dcp_error_memory(err, "an optimizer");
    for (size_t p = 0; p < catalog->n_pieces; p++)
        piece[catalog->pieces[p].tensor] = p + 1;
    DCP_TRY(each_optimizer(&f, tree, &path, false));
    return each_optimizer(&f, tree, &path, true);
}
