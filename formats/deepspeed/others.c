/* others: objects become values of DeepSpeed's where they look like those. The rest,
 * random numbers and the data cursor of this library's trainer, say, or what only has the
 * name of such a value, goes along as one value of the client's state. With it goes a
 * note of what those values do not tell:
 *
 *   {"pickles": [names of objects that were pickles, and are values here],
 *    "scheduler": name of the object that is lr_scheduler, where that is another,
 *    "untyped": true: the scaler of the loss has no "type"} */
#include "base/json.h"
#include "base/mem.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include "formats/torch/value.h"
#include "read.h"
#include "write.h"
#include <string.h>

#define NOTE "dcp.note"

/* What only tells how another file is spelled, and what DeepSpeed's groups say. */
static bool is_said(const char *name)
{
    static const char *const names[] = { DCP_TRAINING_OPTIMIZER, NOTE, "torch.tree",
                                         "dcp.keys", "dcp.attributes" };

    for (size_t i = 0; i < DCP_ARRAY_LEN(names); i++)
        if (!strcmp(names[i], name))
            return true;
    return dcp_object_is_spelling(name);
}

/* -- pickles ------------------------------------------------------------------------- */

static int add_pickle(struct dcp_catalog *catalog, const char *name, json_t *value,
                      struct dcp_error *err)
{
    struct dcp_arena *arena = dcp_arena_new();
    struct dcp_pickle_out out = { 0 };
    struct dcp_torch_writer w = { .catalog = catalog, .out = &out, .arena = arena };
    int rc = arena ? DCP_OK : dcp_error_memory(err, "an object");

    dcp_pickle_begin(&out);
    if (!rc)
        rc = dcp_torch_write_value(&w, value, err);
    dcp_pickle_end(&out);
    if (!rc)
        rc = dcp_buf_check(&out.buf, err);
    const struct dcp_object object = { .name = name,
                                       .kind = DCP_OBJECT_BYTES,
                                       .data = out.buf.data,
                                       .size_bytes = out.buf.size_bytes };
    if (!rc)
        rc = dcp_catalog_add_object(catalog, &object, err);
    dcp_pickle_out_fini(&out);
    dcp_arena_free(arena);
    return rc;
}

/* -- writing ------------------------------------------------------------------------- */

/* What the reader says of each checkpoint. */
static bool is_note(const json_t *value)
{
    return json_is_string(json_object_get(value, "tag")) &&
           json_is_integer(json_object_get(value, "stage"));
}

static bool is_scaler(const json_t *value)
{
    return json_is_number(json_object_get(value, "scale"));
}

/* As the schedulers of PyTorch and of DeepSpeed say where they are. */
static bool is_scheduler(const json_t *value)
{
    static const char *const beside[] = { "_step_count", "base_lrs", "_last_lr",
                                          "num_bad_epochs" };

    if (json_object_get(value, "last_batch_iteration"))
        return true;
    for (size_t i = 0; i < DCP_ARRAY_LEN(beside); i++)
        if (json_object_get(value, beside[i]))
            return json_object_get(value, "last_epoch");
    return false;
}

/* The object "scheduler", if it is a dict (DeepSpeed's own may be a list); else the only
 * one that looks like a scheduler; -1: none. */
static int find_scheduler(const struct dcp_ds_writer *w, int *out, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = w->catalog;
    int named = dcp_catalog_find_object(catalog, DCP_TRAINING_SCHEDULER), n = 0;

    *out = -1;
    for (size_t o = 0; o < catalog->n_objects; o++) {
        DCP_CLEANUP_JSON json_t *value = NULL;
        if (is_said(catalog->objects[o].name))
            continue;
        DCP_TRY(dcp_training_value(&catalog->objects[o], &value, err));
        if ((int)o == named &&
            (dcp_py_is_dict(value) || (w->note && json_is_array(value)))) {
            *out = named;
            return DCP_OK;
        }
        if (is_scheduler(value)) {
            *out = (int)o;
            n++;
        }
    }
    if (n != 1)
        *out = -1;
    return DCP_OK;
}

static bool is_any(const json_t *value)
{
    return json_is_object(value);
}

/* P in P.last_epoch, where "P." begins all of a scheduler; 0: it is none. */
static size_t scheduler_prefix(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot && (!strcmp(dot, ".last_epoch") || !strcmp(dot, ".last_batch_iteration"))
               ? (size_t)(dot - name)
               : 0;
}

