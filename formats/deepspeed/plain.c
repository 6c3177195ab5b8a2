/* plain: training without ZeRO: the model's file holds the optimizer whole, as
 * torch numbers its parameters, and for 16-bit training the masters. Three forms:
 *
 *   torch's own      {"state", "param_groups"}
 *   unfused 16-bit   {"optimizer_state_dict": the same, "fp32_groups": lists of masters}
 *   fused 16-bit     {"optimizer_state_dict": by groups, "fp32_groups_flat": flat arrays}
 */
#include "base/mem.h"
#include "formats/common/optim.h"
#include "formats/common/optim_unordered.h"
#include "formats/pickle/json.h"
#include "read.h"
#include <stdio.h>
#include <string.h>

struct plain {
    struct dcp_ds_reader *reader;
    struct dcp_ds_file *file;
    const struct dcp_pickle_node *state, *groups, *masters;
    bool flat;
    size_t *weights; /* tensors of the catalog that can be trained */
    size_t n_weights;
    struct dcp_optim_ids ids; /* the weights of the numbers, unless flat */
    size_t n_numbers;
    size_t *first; /* number of each group, and n_numbers behind the last */
    bool named;    /* it is known which weights there are */
};

/* -- names ------------------------------------------------------------------------- */

/* The shape of number i of a group: that of its master or its first moment. */
static int shape_of(struct plain *p, size_t group, size_t i, struct dcp_optim_shape *out,
                    struct dcp_error *err)
{
    int64_t number = (int64_t)(p->first[group] + i);
    const struct dcp_pickle_node *nodes[] = {
        dcp_pickle_item(dcp_pickle_item(p->masters, group), i),
        dcp_pickle_get(dcp_ds_get_nth(p->state, number), "exp_avg"),
    };
    struct dcp_torch_view view;

    for (size_t n = 0; n < DCP_ARRAY_LEN(nodes) && !out->known; n++) {
        if (nodes[n])
            DCP_TRY(dcp_torch_view(&p->file->torch, nodes[n], "optimizer", &out->known,
                                   &view, err));
    }
    if (!out->known)
        return DCP_OK;
    out->ndim = view.ndim;
    memcpy(out->shape, view.shape, (size_t)view.ndim * sizeof *view.shape);
    return DCP_OK;
}

/* The groups' numbers, which must count up: they become the "params" of the groups. */
static int read_numbers(struct plain *p, struct dcp_error *err)
{
    size_t n = dcp_ds_count(p->groups);

    p->first = dcp_arena_alloc(p->reader->arena, n + 1, sizeof *p->first);
    if (!p->first)
        return dcp_error_memory(err, "groups of parameters");
    for (size_t g = 0; g < n; g++) {
        const struct dcp_pickle_node *ids =
            dcp_pickle_get(p->groups->list.items[g], "params");
        json_t *params = json_array();
        int failed = !params;
        for (size_t i = 0; i < dcp_ds_count(ids); i++) {
            int64_t id;
            if (!dcp_ds_int(ids->list.items[i], &id) || id != (int64_t)p->n_numbers++) {
                json_decref(params);
                return dcp_ds_corrupt(p->file, err,
                                      "has parameters of an optimizer that are not "
                                      "numbered one by one");
            }
            failed |= json_array_append_new(params, json_integer(id));
        }
        p->first[g + 1] = p->n_numbers;
        if (json_object_set_new(json_array_get(p->reader->param_groups, g), "params",
                                params) ||
            failed)
            return dcp_error_memory(err, "groups of parameters");
    }
    return DCP_OK;
}

static int deal(struct plain *p, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_optim_shape *shapes =
        dcp_mem_calloc(p->n_numbers, sizeof *shapes);
    int rc = shapes ? DCP_OK : dcp_error_memory(err, "the names of parameters");

    for (size_t g = 0; g < dcp_ds_count(p->groups) && !rc; g++)
        for (size_t i = 0; p->first[g] + i < p->first[g + 1] && !rc; i++)
            rc = shape_of(p, g, i, &shapes[p->first[g] + i], err);
    if (!rc)
        rc = dcp_optim_ids_find(p->reader->catalog, p->weights, p->n_weights,
                                p->reader->param_groups, shapes, &p->ids, err);
    if (!rc)
        rc = dcp_optim_say_order(p->reader->catalog, p->weights, p->n_weights, shapes,
                                 &p->ids, err);
    p->named = p->ids.found;
    return rc;
}

