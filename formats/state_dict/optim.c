/* optim: groups of parameters, nested, flat and whole. */
#include "optim.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include <stdio.h>
#include <string.h>

#define GROUPS "param_groups."

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "groups of parameters");
}

/* What follows "P.param_groups." in an entry's name, or NULL. */
static const char *option_of(const struct dcp_keys *keys, const struct dcp_entry *entry)
{
    const char *rest = dcp_keys_inside(keys->optim, entry->name);

    return rest && dcp_str_starts(rest, GROUPS) && !entry->taken
               ? rest + sizeof GROUPS - 1
               : NULL;
}

/* betas is a list there, and a tuple in PyTorch; so in both directions. */
static json_t *to_canonical(const char *option, json_t *value)
{
    return json_incref(strcmp(option, "betas") ? value : dcp_py_untuple(value));
}

static json_t *from_canonical(const char *option, json_t *value)
{
    if (strcmp(option, "betas") != 0 || !json_is_array(value))
        return json_incref(value);
    return dcp_py_new(DCP_PY_TUPLE, json_incref(value));
}

/* -- nested -------------------------------------------------------------------------- */

static bool is_names(json_t *value)
{
    json_t *item;
    size_t i;

    json_array_foreach(value, i, item)
    {
        if (!json_is_string(item))
            return false;
    }
    return json_is_array(value);
}

/* Groups that stand there with their lists of parameters. */
static int nested_groups(const struct dcp_keys *keys, struct dcp_entry *entries, size_t n,
                         json_t *groups, bool *out_all, struct dcp_error *err)
{
    for (size_t i = 0; i < n && *out_all; i++) {
        const char *rest = option_of(keys, &entries[i]), *option = "";
        int64_t group = rest ? dcp_training_group(rest, &option) : -1;
        if (!rest)
            continue;
        bool params = !strcmp(option, "params");
        *out_all = group >= 0 && entries[i].value && !strchr(option, '.') &&
                   (!params || is_names(entries[i].value));
        while (*out_all && json_array_size(groups) <= (size_t)group)
            if (json_array_append_new(groups, json_object()))
                return no_memory(err);
        if (*out_all && json_object_set_new(json_array_get(groups, (size_t)group), option,
                                            to_canonical(option, entries[i].value)))
            return no_memory(err);
    }
    for (size_t g = 0; g < json_array_size(groups) && *out_all; g++) {
        json_t *group = json_array_get(groups, g),
               *params = json_incref(json_object_get(group, "params"));
        *out_all = params != NULL;
        if (params && (json_object_del(group, "params") || /* last, as elsewhere */
                       json_object_set_new(group, "params", params)))
            return no_memory(err);
    }
    return DCP_OK;
}

/* -- flat ---------------------------------------------------------------------------- */

/* {param: {option: value}} of all entries "<param>.<option>". */
static int collect_options(const struct dcp_keys *keys, struct dcp_entry *entries,
                           size_t n, json_t *by_param, bool *out_all,
                           struct dcp_error *err)
{
    for (size_t i = 0; i < n && *out_all; i++) {
        const char *rest = option_of(keys, &entries[i]);
        const char *dot = rest ? strrchr(rest, '.') : NULL;
        if (!rest)
            continue;
        *out_all = dot && dot > rest && dot[1] && entries[i].value;
        if (!*out_all)
            break;
        DCP_CLEANUP_FREE char *param = strndup(rest, (size_t)(dot - rest));
        json_t *options = param ? json_object_get(by_param, param) : NULL;
        if (param && !options) {
            options = json_object();
            if (json_object_set_new(by_param, param, options))
                options = NULL;
        }
        if (!options || json_object_set_new(options, dot + 1,
                                            to_canonical(dot + 1, entries[i].value)))
            return no_memory(err);
    }
    return DCP_OK;
}

/* Adds a parameter to the group that has its options, or to a new one. kinds: numbers of
 * groups by the text of their options. */
static int add_param(json_t *groups, json_t *kinds, const char *param, json_t *options,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = dcp_json_text(options, 0);
    json_t *kind = text ? json_object_get(kinds, text) : NULL;

    if (!text)
        return no_memory(err);
    if (!kind) {
        json_t *group = json_deep_copy(options);
        kind = json_integer((json_int_t)json_array_size(groups));
        if (!group || json_object_set_new(group, "params", json_array()) ||
            json_array_append_new(groups, group) ||
            json_object_set_new(kinds, text, kind))
            return no_memory(err);
    }
    json_t *group = json_array_get(groups, (size_t)json_integer_value(kind));
    return json_array_append_new(json_object_get(group, "params"), json_string(param))
               ? no_memory(err)
               : DCP_OK;
}

