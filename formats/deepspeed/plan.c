/* plan: from a target's catalog to groups, flat arrays and the module. */
#include "base/json.h"
#include "base/mem.h"
#include "base/part.h"
#include "base/str.h"
#include "formats/common/training.h"
#include "muon.h"
#include "read.h"
#include "write.h"
#include <stdio.h>
#include <string.h>

/* -- the tag ------------------------------------------------------------------------ */

/* The source's tag, if it is a plain name; else what DeepSpeed calls a step. */
static int choose_tag(struct dcp_ds_writer *w, struct dcp_error *err)
{
    const char *tag = json_string_value(json_object_get(w->note, "tag"));
    const json_t *steps = json_object_get(w->trainer, "step");
    char text[64];

    if (tag && strlen(tag) <= DCP_DS_MAX_TAG_BYTES && !strchr(tag, '/') &&
        dcp_store_name_ok(tag) && strcmp(tag, DCP_DS_LATEST) != 0) {
        w->tag = dcp_arena_text(w->arena, tag);
    } else {
        snprintf(text, sizeof text, "global_step%lld",
                 json_is_integer(steps) ? (long long)json_integer_value(steps)
                                        : (long long)w->updates);
        w->tag = dcp_arena_text(w->arena, text);
    }
    return w->tag ? DCP_OK : dcp_error_memory(err, "a tag");
}

/* -- groups ------------------------------------------------------------------------ */

static const json_t *zero_config(const struct dcp_ds_writer *w, const char *key)
{
    return json_object_get(json_object_get(w->config, "zero_optimization"), key);
}

/* What is trained: the members of the groups that have a master here. Empty groups go, as
 * DeepSpeed removes them. */
static int keep_trained(struct dcp_ds_writer *w, const struct dcp_identity *identity,
                        struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *groups = NULL;
    json_t *group, *name;
    size_t g, i;
    int rc = dcp_training_groups(w->catalog, &groups, err);

    w->param_groups = json_array();
    if (!rc && !w->param_groups)
        rc = dcp_error_memory(err, "groups of parameters");
    if (rc)
        return rc;
    json_array_foreach(groups, g, group)
    {
        json_t *kept = json_copy(group), *params = json_array();
        json_array_foreach(json_object_get(group, "params"), i, name)
        {
            const char *text = json_string_value(name);
            if (text && dcp_identity_find(identity, DCP_ROLE_MASTER, text) >= 0)
                json_array_append(params, name);
        }
        bool empty = json_array_size(params) == 0;
        rc = kept && !json_object_set_new(kept, "params", params) &&
                     (empty || !json_array_append(w->param_groups, kept))
                 ? DCP_OK
                 : dcp_error_memory(err, "groups of parameters");
        json_decref(kept);
        if (rc)
            break;
    }
    return rc;
}

static size_t count_params(const struct dcp_ds_writer *w)
{
    size_t n = 0;

    for (size_t g = 0; g < json_array_size(w->param_groups); g++)
        n += json_array_size(
            json_object_get(json_array_get(w->param_groups, g), "params"));
    return n;
}

/* Elements between parameters, where the configuration aligns them to 16 bytes. */
static void set_paddings(const struct dcp_ds_writer *w, struct dcp_ds_group *group)
{
    int64_t unit = 16 / (int64_t)dcp_dtype_size(w->weights_dtype), at = 0;

    if (w->stage == 3 || !json_is_true(zero_config(w, "parameter_alignment")))
        return;
    for (size_t p = 0; p + 1 < group->n_params && unit > 1; p++) {
        at += group->params[p].n_elems;
        group->params[p].padding = (unit - at % unit) % unit;
        at += group->params[p].padding;
    }
}

static void reorder(const struct dcp_ds_writer *w, struct dcp_ds_param *params, size_t n,
                    struct dcp_ds_param *out)
{
    bool shuffled =
        w->stage != 3 && json_is_true(zero_config(w, "round_robin_gradients"));
    DCP_CLEANUP_FREE size_t *places = shuffled ? dcp_mem_calloc(n, sizeof *places) : NULL;

    if (places)
        dcp_ds_round_robin(n, w->world_size, places);
    for (size_t i = 0; i < n; i++)
        out[places ? places[i] : i] = params[i];
}

/* Where a group is divided at stage 3: once a sub-group has so many elements of a rank.
 */
