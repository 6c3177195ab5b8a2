/* keys: keys from roles and parameters, paths from keys. */
#include "keys.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/roles.h"
#include "formats/common/training.h"
#include <stdio.h>
#include <string.h>

#define STATE "state"
#define GROUPS "param_groups"

static const char *const style_names[DCP_TORCH_N_STYLES] = {
    [DCP_TORCH_STYLE_NEW] = "2.14",
    [DCP_TORCH_STYLE_2_6] = "2.6",
    [DCP_TORCH_STYLE_1_13] = "1.13",
};

static const char *const group_names[DCP_N_GROUPS] = {
    [DCP_GROUPS_NESTED] = "nested",
    [DCP_GROUPS_FLAT] = "flat",
    [DCP_GROUPS_WHOLE] = "whole",
    [DCP_GROUPS_NONE] = "none",
};

static const struct {
    enum dcp_role role;
    const char *key;
} state_keys[] = {
    { DCP_ROLE_EXP_AVG, "exp_avg" },
    { DCP_ROLE_EXP_AVG_SQ, "exp_avg_sq" },
    { DCP_ROLE_MASTER, "master" },
};

void dcp_keys_init(struct dcp_keys *keys)
{
    *keys = (struct dcp_keys){ .model = "model", .optim = "optim" };
}

void dcp_keys_fini(struct dcp_keys *keys)
{
    json_decref(keys->names);
    json_decref(keys->paths);
    json_decref(keys->items);
    json_decref(keys->attributes);
    *keys = (struct dcp_keys){ 0 };
}

/* -- the object ---------------------------------------------------------------------- */

static int take_text(struct dcp_catalog *catalog, const json_t *value, const char **out,
                     struct dcp_error *err)
{
    if (!json_is_string(value))
        return DCP_OK;
    *out = dcp_catalog_text(catalog, json_string_value(value));
    return *out ? DCP_OK : dcp_error_memory(err, "the keys of a checkpoint");
}

static void take_object(json_t *from, const char *name, json_t **out)
{
    json_t *value = json_object_get(from, name);

    if (json_is_object(value))
        *out = json_incref(value);
}

int dcp_keys_load(struct dcp_keys *keys, struct dcp_catalog *catalog,
                  struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *object = NULL;
    DCP_CLEANUP_JSON json_t *attributes = NULL;
    int rc = dcp_training_read(catalog, DCP_KEYS, &object, err);
    const char *style = json_string_value(json_object_get(object, "style"));
    const char *groups = json_string_value(json_object_get(object, "groups"));

    dcp_keys_init(keys);
    if (!rc)
        rc = dcp_training_read(catalog, DCP_ATTRIBUTES, &attributes, err);
    if (json_is_object(attributes))
        keys->attributes = json_incref(attributes);
    if (rc || !object)
        return rc;
    rc = take_text(catalog, json_object_get(object, "model"), &keys->model, err);
    if (!rc)
        rc = take_text(catalog, json_object_get(object, "optim"), &keys->optim, err);
    for (int g = 0; groups && g < DCP_N_GROUPS; g++)
        if (!strcmp(groups, group_names[g]))
            keys->groups = (enum dcp_keys_groups)g;
    keys->old_classes = json_object_get(object, "classes") != NULL;
    keys->is_dict = json_is_boolean(json_object_get(object, "nested"));
    keys->flat = json_is_false(json_object_get(object, "nested"));
    for (int s = 0; style && s < DCP_TORCH_N_STYLES; s++)
        if (!strcmp(style, style_names[s]))
            keys->style = (enum dcp_torch_style)s;
    take_object(object, "names", &keys->names);
    take_object(object, "paths", &keys->paths);
    take_object(object, "items", &keys->items);
    return rc;
}

/* Sets a member when it says something. */
static int put(json_t *object, const char *name, bool says, json_t *value)
{
    return says ? json_object_set(object, name, value) : 0;
}

