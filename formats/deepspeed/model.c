/* model: the file of the model's states. */
#include "base/mem.h"
#include "ours.h"
#include <stdio.h>
#include <string.h>

/* Keys that are understood; all others are kept as they are. */
static const char *const known_keys[] = {
    "module",
    "buffer_names",
    "optimizer",
    "param_shapes",
    "shared_params",
    "lr_scheduler",
    "frozen_param_shapes",
    "frozen_param_fragments",
    "skipped_steps",
    "global_steps",
    "global_samples",
    "dp_world_size",
    "mp_world_size",
    "ds_config",
    "ds_version",
    DCP_DS_OURS,
    NULL,
};

/* -- what kind of training it was ---------------------------------------------------- */

static int check_parallel(const struct dcp_ds_file *file, struct dcp_error *err)
{
    static const char *const experts[] = { "num_experts", "ds_autoep_layers",
                                           "autoep_layers" };
    const struct dcp_pickle_node *root = file->torch.tree;
    int64_t mp = 1;

    dcp_ds_get_int(root, "mp_world_size", &mp);
    if (mp != 1)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is of tensor parallel training (%lld model-parallel "
                             "ranks), which is not supported",
                             file->torch.in.shown, (long long)mp);
    for (size_t i = 0; i < DCP_ARRAY_LEN(experts); i++) {
        const struct dcp_pickle_node *value = dcp_pickle_get(root, experts[i]);
        if (!dcp_ds_none(value))
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "'%s' is of a model with experts (MoE), which is not "
                                 "supported",
                                 file->torch.in.shown);
    }
    if (!dcp_pickle_get(root, "module"))
        return dcp_ds_corrupt(file, err, "has no 'module': it is not a DeepSpeed file");
    if (dcp_ds_none(dcp_pickle_get(root, "module")))
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is of a pipeline, whose weights lie in files for each "
                             "layer; that is not supported",
                             file->torch.in.shown);
    return DCP_OK;
}

static int read_head(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                     struct dcp_error *err)
{
    const struct dcp_pickle_node *root = file->torch.tree;
    int64_t world_size = 0;

    DCP_TRY(check_parallel(file, err));
    if (!dcp_ds_get_int(root, "dp_world_size", &world_size) || world_size < 1 ||
        world_size > DCP_DS_MAX_WORLD_SIZE)
        return dcp_ds_corrupt(file, err, "has no valid 'dp_world_size'");
    reader->world_size = (int)world_size;
    if (!dcp_ds_get_int(root, "global_steps", &reader->global_steps) ||
        reader->global_steps < 0)
        return dcp_ds_corrupt(file, err, "has no valid 'global_steps'");
    dcp_ds_get_int(root, "global_samples", &reader->global_samples);
    dcp_ds_get_int(root, "skipped_steps", &reader->skipped_steps);
    reader->stage = reader->folder.by_rank                              ? 3
                    : dcp_ds_none(dcp_pickle_get(root, "param_shapes")) ? 0
                                                                        : 1;
    if (!reader->stage && (reader->folder.n_optims || reader->folder.universal))
        return dcp_ds_corrupt(file, err,
                              "has no 'param_shapes', which tell what the files of the "
                              "optimizer hold");
    const char *version = dcp_ds_text(reader->arena, dcp_pickle_get(root, "ds_version"));
    return version && json_object_set_new(reader->note, "version", json_string(version))
               ? dcp_error_memory(err, "an object")
               : DCP_OK;
}

/* -- groups -------------------------------------------------------------------------- */