static int64_t sub_group_size(const struct dcp_ds_writer *w)
{
    const json_t *size = zero_config(w, "sub_group_size");

    if (w->stage != 3)
        return INT64_MAX;
    return json_is_number(size) && json_number_value(size) >= 1 &&
                   json_number_value(size) < 9e15
               ? (int64_t)json_number_value(size)
               : DCP_DS_SUB_GROUP_SIZE;
}

static const json_t *options_of(const struct dcp_ds_writer *w, int param_group)
{
    return json_array_get(w->param_groups, (size_t)param_group);
}

/* At stage 3 the order of a source of that stage is that of the program. */
static bool is_sorted(const struct dcp_ds_writer *w, int param_group)
{
    json_t *stage = json_object_get(w->note, "stage");

    return dcp_ds_is_muon(options_of(w, param_group)) &&
           (w->stage != 3 || json_integer_value(stage) != 3);
}

static int64_t rank_elems(const struct dcp_ds_writer *w, const struct dcp_ds_param *p)
{
    return dcp_part_ceil(p->n_elems, w->world_size);
}

/* A group of the optimizer as one flat array, or several. */
static int add_groups(struct dcp_ds_writer *w, struct dcp_ds_param *params, size_t n,
                      int param_group, struct dcp_error *err)
{
    int64_t size = sub_group_size(w), all = 0, at = 0;
    struct dcp_ds_group *group = NULL;

    for (size_t i = 0; i < n; i++)
        all += rank_elems(w, &params[i]);
    for (size_t i = 0; i < n; i++) {
        if (!group) {
            group = &w->groups[w->n_groups++];
            *group = (struct dcp_ds_group){ .params = params + i,
                                            .first = w->n_params,
                                            .param_group = param_group,
                                            .whole = dcp_ds_muon_is_whole(
                                                options_of(w, param_group), w->stage,
                                                w->config) };
            at = 0;
        }
        group->n_params++;
        w->n_params++;
        at += rank_elems(w, &params[i]);
        if (size < all && at >= size)
            group = NULL;
    }
    for (size_t g = 0; g < w->n_groups; g++)
        if (w->groups[g].param_group == param_group) {
            set_paddings(w, &w->groups[g]);
            DCP_TRY(dcp_ds_cut(&w->groups[g], w->stage, w->world_size, err));
        }
    return DCP_OK;
}

/* The parameters of a group, with the shapes of their masters. */
static int take_group(struct dcp_ds_writer *w, const struct dcp_identity *identity,
                      int number, struct dcp_error *err)
{
    const json_t *names =
        json_object_get(json_array_get(w->param_groups, (size_t)number), "params");
    size_t n = json_array_size(names);
    DCP_CLEANUP_FREE struct dcp_ds_param *plain = dcp_mem_calloc(n, sizeof *plain);
    struct dcp_ds_param *params = dcp_arena_alloc(w->arena, n, sizeof *params);

    if (!plain || !params)
        return dcp_error_memory(err, "groups of parameters");
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        const struct dcp_tensor *master =
            &w->catalog->tensors[dcp_identity_find(identity, DCP_ROLE_MASTER, name)];
        plain[i] = (struct dcp_ds_param){ .name = master->param,
                                          .ndim = master->ndim,
                                          .shape = master->shape,
                                          .n_elems = master->n_elems };
    }
    if (is_sorted(w, number))
        dcp_ds_muon_sort(plain, n);
    reorder(w, plain, n, params);
    return add_groups(w, params, n, number, err);
}

static int number_params(struct dcp_ds_writer *w, struct dcp_error *err)
{
    for (size_t g = 0; g < w->n_groups; g++)
        for (size_t p = 0; p < w->groups[g].n_params; p++) {
            const char *name = w->groups[g].params[p].name;
            if (json_object_get(w->places, name))
                return dcp_error_set(
                    err, DCP_E_MISMATCH,
                    "a DeepSpeed checkpoint cannot hold: the weight '%s' "
                    "twice in the groups of the optimizer",
                    DCP_SHOWN(name));
            if (json_object_set_new(w->places, name,
                                    json_integer((json_int_t)(w->groups[g].first + p))))
                return dcp_error_memory(err, "groups of parameters");
        }
    return DCP_OK;
}