/* The only scheduler of which each value is an object, as PyTorch's planner takes it
 * apart; these go along as well. A list of dicts in it is no value, and a tensor none
 * that DeepSpeed's has: it is none then. */
static int gather_scheduler(const struct dcp_catalog *catalog, json_t **out,
                            struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *made = json_object();
    const char *prefix = NULL;
    size_t n = 0;

    for (size_t o = 0; o < catalog->n_objects; o++) {
        size_t length = scheduler_prefix(catalog->objects[o].name);
        if (length && prefix)
            return DCP_OK;
        if (length) {
            prefix = catalog->objects[o].name;
            n = length;
        }
    }
    for (size_t t = 0; t < catalog->n_tensors && prefix; t++)
        if (!strncmp(catalog->tensors[t].name, prefix, n + 1))
            return DCP_OK;
    for (size_t o = 0; o < catalog->n_objects && prefix; o++) {
        const char *name = catalog->objects[o].name;
        json_t *value = NULL;
        if (strncmp(name, prefix, n + 1) != 0)
            continue;
        DCP_TRY(dcp_training_value(&catalog->objects[o], &value, err));
        if (!value || strchr(name + n + 1, '.')) {
            json_decref(value);
            return DCP_OK;
        }
        if (json_object_set_new(made, name + n + 1, value))
            return dcp_error_memory(err, "an object");
    }
    if (is_scheduler(made))
        *out = json_incref(made);
    return DCP_OK;
}

/* What DeepSpeed has a place for. */
static int take_own(struct dcp_ds_writer *w, struct dcp_error *err)
{
    const struct {
        const char *name;
        json_t **value;
        bool (*is)(const json_t *value);
    } rows[] = {
        { DCP_DS_OBJECT, &w->note, is_note },
        { DCP_TRAINING_DEEPSPEED_CONFIG, &w->config, is_any },
        { DCP_TRAINING_TRAINER, &w->trainer, is_any },
        { DCP_TRAINING_LOSS_SCALER, &w->loss_scaler, is_scaler },
    };
    int scheduler;

    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        DCP_CLEANUP_JSON json_t *value = NULL;
        DCP_TRY(dcp_training_read(w->catalog, rows[i].name, &value, err));
        if (!rows[i].is(value))
            continue;
        *rows[i].value = json_incref(value);
        dcp_catalog_mark_stored(w->catalog, rows[i].name);
    }
    DCP_TRY(find_scheduler(w, &scheduler, err));
    if (scheduler < 0 && dcp_catalog_find_object(w->catalog, DCP_TRAINING_SCHEDULER) < 0)
        return gather_scheduler(w->catalog, &w->scheduler, err);
    if (scheduler < 0)
        return DCP_OK;
    w->scheduler_name = w->catalog->objects[scheduler].name;
    w->catalog->objects[scheduler].held = true;
    return dcp_training_value(&w->catalog->objects[scheduler], &w->scheduler, err);
}

/* Whether an object that was taken goes along as well: a trainer that tells more than
 * DeepSpeed's counts, and a configuration of somebody's own, which is to stay as it is.
 */
static bool goes_too(const struct dcp_ds_writer *w, const char *name)
{
    static const char *const counts[] = { "step", "samples", "skipped_steps" };
    size_t n_told = 0;

    if (!strcmp(name, DCP_TRAINING_TRAINER)) {
        for (size_t i = 0; i < DCP_ARRAY_LEN(counts); i++)
            n_told += json_is_integer(json_object_get(w->trainer, counts[i]));
        return json_object_size(w->trainer) > n_told;
    }
    if (w->note || strcmp(name, DCP_TRAINING_DEEPSPEED_CONFIG) != 0)
        return false;
    DCP_CLEANUP_JSON json_t *config = dcp_ds_config_value(w);
    return !json_equal(config, w->config);
}

/* Takes the value. */
static bool set(json_t **dict, const char *name, json_t *value)
{
    if (!*dict)
        *dict = json_object();
    return !json_object_set_new(*dict, name, value);
}