/* torch.Size, a tuple or a list of integers. */
static bool read_shape(struct dcp_arena *arena, const struct dcp_pickle_node *node,
                       struct dcp_ds_param *out)
{
    if (dcp_pickle_is_call(node, "torch", "Size"))
        node = dcp_pickle_item(node, 0);
    size_t n = dcp_ds_count(node);
    int64_t *shape = dcp_arena_alloc(arena, n + 1, sizeof *shape);
    if (!node || (node->kind != DCP_PICKLE_TUPLE && node->kind != DCP_PICKLE_LIST) ||
        n > DCP_MAX_NDIM || !shape)
        return false;
    out->shape = shape;
    out->ndim = (int)n;
    out->n_elems = 1;
    for (size_t d = 0; d < n; d++)
        if (!dcp_ds_int(node->list.items[d], &shape[d]) || shape[d] < 0 ||
            !dcp_mul_i64(out->n_elems, shape[d], &out->n_elems))
            return false;
    return true;
}

int dcp_ds_read_group(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                      const struct dcp_pickle_node *dict, struct dcp_ds_group *out,
                      struct dcp_error *err)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(dict);
    size_t n = pairs ? pairs->n / 2 : 0;

    if (!pairs)
        return dcp_ds_corrupt(file, err, "has a group of parameters that is no dict");
    out->params = dcp_arena_alloc(reader->arena, n + 1, sizeof *out->params);
    if (!out->params)
        return dcp_error_memory(err, "a group of parameters");
    for (size_t i = 0; i < n; i++) {
        struct dcp_ds_param *param = &out->params[i];
        param->name = dcp_ds_text(reader->arena, pairs->items[2 * i]);
        if (!param->name || !read_shape(reader->arena, pairs->items[2 * i + 1], param))
            return dcp_ds_corrupt(
                file, err, "has a malformed shape of '%s'",
                dcp_ds_shown(reader->arena, param->name ? param->name : "?"));
        if (json_object_get(reader->places, param->name))
            return dcp_ds_corrupt(file, err, "has the parameter '%s' in two groups",
                                  dcp_ds_shown(reader->arena, param->name));
        if (json_object_set_new(reader->places, param->name,
                                json_integer((json_int_t)(out->first + i))))
            return dcp_error_memory(err, "a group of parameters");
        out->n_params++;
    }
    return DCP_OK;
}

/* param_shapes: a dict for each flat array. */
static int read_groups(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                       const struct dcp_pickle_node *shapes, struct dcp_error *err)
{
    size_t n = dcp_ds_count(shapes);
    int rc = DCP_OK;

    if (!n || n > DCP_DS_MAX_GROUPS)
        return dcp_ds_corrupt(file, err, "has no list of groups in 'param_shapes'");
    reader->groups = dcp_arena_alloc(reader->arena, n, sizeof *reader->groups);
    if (!reader->groups)
        return dcp_error_memory(err, "groups of parameters");
    for (size_t g = 0; g < n && !rc; g++) {
        struct dcp_ds_group *group = &reader->groups[reader->n_groups++];
        group->first = reader->n_params;
        group->param_group = (int)g;
        rc = dcp_ds_read_group(reader, file, shapes->list.items[g], group, err);
        reader->n_params += group->n_params;
    }
    return rc;
}

/* Parameters as the module lists them, and behind them those that it does not list. */
static int put_in_order(struct dcp_ds_reader *reader,
                        const struct dcp_pickle_list *module, struct dcp_error *err)
{
    DCP_CLEANUP_FREE bool *listed = dcp_mem_calloc(reader->n_params, sizeof *listed);
    size_t *at = dcp_arena_alloc(reader->arena, reader->n_params, sizeof *at);
    struct dcp_ds_slot *all =
        dcp_arena_alloc(reader->arena, reader->n_params, sizeof *all);
    size_t n = 0;

    reader->order = dcp_arena_alloc(reader->arena, reader->n_params, sizeof *all);
    if (!listed || !at || !all || !reader->order)
        return dcp_error_memory(err, "groups of parameters");
    for (size_t g = 0; g < reader->n_groups; g++)
        for (size_t p = 0; p < reader->groups[g].n_params; p++)
            all[n++] = (struct dcp_ds_slot){ g, p };
    for (size_t i = 0; i + 1 < module->n; i += 2) {
        const char *name = dcp_ds_text(reader->arena, module->items[i]);
        const json_t *place = name ? json_object_get(reader->places, name) : NULL;
        size_t p = (size_t)json_integer_value(place);
        if (!place || listed[p])
            continue;
        listed[p] = true;
        reader->order[reader->n_order++] = all[p];
    }
    for (size_t p = 0; p < reader->n_params; p++)
        if (!listed[p])
            reader->order[reader->n_order++] = all[p];
    return DCP_OK;
}

