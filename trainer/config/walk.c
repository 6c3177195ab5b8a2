/* walk: reads a JSON object by the table of keys. */
#include "draft.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { SHOWN_CAP = 96, MAX_KEYS = 128 };

#define MAX_IDLE 96 /* keys of a section */

static void *value_at(struct settings_draft *draft, const struct settings_key *key)
{
    return (char *)draft + key->at;
}

/* Stores a number in the field of a key. It is in the key's range. */
static void store(struct settings_draft *draft, const struct settings_key *key,
                  double number)
{
    void *at = value_at(draft, key);
    switch (key->kind) {
    case KEY_FLAG:
        *(bool *)at = number != 0;
        break;
    case KEY_SWITCH:
    case KEY_INT:
    case KEY_CHOICE:
    case KEY_DTYPE:
    case KEY_LAYERS:
        *(int *)at = (int)number;
        break;
    case KEY_LONG:
        *(int64_t *)at = (int64_t)number;
        break;
    case KEY_SEED:
    case KEY_SIZE:
        *(uint64_t *)at = (uint64_t)number;
        break;
    case KEY_REAL:
        *(double *)at = number;
        break;
    case KEY_PAIR:
    case KEY_TRIPLE:
    case KEY_TEXT:
    case KEY_SECTION:
    case KEY_ANY:
        break;
    }
}

static int store_text(struct settings_draft *draft, const struct settings_key *key,
                      const char *text, struct dcp_error *err)
{
    char **at = value_at(draft, key), *copy = strdup(text);
    if (!copy)
        return dcp_error_memory(err, "the configuration");
    free(*at);
    *at = copy;
    return DCP_OK;
}

int settings_set_defaults(struct settings_draft *draft, const struct settings_key *keys,
                          struct dcp_error *err)
{
    for (const struct settings_key *key = keys; key->name; key++) {
        if (key->kind == KEY_SECTION)
            DCP_TRY(settings_set_defaults(draft, key->keys, err));
        else if (key->use != KEY_USED)
            continue;
        else if (key->kind == KEY_TEXT && key->text)
            DCP_TRY(store_text(draft, key, key->text, err));
        else
            store(draft, key, key->fallback);
    }
    return DCP_OK;
}

static void join(char out[SETTINGS_PATH_CAP], const char *path, const char *name)
{
    snprintf(out, SETTINGS_PATH_CAP, "%s%s%s", path, *path ? "." : "", name);
}

/* A value as it stood in the file, escaped and cut. */
static char *show(const json_t *value, char out[SHOWN_CAP])
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    dcp_str_escape(out, SHOWN_CAP, text ? text : "something else");
    free(text);
    return out;
}

/* "FILE: 'path' is VALUE; it must be WANTED". */
static int wrong(const struct settings_draft *draft, const char *path,
                 const json_t *value, const char *wanted, struct dcp_error *err)
{
    char shown[SHOWN_CAP];
    return dcp_error_set(err, DCP_E_USAGE, "%s: '%s' is %s; it must be %s", draft->what,
                         path, show(value, shown), wanted);
}

static const struct settings_key *find_key(const struct settings_key *keys,
                                           const char *name)
{
    for (const struct settings_key *key = keys; key->name; key++)
        if (strcmp(key->name, name) == 0)
            return key;
    return NULL;
}

/* An unknown key is an error in a section, as in DeepSpeed. At the top, where DeepSpeed
 * ignores it, it is a warning, unless it can only be a slip or is an override. */
static int unknown_key(const struct settings_draft *draft,
                       const struct settings_key *keys, const char *path,
                       const char *name, bool is_override, struct dcp_error *err)
{
    const char *names[MAX_KEYS];
    size_t n = 0;
    for (const struct settings_key *key = keys; key->name && n + 1 < MAX_KEYS; key++)
        names[n++] = key->name;
    names[n] = NULL;
    const char *slip = dcp_str_slip(name, names);
    const char *nearest = slip ? slip : dcp_str_nearest(name, names);
    const char *dot = *path ? "." : "";
    char shown[SHOWN_CAP];
    dcp_str_escape(shown, sizeof shown, name);
    if (!*path && !slip && !is_override) {
        dcp_log_write(draft->log, DCP_LOG_WARN, "%s: unknown key '%s' is ignored",
                      draft->what, shown);
        return DCP_OK;
    }
    dcp_error_set(err, DCP_E_USAGE, "%s: unknown key '%s%s%s'",
                  is_override ? "--set" : draft->what, path, dot, shown);
    if (nearest)
        dcp_error_hint(err, "did you mean '%s%s%s'?", path, dot, nearest);
    else
        dcp_error_hint(err, "'dcp-train --help-config' lists all keys");
    return DCP_E_USAGE;
}