/* Of the parameters that weights, or else moments, are known of. */
static int flat_groups(const struct dcp_keys *keys, const struct dcp_catalog *catalog,
                       struct dcp_entry *entries, size_t n, json_t *groups, bool *out_all,
                       struct dcp_error *err)
{
    static const enum dcp_role known[] = { DCP_ROLE_MODEL, DCP_ROLE_EXP_AVG };
    DCP_CLEANUP_JSON json_t *by_param = json_object();
    DCP_CLEANUP_JSON json_t *kinds = json_object();
    int rc = by_param && kinds ? DCP_OK : no_memory(err);

    if (!rc)
        rc = collect_options(keys, entries, n, by_param, out_all, err);
    for (size_t r = 0; r < DCP_ARRAY_LEN(known); r++)
        for (size_t t = 0; t < catalog->n_tensors && !rc && *out_all; t++) {
            const struct dcp_tensor *tensor = &catalog->tensors[t];
            json_t *options = tensor->role == known[r]
                                  ? json_object_get(by_param, tensor->param)
                                  : NULL;
            if (!options)
                continue;
            rc = add_param(groups, kinds, tensor->param, options, err);
            json_object_del(by_param, tensor->param);
        }
    *out_all = *out_all && !json_object_size(by_param);
    return rc;
}

/* -- whole --------------------------------------------------------------------------- */

static bool is_whole(const struct dcp_keys *keys, const struct dcp_entry *entry)
{
    const char *rest = dcp_keys_inside(keys->optim, entry->name);

    return rest && !strcmp(rest, "param_groups") && !entry->taken;
}

/* [{"lr": …, "params": […]}, …] in one object. */
static int whole_groups(json_t *value, json_t *groups, bool *out_all,
                        struct dcp_error *err)
{
    const char *option;
    json_t *group, *item;
    size_t i;

    *out_all = json_is_array(value);
    json_array_foreach(value, i, group)
    {
        json_t *made = json_object();
        *out_all = *out_all && is_names(json_object_get(group, "params"));
        if (!made || json_array_append_new(groups, made))
            return no_memory(err);
        json_object_foreach(group, option, item)
        {
            if (json_object_set_new(made, option, to_canonical(option, item)))
                return no_memory(err);
        }
    }
    return DCP_OK;
}

/* -- all three ----------------------------------------------------------------------- */

int dcp_optim_groups(struct dcp_keys *keys, const struct dcp_catalog *catalog,
                     struct dcp_entry *entries, size_t n, json_t **out,
                     struct dcp_error *err)
{
    json_t *groups = json_array();
    bool any = false, nested = false, all = true;
    json_t *whole = NULL;

    *out = NULL;
    if (!groups)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        const char *rest = option_of(keys, &entries[i]), *option;
        if (is_whole(keys, &entries[i]))
            whole = entries[i].value;
        any |= rest || whole;
        nested |=
            rest && dcp_training_group(rest, &option) == 0 && !strcmp(option, "params");
    }
    int rc = whole    ? whole_groups(whole, groups, &all, err)
             : nested ? nested_groups(keys, entries, n, groups, &all, err)
                      : flat_groups(keys, catalog, entries, n, groups, &all, err);
    if (rc || !any || !all) {
        json_decref(groups);
        keys->groups = DCP_GROUPS_NONE;
        return rc;
    }
    for (size_t i = 0; i < n; i++)
        entries[i].taken |=
            whole ? is_whole(keys, &entries[i]) : option_of(keys, &entries[i]) != NULL;
    keys->groups = whole    ? DCP_GROUPS_WHOLE
                   : nested ? DCP_GROUPS_NESTED
                            : DCP_GROUPS_FLAT;
    *out = groups;
    return DCP_OK;
}

int dcp_optim_mark(struct dcp_catalog *catalog, json_t *groups, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *by_param = json_object();
    json_t *group, *param;
    size_t g, i;
    bool ok = by_param != NULL;

    json_array_foreach(groups, g, group)
    {
        json_array_foreach(json_object_get(group, "params"), i, param)
        {
            if (ok && json_is_string(param))
                ok = !json_object_set_new(by_param, json_string_value(param),
                                          json_integer((json_int_t)g));
        }
    }
    for (size_t t = 0; t < catalog->n_tensors && ok; t++)
        catalog->tensors[t].group =
            (int)json_integer_value(json_object_get(by_param, catalog->tensors[t].param));
    return ok ? DCP_OK : no_memory(err);
}

/* -- back ---------------------------------------------------------------------------- */

/* Sets an option that is not there. */
static bool add_option(json_t *group, const char *name, json_t *value)
{
    return json_object_get(group, name) || !json_object_set(group, name, value);
}