int dcp_keys_save(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                  struct dcp_error *err)
{
    json_t *object = json_object();
    DCP_CLEANUP_JSON json_t *model = json_string(keys->model);
    DCP_CLEANUP_JSON json_t *optim = json_string(keys->optim);
    DCP_CLEANUP_JSON json_t *style = json_string(style_names[keys->style]);
    DCP_CLEANUP_JSON json_t *groups = json_string(group_names[keys->groups]);
    DCP_CLEANUP_JSON json_t *old = json_string("2.2");
    bool failed = !object || !model || !optim || !style || !groups || !old ||
                  put(object, "model", strcmp(keys->model, "model") != 0, model) ||
                  put(object, "optim", strcmp(keys->optim, "optim") != 0, optim) ||
                  put(object, "groups", keys->groups != DCP_GROUPS_NESTED, groups) ||
                  put(object, "nested", keys->is_dict, json_boolean(!keys->flat)) ||
                  put(object, "style", keys->style != DCP_TORCH_STYLE_NEW, style) ||
                  put(object, "classes", keys->old_classes, old) ||
                  put(object, "names", json_object_size(keys->names), keys->names) ||
                  put(object, "paths", json_object_size(keys->paths), keys->paths) ||
                  put(object, "items", json_object_size(keys->items), keys->items);

    if (failed || !json_object_size(object)) {
        json_decref(object);
        if (failed)
            return dcp_error_memory(err, "the keys of a checkpoint");
    } else {
        DCP_TRY(dcp_training_add(catalog, DCP_KEYS, object, err));
    }
    return json_object_size(keys->attributes)
               ? dcp_training_add(catalog, DCP_ATTRIBUTES, json_incref(keys->attributes),
                                  err)
               : DCP_OK;
}

/* -- keys ---------------------------------------------------------------------------- */

const char *dcp_keys_inside(const char *container, const char *key)
{
    size_t n = strlen(container);

    if (!n)
        return key;
    return !strncmp(key, container, n) && key[n] == '.' && key[n + 1] ? key + n + 1
                                                                      : NULL;
}

const char *dcp_keys_join(struct dcp_catalog *catalog, const char *container,
                          const char *rest)
{
    size_t n = strlen(container) + strlen(rest) + 2;
    char *key = dcp_catalog_alloc(catalog, n, 1);

    if (key)
        snprintf(key, n, "%s%s%s", container, container[0] ? "." : "", rest);
    return key;
}

static const char *state_key(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                             const struct dcp_tensor *tensor)
{
    const char *key = NULL;
    size_t key_n = 0, n;

    for (size_t i = 0; i < DCP_ARRAY_LEN(state_keys); i++)
        if (state_keys[i].role == tensor->role)
            key = state_keys[i].key;
    if (key)
        key_n = strlen(key);
    else
        dcp_roles_key(tensor, &key, &key_n);
    if (!key_n) /* it belongs to no parameter */
        return dcp_catalog_text(catalog, tensor->name);
    n = strlen(keys->optim) + strlen(tensor->param) + key_n + sizeof "." STATE "..";
    char *made = dcp_catalog_alloc(catalog, n, 1);
    if (made)
        snprintf(made, n, "%s%s" STATE ".%s.%.*s", keys->optim, keys->optim[0] ? "." : "",
                 tensor->param, (int)key_n, key);
    return made;
}

const char *dcp_keys_made(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                          const struct dcp_tensor *tensor)
{
    if (dcp_role_is_optim(tensor->role))
        return state_key(keys, catalog, tensor);
    return tensor->role == DCP_ROLE_OTHER
               ? dcp_catalog_text(catalog, tensor->name)
               : dcp_keys_join(catalog, keys->model, tensor->param);
}

const char *dcp_keys_real(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                          const struct dcp_tensor *tensor)
{
    const char *made = dcp_keys_made(keys, catalog, tensor);
    const char *real =
        made ? json_string_value(json_object_get(keys->names, made)) : NULL;

    return real ? dcp_catalog_text(catalog, real) : made;
}

bool dcp_keys_learn_name(struct dcp_keys *keys, const char *made, const char *real)
{
    if (!strcmp(made, real))
        return true;
    if (!keys->names)
        keys->names = json_object();
    return !json_object_set_new(keys->names, made, json_string(real));
}

bool dcp_keys_learn_item(struct dcp_keys *keys, const char *object, const char *what)
{
    if (!keys->items)
        keys->items = json_object();
    return !json_object_set_new(keys->items, object, json_string(what));
}

/* -- paths --------------------------------------------------------------------------- */

static bool is_number(const char *text, size_t n)
{
    return n && n < 10 && strspn(text, "0123456789") >= n && (n == 1 || text[0] != '0');
}