int settings_check_override(const struct settings_draft *draft, const char *text,
                            struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *name = strndup(text, strcspn(text, ".="));
    if (!name)
        return dcp_error_memory(err, "the configuration");
    return find_key(settings_root, name)
               ? DCP_OK
               : unknown_key(draft, settings_root, "", name, true, err);
}

/* Whether a value asks for nothing: see settings_use. */
static bool is_off(const struct settings_key *key, const json_t *value)
{
    const char *text = json_string_value(value);
    if (json_is_boolean(value))
        return json_is_true(value) == (key->fallback != 0);
    if (text && strcasecmp(text, "none") == 0)
        return true;
    if (json_is_number(value))
        return json_number_value(value) == (isnan(key->fallback) ? 0 : key->fallback);
    if (text && key->kind == KEY_CHOICE)
        return strcasecmp(text, key->choices[(int)key->fallback]) == 0;
    if (!json_is_object(value))
        return false;
    const json_t *enabled = json_object_get(value, "enabled");
    return json_object_size(value) == 0 || (enabled && !json_is_true(enabled));
}

static int rejected(const struct settings_draft *draft, const struct settings_key *key,
                    const char *path, const json_t *value, struct dcp_error *err)
{
    char shown[SHOWN_CAP];
    dcp_error_set(err, DCP_E_UNSUPPORTED, "%s: '%s' is %s, but %s", draft->what, path,
                  json_is_object(value) ? "enabled" : show(value, shown), key->why);
    if (key->hint)
        dcp_error_hint(err, "%s", key->hint);
    return DCP_E_UNSUPPORTED;
}

static int read_flag(const struct settings_draft *draft, const char *path,
                     const json_t *value, double *out, struct dcp_error *err)
{
    *out = json_is_true(value);
    if (json_is_boolean(value))
        return DCP_OK;
    *out = json_number_value(value);
    if (json_is_number(value) && (*out == 0 || *out == 1))
        return DCP_OK;
    return wrong(draft, path, value, "true or false", err);
}

/* Written again, -0 would be another number. */
static double number_of(const json_t *value)
{
    return json_number_value(value) + 0.0;
}

/* Numbers of all kinds. Whole ones may be written as 5e8. */
static int read_number(const struct settings_draft *draft, const struct settings_key *key,
                       const char *path, const json_t *value, double *out,
                       struct dcp_error *err)
{
    bool whole = key->kind != KEY_REAL;
    double max = key->max;
    if (max == 0)
        max = key->kind == KEY_INT ? INT_MAX : whole ? 0x1p53 : HUGE_VAL;
    *out = number_of(value);
    if (json_is_number(value) && *out >= key->min && *out <= max && isfinite(*out) &&
        (!whole || *out == floor(*out)))
        return DCP_OK;
    char wanted[96];
    const char *kind = whole ? "a whole number" : "a number";
    if (isinf(max))
        snprintf(wanted, sizeof wanted, "%s, %g or more", kind, key->min);
    else
        snprintf(wanted, sizeof wanted, "%s from %g to %.16g", kind, key->min, max);
    return wrong(draft, path, value, wanted, err);
}

static int read_size(const struct settings_draft *draft, const struct settings_key *key,
                     const char *path, const json_t *value, double *out,
                     struct dcp_error *err)
{
    uint64_t size = 0;
    if (!json_is_string(value))
        return read_number(draft, key, path, value, out, err);
    if (!dcp_str_parse_size(json_string_value(value), &size) || size > UINT64_C(1) << 53)
        return wrong(draft, path, value, "a size such as 64M or 1.5G", err);
    *out = (double)size;
    return DCP_OK;
}