/* Flat arrays do not tell what is in them, unless one holds everything. */
static int deal_flat(struct plain *p, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = p->reader->catalog;
    struct dcp_torch_view view;
    int64_t n_elems = 0;
    bool found = false;

    if (dcp_ds_count(p->masters) != 1 || dcp_ds_count(p->groups) != 1)
        return DCP_OK;
    int rc = dcp_torch_view(&p->file->torch, p->masters->list.items[0], "master", &found,
                            &view, err);
    for (size_t w = 0; w < p->n_weights; w++)
        if (!dcp_add_i64(n_elems, catalog->tensors[p->weights[w]].n_elems, &n_elems))
            return DCP_OK;
    p->named = !rc && found && view.ndim == 1 && view.shape[0] == n_elems;
    if (p->named && p->n_weights > 1)
        p->reader->catalog->assumed_order = DCP_OPTIM_IN_ORDER;
    return rc;
}

/* -- tensors ----------------------------------------------------------------------- */

/* Adds one tensor of the optimizer; `weight` is the tensor it belongs to, -1: unknown. */
static int add(struct plain *p, const char *key, int64_t number, int64_t weight,
               const struct dcp_torch_view *view, struct dcp_error *err)
{
    struct dcp_catalog *catalog = p->reader->catalog;
    const struct dcp_tensor *of = weight < 0 ? NULL : &catalog->tensors[weight];
    char text[32];
    int index;

    snprintf(text, sizeof text, "%lld", (long long)number);
    const char *param = of ? of->param : text;
    size_t n = sizeof "optimizer.." + strlen(key) + strlen(param);
    DCP_CLEANUP_FREE char *name = malloc(n);
    if (!name)
        return dcp_error_memory(err, "the name of a tensor");
    snprintf(name, n, "optimizer.%s.%s", key, param);
    const struct dcp_tensor tensor = {
        .name = name,
        .param = param,
        .role = of ? dcp_ds_role_of_key(key) : DCP_ROLE_OPTIM,
        .dtype = view->dtype,
        .ndim = view->ndim,
        .shape = view->shape,
        .group = of ? of->group : 0,
    };
    int rc = dcp_catalog_add_tensor(catalog, &tensor, &index, err);
    return rc || !view->has_data
               ? rc
               : dcp_torch_add_piece(catalog, p->file->index, index, view, err);
}

/* A flat array that holds all weights. */
static int add_flat(struct plain *p, const char *key, const struct dcp_torch_view *view,
                    struct dcp_error *err)
{
    struct dcp_catalog *catalog = p->reader->catalog;
    uint64_t elem = dcp_dtype_size(view->dtype), at = view->offset;

    for (size_t w = 0; w < p->n_weights; w++) {
        const struct dcp_tensor *tensor = &catalog->tensors[p->weights[w]];
        struct dcp_torch_view part = *view;
        part.ndim = tensor->ndim;
        memcpy(part.shape, tensor->shape, (size_t)tensor->ndim * sizeof *part.shape);
        part.offset = at;
        part.stored_size = (uint64_t)tensor->n_elems * elem;
        at += part.stored_size;
        DCP_TRY(add(p, key, (int64_t)w, (int64_t)p->weights[w], &part, err));
    }
    return DCP_OK;
}

static int add_view(struct plain *p, const char *key, size_t number,
                    const struct dcp_torch_view *view, struct dcp_error *err)
{
    int64_t n_elems = 0, weight = -1;

    if (p->named && p->flat) {
        for (size_t w = 0; w < p->n_weights; w++)
            n_elems += p->reader->catalog->tensors[p->weights[w]].n_elems;
        if (view->ndim == 1 && view->dense && view->shape[0] == n_elems)
            return add_flat(p, key, view, err);
    } else if (p->named) {
        weight = p->ids.weight[number];
        const struct dcp_tensor *of = &p->reader->catalog->tensors[weight];
        if (of->ndim != view->ndim ||
            memcmp(of->shape, view->shape, (size_t)view->ndim * sizeof *view->shape) != 0)
            weight = -1;
    }
    return add(p, key, (int64_t)number, weight, view, err);
}

/* The step, a tensor, or something that is kept for the group. */
static int take_entry(struct plain *p, size_t number, const char *key,
                      const struct dcp_pickle_node *value, struct dcp_error *err)
{
    struct dcp_torch_view view;
    enum dcp_dtype dtype;
    double step = -1;
    int64_t integer;
    bool found = false;
    int rc = DCP_OK;

    if (!strcmp(key, "step")) {
        if (dcp_ds_int(value, &integer))
            step = (double)integer;
        else
            rc = dcp_ds_scalar(&p->file->torch, value, &found, &dtype, &step, err);
        dcp_ds_see_updates(p->reader, dcp_optim_updates(step));
        if (!rc && step >= 0 &&
            json_object_set_new(p->reader->note, "step",
                                json_string(found ? dcp_dtype_torch_name(dtype) : "int")))
            rc = dcp_error_memory(err, "an object");
        if (rc || step >= 0)
            return rc;
    }
    rc = dcp_torch_view(&p->file->torch, value, key, &found, &view, err);
    return rc || !found ? rc : add_view(p, key, number, &view, err);
}