/* A group with all options that PyTorch's Adam and AdamW ask for when they load one. One
 * that PyTorch made has its own: NAdam has betas too, and no amsgrad. */
static json_t *complete(json_t *group, bool decoupled)
{
    static const char *const off[] = { "amsgrad", "maximize", "capturable",
                                       "differentiable" };
    bool whole_already = json_object_get(group, "amsgrad") ||
                         json_object_get(group, "maximize") ||
                         json_object_get(group, "foreach");
    json_t *whole = json_copy(group), *params = json_object_get(group, "params");
    bool ok = whole != NULL;

    if (!json_object_get(group, "betas") || whole_already)
        return whole;
    for (size_t i = 0; i < DCP_ARRAY_LEN(off) && ok; i++)
        ok = add_option(whole, off[i], json_false());
    ok = ok && add_option(whole, "foreach", json_null()) &&
         add_option(whole, "fused", json_null()) &&
         add_option(whole, "decoupled_weight_decay", json_boolean(decoupled));
    if (ok && params) /* last, as elsewhere */
        ok = !json_object_del(whole, "params") &&
             !json_object_set(whole, "params", params);
    if (ok)
        return whole;
    json_decref(whole);
    return NULL;
}

struct putter {
    const struct dcp_keys *keys;
    struct dcp_catalog *catalog;
    int (*put)(void *self, const char *key, const char *path, json_t *value,
               struct dcp_error *err);
    void *self;
};

static int put_option(const struct putter *p, const char *place, const char *option,
                      json_t *value, struct dcp_error *err)
{
    size_t n =
        strlen(p->keys->optim) + strlen(place) + strlen(option) + sizeof GROUPS + 3;
    char *key = dcp_catalog_alloc(p->catalog, n, 1);
    DCP_CLEANUP_JSON json_t *made = from_canonical(option, value);

    if (!key || !made)
        return no_memory(err);
    snprintf(key, n, "%s%s" GROUPS "%s.%s", p->keys->optim, p->keys->optim[0] ? "." : "",
             place, option);
    const char *path = dcp_keys_path(p->keys, p->catalog, key, false);
    return path ? p->put(p->self, key, path, made, err) : no_memory(err);
}

static int put_group(const struct putter *p, json_t *group, size_t number,
                     struct dcp_error *err)
{
    json_t *value, *param, *params = json_object_get(group, "params");
    const char *option;
    char digits[24];
    size_t i;

    snprintf(digits, sizeof digits, "%zu", number);
    if (p->keys->groups == DCP_GROUPS_NESTED)
        json_object_foreach(group, option, value)
            DCP_TRY(put_option(p, digits, option, value, err));
    if (p->keys->groups == DCP_GROUPS_FLAT)
        json_array_foreach(params, i, param)
        {
            json_object_foreach(group, option, value)
            {
                if (strcmp(option, "params") != 0 && json_is_string(param))
                    DCP_TRY(put_option(p, json_string_value(param), option, value, err));
            }
        }
    return DCP_OK;
}

/* All groups as one value. */
static int put_whole(const struct putter *p, json_t *groups, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *whole = json_array();
    const char *option, *key = dcp_keys_join(p->catalog, p->keys->optim, "param_groups");
    const char *path = key ? dcp_keys_path(p->keys, p->catalog, key, false) : NULL;
    json_t *group, *item;
    size_t i;

    json_array_foreach(groups, i, group)
    {
        json_t *made = json_object();
        if (!made || json_array_append_new(whole, made))
            return no_memory(err);
        json_object_foreach(group, option, item)
        {
            if (json_object_set_new(made, option, from_canonical(option, item)))
                return no_memory(err);
        }
    }
    return path && whole ? p->put(p->self, key, path, whole, err) : no_memory(err);
}

int dcp_optim_each(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                   json_t *groups, bool decoupled,
                   int (*put)(void *self, const char *key, const char *path,
                              json_t *value, struct dcp_error *err),
                   void *self, struct dcp_error *err)
{
    const struct putter p = { keys, catalog, put, self };
    json_t *group;
    size_t g;
    int rc = DCP_OK;

    if (keys->groups == DCP_GROUPS_NONE)
        return DCP_OK;
    if (keys->groups == DCP_GROUPS_WHOLE)
        return put_whole(&p, groups, err);
    json_array_foreach(groups, g, group)
    {
        DCP_CLEANUP_JSON json_t *whole =
            keys->is_dict ? json_incref(group) : complete(group, decoupled);
        if (rc)
            break;
        rc = whole ? put_group(&p, whole, g, err) : no_memory(err);
    }
    return rc;
}