static int read_choice(const struct settings_draft *draft, const struct settings_key *key,
                       const char *path, const json_t *value, double *out,
                       struct dcp_error *err)
{
    const char *text = json_string_value(value);
    DCP_CLEANUP_BUF struct dcp_buf list = { 0 };
    for (int i = 0; key->choices[i]; i++) {
        *out = i;
        if (text && strcasecmp(text, key->choices[i]) == 0)
            return DCP_OK;
        const char *between = !i ? "" : key->choices[i + 1] ? ", " : " or ";
        dcp_buf_add_fmt(&list, "%s%s", between, key->choices[i]);
    }
    DCP_TRY(dcp_buf_check(&list, err));
    const char *wanted = (const char *)list.data;
    if (!text || !key->why || key->use == KEY_REJECTED)
        return wrong(draft, path, value, wanted, err);
    int rc = rejected(draft, key, path, value, err);
    const char *nearest = dcp_str_nearest(text, key->choices);
    if (nearest)
        dcp_error_hint(err, "did you mean %s?", nearest);
    else
        dcp_error_hint(err, "it can be %s", wanted);
    return rc;
}

static int read_dtype(const struct settings_draft *draft, const char *path,
                      const json_t *value, double *out, struct dcp_error *err)
{
    const char *text = json_string_value(value);
    if (text && dcp_str_starts(text, "torch."))
        text += strlen("torch.");
    int dtype = text ? dcp_dtype_parse(text) : -1;
    if (dtype < 0)
        return wrong(draft, path, value, "fp32, bf16 or fp16", err);
    *out = dtype;
    return DCP_OK;
}

static int read_layers(const struct settings_draft *draft, const char *path,
                       const json_t *value, double *out, struct dcp_error *err)
{
    static const struct {
        const char *name;
        enum settings_layers layers;
    } names[] = { { "none", LAYERS_NONE },
                  { "full", LAYERS_ALL },
                  { "selective", LAYERS_SELECTIVE } };
    const char *text = json_string_value(value);
    *out = json_is_true(value) ? LAYERS_ALL : number_of(value);
    if (json_is_boolean(value) ||
        (json_is_number(value) && *out >= 0 && *out <= INT_MAX && *out == floor(*out)))
        return DCP_OK;
    for (size_t i = 0; text && i < DCP_ARRAY_LEN(names); i++) {
        *out = names[i].layers;
        if (strcasecmp(text, names[i].name) == 0)
            return DCP_OK;
    }
    return wrong(draft, path, value,
                 "none, full, selective, or n to keep the input of every n-th layer",
                 err);
}

static int read_pair(struct settings_draft *draft, const struct settings_key *key,
                     const char *path, const json_t *value, struct dcp_error *err)
{
    double *out = value_at(draft, key);
    bool ok = json_is_array(value) && json_array_size(value) == 2;
    for (size_t i = 0; ok && i < 2; i++) {
        const json_t *item = json_array_get(value, i);
        bool none = json_is_null(item) && isnan(key->fallback);
        out[i] = none ? (double)NAN : number_of(item);
        ok = none || (json_is_number(item) && out[i] >= 0 && out[i] < 1);
    }
    return ok ? DCP_OK
              : wrong(draft, path, value, "two numbers from 0 to below 1 in [ ]", err);
}

static int read_triple(struct settings_draft *draft, const struct settings_key *key,
                       const char *path, const json_t *value, struct dcp_error *err)
{
    double *out = value_at(draft, key);
    bool ok = json_is_array(value) && json_array_size(value) == 3;
    for (size_t i = 0; ok && i < 3; i++) {
        out[i] = number_of(json_array_get(value, i));
        ok = json_is_number(json_array_get(value, i)) && isfinite(out[i]);
    }
    return ok ? DCP_OK : wrong(draft, path, value, "three numbers in [ ]", err);
}

