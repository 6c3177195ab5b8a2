/* objects: what a DeepSpeed checkpoint knows of training, in the words of
 * common/training.h. */
#include "base/json.h"
#include "base/mem.h"
#include "formats/common/optim.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include "ours.h"
#include <stdio.h>
#include <string.h>

/* Keys of the optimizer's dict that are understood; others are kept. */
static const char *const known_keys[] = {
    "loss_scaler",
    "base_optimizer_state",
    "base_optimizer_state_step",
    "single_partition_of_fp32_groups",
    "zero_stage",
    "group_paddings",
    "param_alignment_paddings",
    "partition_count",
    "ds_version",
    "param_slice_mappings",
    "optimizer_state_dict",
    "fp32_flat_groups",
    "param_groups",
    "state", /* and the rest of what there is without ZeRO */
    "fp32_groups",
    "fp32_groups_flat",
    DCP_DS_OURS, /* in a universal one */
    NULL,
};

/* -- loss scaler ------------------------------------------------------------------- */

static bool is_scaler(const struct dcp_pickle_node *node)
{
    static const char *const modules[] = { "deepspeed.runtime.fp16.loss_scaler",
                                           "deepspeed.runtime.loss_scaler" };

    for (size_t i = 0; i < DCP_ARRAY_LEN(modules); i++)
        if (dcp_pickle_is_call(node, modules[i], "LossScaler") ||
            dcp_pickle_is_call(node, modules[i], "DynamicLossScaler"))
            return true;
    return false;
}

/* The attributes of DeepSpeed's object, with "type" and "scale" for two of them. */
static int read_scaler(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                       const struct dcp_pickle_node *node, struct dcp_error *err)
{
    json_t *state = NULL;
    int rc = dcp_ds_json(reader, file, node->object->state, "loss_scaler", &state, err);

    if (rc)
        return rc;
    const json_t *scale = json_object_get(state, "cur_scale");
    bool dynamic = json_is_true(json_object_get(state, "dynamic"));
    if (!json_is_number(scale)) {
        json_decref(state);
        return dcp_ds_corrupt(file, err, "has a loss scaler without a scale");
    }
    reader->loss_scaler =
        json_pack("{s:s, s:O}", "type", dynamic ? "dynamic" : "static", "scale", scale);
    json_object_del(state, "cur_scale");
    json_object_del(state, "dynamic");
    if (!reader->loss_scaler || json_object_update_missing(reader->loss_scaler, state))
        rc = dcp_error_memory(err, "the loss scaler");
    json_decref(state);
    return rc;
}

/* Without ZeRO the optimizer keeps no such object, but its numbers. What only an object
 * has is as the run was configured, or as DeepSpeed begins. */
static int make_scaler(struct dcp_ds_reader *reader, const json_t *optim,
                       struct dcp_error *err)
{
    static const char *const kept[] = { "cur_iter", "last_overflow_iter", "scale_factor",
                                        "scale_window" };
    static const struct {
        const char *key, *option;
        int begins; /* 0: nothing is said where it is not configured */
    } configured[] = { { "min_scale", "min_loss_scale", 0 },
                       { "delayed_shift", "hysteresis", DCP_DS_HYSTERESIS },
                       { "cur_hysteresis", "hysteresis", DCP_DS_HYSTERESIS },
                       { "consecutive_hysteresis", "consecutive_hysteresis", 0 } };
    json_t *scale = json_object_get(optim, "cur_scale"), *value;
    const json_t *fp16 = json_object_get(reader->config, "fp16");
    bool dynamic = json_is_true(json_object_get(optim, "dynamic_loss_scale"));
    json_t *made;
    int failed = 0;

    if (!json_is_number(scale) || reader->loss_scaler)
        return DCP_OK;
    made =
        json_pack("{s:s, s:O}", "type", dynamic ? "dynamic" : "static", "scale", scale);
    for (size_t i = 0; i < DCP_ARRAY_LEN(kept) && dynamic; i++)
        if ((value = json_object_get(optim, kept[i])))
            failed |= json_object_set(made, kept[i], value);
    for (size_t i = 0; i < DCP_ARRAY_LEN(configured) && dynamic; i++) {
        value = json_object_get(fp16, configured[i].option);
        if (json_is_number(value) || json_is_boolean(value))
            failed |= json_object_set(made, configured[i].key, value);
        else if (configured[i].begins)
            failed |= json_object_set_new(made, configured[i].key,
                                          json_integer(configured[i].begins));
    }
    reader->loss_scaler = made;
    return !made || failed ? dcp_error_memory(err, "the loss scaler") : DCP_OK;
}