/* -- the state dict ------------------------------------------------------------------ */

struct module {
    struct dcp_ds_reader *reader;
    struct dcp_ds_file *file;
    const struct dcp_pickle_node *buffers, *frozen;
    json_t *by_place; /* "file offset": tensor, of those with elements */
    json_t *extra;    /* what is no tensor */
};

static bool lists(const struct dcp_pickle_node *names, const char *name)
{
    for (size_t i = 0; i < dcp_ds_count(names); i++)
        if (dcp_pickle_is_text(names->list.items[i], name))
            return true;
    return false;
}

/* A tensor whose bytes are those of an earlier one is its second name. */
static int find_twin(struct module *m, const char *name,
                     const struct dcp_torch_view *view, bool *out_twin,
                     struct dcp_error *err)
{
    const struct dcp_catalog *catalog = m->reader->catalog;
    char key[32];

    *out_twin = false;
    if (!view->stored_size || !view->dense)
        return DCP_OK;
    snprintf(key, sizeof key, "%llu", (unsigned long long)view->offset);
    const json_t *seen = json_object_get(m->by_place, key);
    if (!seen)
        return json_object_set_new(m->by_place, key,
                                   json_integer((json_int_t)catalog->n_tensors))
                   ? dcp_error_memory(err, "the weights of a model")
                   : DCP_OK;
    const struct dcp_tensor *first = &catalog->tensors[json_integer_value(seen)];
    if (first->dtype != view->dtype || first->ndim != view->ndim ||
        memcmp(first->shape, view->shape, (size_t)view->ndim * sizeof *view->shape) != 0)
        return DCP_OK;
    *out_twin = true;
    return json_object_set_new(m->reader->ties, name, json_string(first->name))
               ? dcp_error_memory(err, "the weights of a model")
               : DCP_OK;
}

static int add_weight(struct module *m, const char *name,
                      const struct dcp_torch_view *view, struct dcp_error *err)
{
    struct dcp_ds_reader *reader = m->reader;
    const json_t *place = json_object_get(reader->places, name);
    bool twin = false;
    int index, rc = find_twin(m, name, view, &twin, err);

    if (rc || twin)
        return rc;
    struct dcp_tensor tensor = {
        .name = name, .dtype = view->dtype, .ndim = view->ndim, .shape = view->shape
    };
    tensor.role = lists(m->buffers, name) ? DCP_ROLE_BUFFER : DCP_ROLE_MODEL;
    for (size_t g = 0; place && g < reader->n_groups; g++)
        if (reader->groups[g].first <= (size_t)json_integer_value(place))
            tensor.group = reader->groups[g].param_group;
    rc = dcp_catalog_add_tensor(reader->catalog, &tensor, &index, err);
    if (!rc && view->has_data)
        rc = dcp_torch_add_piece(reader->catalog, m->file->index, index, view, err);
    if (rc)
        dcp_error_prefix(err, "'%s'", m->file->torch.in.shown);
    return rc;
}

/* Stage 3 has placeholders without elements where weights are partitioned. */
static bool is_placeholder(const struct module *m, const char *name,
                           const struct dcp_torch_view *view)
{
    return m->reader->stage == 3 && !view->stored_size && !lists(m->buffers, name);
}