/* Checks the value of a key that is no section, and stores it when it is used. */
static int read_value(struct settings_draft *draft, const struct settings_key *key,
                      const char *path, const json_t *value, struct dcp_error *err)
{
    double number = 0;
    switch (key->kind) {
    case KEY_FLAG:
    case KEY_SWITCH:
        DCP_TRY(read_flag(draft, path, value, &number, err));
        break;
    case KEY_INT:
    case KEY_LONG:
    case KEY_SEED:
    case KEY_REAL:
        DCP_TRY(read_number(draft, key, path, value, &number, err));
        break;
    case KEY_SIZE:
        DCP_TRY(read_size(draft, key, path, value, &number, err));
        break;
    case KEY_CHOICE:
        DCP_TRY(read_choice(draft, key, path, value, &number, err));
        break;
    case KEY_DTYPE:
        DCP_TRY(read_dtype(draft, path, value, &number, err));
        break;
    case KEY_LAYERS:
        DCP_TRY(read_layers(draft, path, value, &number, err));
        break;
    case KEY_PAIR:
        return read_pair(draft, key, path, value, err);
    case KEY_TRIPLE:
        return read_triple(draft, key, path, value, err);
    case KEY_TEXT:
        if (!json_is_string(value))
            return wrong(draft, path, value, "a text", err);
        if (key->use == KEY_USED)
            return store_text(draft, key, json_string_value(value), err);
        break;
    case KEY_SECTION:
    case KEY_ANY:
        break;
    }
    if (key->use == KEY_USED)
        store(draft, key, number);
    if (key->use == KEY_REJECTED && !is_off(key, value))
        return rejected(draft, key, path, value, err);
    return DCP_OK;
}

static int other_class(const struct settings_draft *draft, const char *section, int type,
                       const char *path, struct dcp_error *err)
{
    const struct settings_key *key =
        find_key(find_key(settings_root, section)->keys, "type");
    return dcp_error_set(err, DCP_E_USAGE, "%s: '%s' is no parameter of %s", draft->what,
                         path, key->choices[type]);
}

static bool is_other_optimizers(const struct settings_draft *draft,
                                const struct settings_key *key)
{
    return key->only_optims && !(key->only_optims & 1u << draft->optimizer);
}

bool settings_is_others(const struct settings_draft *draft,
                        const struct settings_key *key)
{
    return is_other_optimizers(draft, key) ||
           (key->only && !(key->only & 1u << draft->schedule));
}

/* Whether another row of that name is the one that counts. */
static bool is_told_elsewhere(const struct settings_draft *draft,
                              const struct settings_key *keys,
                              const struct settings_key *key)
{
    if (!is_other_optimizers(draft, key))
        return false;
    for (const struct settings_key *other = keys; other->name; other++)
        if (other != key && strcmp(other->name, key->name) == 0 &&
            (other < key || !is_other_optimizers(draft, other)))
            return true;
    return false;
}

/* A parameter of another schedule or optimizer is one that DeepSpeed's or PyTorch's class
 * would not take. */
static int check_class(const struct settings_draft *draft, const struct settings_key *key,
                       const char *path, struct dcp_error *err)
{
    if (is_other_optimizers(draft, key))
        return other_class(draft, "optimizer", draft->optimizer, path, err);
    if (!key->only || draft->schedule == SCHEDULE_NONE ||
        key->only & 1u << draft->schedule)
        return DCP_OK;
    return other_class(draft, "scheduler", draft->schedule, path, err);
}

/* Whoever says "auto" of a switch wants it set for them, not off. */
static bool is_off_by_default(const struct settings_key *key)
{
    return key->no_auto || (key->kind == KEY_FLAG && key->fallback == 0) ||
           (key->kind == KEY_CHOICE && key->fallback >= 0 &&
            strcmp(key->choices[(int)key->fallback], "none") == 0) ||
           (key->kind == KEY_TEXT && !key->text);
}

