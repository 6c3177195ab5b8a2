/* compare: the configuration of a checkpoint beside the one that goes on with it. */
#include "compare.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "json.h"
#include "trainer/config/schedule.h"
#include <dcp/training.h>
#include <stdio.h>
#include <string.h>

/* -- one value ----------------------------------------------------------------------- */

enum { SHOWN_CAP = 64 };

/* A value as a configuration has it. */
static void show(const json_t *value, struct dcp_buf *out)
{
    char number[DCP_STR_F64_CAP], text[SHOWN_CAP];
    if (json_is_number(value))
        dcp_buf_add_text(out, dcp_str_format_f64(number, json_number_value(value)));
    else if (json_is_string(value))
        dcp_buf_add_text(out,
                         dcp_str_escape(text, sizeof text, json_string_value(value)));
    else if (!json_is_array(value))
        dcp_buf_add_text(out, json_is_null(value)   ? "null"
                              : json_is_true(value) ? "true"
                                                    : "false");
    for (size_t i = 0; i < json_array_size(value); i++) {
        dcp_buf_add_text(out, i ? ", " : "[");
        show(json_array_get(value, i), out);
    }
    if (json_array_size(value))
        dcp_buf_add_text(out, "]");
}

/* Numbers by their value: 1 is 1.0. */
static bool is_same(const json_t *a, const json_t *b)
{
    double x = json_number_value(a), y = json_number_value(b);
    bool same = json_array_size(a) == json_array_size(b);
    if (json_is_number(a) && json_is_number(b))
        return x >= y && x <= y;
    if (!json_is_array(a) || !json_is_array(b))
        return json_equal(a, b);
    for (size_t i = 0; same && i < json_array_size(a); i++)
        same = is_same(json_array_get(a, i), json_array_get(b, i));
    return same;
}

/* False: it has changed. What one of both does not have is no change. */
static bool tell(const struct dcp_log *log, const char *section, const char *key,
                 const json_t *was, const json_t *is)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    if (!was || !is || is_same(was, is))
        return true;
    dcp_buf_add_fmt(&text, "%s%s%s was ", section, section[0] ? "." : "", key);
    show(was, &text);
    dcp_buf_add_text(&text, " and is ");
    show(is, &text);
    if (!text.failed)
        dcp_log_write(log, DCP_LOG_WARN, "%s: training goes on with the new value",
                      (const char *)text.data);
    return false;
}

/* -- the schedule -------------------------------------------------------------------- */

static void tell_params(const struct dcp_log *log, const json_t *was, const json_t *is)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)is, key, value)
        tell(log, "scheduler.params", key, json_object_get(was, key), value);
}

/* Whether rates follow optimizer.params.lr, other than by way of a parameter. */
static bool follows_lr(enum settings_schedule type)
{
    return type == SCHEDULE_NONE || type == SCHEDULE_WARMUP_COSINE ||
           schedule_is_torch(type);
}

static const json_t *lr_of(const json_t *config)
{
    const json_t *optimizer = json_object_get(config, "optimizer");
    return json_object_get(json_object_get(optimizer, "params"), "lr");
}

/* The saved configuration with all defaults as they are in one of ours, so that both have
 * the same keys. Where it does not say the optimizer's rate or the steps to train, they
 * are what they are now. NULL: nobody here can read it. */
static json_t *complete(const json_t *saved, const json_t *now,
                        const struct settings *settings)
{
    const json_t *scheduler = json_object_get(saved, "scheduler");
    const json_t *lr = lr_of(saved);
    if (!json_is_number(lr))
        lr = lr_of(now);
    DCP_CLEANUP_JSON json_t *made =
        json_pack("{s:{s:s}, s:i, s:I, s:{s:{s:O*}}, s:O*}", "data", "train", "none",
                  "train_batch_size", 1, "steps", (json_int_t)settings->steps,
                  "optimizer", "params", "lr", lr, "scheduler", scheduler);
    DCP_CLEANUP_FREE char *text = made ? dcp_json_text(made, 0) : NULL;
    struct settings was;
    if (!text || settings_parse(text, strlen(text), "the checkpoint", "/", NULL, 1, NULL,
                                &was, NULL))
        return NULL;
    json_t *resolved = state_json_config(was.text);
    settings_fini(&was);
    return resolved;
}