static int take_entry(struct module *m, const struct dcp_pickle_node *key,
                      const struct dcp_pickle_node *value, struct dcp_error *err)
{
    struct dcp_ds_reader *reader = m->reader;
    const char *name = dcp_ds_text(reader->arena, key);
    struct dcp_torch_view view;
    bool found;

    if (!name)
        return dcp_ds_corrupt(m->file, err, "has a weight without a name");
    DCP_TRY(dcp_torch_view(&m->file->torch, value, name, &found, &view, err));
    if (!found) {
        json_t *json = NULL;
        DCP_TRY(dcp_ds_json(reader, m->file, value, name, &json, err));
        if (json_object_set_new(m->extra, name, json))
            return dcp_error_memory(err, "an object");
        return DCP_OK;
    }
    if (json_object_get(reader->places, name) && reader->catalog->weights_dtype < 0)
        reader->catalog->weights_dtype = (int)view.dtype;
    if (json_object_get(reader->ties, name) || is_placeholder(m, name, &view))
        return DCP_OK;
    return add_weight(m, name, &view, err);
}

/* What stands beside the weights: the state of the dict, and values that are no tensors.
 */
static int note_module(struct module *m, const struct dcp_pickle_node *module,
                       struct dcp_error *err)
{
    json_t *note = json_object(), *state = NULL;

    if (!note || json_object_set_new(m->reader->note, "module", note))
        return dcp_error_memory(err, "an object");
    if (module->kind == DCP_PICKLE_OBJECT && module->object->state) {
        DCP_TRY(dcp_ds_json(m->reader, m->file, module->object->state, "module", &state,
                            err));
        if (json_object_set_new(note, "state", state))
            return dcp_error_memory(err, "an object");
    }
    if (json_object_size(m->extra) && json_object_set(note, "extra", m->extra))
        return dcp_error_memory(err, "an object");
    return DCP_OK;
}

static int read_module(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                       struct dcp_error *err)
{
    const struct dcp_pickle_node *root = file->torch.tree;
    const struct dcp_pickle_node *module = dcp_pickle_get(root, "module");
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(module);
    struct module m = { .reader = reader,
                        .file = file,
                        .buffers = dcp_pickle_get(root, "buffer_names"),
                        .by_place = json_object(),
                        .extra = json_object() };
    int rc =
        m.by_place && m.extra ? DCP_OK : dcp_error_memory(err, "the weights of a model");

    if (!rc && !pairs)
        rc = dcp_ds_corrupt(file, err, "has a 'module' that is no dict");
    for (size_t i = 0; !rc && i + 1 < pairs->n; i += 2)
        rc = take_entry(&m, pairs->items[i], pairs->items[i + 1], err);
    if (!rc)
        rc = note_module(&m, module, err);
    if (!rc && reader->n_groups)
        rc = put_in_order(reader, pairs, err);
    json_decref(m.by_place);
    json_decref(m.extra);
    return rc;
}

/* -- the rest ------------------------------------------------------------------------ */

/* shared_params: second name to the name that is stored. */
static int read_shared(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                       struct dcp_error *err)
{
    const struct dcp_pickle_list *pairs =
        dcp_pickle_pairs(dcp_pickle_get(file->torch.tree, "shared_params"));

    for (size_t i = 0; pairs && i + 1 < pairs->n; i += 2) {
        const char *name = dcp_ds_text(reader->arena, pairs->items[i]);
        const char *kept = dcp_ds_text(reader->arena, pairs->items[i + 1]);
        if (!name || !kept)
            return dcp_ds_corrupt(file, err, "has malformed 'shared_params'");
        if (json_object_set_new(reader->ties, name, json_string(kept)))
            return dcp_error_memory(err, "the weights of a model");
    }
    return DCP_OK;
}

