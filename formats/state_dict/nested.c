/* nested: a tree of paths. */
#include "nested.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include "formats/torch/torch.h"
#include "out.h"
#include <stdlib.h>
#include <string.h>

static const char marks[] = { DCP_PATH_KEY, DCP_PATH_INDEX, '\0' };

/* The container's member under a part of a path, which takes `fresh` where nothing is.
 * NULL: they do not go together. */
static json_t *member(json_t *container, const char *part, size_t n, bool index,
                      json_t *fresh)
{
    DCP_CLEANUP_JSON json_t *made = fresh;
    DCP_CLEANUP_FREE char *key = strndup(part, n);

    if (!key || !made || dcp_py_tag(container) ||
        (index ? !json_is_array(container) : !json_is_object(container)))
        return NULL;
    if (!index) {
        json_t *known = json_object_get(container, key);
        /* No key may look like a tag, nor be none. */
        return known                                   ? known
               : !n || dcp_py_is_tag(key)              ? NULL
               : json_object_set(container, key, made) ? NULL
                                                       : made;
    }
    size_t at = (size_t)strtoull(key, NULL, 10);
    if (at > json_array_size(container) + DCP_TORCH_MAX_OBJECTS)
        return NULL;
    while (json_array_size(container) <= at)
        if (json_array_append(container, json_null()))
            return NULL;
    if (json_is_null(json_array_get(container, at)) &&
        json_array_set(container, at, made))
        return NULL;
    return json_array_get(container, at);
}

/* Takes the value. */
static bool put(json_t *root, const char *path, json_t *value)
{
    bool index = false, put = false;

    for (const char *at = path; root && value; index = at[-1] == DCP_PATH_INDEX) {
        size_t n = strcspn(at, marks);
        json_t *fresh = !at[n]                    ? json_incref(value)
                        : at[n] == DCP_PATH_INDEX ? json_array()
                                                  : json_object();
        root = member(root, at, n, index, fresh);
        put = !at[n] && root == value;
        if (!at[n])
            break;
        at += n + 1;
    }
    json_decref(value);
    return put;
}

/* Takes the value. What no container can take, as a tensor's own attribute, stands at the
 * root under its whole key. */
static bool place(json_t *root, const struct dcp_out_key *key, bool flat, json_t *value)
{
    bool placed =
        put(root, flat ? key->key : key->path, value ? json_incref(value) : NULL);

    if (placed)
        json_decref(value);
    return placed || put(root, key->key, value);
}

/* What stands for a key: a tensor, an object that is no JSON, or the value itself. */
static json_t *leaf(const struct dcp_out *out, const struct dcp_out_key *key)
{
    const struct dcp_catalog *catalog = out->catalog;
    const char *json = key->tensor < 0 ? out->items[key->item].json : NULL;

    if (key->tensor >= 0)
        return dcp_py_name(DCP_PY_TENSOR, dcp_catalog_find(catalog, key->key) >= 0
                                              ? key->key
                                              : catalog->tensors[key->tensor].name);
    if (key->is_step) /* PyTorch's optimizers take numbers too */
        return json_real((double)out->items[key->item].step);
    return json ? json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                : dcp_py_name(DCP_PY_VALUE, key->key);
}

/* -- numbers of optimizers ----------------------------------------------------------- */

/* A value, or what its name stands for; to be freed. */
static int read_value(const struct dcp_catalog *catalog, json_t *value, json_t **out,
                      struct dcp_error *err)
{
    const char *name = dcp_py_value(value);

    if (name)
        return dcp_training_read(catalog, name, out, err);
    *out = json_incref(value);
    return DCP_OK;
}

/* Whether all groups have numbers for their weights. */
static int have_numbers(const struct dcp_catalog *catalog, json_t *value, bool *out,
                        struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *groups = NULL;
    json_t *group, *param;
    size_t g, i, n = 0;

    *out = false;
    DCP_TRY(read_value(catalog, value, &groups, err));
    json_array_foreach(groups, g, group)
    {
        DCP_CLEANUP_JSON json_t *params = NULL;
        DCP_TRY(read_value(catalog, json_object_get(group, "params"), &params, err));
        json_array_foreach(params, i, param)
        {
            if (!json_is_integer(param))
                return DCP_OK;
            n++;
        }
    }
    *out = n > 0;
    return DCP_OK;
}

/* The dict with numbers in place of the texts of such; NULL: of another text, or out of
 * memory. */
static json_t *numbered(const json_t *states)
{
    json_t *pairs = json_array();
    const char *key;
    json_t *state;

    json_object_foreach((json_t *)states, key, state)
    {
        size_t n = strlen(key);
        if (n > 9 || strspn(key, "0123456789") != n ||
            json_array_append_new(
                pairs, json_pack("[I, O]", (json_int_t)strtoll(key, NULL, 10), state))) {
            json_decref(pairs);
            return NULL;
        }
    }
    return dcp_py_new(DCP_PY_DICT, pairs);
}

/* PyTorch's planner makes texts of the numbers that stand for weights, by which no
 * optimizer finds its state. */
static int number_states(struct dcp_catalog *catalog, json_t *value,
                         struct dcp_error *err)
{
    json_t *states = json_object_get(value, "state"), *part, *made;
    const char *key;
    size_t i;
    bool any;

    json_array_foreach(value, i, part)
    {
        DCP_TRY(number_states(catalog, part, err));
    }
    json_object_foreach(value, key, part)
    {
        DCP_TRY(number_states(catalog, part, err));
    }
    if (!json_object_size(states) || !dcp_py_is_dict(states))
        return DCP_OK;
    DCP_TRY(have_numbers(catalog, json_object_get(value, "param_groups"), &any, err));
    made = any ? numbered(states) : NULL;
    return made && json_object_set_new(value, "state", made)
               ? dcp_error_memory(err, "a PyTorch file")
               : DCP_OK;
}

int dcp_nested_make(struct dcp_catalog *catalog, json_t **out, struct dcp_error *err)
{
    DCP_CLEANUP_OUT struct dcp_out made = { 0 };
    DCP_CLEANUP_KEYS struct dcp_keys keys = { 0 };
    int rc = dcp_keys_load(&keys, catalog, err);

    *out = NULL;
    if (rc || !keys.is_dict)
        return rc;
    DCP_TRY(dcp_out_make(catalog, NULL, "a file of torch.save", &made, err));
    json_t *root = json_object();
    for (size_t k = 0; k < made.n && root; k++)
        if (!place(root, &made.list[k], keys.flat, leaf(&made, &made.list[k]))) {
            json_decref(root);
            root = NULL;
        }
    rc = root ? number_states(catalog, root, err) : DCP_OK;
    if (rc) {
        json_decref(root);
        root = NULL;
    }
    *out = root;
    return rc;
}