static void compare_scheduler(const struct dcp_catalog *catalog,
                              const struct settings *settings, const json_t *saved,
                              const json_t *now, const struct dcp_log *log)
{
    DCP_CLEANUP_JSON json_t *state = state_json_object(catalog, DCP_TRAINING_SCHEDULER);
    if (state && !json_object_get(state, "type")) { /* made by the user's own code */
        tell_params(log, state, state_json_scheduler(now));
        return;
    }
    DCP_CLEANUP_JSON json_t *was = saved ? complete(saved, now, settings) : NULL;
    const json_t *had = json_object_get(was, "scheduler"),
                 *has = json_object_get(now, "scheduler");
    if (follows_lr(settings->scheduler.type))
        tell(log, "optimizer.params", "lr", lr_of(was), lr_of(now));
    if (tell(log, "scheduler", "type", json_object_get(had, "type"),
             json_object_get(has, "type")))
        tell_params(log, state_json_scheduler(was), state_json_scheduler(now));
}

/* -- the rest ------------------------------------------------------------------------ */

/* What decides what is learned; the schedule and the data have their own lines. */
static const char *const watched[][2] = {
    { "optimizer", "type" },
    { "optimizer", "params" },
    { "optimizer", "decay_all" },
    { "train_batch_size", NULL },
    { "gradient_clipping", NULL },
    { "stochastic_rounding", NULL },
    { "data_types", "grad_accum_dtype" },
};

/* What DeepSpeed was to find out itself is not known here. */
static bool is_auto(const json_t *value)
{
    return json_is_string(value) && !strcmp(json_string_value(value), "auto");
}

static void tell_watched(const struct dcp_log *log, const char *section, const char *key,
                         const json_t *was, const json_t *is)
{
    const char *name;
    json_t *value;
    char path[80];
    snprintf(path, sizeof path, "%s.%s", section, key);
    if (!json_is_object(is) && !is_auto(was))
        tell(log, section, key, was, is);
    json_object_foreach((json_t *)is, name, value)
    {
        const json_t *before = json_object_get(was, name);
        if (!is_auto(before) && strcmp(name, "lr") != 0)
            tell(log, path, name, before, value);
    }
}

/* A configuration that does not say is that of a run where nothing was quantized. */
static void compare_quantized(const struct dcp_log *log, const json_t *saved,
                              const struct settings *settings)
{
    const struct {
        const char *key;
        bool is;
    } rows[] = { { "zero_quantized_weights", settings->quantized_weights },
                 { "zero_quantized_gradients", settings->quantized_grads } };
    const json_t *zero = json_object_get(saved, "zero_optimization");
    for (size_t i = 0; saved && i < DCP_ARRAY_LEN(rows); i++) {
        bool was = json_is_true(json_object_get(zero, rows[i].key));
        tell(log, "zero_optimization", rows[i].key, json_boolean(was),
             json_boolean(rows[i].is));
    }
}

/* As the largest weight has it: which keys it came from does not matter. */
static void compare_dtype(const struct dcp_log *log, const struct dcp_catalog *catalog,
                          const struct settings *settings)
{
    const struct dcp_tensor *largest = NULL;
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (tensor->role == DCP_ROLE_MODEL &&
            (!largest || dcp_tensor_bytes(tensor) > dcp_tensor_bytes(largest)))
            largest = tensor;
    }
    if (largest && largest->dtype != settings->dtype)
        dcp_log_write(log, DCP_LOG_WARN,
                      "weights were %s and are %s: training goes on with the new dtype",
                      dcp_dtype_name(largest->dtype), dcp_dtype_name(settings->dtype));
}

void state_compare(const struct dcp_catalog *catalog, const struct settings *settings,
                   const struct dcp_log *log)
{
    DCP_CLEANUP_JSON json_t *saved =
        state_json_object(catalog, DCP_TRAINING_DEEPSPEED_CONFIG);
    DCP_CLEANUP_JSON json_t *now = state_json_config(settings->text);
    if (!now)
        return;
    for (size_t i = 0; i < DCP_ARRAY_LEN(watched); i++) {
        const char *section = watched[i][0], *key = watched[i][1];
        const json_t *was = json_object_get(saved, section),
                     *is = json_object_get(now, section);
        if (key)
            tell_watched(log, section, key, json_object_get(was, key),
                         json_object_get(is, key));
        else if (!is_auto(was))
            tell(log, "", section, was, is);
    }
    compare_quantized(log, saved, settings);
    if (saved)
        compare_dtype(log, catalog, settings);
    compare_scheduler(catalog, settings, saved, now, log);
}

int64_t state_saved_batch(const struct dcp_catalog *catalog)
{
    DCP_CLEANUP_JSON json_t *saved =
        state_json_object(catalog, DCP_TRAINING_DEEPSPEED_CONFIG);
    const json_t *batch = json_object_get(saved, "train_batch_size");
    return json_is_integer(batch) ? json_integer_value(batch) : 0;
}