static int read_rest(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                     struct dcp_error *err)
{
    const struct dcp_pickle_node *root = file->torch.tree;
    const struct dcp_pickle_node *scheduler = dcp_pickle_get(root, "lr_scheduler");
    const struct dcp_pickle_node *config = dcp_pickle_get(root, "ds_config");
    json_t *rest = NULL, *nameless = NULL;
    int rc = dcp_ds_json_rest(reader, file, root, "", known_keys, &rest, err);

    if (!rc && json_object_set_new(reader->note, "model_states", rest))
        rc = dcp_error_memory(err, "an object");
    if (!rc)
        rc = dcp_ds_json_nameless(reader, file, root, &nameless, err);
    if (!rc && nameless && json_object_set_new(reader->note, "nameless", nameless))
        rc = dcp_error_memory(err, "an object");
    if (!rc && !dcp_ds_none(scheduler))
        rc =
            dcp_ds_json(reader, file, scheduler, "lr_scheduler", &reader->scheduler, err);
    if (!rc && !dcp_ds_none(config))
        rc = dcp_ds_json(reader, file, config, "ds_config", &reader->config, err);
    if (!rc && reader->config && !json_is_object(reader->config)) { /* its path */
        rc = json_object_set_new(reader->note, "config", reader->config)
                 ? dcp_error_memory(err, "an object")
                 : DCP_OK;
        reader->config = NULL;
    }
    return rc;
}

int dcp_ds_read_model(struct dcp_ds_reader *reader, struct dcp_error *err)
{
    DCP_CLEANUP_DS struct dcp_ds_file file = { 0 };
    const struct dcp_pickle_node *root;

    if (!reader->folder.model)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the file of the model's states is missing: there is no "
                             "'%smp_rank_00_model_states.pt' and no "
                             "'%szero_pp_rank_0_mp_rank_00_model_states.pt'",
                             dcp_ds_shown(reader->arena, reader->folder.prefix),
                             dcp_ds_shown(reader->arena, reader->folder.prefix));
    DCP_TRY(dcp_ds_open(reader, reader->folder.model, 0, &file, err));
    DCP_TRY(read_head(reader, &file, err));
    DCP_TRY(dcp_ds_check_model_file(reader, &file, 0, err));
    root = file.torch.tree;
    if (reader->stage && !reader->folder.universal)
        DCP_TRY(dcp_ds_folder_check(&reader->folder, reader->world_size, err));
    if (reader->stage)
        DCP_TRY(read_groups(reader, &file, dcp_pickle_get(root, "param_shapes"), err));
    DCP_TRY(read_rest(reader, &file, err));
    DCP_TRY(read_shared(reader, &file, err));
    DCP_TRY(read_module(reader, &file, err));
    if (reader->stage == 3)
        DCP_TRY(dcp_ds_read_ranks(reader, &file, err));
    if (reader->stage == 0 && !dcp_ds_none(dcp_pickle_get(root, "optimizer")))
        return dcp_ds_read_plain(reader, &file, dcp_pickle_get(root, "optimizer"), err);
    return DCP_OK;
}

/* -- second names -------------------------------------------------------------------- */

static int find_master(struct dcp_catalog *catalog, const char *param)
{
    const char *name = dcp_tensor_default_name(catalog, DCP_ROLE_MASTER, param);

    return name ? dcp_catalog_find(catalog, name) : -1;
}

int dcp_ds_add_ties(struct dcp_ds_reader *reader, struct dcp_error *err)
{
    struct dcp_catalog *catalog = reader->catalog;
    const char *name;
    json_t *value;

    json_object_foreach(reader->ties, name, value)
    {
        const char *kept = json_string_value(value);
        int at = dcp_catalog_find(catalog, kept);
        if (at < 0) /* only its master is stored */
            at = find_master(catalog, kept);
        if (at < 0 || !strcmp(name, kept))
            continue;
        DCP_TRY(dcp_catalog_add_alias(catalog, name, at, err));
        struct dcp_tensor *alias = &catalog->tensors[catalog->n_tensors - 1];
        alias->param = alias->name;
        if (alias->role == DCP_ROLE_MASTER)
            alias->role = DCP_ROLE_MODEL;
    }
    return DCP_OK;
}