int dcp_ds_read_scalars(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                        const struct dcp_pickle_node *optim, struct dcp_error *err)
{
    const struct dcp_pickle_node *scaler = dcp_pickle_get(optim, "loss_scaler");
    json_t *rest = NULL;
    int rc = DCP_OK;

    if (is_scaler(scaler) && scaler->object->state)
        rc = read_scaler(reader, file, scaler, err);
    dcp_ds_get_int(optim, "base_optimizer_state_step", &reader->updates);
    if (!rc)
        rc = dcp_ds_json_rest(reader, file, optim, "optimizer", known_keys, &rest, err);
    if (!rc)
        rc = make_scaler(reader, rest, err);
    if (!rc && json_object_set_new(reader->note, "optim_states", rest))
        rc = dcp_error_memory(err, "an object");
    return rc;
}

/* -- groups of parameters ---------------------------------------------------------- */

int dcp_ds_read_ids(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                    const struct dcp_pickle_node *groups, int64_t *out_ids,
                    struct dcp_error *err)
{
    size_t n = 0;

    for (size_t g = 0; g < dcp_ds_count(groups); g++) {
        const struct dcp_pickle_node *ids =
            dcp_pickle_get(groups->list.items[g], "params");
        for (size_t i = 0; i < dcp_ds_count(ids) && n < reader->n_groups; i++, n++) {
            if (!dcp_ds_int(ids->list.items[i], &out_ids[n]))
                return dcp_ds_corrupt(file, err, "has malformed 'param_groups'");
            reader->groups[n].param_group = (int)g;
        }
    }
    if (n == reader->n_groups)
        return DCP_OK;
    return dcp_ds_corrupt(file, err,
                          "has %zu arrays in its 'param_groups', %zu are "
                          "expected",
                          n, reader->n_groups);
}

/* The names of the parameters of a group of the optimizer, in its order: at stages 1 and
 * 2 round_robin_gradients stores them in another. */
static json_t *names_of(const struct dcp_ds_reader *reader, int param_group)
{
    const json_t *zero = json_object_get(reader->config, "zero_optimization");
    bool shuffled = reader->stage != 3 &&
                    json_is_true(json_object_get(zero, "round_robin_gradients"));
    json_t *names = json_array();
    int failed = names == NULL;

    for (size_t g = 0; g < reader->n_groups && !failed; g++) {
        const struct dcp_ds_group *group = &reader->groups[g];
        DCP_CLEANUP_FREE size_t *places = dcp_mem_calloc(group->n_params, sizeof *places);
        if (group->param_group != param_group)
            continue;
        failed = places == NULL;
        for (size_t i = 0; i < group->n_params && !failed; i++)
            places[i] = i;
        if (shuffled && !failed)
            dcp_ds_round_robin(group->n_params, reader->world_size, places);
        for (size_t i = 0; i < group->n_params && !failed; i++)
            failed =
                json_array_append_new(names, json_string(group->params[places[i]].name));
    }
    if (failed) {
        json_decref(names);
        names = NULL;
    }
    return names;
}

/* betas are a pair in JSON too. */
static int plain_betas(json_t *group)
{
    json_t *betas = json_object_get(group, "betas");

    return betas ? json_object_set(group, "betas", dcp_py_untuple(betas)) : 0;
}

static int add_group(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                     const struct dcp_pickle_node *group, int number,
                     struct dcp_error *err)
{
    static const char *const not_kept[] = { "params", NULL };
    json_t *json = NULL;
    int rc = dcp_ds_json_rest(reader, file, group, "optimizer.param_groups", not_kept,
                              &json, err);

    if (rc)
        return rc;
    if (plain_betas(json) ||
        json_object_set_new(json, "params", names_of(reader, number)) ||
        json_array_append(reader->param_groups, json))
        rc = dcp_error_memory(err, "groups of parameters");
    json_decref(json);
    return rc;
}

/* Elastic files leave the options of the groups out. The configuration has those of all
 * parameters, which are the options of a group when there is one. */
static int add_configured(struct dcp_ds_reader *reader, struct dcp_error *err)
{
    json_t *params =
        json_object_get(json_object_get(reader->config, "optimizer"), "params");

    for (size_t g = 0; g < reader->n_groups; g++) {
        bool alone = reader->n_groups == 1 && json_is_object(params);
        json_t *json = alone ? json_copy(params) : json_object();
        bool ok = json &&
                  !json_object_set_new(json, "params", names_of(reader, (int)g)) &&
                  !json_array_append(reader->param_groups, json);
        json_decref(json);
        if (!ok)
            return dcp_error_memory(err, "groups of parameters");
    }
    return DCP_OK;
}