static int read_auto(struct settings_draft *draft, const struct settings_key *key,
                     const char *path, struct dcp_error *err)
{
    if (key->auto_by) {
        dcp_log_write(
            draft->log, DCP_LOG_WARN,
            "%s: '%s' is \"auto\", which %s: it is off here; --set %s=true turns "
            "it on",
            draft->what, path, key->auto_by, path);
        return DCP_OK;
    }
    if (key->use == KEY_USED && is_off_by_default(key)) {
        dcp_error_set(err, DCP_E_USAGE,
                      "%s: '%s' is \"auto\", and nothing here can choose it: it would be "
                      "off",
                      draft->what, path);
        dcp_error_hint(err, "give a value, or leave it out");
        return DCP_E_USAGE;
    }
    if (key->use != KEY_USED || draft->n_autos == SETTINGS_MAX_AUTOS)
        return DCP_OK;
    draft->autos[draft->n_autos].key = key;
    snprintf(draft->autos[draft->n_autos].path, sizeof draft->autos[0].path, "%s", path);
    draft->n_autos++;
    return DCP_OK;
}

bool settings_was_auto(const struct settings_draft *draft, const char *path)
{
    for (size_t i = 0; i < draft->n_autos; i++)
        if (strcmp(draft->autos[i].path, path) == 0)
            return true;
    return false;
}

/* One key of an object. Names of keys without effect are added to `idle`. */
static int read_key(struct settings_draft *draft, const struct settings_key *key,
                    const json_t *value, const char *path, bool *out_idle,
                    struct dcp_error *err)
{
    const char *text = json_string_value(value);
    if (json_is_null(value))
        return DCP_OK;
    if (key->kind == KEY_SECTION) {
        if (key->or_flag && json_is_boolean(value)) {
            *(bool *)value_at(draft, key) = json_is_true(value);
            return DCP_OK;
        }
        if (!json_is_object(value))
            return wrong(draft, path, value,
                         key->or_flag ? "an object { }, true or false" : "an object { }",
                         err);
        return settings_walk(draft, key->keys, value, path, err);
    }
    DCP_TRY(check_class(draft, key, path, err));
    if (text && strcmp(text, "auto") == 0)
        return read_auto(draft, key, path, err);
    DCP_TRY(read_value(draft, key, path, value, err));
    *out_idle = key->use == KEY_NO_EFFECT && !is_off(key, value);
    return DCP_OK;
}

/* Names a section's keys that have no effect, in a line for each reason. */
static int tell_idle(const struct settings_draft *draft,
                     const struct settings_key *const *idle, size_t n, const char *path,
                     struct dcp_error *err)
{
    const char *why;
    for (size_t r = 0; (why = settings_reason_at(r)); r++) {
        DCP_CLEANUP_BUF struct dcp_buf list = { 0 };
        for (size_t i = 0; i < n; i++)
            if (settings_reason(idle[i]->name) == why)
                dcp_buf_add_fmt(&list, "%s%s", list.size_bytes ? ", " : "",
                                idle[i]->name);
        if (!list.size_bytes)
            continue;
        DCP_TRY(dcp_buf_check(&list, err));
        dcp_log_write(draft->log, DCP_LOG_WARN, "%s: %s%swithout effect here: %s: %s",
                      draft->what, path, *path ? ": " : "", (const char *)list.data, why);
    }
    return DCP_OK;
}

/* A section that can be enabled and is not: its other keys mean nothing anywhere. */
static bool is_disabled(const struct settings_key *keys, const json_t *object)
{
    return find_key(keys, "enabled") && !json_is_true(json_object_get(object, "enabled"));
}

int settings_walk(struct settings_draft *draft, const struct settings_key *keys,
                  const json_t *object, const char *path, struct dcp_error *err)
{
    const struct settings_key *idle[MAX_IDLE];
    size_t n_idle = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        if (!find_key(keys, name))
            DCP_TRY(unknown_key(draft, keys, path, name, false, err));
    }
    for (const struct settings_key *key = keys; key->name; key++) {
        char inner[SETTINGS_PATH_CAP];
        join(inner, path, key->name);
        bool is_idle = false;
        value = json_object_get(object, key->name);
        if (value && !is_told_elsewhere(draft, keys, key))
            DCP_TRY(read_key(draft, key, value, inner, &is_idle, err));
        if (is_idle && n_idle < MAX_IDLE)
            idle[n_idle++] = key;
    }
    return is_disabled(keys, object) ? DCP_OK : tell_idle(draft, idle, n_idle, path, err);
}