/* DeepSpeed takes the options of the groups from the file. */
static int check_options(const struct dcp_ds_writer *w, struct dcp_error *err)
{
    for (size_t g = 0; g < json_array_size(w->param_groups); g++)
        if (!json_object_get(json_array_get(w->param_groups, g), "lr")) {
            dcp_error_set(err, DCP_E_MISMATCH,
                          "a DeepSpeed checkpoint cannot hold: groups of parameters "
                          "without their options, such as the learning rate");
            dcp_error_hint(err, "an elastic checkpoint does not say them; save once with "
                                "elastic_checkpoint off");
            return DCP_E_MISMATCH;
        }
    return DCP_OK;
}

static int make_groups(struct dcp_ds_writer *w, struct dcp_error *err)
{
    struct dcp_identity *identity = NULL;
    int rc = dcp_identity_new(w->catalog, &identity, err);

    if (!rc)
        rc = keep_trained(w, identity, err);
    w->groups = rc ? NULL : dcp_arena_alloc(w->arena, count_params(w), sizeof *w->groups);
    if (!rc && !w->groups)
        rc = dcp_error_memory(err, "groups of parameters");
    for (size_t g = 0; g < json_array_size(w->param_groups) && !rc; g++)
        rc = take_group(w, identity, (int)g, err);
    if (!rc)
        rc = number_params(w, err);
    if (!rc)
        rc = check_options(w, err);
    dcp_identity_free(identity);
    return rc;
}

/* Whether a parameter is trained; its group and place there. */
static bool find_param(const struct dcp_ds_writer *w, const char *name,
                       const struct dcp_ds_group **out_group, size_t *out_location)
{
    const json_t *number = json_object_get(w->places, name);
    size_t at = (size_t)json_integer_value(number);

    for (size_t g = 0; number && g < w->n_groups; g++)
        if (at - w->groups[g].first < w->groups[g].n_params) {
            *out_group = &w->groups[g];
            *out_location = at - w->groups[g].first;
            return true;
        }
    return false;
}

/* -- the optimizer's tensors ------------------------------------------------------- */

static int refuse(const struct dcp_tensor *tensor, const char *why, struct dcp_error *err)
{
    return dcp_error_of_tensor(err, DCP_E_MISMATCH, tensor->name,
                               "a DeepSpeed checkpoint cannot hold: '%s', %s",
                               DCP_SHOWN(tensor->name), why);
}

static int find_column(struct dcp_ds_writer *w, const char *key, enum dcp_dtype dtype,
                       struct dcp_ds_column **out, struct dcp_error *err)
{
    for (size_t c = 0; c < w->n_columns; c++)
        if (!strcmp(w->columns[c].key, key)) {
            *out = &w->columns[c];
            return DCP_OK;
        }
    struct dcp_ds_column *grown =
        dcp_mem_grow(w->columns, &w->cap_columns, w->n_columns + 1, sizeof *grown);
    if (!grown)
        return dcp_error_memory(err, "the optimizer's arrays");
    w->columns = grown;
    struct dcp_ds_column *column = &grown[w->n_columns++];
    *column = (struct dcp_ds_column){
        .key = key,
        .dtype = dtype,
        .tensors = dcp_arena_alloc(w->arena, w->n_params, sizeof *column->tensors),
    };
    if (!column->tensors)
        return dcp_error_memory(err, "the optimizer's arrays");
    memset(column->tensors, -1, w->n_params * sizeof *column->tensors);
    *out = column;
    return DCP_OK;
}

static int take_state(struct dcp_ds_writer *w, size_t t, struct dcp_error *err)
{
    const struct dcp_tensor *tensor = &w->catalog->tensors[t];
    const json_t *number = json_object_get(w->places, tensor->param);
    const char *key = dcp_ds_key_of(w->arena, tensor);
    const struct dcp_ds_group *group;
    struct dcp_ds_column *column = NULL;
    size_t place;

    if (!key)
        return dcp_error_memory(err, "the optimizer's arrays");
    if (!strcmp(tensor->param, tensor->name))
        return refuse(tensor, "a number that several weights fit, or none", err);
    if (!number || !find_param(w, tensor->param, &group, &place))
        return refuse(tensor, "whose weight is in no group of the optimizer", err);
    const struct dcp_ds_param *param = &group->params[place];
    if (tensor->ndim != param->ndim ||
        memcmp(tensor->shape, param->shape, (size_t)param->ndim * sizeof(int64_t)) != 0)
        return refuse(tensor, "whose shape is not that of its weight", err);
    DCP_TRY(find_column(w, key, tensor->dtype, &column, err));
    if (tensor->dtype != column->dtype)
        return refuse(tensor, "whose dtype is not that of the others of its kind", err);
    if (column->tensors[json_integer_value(number)] >= 0)
        return refuse(tensor, "which there is twice", err);
    column->tensors[json_integer_value(number)] = (int)t;
    return DCP_OK;
}