int dcp_ds_read_param_groups(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                             const struct dcp_pickle_node *groups, struct dcp_error *err)
{
    int rc = DCP_OK;

    reader->param_groups = json_array();
    if (!reader->param_groups)
        return dcp_error_memory(err, "groups of parameters");
    if (!groups)
        return add_configured(reader, err);
    for (size_t g = 0; g < dcp_ds_count(groups) && !rc; g++)
        rc = add_group(reader, file, groups->list.items[g], (int)g, err);
    return rc;
}

/* -- the objects ------------------------------------------------------------------- */

static int set_integer(json_t *object, const char *key, int64_t value)
{
    return value < 0 ? 0 : json_object_set_new(object, key, json_integer(value));
}

/* DeepSpeed's own counts, and what else the one who saved it knew. */
static int add_trainer(struct dcp_ds_reader *reader, const json_t *others,
                       struct dcp_error *err)
{
    json_t *known = json_object_get(others, DCP_TRAINING_TRAINER);
    if (known && !json_is_object(known)) /* somebody's own, which goes with the others */
        return DCP_OK;
    json_t *trainer = known ? json_copy(known) : json_object();

    if (set_integer(trainer, "step", reader->global_steps) ||
        set_integer(trainer, "samples", reader->global_samples) ||
        set_integer(trainer, "skipped_steps", reader->skipped_steps)) {
        json_decref(trainer);
        trainer = NULL;
    }
    return dcp_training_add(reader->catalog, DCP_TRAINING_TRAINER, trainer, err);
}

/* The optimizer's name: as configured, or what torch's own groups tell. */
static const char *type_of(const struct dcp_ds_reader *reader)
{
    const json_t *optimizer = json_object_get(reader->config, "optimizer");
    const json_t *type = json_object_get(optimizer, "type");
    const json_t *group = json_array_get(reader->param_groups, 0);
    const json_t *decoupled = json_object_get(group, "decoupled_weight_decay");

    if (json_is_string(type))
        return json_string_value(type);
    return json_is_true(decoupled) ? "AdamW" : json_is_false(decoupled) ? "Adam" : NULL;
}

static int add_optimizer(struct dcp_ds_reader *reader, struct dcp_error *err)
{
    struct dcp_optim_counts updates = reader->counts;

    if (updates.least == updates.most) { /* what the file says beside them is more */
        updates = (struct dcp_optim_counts){ 0 };
        dcp_optim_count(&updates, reader->updates);
    }
    return reader->param_groups ? dcp_optim_add(reader->catalog, type_of(reader), updates,
                                                reader->param_groups, err)
                                : DCP_OK;
}

/* What the one who saved it called so is that. */
static int add_unless_there(struct dcp_ds_reader *reader, const char *name, json_t *value,
                            struct dcp_error *err)
{
    return !value || dcp_catalog_find_object(reader->catalog, name) >= 0
               ? DCP_OK
               : dcp_training_add(reader->catalog, name, json_incref(value), err);
}

int dcp_ds_add_objects(struct dcp_ds_reader *reader, struct dcp_error *err)
{
    json_t *rest = json_object_get(reader->note, "model_states");
    DCP_CLEANUP_JSON json_t *others = json_incref(json_object_get(rest, DCP_DS_OTHERS));

    json_object_del(rest, DCP_DS_OTHERS);
    DCP_TRY(add_trainer(reader, others, err));
    DCP_TRY(dcp_ds_add_others(reader, others, err));
    DCP_TRY(add_optimizer(reader, err));
    DCP_TRY(add_unless_there(reader, DCP_TRAINING_LOSS_SCALER, reader->loss_scaler, err));
    DCP_TRY(add_unless_there(reader, DCP_TRAINING_DEEPSPEED_CONFIG, reader->config, err));
    if (json_object_set_new(reader->note, "tag", json_string(reader->folder.tag)) ||
        set_integer(reader->note, "stage", reader->stage))
        return dcp_error_memory(err, "an object");
    return add_unless_there(reader, DCP_DS_OBJECT, reader->note, err);
}

int dcp_ds_describe(struct dcp_ds_reader *reader, struct dcp_error *err)
{
    struct dcp_catalog *catalog = reader->catalog;
    const char *version = json_string_value(json_object_get(reader->note, "version"));
    char producer[80];

    snprintf(producer, sizeof producer, "DeepSpeed %.60s", version ? version : "");
    catalog->step = reader->global_steps;
    catalog->producer = version ? dcp_catalog_text(catalog, producer) : "DeepSpeed";
    return catalog->producer ? DCP_OK : dcp_error_memory(err, "a catalog");
}
