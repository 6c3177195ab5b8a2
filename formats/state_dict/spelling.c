/* spelling: under which keys the weights and the optimizer of a distributed
 * checkpoint are written. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/training.h"
#include "formats/torch/torch.h"
#include "out.h"
#include <string.h>

#define GROUPS "param_groups"

static const struct {
    const char *name;
    enum dcp_keys_groups groups;
    const char *model, *optim; /* containers; NULL: as they are */
} spellings[] = {
    { "nested", DCP_GROUPS_NESTED, NULL, NULL },
    { "flat", DCP_GROUPS_FLAT, NULL, NULL },
    { "torchtitan", DCP_GROUPS_FLAT, "", "optimizer" },
};

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the keys of a checkpoint");
}

/* Whether a tensor is one of a weight of the model, by name. */
static bool is_named(const struct dcp_tensor *t)
{
    return dcp_role_is_optim(t->role) && strcmp(t->param, t->name) != 0;
}

/* Whether its key has a number for its weight: "P.state.3.row_var". */
static bool has_number(const struct dcp_tensor *t)
{
    static const char state[] = "state.";

    for (const char *at = t->name; (at = strstr(at, state)); at++) {
        size_t n = strspn(at + sizeof state - 1, "0123456789");
        if ((at == t->name || at[-1] == '.') && n && at[sizeof state - 1 + n] == '.')
            return true;
    }
    return false;
}

/* Whether it stands in another optimizer than the one that is spelled. */
static bool is_of_another(const struct dcp_out *out, const struct dcp_tensor *t)
{
    const char *key, *path;

    return out->optim_of_tree &&
           dcp_tree_find(out->tree.tensors, out->catalog, t->name, &key, &path) && key &&
           !dcp_keys_inside(out->optim_of_tree, key);
}

bool dcp_out_spells(const struct dcp_out *out, const struct dcp_tensor *tensor)
{
    if (tensor->role == DCP_ROLE_MODEL || tensor->role == DCP_ROLE_BUFFER)
        return out->own_model;
    return out->own_optim && is_named(tensor) && !is_of_another(out, tensor);
}

static bool has_optim(const struct dcp_catalog *catalog)
{
    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (dcp_role_is_optim(catalog->tensors[t].role))
            return true;
    return dcp_catalog_find_object(catalog, DCP_TRAINING_OPTIMIZER) >= 0;
}

/* -- containers ---------------------------------------------------------------------- */

/* What stands before ".<rest>" at the end of a key, or NULL. Belongs to the catalog. */
static const char *before(struct dcp_catalog *catalog, const char *key, const char *rest)
{
    size_t n = strlen(key), tail = strlen(rest);

    if (n < tail || strcmp(key + (n - tail), rest) != 0 ||
        (n > tail && key[n - tail - 1] != '.'))
        return NULL;
    char *text = dcp_catalog_alloc(catalog, n + 1, 1);
    if (text && n > tail)
        memcpy(text, key, n - tail - 1);
    return text;
}

/* How many parameters the groups have; *out_named: of how many the names are known. */
static size_t count_params(json_t *groups, size_t *out_named)
{
    json_t *group, *param;
    size_t g, i, n = 0;

    *out_named = 0;
    json_array_foreach(groups, g, group)
    {
        json_array_foreach(json_object_get(group, "params"), i, param)
        {
            n++;
            *out_named += json_is_string(param);
        }
    }
    return n;
}

/* The optimizer of a file of torch.save: where its groups stand. It has numbers there
 * where FSDP has names; where these are known it is spelled as FSDP does. */
static int find_optim(struct dcp_out *out, struct dcp_error *err)
{
    struct dcp_catalog *catalog = out->catalog;
    DCP_CLEANUP_JSON json_t *optimizer = NULL;
    int rc = dcp_training_read(catalog, DCP_TRAINING_OPTIMIZER, &optimizer, err);
    size_t named, n = count_params(json_object_get(optimizer, GROUPS), &named);
    const char *of = json_string_value(json_object_get(optimizer, "container"));
    const char *name, *key, *path;
    json_t *text;

    json_object_foreach(out->tree.objects, name, text)
    {
        DCP_CLEANUP_JSON json_t *groups = NULL;
        size_t given;
        if (rc || out->groups || !dcp_str_ends(name, GROUPS))
            continue;
        if (!dcp_tree_find(out->tree.objects, catalog, name, &key, &path))
            return no_memory(err);
        rc = dcp_training_read(catalog, name, &groups, err);
        const char *optim = before(catalog, key, GROUPS);
        if (rc || !optim || !n || named < n || count_params(groups, &given) != n ||
            (of && strcmp(optim, of) != 0))
            continue;
        out->groups = dcp_catalog_text(catalog, name);
        out->keys.optim = out->optim_of_tree = optim;
        out->own_optim = given < n;
        rc = dcp_out_state_load(out, json_object_get(optimizer, GROUPS), groups, err);
    }
    return rc;
}

/* The model of such a file: what stands before a weight's own name. */
static int find_model(struct dcp_out *out, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = out->catalog;
    const char *key, *path;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (tensor->role != DCP_ROLE_MODEL ||
            !dcp_tree_find(out->tree.tensors, out->catalog, tensor->name, &key, &path))
            continue;
        const char *model = key ? before(out->catalog, key, tensor->param) : NULL;
        if (!key)
            return no_memory(err);
        if (model)
            out->keys.model = model;
        return DCP_OK;
    }
    return DCP_OK;
}