/* Masters first, then in the order of the catalog. */
static int take_states(struct dcp_ds_writer *w, struct dcp_error *err)
{
    for (size_t t = 0; t < w->catalog->n_tensors; t++)
        if (w->catalog->tensors[t].role == DCP_ROLE_MASTER)
            DCP_TRY(take_state(w, t, err));
    for (size_t t = 0; t < w->catalog->n_tensors; t++)
        if (dcp_role_is_optim(w->catalog->tensors[t].role) &&
            w->catalog->tensors[t].role != DCP_ROLE_MASTER)
            DCP_TRY(take_state(w, t, err));
    if (w->n_columns)
        return DCP_OK;
    dcp_error_set(err, DCP_E_MISMATCH,
                  "a DeepSpeed checkpoint cannot hold: a model without its optimizer");
    dcp_error_hint(err, "--to torch or --to safetensors writes the weights alone");
    return DCP_E_MISMATCH;
}

/* -- the module -------------------------------------------------------------------- */

bool dcp_ds_is_frozen(const struct dcp_ds_writer *w, int tensor)
{
    const struct dcp_tensor *t = &w->catalog->tensors[tensor];

    return t->role == DCP_ROLE_MODEL && !t->tied_to &&
           !json_object_get(w->places, t->param);
}

static int make_module(struct dcp_ds_writer *w, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = w->catalog;
    size_t n_trained = 0;

    w->module = dcp_arena_alloc(w->arena, catalog->n_tensors, sizeof *w->module);
    if (!w->module)
        return dcp_error_memory(err, "a model");
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        bool trained =
            tensor->role == (w->stage == 3 ? DCP_ROLE_MASTER : DCP_ROLE_MODEL) &&
            !tensor->tied_to && json_object_get(w->places, tensor->param);
        bool other = tensor->role == DCP_ROLE_BUFFER || tensor->tied_to ||
                     (tensor->role == DCP_ROLE_MODEL &&
                      !json_object_get(w->places, tensor->param));
        if (trained || other)
            w->module[w->n_module++] = (int)t;
        n_trained += trained;
    }
    if (n_trained == w->n_params)
        return DCP_OK;
    dcp_error_set(err, DCP_E_MISMATCH,
                  "a DeepSpeed checkpoint of ZeRO stage %d cannot hold: optimizer state "
                  "without the weights",
                  w->stage);
    dcp_error_hint(err, "select both, or write layout zero3");
    return DCP_E_MISMATCH;
}

/* Other formats leave out the head of a model whose embedding it is; PyTorch's module has
 * it under both names. */
static int find_head(struct dcp_ds_writer *w, struct dcp_error *err)
{
    static const char head[] = "lm_head.weight";
    static const char *const embeddings[] = { "transformer.wte.weight",
                                              "model.embed_tokens.weight" };
    DCP_CLEANUP_JSON json_t *config = NULL;
    DCP_TRY(dcp_training_read(w->catalog, DCP_TRAINING_MODEL_CONFIG, &config, err));
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const json_t *tied = json_object_get(config, "tie_word_embeddings");

    if (w->note || !type || (tied ? !json_is_true(tied) : strcmp(type, "gpt2") != 0))
        return DCP_OK;
    for (size_t i = 0; i < w->n_module; i++) {
        const char *name = w->catalog->tensors[w->module[i]].param;
        if (!strcmp(name, head)) {
            w->head = NULL;
            return DCP_OK;
        }
        for (size_t e = 0; e < DCP_ARRAY_LEN(embeddings); e++)
            if (!strcmp(name, embeddings[e])) {
                w->head = head;
                w->head_of = w->module[i];
            }
    }
    return DCP_OK;
}

/* What the model computes with: the dtype of its weights, or what the configuration says.
 */
static enum dcp_dtype find_dtype(const struct dcp_ds_writer *w)
{
    static const struct {
        const char *key;
        enum dcp_dtype dtype;
    } configured[] = { { "bf16", DCP_BF16 },
                       { "bfloat16", DCP_BF16 },
                       { "fp16", DCP_F16 } };
    const struct dcp_catalog *catalog = w->catalog;

