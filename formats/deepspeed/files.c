/* files: the trees of the model's file and of an optimizer's, with the keys in
 * the order in which DeepSpeed 0.19 writes them. */
#include "base/mem.h"
#include "base/part.h"
#include "formats/pickle/py.h"
#include "muon.h"
#include "ours.h"
#include <string.h>

/* A dict that is filled key by key; once something is NULL it has failed. */
struct dict {
    json_t *json;
    bool failed;
};

static void set(struct dict *dict, const char *key, json_t *value)
{
    if (json_object_set_new(dict->json, key, value))
        dict->failed = true;
}

static void append_pair(json_t *pairs, bool *failed, const char *key, json_t *value)
{
    json_t *pair = json_pack("[s,o]", key, value);

    if (json_array_append_new(pairs, pair))
        *failed = true;
}

static json_t *finish(struct dict *dict)
{
    if (dict->failed) {
        json_decref(dict->json);
        dict->json = NULL;
    }
    return dict->json;
}

/* -- the optimizer's file ---------------------------------------------------------- */

/* The flat array of a group and column on a rank. `filled` elements of it are shown. */
static json_t *flat_view(const struct dcp_ds_writer *w, struct dcp_torch_out *out,
                         const struct dcp_ds_group *group,
                         const struct dcp_ds_column *column, int rank, int64_t filled)
{
    size_t storage = dcp_torch_out_storage(out, column->dtype, filled, NULL);

    for (size_t p = 0; p < group->n_params; p++) {
        struct dcp_ds_part part;
        int tensor = column->tensors[group->first + p];
        if (tensor >= 0 && dcp_ds_part_of(group, &group->params[p], w->stage,
                                          w->world_size, rank, &part))
            dcp_torch_out_part(out, storage, tensor, part.begin, part.end, part.at);
    }
    return dcp_torch_out_view(out, storage, 1, &filled);
}

/* The momenta of all weights of which a rank has a part. */
static json_t *momenta_view(const struct dcp_ds_writer *w, struct dcp_torch_out *out,
                            const struct dcp_ds_group *group,
                            const struct dcp_ds_column *column, int rank)
{
    int64_t n = dcp_ds_muon_elems(group, w->world_size, rank), at = 0;
    size_t storage = dcp_torch_out_storage(out, column->dtype, n, NULL);

    for (size_t p = 0; p < group->n_params; p++) {
        const struct dcp_ds_param *param = &group->params[p];
        int tensor = column->tensors[group->first + p];
        struct dcp_ds_part part;
        if (!dcp_ds_part_of(group, param, w->stage, w->world_size, rank, &part))
            continue;
        if (tensor >= 0)
            dcp_torch_out_part(out, storage, tensor, 0, param->n_elems, at);
        at += param->n_elems;
    }
    return dcp_torch_out_view(out, storage, 1, &n);
}

static bool is_whole(const struct dcp_ds_group *group, const struct dcp_ds_column *column)
{
    return group->whole && !strcmp(column->key, DCP_DS_MOMENTUM);
}

static json_t *column_view(const struct dcp_ds_writer *w, struct dcp_torch_out *out,
                           const struct dcp_ds_group *group,
                           const struct dcp_ds_column *column, int rank)
{
    return is_whole(group, column) ? momenta_view(w, out, group, column, rank)
                                   : flat_view(w, out, group, column, rank, group->part);
}

static bool has_column(const struct dcp_ds_group *group,
                       const struct dcp_ds_column *column, int rank)
{
    if (is_whole(group, column) && !dcp_ds_filled(group, rank))
        return false;
    for (size_t p = 0; p < group->n_params; p++)
        if (column->tensors[group->first + p] >= 0)
            return true;
    return false;
}

/* The state of one flat array: step, moments, and what else the source kept. */
static json_t *group_state(const struct dcp_ds_writer *w, struct dcp_torch_out *out,
                           const struct dcp_ds_group *group, int rank)
{
    struct dict state = { .json = json_object() };
    json_t *kept = json_array_get(json_object_get(w->note, "state"),
                                  (size_t)group->param_group),
           *value;
    const char *key;

    set(&state, "step", dcp_ds_step(w, out, group->param_group));
    for (size_t c = 1; c < w->n_columns; c++)
        if (has_column(group, &w->columns[c], rank))
            set(&state, w->columns[c].key,
                column_view(w, out, group, &w->columns[c], rank));
    json_object_foreach(kept, key, value)
    {
        if (!json_object_get(state.json, key))
            set(&state, key, dcp_torch_out_value(out, w->catalog, value));
    }
    return finish(&state);
}