/* -- what was asked for -------------------------------------------------------------- */

/* The optimizer stands beside the weights: "app.model", "app.optim". */
static int set_prefix(struct dcp_out *out, const char *prefix, struct dcp_error *err)
{
    const char *dot = strrchr(prefix, '.');
    size_t n = dot ? (size_t)(dot - prefix) : 0;
    char *parent = dcp_catalog_alloc(out->catalog, n + 1, 1);

    if (!parent)
        return no_memory(err);
    memcpy(parent, prefix, n);
    out->keys.model = dcp_catalog_text(out->catalog, prefix);
    out->keys.optim = dcp_keys_join(out->catalog, parent, "optim");
    return out->keys.model && out->keys.optim ? DCP_OK : no_memory(err);
}

/* Keys that are asked for need a weight for everything of the optimizer. */
static int check_names(const struct dcp_out *out, struct dcp_error *err)
{
    for (size_t t = 0; t < out->catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &out->catalog->tensors[t];
        bool another = is_of_another(out, tensor);
        bool named =
            is_named(tensor) || (tensor->role == DCP_ROLE_OPTIM && !has_number(tensor));
        if (!dcp_role_is_optim(tensor->role) || (named && !another))
            continue;
        dcp_error_set(err, DCP_E_MISMATCH,
                      "a distributed checkpoint cannot hold, in that spelling: '%s', %s",
                      DCP_SHOWN(tensor->name),
                      another ? "of a second optimizer"
                              : "a number that matches several weights, or none");
        dcp_error_hint(err, another
                                ? "without --spelling each keeps its keys"
                                : "save the optimizer's param_names with it, or --only "
                                  "model");
        return DCP_E_MISMATCH;
    }
    if (out->keys.groups != DCP_GROUPS_NONE)
        return DCP_OK;
    return dcp_error_set(err, DCP_E_MISMATCH,
                         "a distributed checkpoint cannot hold, in that spelling: the "
                         "optimizer's groups, whose form is unknown");
}

/* Without a record of the source's keys those that are made are only its own where they
 * are its names. */
static int check_kept(const struct dcp_out *out, struct dcp_error *err)
{
    for (size_t t = 0; t < out->catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &out->catalog->tensors[t];
        const char *made = dcp_keys_made(&out->keys, out->catalog, tensor);
        if (!made)
            return no_memory(err);
        if (!strcmp(made, tensor->name))
            continue;
        dcp_error_set(
            err, DCP_E_MISMATCH,
            "the source does not say under which key '%s' stood in a state dict, "
            "so that it cannot be kept",
            DCP_SHOWN(tensor->name));
        dcp_error_hint(err, "--spelling nested, flat or torchtitan makes keys");
        return DCP_E_MISMATCH;
    }
    return DCP_OK;
}

/* Names, paths and options of the source's spelling are no longer true. */
static void forget(struct dcp_keys *keys)
{
    json_decref(keys->names);
    json_decref(keys->paths);
    keys->names = keys->paths = NULL;
    keys->is_dict = keys->flat = false;
}

static int spell(struct dcp_out *out, const struct dcp_target_options *options,
                 struct dcp_error *err)
{
    int rc = has_optim(out->catalog) ? check_names(out, err) : DCP_OK;

    out->spelled_before = out->keys.optim;
    forget(&out->keys);
    out->own_model = true;
    out->own_optim = has_optim(out->catalog);
    for (size_t i = 0; i < DCP_ARRAY_LEN(spellings) && options->spelling; i++) {
        if (strcmp(options->spelling, spellings[i].name) != 0)
            continue;
        out->keys.groups = spellings[i].groups;
        if (spellings[i].optim) {
            out->keys.model = spellings[i].model;
            out->keys.optim = spellings[i].optim;
        }
    }
    return !rc && options->prefix ? set_prefix(out, options->prefix, err) : rc;
}

int dcp_out_spell(struct dcp_out *out, const struct dcp_target_options *options,
                  struct dcp_error *err)
{
    bool kept = options && options->spelling && !strcmp(options->spelling, "kept");
    bool asked = options && (options->spelling || options->prefix) && !kept;
    bool known = dcp_catalog_find_object(out->catalog, DCP_KEYS) >= 0;
    bool tree = out->tree.tensors || out->tree.objects;
    int rc = DCP_OK;

    if (tree) {
        rc = find_model(out, err);
        if (!rc)
            rc = find_optim(out, err);
    } else if (!known && !has_optim(out->catalog)) {
        out->keys.model = ""; /* a state dict of weights */
    }
    if (kept)
        out->own_optim = false;
    if (!rc && kept && !known && !tree)
        rc = check_kept(out, err);
    return !rc && asked ? spell(out, options, err) : rc;
}

bool dcp_out_replaced(const struct dcp_out *out, const char *object)
{
    if (!strcmp(object, DCP_TORCH_TREE)) /* it speaks of names that are no more */
        return out->own_model || out->own_optim;
    return out->own_optim && out->groups && !strcmp(object, out->groups);
}