    for (size_t t = 0; t < catalog->n_tensors && w->stage != 3; t++)
        if (catalog->tensors[t].role == DCP_ROLE_MODEL &&
            dcp_dtype_is_float(catalog->tensors[t].dtype))
            return catalog->tensors[t].dtype;
    if (catalog->weights_dtype >= 0)
        return (enum dcp_dtype)catalog->weights_dtype;
    for (size_t i = 0; i < DCP_ARRAY_LEN(configured); i++)
        if (json_is_true(json_object_get(json_object_get(w->config, configured[i].key),
                                         "enabled")))
            return configured[i].dtype;
    return DCP_F32;
}

/* -- the whole --------------------------------------------------------------------- */

int dcp_ds_target_open(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    struct dcp_ds_writer *w = target->state = calloc(1, sizeof *w);

    if (!w)
        return dcp_error_memory(err, "a DeepSpeed checkpoint");
    *w = (struct dcp_ds_writer){ .catalog = catalog,
                                 .arena = dcp_arena_new(),
                                 .places = json_object(),
                                 .stage = dcp_str_ends(catalog->layout, "1")   ? 1
                                          : dcp_str_ends(catalog->layout, "2") ? 2
                                                                               : 3,
                                 .world_size = catalog->world_size };
    DCP_TRY(w->arena && w->places ? dcp_ds_take_objects(w, err)
                                  : dcp_error_memory(err, "a DeepSpeed checkpoint"));
    DCP_TRY(choose_tag(w, err));
    w->weights_dtype = find_dtype(w);
    DCP_TRY(make_groups(w, err));
    DCP_TRY(take_states(w, err));
    DCP_TRY(make_module(w, err));
    return find_head(w, err);
}

int dcp_ds_assign_file(struct dcp_target *target, struct dcp_torch_out *out, int rc,
                       struct dcp_error *err)
{
    struct dcp_ds_writer *w = target->state;

    if (!rc)
        rc = dcp_torch_out_assign(out, target, &w->outs, err);
    dcp_torch_out_fini(out);
    return rc;
}

int dcp_ds_target_finalize(struct dcp_target *target, int rank, struct dcp_error *err)
{
    struct dcp_ds_writer *w = target->state;

    return dcp_torch_outs_finalize(&w->outs, target, rank, err);
}

void dcp_ds_target_close(struct dcp_target *target)
{
    struct dcp_ds_writer *w = target->state;

    if (!w)
        return;
    dcp_torch_outs_fini(&w->outs);
    dcp_arena_free(w->arena);
    free(w->columns);
    json_decref(w->param_groups);
    json_decref(w->places);
    json_decref(w->others);
    json_decref(w->note);
    json_decref(w->config);
    json_decref(w->trainer);
    json_decref(w->scheduler);
    json_decref(w->loss_scaler);
    free(w);
}

/* -- names of files ---------------------------------------------------------------- */

const char *dcp_ds_path(const struct dcp_ds_writer *w, const char *name)
{
    size_t n = strlen(w->tag) + strlen(name) + 2;
    char *path = dcp_catalog_alloc(w->catalog, n, 1);

    if (path)
        snprintf(path, n, "%s/%s", w->tag, name);
    return path;
}

const char *dcp_ds_model_name(const struct dcp_ds_writer *w, int rank)
{
    char name[80];

    if (rank < 0)
        return dcp_ds_path(w, "mp_rank_00_model_states.pt");
    snprintf(name, sizeof name, "zero_pp_rank_%d_mp_rank_00_model_states.pt", rank);
    return dcp_ds_path(w, name);
}

const char *dcp_ds_optim_name(const struct dcp_ds_writer *w, int rank)
{
    char name[80];

    snprintf(name, sizeof name, "%szero_pp_rank_%d_mp_rank_00_optim_states.pt",
             w->weights_dtype == DCP_BF16 ? "bf16_" : "", rank);
    return dcp_ds_path(w, name);
}

int dcp_ds_pointer(struct dcp_target *target, const char *name, struct dcp_error *err)
{
    const struct dcp_ds_writer *w = target->state;
    size_t n = strlen(w->tag);
    int file;

    DCP_TRY(dcp_catalog_add_file(
        w->catalog, &(struct dcp_file){ .name = name, .size_bytes = n }, &file, err));
    return dcp_target_literal_copy(target, file, 0, w->tag, n, err);
}