/* {"state": {number: …}, "param_groups"}; without moments there is no state yet. */
static json_t *base_state(const struct dcp_ds_writer *w, struct dcp_torch_out *out,
                          int rank)
{
    struct dict base = { .json = json_object() };
    json_t *pairs = json_array();

    for (size_t g = 0; g < w->n_groups && w->n_columns > 1; g++)
        if (json_array_append_new(pairs,
                                  json_pack("[I,o]", (json_int_t)g,
                                            group_state(w, out, &w->groups[g], rank))))
            base.failed = true;
    set(&base, "state", dcp_py_new(DCP_PY_DICT, pairs));
    set(&base, "param_groups", dcp_ds_group_values(w));
    return finish(&base);
}

static json_t *masters(const struct dcp_ds_writer *w, struct dcp_torch_out *out, int rank)
{
    json_t *list = json_array();

    for (size_t g = 0; g < w->n_groups; g++) {
        const struct dcp_ds_group *group = &w->groups[g];
        int64_t n = w->stage == 3 ? group->part : dcp_ds_filled(group, rank);
        if (json_array_append_new(list,
                                  flat_view(w, out, group, &w->columns[0], rank, n))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* [[name: fragment_address(numel, start), …], …]: what lies in the rank's partitions. */
static json_t *slice_mappings(const struct dcp_ds_writer *w, int rank)
{
    json_t *list = json_array();
    bool failed = list == NULL;

    for (size_t g = 0; g < w->n_groups && !failed; g++) {
        const struct dcp_ds_group *group = &w->groups[g];
        json_t *pairs = json_array();
        for (size_t p = 0; p < group->n_params; p++) {
            struct dcp_ds_part part;
            if (dcp_ds_part_of(group, &group->params[p], w->stage, w->world_size, rank,
                               &part))
                append_pair(
                    pairs, &failed, group->params[p].name,
                    dcp_py_object("deepspeed.utils.tensor_fragment.fragment_address",
                                  "state",
                                  json_pack("{s:I, s:I}", "numel",
                                            (json_int_t)(part.end - part.begin), "start",
                                            (json_int_t)part.at)));
        }
        failed = failed || json_array_append_new(list, dcp_py_ordered(pairs));
    }
    if (failed) {
        json_decref(list);
        list = NULL;
    }
    return list;
}

/* One number for each group: the padding of the rank's partition, or the world size. */
static json_t *group_numbers(const struct dcp_ds_writer *w, int rank)
{
    json_t *list = json_array();

    for (size_t g = 0; g < w->n_groups; g++) {
        const struct dcp_ds_group *group = &w->groups[g];
        int64_t n = rank < 0 ? w->world_size : group->part - dcp_ds_filled(group, rank);
        json_array_append_new(list, json_integer((json_int_t)n));
    }
    return list;
}

static json_t *alignment_paddings(const struct dcp_ds_writer *w)
{
    json_t *list = json_array();

    for (size_t g = 0; g < w->n_groups; g++) {
        json_t *of_group = json_array();
        for (size_t p = 0; p < w->groups[g].n_params; p++)
            json_array_append_new(
                of_group, json_integer((json_int_t)w->groups[g].params[p].padding));
        json_array_append_new(list, of_group);
    }
    return list;
}

static const char *version_of(const struct dcp_ds_writer *w)
{
    const char *version = json_string_value(json_object_get(w->note, "version"));

    return version ? version : DCP_DS_VERSION;
}

static json_t *flat_states(const struct dcp_ds_writer *w, struct dcp_torch_out *out,
                           int rank)
{
    struct dict d = { .json = json_object() };

    if (!dcp_ds_scaler_unknown(w)) {
        set(&d, "loss_scaler", dcp_ds_loss_scaler(w));
        set(&d, "dynamic_loss_scale", dcp_ds_scalar_value(w, "dynamic_loss_scale"));
    }
    set(&d, "overflow", dcp_ds_scalar_value(w, "overflow"));
    set(&d, "clip_grad", dcp_ds_scalar_value(w, "clip_grad"));
    set(&d, "base_optimizer_state", base_state(w, out, rank));
    set(&d, "single_partition_of_fp32_groups", masters(w, out, rank));
    set(&d, "zero_stage", dcp_ds_stage_value(w->stage));
    set(&d, "group_paddings", group_numbers(w, rank));
    set(&d, "param_alignment_paddings", alignment_paddings(w));
    set(&d, "partition_count", group_numbers(w, -1));
    set(&d, "ds_version", json_string(version_of(w)));
    set(&d, "param_slice_mappings", slice_mappings(w, rank));
    d.failed = d.failed || dcp_ds_set_rest(w, out, d.json);
    return finish(&d);
}

static json_t *partitioned_states(const struct dcp_ds_writer *w,
                                  struct dcp_torch_out *out, int rank)
{
    struct dict d = { .json = json_object() };

    set(&d, "zero_stage", dcp_ds_stage_value(3));
    set(&d, "loss_scaler", dcp_ds_loss_scaler(w));
    set(&d, "dynamic_loss_scale", dcp_ds_scalar_value(w, "dynamic_loss_scale"));
    set(&d, "overflow", dcp_ds_scalar_value(w, "overflow"));
    set(&d, "partition_count", json_integer(w->world_size));
    set(&d, "optimizer_state_dict", base_state(w, out, rank));
    set(&d, "fp32_flat_groups", masters(w, out, rank));
    d.failed = d.failed || dcp_ds_set_rest(w, out, d.json);
    return finish(&d);
}

int dcp_ds_optim_file(const struct dcp_ds_writer *w, int rank, struct dcp_torch_out *out,
                      struct dcp_error *err)
{
    struct dict root = { .json = json_object() };

    *out = (struct dcp_torch_out){ .name = dcp_ds_optim_name(w, rank),
                                   .rank = rank,
                                   .classes = dcp_ds_classes };
    set(&root, "optimizer_state_dict",
        w->stage == 3 ? partitioned_states(w, out, rank) : flat_states(w, out, rank));
    set(&root, "ds_config", dcp_ds_config_value(w));
    set(&root, "ds_version", json_string(version_of(w)));
    set(&root, DCP_DS_OURS, dcp_ds_ours_of_rank(w, rank));
    out->tree = finish(&root);
    return out->tree && out->name ? DCP_OK
                                  : dcp_error_memory(err, "a file of DeepSpeed's");
}

/* -- the model's file -------------------------------------------------------------- */

/* What is known of it while it is made. */
struct model {
    const struct dcp_ds_writer *w;
    struct dcp_torch_out *out;
    int rank;       /* at stage 3; else 0 */
    json_t **views; /* of each tensor of the catalog; borrowed from `kept` */
    json_t *kept;
};

/* The view of a whole tensor, made once. */
static json_t *whole_view(struct model *m, int t)
{
    if (!m->views[t]) {
        json_t *view = dcp_torch_out_tensor(m->out, m->w->catalog, t);
        if (json_array_append_new(m->kept, view))
            return NULL;
        m->views[t] = view;
    }
    return json_incref(m->views[t]);
}

/* Stage 3: the weight is elsewhere. */
static json_t *empty_view(struct model *m, enum dcp_dtype dtype)
{
    static const int64_t none[] = { 0 };

    return dcp_torch_out_view(m->out, dcp_torch_out_storage(m->out, dtype, 0, NULL), 1,
                              none);
}

/* The tensor of the module that a second name stands for: by its parameter. -1: none. */
static int find_kept(const struct dcp_ds_writer *w, int alias)
{
    const struct dcp_tensor *tensor = &w->catalog->tensors[alias];
    int at = dcp_catalog_find(w->catalog, tensor->tied_to);

    for (size_t i = 0; at >= 0 && i < w->n_module; i++)
        if (w->module[i] != alias && !w->catalog->tensors[w->module[i]].tied_to &&
            !strcmp(w->catalog->tensors[w->module[i]].param,
                    w->catalog->tensors[at].param))
            return w->module[i];
    return -1;
}

static json_t *module_value(struct model *m, int t)
{
    const struct dcp_ds_writer *w = m->w;
    const struct dcp_tensor *tensor = &w->catalog->tensors[t];
    bool trained = json_object_get(w->places, tensor->param) != NULL;

    if (tensor->tied_to && w->stage != 3)
        return find_kept(w, t) < 0 ? json_null() : whole_view(m, find_kept(w, t));
    if (w->stage == 3 && (trained || tensor->tied_to))
        return empty_view(m, w->weights_dtype);
    if (w->stage == 3 && dcp_ds_is_frozen(w, t))
        return empty_view(m, tensor->dtype);
    return whole_view(m, t);
}

static json_t *module_dict(struct model *m)
{
    json_t *note = json_object_get(m->w->note, "module");
    json_t *state = json_object_get(note, "state"), *value;
    json_t *pairs = json_array();
    const char *key;
    bool failed = pairs == NULL;

    for (size_t i = 0; i < m->w->n_module; i++) {
        int t = m->w->module[i];
        append_pair(pairs, &failed, m->w->catalog->tensors[t].param, module_value(m, t));
    }
    if (m->w->head)
        append_pair(pairs, &failed, m->w->head, module_value(m, m->w->head_of));
    json_object_foreach(json_object_get(note, "extra"), key, value)
    {
        append_pair(pairs, &failed, key,
                    dcp_torch_out_value(m->out, m->w->catalog, value));
    }
    json_t *dict = dcp_py_ordered(pairs);
    if (state && json_object_set(dict, "state", state))
        failed = true;
    if (failed) {
        json_decref(dict);
        dict = NULL;
    }
    return dict;
}

static json_t *buffer_names(const struct dcp_ds_writer *w)
{
    json_t *names = json_array();

    for (size_t i = 0; i < w->n_module; i++) {
        const struct dcp_tensor *tensor = &w->catalog->tensors[w->module[i]];
        if (tensor->role == DCP_ROLE_BUFFER)
            json_array_append_new(names, json_string(tensor->param));
    }
    return names;
}

static json_t *param_shapes(const struct dcp_ds_writer *w)
{
    json_t *list = json_array();
    bool failed = list == NULL;

    for (size_t g = 0; g < w->n_groups && !failed; g++) {
        json_t *pairs = json_array();
        for (size_t p = 0; p < w->groups[g].n_params; p++) {
            const struct dcp_ds_param *param = &w->groups[g].params[p];
            append_pair(pairs, &failed, param->name,
                        dcp_ds_size(param->ndim, param->shape));
        }
        failed = failed || json_array_append_new(list, dcp_py_ordered(pairs));
    }
    if (failed) {
        json_decref(list);
        list = NULL;
    }
    return list;
}

/* A rank's part of a frozen weight, padded as every rank's. */
static json_t *frozen_part(struct model *m, int t)
{
    const struct dcp_tensor *tensor = &m->w->catalog->tensors[t];
    struct dcp_ds_param param = { .n_elems = tensor->n_elems };
    const struct dcp_ds_group group = { .params = &param, .n_params = 1 };
    int64_t n = dcp_part_ceil(tensor->n_elems, m->w->world_size);
    size_t storage = dcp_torch_out_storage(m->out, tensor->dtype, n, NULL);
    struct dcp_ds_part part;

    if (dcp_ds_part_of(&group, &param, 3, m->w->world_size, m->rank, &part))
        dcp_torch_out_part(m->out, storage, t, part.begin, part.end, 0);
    return dcp_torch_out_view(m->out, storage, 1, &n);
}

/* Shapes or parts of the weights that are not trained. None below stage 2, and where
 * there are none: DeepSpeed looks for every frozen weight of its model in a dict, and a
 * checkpoint saved without them has no dict. */
static json_t *frozen_dict(struct model *m, bool shapes)
{
    const struct dcp_ds_writer *w = m->w;
    json_t *pairs = json_array();
    bool failed = false;

    for (size_t i = 0; i < w->n_module && w->stage >= 2; i++) {
        int t = w->module[i];
        const struct dcp_tensor *tensor = &w->catalog->tensors[t];
        if (!dcp_ds_is_frozen(w, t))
            continue;
        append_pair(pairs, &failed, tensor->param,
                    shapes          ? dcp_ds_size(tensor->ndim, tensor->shape)
                    : w->stage == 3 ? frozen_part(m, t)
                                    : whole_view(m, t));
    }
    if (failed || !json_array_size(pairs)) {
        json_decref(pairs);
        return failed ? NULL : json_null();
    }
    return dcp_py_ordered(pairs);
}

/* Second names; only rank 0 knows them. */
static json_t *shared_params(const struct model *m)
{
    const struct dcp_ds_writer *w = m->w;
    struct dict shared = { .json = json_object() };

    for (size_t i = 0; i < w->n_module && m->rank == 0; i++) {
        int t = w->module[i];
        const struct dcp_tensor *tensor = &w->catalog->tensors[t];
        int kept = tensor->tied_to ? find_kept(w, t) : -1;
        if (kept >= 0)
            set(&shared, tensor->param, json_string(w->catalog->tensors[kept].param));
    }
    if (w->head && m->rank == 0)
        set(&shared, w->head, json_string(w->catalog->tensors[w->head_of].param));
    return finish(&shared);
}

/* The scheduler's own state: without the type that its configuration says. */
static json_t *scheduler_value(struct model *m)
{
    const struct dcp_ds_writer *w = m->w;
    const json_t *type = json_object_get(json_object_get(w->config, "scheduler"), "type");
    json_t *state = w->scheduler ? dcp_torch_out_value(m->out, w->catalog, w->scheduler)
                                 : json_null();

    if (type && json_equal(type, json_object_get(state, "type")))
        json_object_del(state, "type");
    return state;
}

/* Tensors of the client that stand in none of its values: under their names. */
static void add_client(struct model *m, struct dict *root)
{
    static const char inside[] = DCP_DS_CLIENT "optimizer.";
    const struct dcp_catalog *catalog = m->w->catalog;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        const char *name = tensor->name;
        if (tensor->role != DCP_ROLE_OTHER || tensor->tied_to ||
            dcp_torch_out_has(m->out, (int)t) ||
            !strncmp(name, inside, sizeof inside - 1))
            continue;
        if (!strncmp(name, DCP_DS_CLIENT, sizeof DCP_DS_CLIENT - 1))
            name += sizeof DCP_DS_CLIENT - 1;
        if (!json_object_get(root->json, name))
            set(root, name, dcp_torch_out_tensor(m->out, catalog, (int)t));
    }
}

static void set_counts(const struct dcp_ds_writer *w, struct dict *root)
{
    static const struct {
        const char *key, *from;
    } rows[] = { { "skipped_steps", "skipped_steps" },
                 { "global_steps", "step" },
                 { "global_samples", "samples" } };

    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        json_t *value = json_object_get(w->trainer, rows[i].from);
        bool has = json_is_integer(value);
        if (has || i < 2) /* DeepSpeed computes samples that are not there */
            set(root, rows[i].key,
                has      ? json_incref(value)
                : i == 1 ? json_integer((json_int_t)w->updates)
                         : json_integer(0));
    }
    set(root, "dp_world_size", json_integer(w->world_size));
    set(root, "mp_world_size", json_integer(1));
}

static json_t *model_tree(struct model *m)
{
    const struct dcp_ds_writer *w = m->w;
    static const char *const features[] = { "data_sampler", "random_ltd" };
    json_t *rest = json_object_get(w->note, "model_states"), *value;
    json_t *odd = dcp_py_pairs(json_object_get(w->note, "nameless")), *nameless = NULL;
    struct dict root = { .json = json_object() };
    const char *key;

    set(&root, "module", module_dict(m));
    set(&root, "buffer_names", buffer_names(w));
    set(&root, "optimizer", json_null());
    set(&root, "param_shapes", param_shapes(w));
    set(&root, "frozen_param_shapes", frozen_dict(m, true));
    set(&root, "shared_params", shared_params(m));
    set(&root, "frozen_param_fragments", frozen_dict(m, false));
    set(&root, "lr_scheduler", scheduler_value(m));
    for (size_t i = 0; i < DCP_ARRAY_LEN(features); i++) {
        value = json_object_get(rest, features[i]);
        set(&root, features[i],
            value ? dcp_torch_out_value(m->out, w->catalog, value) : json_null());
    }
    set_counts(w, &root);
    value = json_object_get(rest, "checkpoint_parallel_dimensions");
    set(&root, "checkpoint_parallel_dimensions",
        value ? json_incref(value)
              : json_pack("{s:i, s:i}", "pp_degree", 1, "tp_degree", 1));
    set(&root, "ds_config", dcp_ds_config_value(w));
    set(&root, "ds_version", json_string(version_of(w)));
    set(&root, DCP_DS_OURS, dcp_ds_ours_of_rank(w, m->rank));
    json_object_foreach(rest, key, value)
    {
        if (!json_object_get(root.json, key))
            set(&root, key, dcp_torch_out_value(m->out, w->catalog, value));
    }
    if (odd)
        nameless = dcp_torch_out_value(m->out, w->catalog, odd);
    if (json_object_size(w->others))
        set(&root, DCP_DS_OTHERS, json_incref(w->others));
    add_client(m, &root);
    json_t *tree = finish(&root);
    return odd ? dcp_ds_add_nameless(tree, nameless) : tree;
}

int dcp_ds_model_file(const struct dcp_ds_writer *w, int rank, struct dcp_torch_out *out,
                      struct dcp_error *err)
{
    struct model m = { .w = w, .out = out, .rank = rank < 0 ? 0 : rank };
    DCP_CLEANUP_FREE json_t **views =
        dcp_mem_calloc(w->catalog->n_tensors, sizeof *views);

    *out = (struct dcp_torch_out){ .name = dcp_ds_model_name(w, rank),
                                   .rank = m.rank,
                                   .classes = dcp_ds_classes };
    m.views = views;
    m.kept = json_array();
    if (views && m.kept && out->name)
        out->tree = model_tree(&m);
    json_decref(m.kept);
    return out->tree && out->name ? DCP_OK
                                  : dcp_error_memory(err, "a file of DeepSpeed's");
}