/* Marks the dot at path[at]. */
static void mark(const char *key, char *path, size_t at, bool may_be_index)
{
    size_t n = strcspn(key + at + 1, ".");

    path[at] = may_be_index && is_number(key + at + 1, n) ? DCP_PATH_INDEX : DCP_PATH_KEY;
}

/* Marks all dots in front of `end`. */
static void mark_all(const char *key, char *path, size_t end)
{
    for (size_t at = 0; at < end; at++)
        if (key[at] == '.')
            mark(key, path, at, true);
}

/* The path that the key tells, with its marks; `path` has room for the key.
 * is_weight: it stands in the model's container. */
static void guess_path(const struct dcp_keys *keys, const char *key, bool is_weight,
                       char *path)
{
    const char *rest = dcp_keys_inside(keys->optim, key), *last = strrchr(key, '.');
    bool state = rest && dcp_str_starts(rest, STATE "."),
         groups = rest && dcp_str_starts(rest, GROUPS ".");

    memcpy(path, key, strlen(key) + 1);
    if (!state && !groups) {
        rest = is_weight ? dcp_keys_inside(keys->model, key) : key + strlen(key);
        if (rest && rest > key) {
            mark_all(key, path, (size_t)(rest - key) - is_weight);
            if (is_weight) /* what follows is one part, whatever it begins with */
                mark(key, path, (size_t)(rest - key) - 1, false);
        }
        return;
    }
    mark_all(key, path, (size_t)(rest - key));
    if (keys->groups == DCP_GROUPS_FLAT)
        return;
    size_t at = (size_t)(rest - key) + strlen(state ? STATE : GROUPS);
    mark(key, path, at, groups);
    if (groups)
        at += 1 + strcspn(key + at + 1, ".");
    else
        at = last > key + at ? (size_t)(last - key) : strlen(key);
    if (key[at])
        mark(key, path, at, false);
}

/* ["a", 0, "b"] as a path, when it gives the key; else NULL. */
static char *path_of_json(struct dcp_catalog *catalog, const char *key, json_t *parts)
{
    size_t n = strlen(key), at = 0, i;
    char *path = dcp_catalog_alloc(catalog, n + 1, 1);
    json_t *part;

    json_array_foreach(parts, i, part)
    {
        char digits[24];
        const char *text = json_string_value(part);
        if (!text)
            snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(part));
        text = text ? text : digits;
        size_t len = strlen(text);
        if (!path || n - at < len + (i > 0))
            return NULL;
        if (i > 0)
            path[at++] = json_is_string(part) ? DCP_PATH_KEY : DCP_PATH_INDEX;
        memcpy(path + at, text, len);
        at += len;
    }
    return at == n ? path : NULL;
}

const char *dcp_keys_path(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                          const char *key, bool is_weight)
{
    json_t *known = json_object_get(keys->paths, key);
    char *path = json_is_array(known) ? path_of_json(catalog, key, known) : NULL;

    if (path)
        return path;
    path = dcp_catalog_alloc(catalog, strlen(key) + 1, 1);
    if (path)
        guess_path(keys, key, is_weight, path);
    return path;
}

static json_t *path_to_json(const char *path)
{
    static const char marks[] = { DCP_PATH_KEY, DCP_PATH_INDEX, '\0' };
    json_t *parts = json_array();
    bool index = false;

    for (const char *at = path; parts;) {
        size_t n = strcspn(at, marks);
        json_t *part = index ? json_integer(strtoll(at, NULL, 10)) : json_stringn(at, n);
        if (!part || json_array_append_new(parts, part)) {
            json_decref(parts);
            return NULL;
        }
        if (!at[n])
            break;
        index = at[n] == DCP_PATH_INDEX;
        at += n + 1;
    }
    return parts;
}

bool dcp_keys_learn_path(struct dcp_keys *keys, const char *key, const char *path,
                         bool is_weight)
{
    DCP_CLEANUP_FREE char *guess = malloc(strlen(key) + 1);

    if (!guess)
        return false;
    guess_path(keys, key, is_weight, guess);
    if (!strcmp(guess, path))
        return true;
    if (!keys->paths)
        keys->paths = json_object();
    return !json_object_set_new(keys->paths, key, path_to_json(path));
}