static int take_states(struct plain *p, struct dcp_error *err)
{
    const struct dcp_pickle_list *states = dcp_pickle_pairs(p->state);
    size_t n = p->flat ? dcp_ds_count(p->groups) : p->n_numbers;
    int64_t number;

    for (size_t s = 0; states && s + 1 < states->n; s += 2) {
        const struct dcp_pickle_list *pairs = dcp_pickle_pairs(states->items[s + 1]);
        if (!dcp_ds_int(states->items[s], &number) || number < 0 || (size_t)number >= n)
            return dcp_ds_corrupt(p->file, err,
                                  "has a state of a parameter that is in no group");
        for (size_t i = 0; pairs && i + 1 < pairs->n; i += 2) {
            const char *key = dcp_ds_text(p->reader->arena, pairs->items[i]);
            if (key && key[0])
                DCP_TRY(take_entry(p, (size_t)number, key, pairs->items[i + 1], err));
        }
    }
    return DCP_OK;
}

static int take_masters(struct plain *p, struct dcp_error *err)
{
    int rc = DCP_OK;

    for (size_t g = 0; g < dcp_ds_count(p->masters) && !rc; g++) {
        const struct dcp_pickle_node *of_group = p->masters->list.items[g];
        size_t n = p->flat ? 1 : dcp_ds_count(of_group);
        if (g >= dcp_ds_count(p->groups) ||
            (!p->flat && n != p->first[g + 1] - p->first[g]))
            return dcp_ds_corrupt(p->file, err,
                                  "has other masters than its groups have parameters");
        for (size_t i = 0; i < n && !rc; i++) {
            const struct dcp_pickle_node *node =
                p->flat ? of_group : of_group->list.items[i];
            struct dcp_torch_view view;
            bool found;
            rc = dcp_torch_view(&p->file->torch, node, "master", &found, &view, err);
            if (!rc && found)
                rc = add_view(p, "master", p->flat ? g : p->first[g] + i, &view, err);
        }
    }
    return rc;
}

/* -- groups ------------------------------------------------------------------------ */

/* The groups of the optimizer, with names where they are known, else with numbers. */
static int add_names(struct plain *p, struct dcp_error *err)
{
    struct dcp_catalog *catalog = p->reader->catalog;
    json_t *group;
    size_t g;
    int failed = 0;

    json_array_foreach(p->reader->param_groups, g, group)
    {
        json_t *names = json_array();
        size_t n = !p->flat ? p->first[g + 1] - p->first[g] : p->named ? p->n_weights : 0;
        for (size_t i = 0; i < n && !failed; i++) {
            size_t number = p->flat ? i : p->first[g] + i;
            size_t weight = !p->named ? 0
                            : p->flat ? p->weights[i]
                                      : (size_t)p->ids.weight[number];
            struct dcp_tensor *tensor = p->named ? &catalog->tensors[weight] : NULL;
            if (tensor)
                tensor->group = (int)g;
            failed = json_array_append_new(
                names, tensor ? json_string(tensor->param)
                              : json_sprintf("%llu", (unsigned long long)number));
        }
        failed |= json_object_set_new(group, "params", names);
        if (failed)
            return dcp_error_memory(err, "groups of parameters");
    }
    return DCP_OK;
}

int dcp_ds_read_plain(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                      const struct dcp_pickle_node *optimizer, struct dcp_error *err)
{
    struct plain p = { .reader = reader, .file = file };
    const struct dcp_pickle_node *inner =
        dcp_pickle_get(optimizer, "optimizer_state_dict");

    p.flat = dcp_pickle_get(optimizer, "fp32_groups_flat") != NULL;
    p.masters = dcp_pickle_get(optimizer, p.flat ? "fp32_groups_flat" : "fp32_groups");
    p.state = dcp_pickle_get(inner ? inner : optimizer, "state");
    p.groups = dcp_pickle_get(inner ? inner : optimizer, "param_groups");
    if (!dcp_pickle_pairs(p.state) || !dcp_ds_count(p.groups) ||
        dcp_ds_count(p.groups) > DCP_DS_MAX_GROUPS)
        return dcp_ds_corrupt(file, err, "has an 'optimizer' of an unknown form");
    p.weights =
        dcp_arena_alloc(reader->arena, reader->catalog->n_tensors, sizeof *p.weights);
    if (!p.weights)
        return dcp_error_memory(err, "the names of parameters");
    p.n_weights = dcp_optim_weights(reader->catalog, p.weights);
    int rc = dcp_ds_read_param_groups(reader, file, p.groups, err);
    if (!rc)
        rc = p.flat ? deal_flat(&p, err) : read_numbers(&p, err);
    if (!rc && !p.flat)
        rc = deal(&p, err);
    if (!rc)
        rc = add_names(&p, err);
    if (!rc)
        rc = take_masters(&p, err);
    if (!rc)
        rc = take_states(&p, err);
    dcp_optim_ids_fini(&p.ids);
    return rc ? rc : dcp_ds_read_scalars(reader, file, optimizer, err);
}