static int take_others(struct dcp_ds_writer *w, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *note = NULL;
    DCP_CLEANUP_JSON json_t *pickles = json_array();
    bool ok = pickles != NULL;

    for (size_t o = 0; o < w->catalog->n_objects && ok; o++) {
        struct dcp_object *object = &w->catalog->objects[o];
        bool scheduler = w->scheduler_name && !strcmp(object->name, w->scheduler_name);
        DCP_CLEANUP_JSON json_t *value = NULL;

        if (is_said(object->name) ||
            (object->held && !scheduler && !goes_too(w, object->name)))
            continue;
        DCP_TRY(dcp_training_value(object, &value, err));
        if (!value)
            continue;
        object->held = true;
        if (object->kind != DCP_OBJECT_JSON)
            ok = !json_array_append_new(pickles, json_string(object->name));
        if (!scheduler)
            ok = ok && set(&w->others, object->name, json_incref(value));
    }
    if (json_array_size(pickles))
        ok = ok && set(&note, "pickles", json_incref(pickles));
    if (w->scheduler_name && strcmp(w->scheduler_name, DCP_TRAINING_SCHEDULER) != 0)
        ok = ok && set(&note, "scheduler", json_string(w->scheduler_name));
    if (w->loss_scaler && !json_object_get(w->loss_scaler, "type"))
        ok = ok && set(&note, "untyped", json_true());
    if (note)
        ok = ok && set(&w->others, NOTE, json_incref(note));
    return ok ? DCP_OK : dcp_error_memory(err, "an object");
}

int dcp_ds_take_objects(struct dcp_ds_writer *w, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *optimizer = NULL;

    DCP_TRY(dcp_training_updates(w->catalog, &w->updates, err));
    DCP_TRY(take_own(w, err));
    DCP_TRY(dcp_training_read(w->catalog, DCP_TRAINING_OPTIMIZER, &optimizer, err));
    if (!json_object_get(w->note, "steps")) /* which says whose they are */
        DCP_TRY(dcp_training_one_count(w->catalog, "a DeepSpeed checkpoint", err));
    if (json_object_get(optimizer, "param_groups") || json_object_get(optimizer, "step"))
        dcp_catalog_mark_stored(w->catalog, DCP_TRAINING_OPTIMIZER);
    return take_others(w, err);
}

/* -- reading ------------------------------------------------------------------------- */

static bool is_listed(const json_t *names, const char *name)
{
    json_t *item;
    size_t i;

    json_array_foreach(names, i, item)
    {
        if (json_is_string(item) && !strcmp(json_string_value(item), name))
            return true;
    }
    return false;
}

/* Adds an object, unless there is one of that name. */
static int add(struct dcp_catalog *catalog, const json_t *note, const char *name,
               json_t *value, struct dcp_error *err)
{
    if (dcp_catalog_find_object(catalog, name) >= 0)
        return DCP_OK;
    if (is_listed(json_object_get(note, "pickles"), name) && !dcp_py_holds_tensor(value))
        return add_pickle(catalog, name, value, err);
    return dcp_training_add(catalog, name, json_incref(value), err);
}

/* With the type that is configured, which DeepSpeed does not say beside the state. */
static int add_scheduler(struct dcp_ds_reader *reader, const json_t *note,
                         struct dcp_error *err)
{
    const char *name = json_string_value(json_object_get(note, "scheduler"));
    json_t *type = json_object_get(json_object_get(reader->config, "scheduler"), "type");
    DCP_CLEANUP_JSON json_t *scheduler = json_is_object(reader->scheduler)
                                             ? json_object()
                                             : json_incref(reader->scheduler);

    if (!reader->scheduler)
        return DCP_OK;
    if (json_is_object(reader->scheduler) &&
        ((json_is_string(type) && json_object_set(scheduler, "type", type)) ||
         json_object_update(scheduler, reader->scheduler)))
        return dcp_error_memory(err, "an object");
    return add(reader->catalog, note,
               name && !is_said(name) ? name : DCP_TRAINING_SCHEDULER, scheduler, err);
}

int dcp_ds_add_others(struct dcp_ds_reader *reader, json_t *others, struct dcp_error *err)
{
    json_t *note = json_object_get(others, NOTE), *value;
    const char *name;

    DCP_TRY(add_scheduler(reader, note, err));
    json_object_foreach(others, name, value)
    {
        if (!is_said(name))
            DCP_TRY(add(reader->catalog, note, name, value, err));
    }
    if (json_is_true(json_object_get(note, "untyped")))
        json_object_del(reader->loss_scaler, "type");
    return DCP_OK;
}
