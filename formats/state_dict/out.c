/* out: keys of tensors; steps of the optimizer; second names of tied weights. */
#include "out.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/roles.h"
#include "formats/common/training.h"
#include "formats/models/config.h"
#include <stdio.h>
#include <string.h>

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the keys of a checkpoint");
}

void dcp_out_fini(struct dcp_out *out)
{
    dcp_keys_fini(&out->keys);
    dcp_tree_fini(&out->tree);
    dcp_map_fini(&out->taken);
    dcp_map_fini(&out->values);
    json_decref(out->ours);
    json_decref(out->params);
    json_decref(out->steps);
    free(out->list);
    free(out->items);
    *out = (struct dcp_out){ 0 };
}

bool dcp_out_has(const struct dcp_out *out, const char *key)
{
    return dcp_map_find(&out->taken, key, strlen(key)) >= 0;
}

int dcp_out_add(struct dcp_out *out, const struct dcp_out_key *key, struct dcp_error *err)
{
    if (dcp_out_has(out, key->key))
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "%s cannot hold: two values under the key '%s'", out->target,
                             DCP_SHOWN(key->key));
    struct dcp_out_key *grown =
        dcp_mem_grow(out->list, &out->cap, out->n + 1, sizeof *grown);
    if (!grown)
        return no_memory(err);
    out->list = grown;
    grown[out->n] = *key;
    return dcp_map_set(&out->taken, key->key, strlen(key->key), (int64_t)out->n++)
               ? DCP_OK
               : no_memory(err);
}

int dcp_out_add_item(struct dcp_out *out, const void *data, size_t size_bytes,
                     size_t *out_item, struct dcp_error *err)
{
    struct dcp_out_item item = { .size_bytes = size_bytes };
    void *kept = dcp_catalog_alloc(out->catalog, size_bytes, 1);
    struct dcp_out_item *grown =
        dcp_mem_grow(out->items, &out->cap_items, out->n_items + 1, sizeof *grown);

    if (grown)
        out->items = grown;
    if (!kept || !grown)
        return no_memory(err);
    memcpy(kept, data, size_bytes);
    item.data = kept;
    if (out->n_items)
        item.offset = grown[out->n_items - 1].offset + grown[out->n_items - 1].size_bytes;
    *out_item = out->n_items;
    grown[out->n_items++] = item;
    return DCP_OK;
}

bool dcp_out_note(struct dcp_out *out, const char *object, const char *name,
                  json_t *value)
{
    json_t *members = json_object_get(out->ours, object);

    if (!members) {
        members = json_object();
        if (json_object_set_new(out->ours, object, members)) {
            json_decref(value);
            return false;
        }
    }
    return !json_object_set_new(members, name, value);
}

/* The key of a tensor in the tree, unless it is made. False: it has none there. */
static bool in_tree(const struct dcp_out *out, const struct dcp_tensor *tensor,
                    const char **out_key, const char **out_path)
{
    return !dcp_out_spells(out, tensor) && dcp_tree_find(out->tree.tensors, out->catalog,
                                                         tensor->name, out_key, out_path);
}

/* A second name of a tensor is a second key of its items. */
static int add_tied(struct dcp_out *out, const struct dcp_tensor *tensor,
                    struct dcp_out_key *key, struct dcp_error *err)
{
    key->tensor = dcp_catalog_find(out->catalog, tensor->tied_to);
    if (key->tensor < 0)
        return dcp_error_set(err, DCP_E_MISMATCH, "a tie leads to no tensor");
    const struct dcp_tensor *tied = &out->catalog->tensors[key->tensor];
    const char *kept, *path;
    if (!in_tree(out, tied, &kept, &path))
        kept = dcp_keys_real(&out->keys, out->catalog, tied);
    return kept && dcp_out_note(out, "tied", key->key, json_string(kept))
               ? DCP_OK
               : no_memory(err);
}

/* Whether the key tells another role than it has: an optimizer may call something a
 * master that is none. */
static bool tells_otherwise(const struct dcp_tensor *tensor)
{
    const char *key;
    size_t n;

    dcp_roles_key(tensor, &key, &n);
    return tensor->role == DCP_ROLE_OPTIM && dcp_roles_of_key(key, n) != DCP_ROLE_OPTIM;
}

/* What a key does not tell: numbers of an optimizer in a tree stand for weights. */
static bool note_param(struct dcp_out *out, const struct dcp_tensor *tensor,
                       const char *key)
{
    size_t n = strlen(tensor->param);

    if (!dcp_role_is_optim(tensor->role))
        return true;
    for (const char *at = key; (at = strstr(at, tensor->param)); at++)
        if (at - key >= 6 && !strncmp(at - 6, "state.", 6) && at[n] == '.' &&
            !tells_otherwise(tensor))
            return true;
    return dcp_out_note(out, "params", key,
                        json_pack("[s,s]", dcp_role_name(tensor->role), tensor->param));
}

static int add_tensors(struct dcp_out *out, struct dcp_error *err)
{
    struct dcp_catalog *catalog = out->catalog;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        bool weight = tensor->role == DCP_ROLE_MODEL || tensor->role == DCP_ROLE_BUFFER;
        struct dcp_out_key key = { .tensor = (int)t };
        bool told = in_tree(out, tensor, &key.key, &key.path);
        if (!told) {
            key.key = dcp_keys_real(&out->keys, catalog, tensor);
            key.path =
                key.key ? dcp_keys_path(&out->keys, catalog, key.key, weight) : NULL;
        }
        if (!key.path ||
            ((told || tells_otherwise(tensor)) && !note_param(out, tensor, key.key)))
            return no_memory(err);
        if (tensor->tied_to)
            DCP_TRY(add_tied(out, tensor, &key, err));
        DCP_TRY(dcp_out_add(out, &key, err));
    }
    return DCP_OK;
}

/* -- what PyTorch asks for ----------------------------------------------------------- */

static int add_step_item(struct dcp_out *out, int64_t updates, size_t *out_item,
                         struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    const struct dcp_tensor step = { .dtype = DCP_F32, .n_elems = 1 };
    float value = (float)updates;

    DCP_TRY(dcp_torch_item_tensor(out->keys.style, &step, &value, &buf, err));
    DCP_TRY(dcp_out_add_item(out, buf.data, buf.size_bytes, out_item, err));
    out->items[*out_item].step = updates;
    return DCP_OK;
}

/* The step of a weight, where a source says that it is not the others': under the name
 * that optimizer.pt gives it, or under the key that it had. */
static int find_own_step(const struct dcp_out *out, const char *param, bool *out_found,
                         int64_t *out_updates, struct dcp_error *err)
{
    const char *before = out->spelled_before ? out->spelled_before : "";
    DCP_CLEANUP_FREE char *own = dcp_str_join("optimizer.step.", param, ""),
                          *state = dcp_str_join("state.", param, ".step"),
                          *key = state ? dcp_str_join(before, before[0] ? "." : "", state)
                                       : NULL;
    int rc = own && key ? DCP_OK : no_memory(err);

    *out_found = false;
    for (int i = 0; i < 2 && !rc && !*out_found; i++) {
        DCP_CLEANUP_JSON json_t *step = NULL;
        if (i && !out->spelled_before)
            break;
        if (dcp_catalog_find_object(out->catalog, i ? key : own) >= 0)
            rc = dcp_training_read(out->catalog, i ? key : own, &step, err);
        *out_found = json_is_integer(step);
        *out_updates = json_integer_value(step);
    }
    return rc;
}

/* Whether a key of the catalog looks like a step, P.state.<param>.step. */
static bool has_steps(const struct dcp_out *out)
{
    for (size_t k = 0; k < out->n; k++) {
        const char *rest = dcp_keys_inside(out->keys.optim, out->list[k].key);
        if (rest && dcp_str_starts(rest, "state.") && dcp_str_ends(rest, ".step"))
            return true;
    }
    return false;
}

/* What PyTorch keeps a step beside: Adam's moments, Adagrad's sum, Adafactor's variances;
 * SGD and Muon have none. */
static bool wants_step(const struct dcp_tensor *tensor)
{
    static const char *const keys[] = { "sum", "row_var", "variance" };
    const char *key;
    size_t n;

    if (tensor->role != DCP_ROLE_OPTIM)
        return tensor->role == DCP_ROLE_EXP_AVG;
    dcp_roles_key(tensor, &key, &n);
    for (size_t k = 0; k < DCP_ARRAY_LEN(keys); k++)
        if (n == strlen(keys[k]) && !memcmp(key, keys[k], n))
            return true;
    return false;
}

/* Whether its key is one of the optimizer whose steps are made; that of another one, and
 * one that is kept, says its own. False with *ok false: out of memory. */
static bool is_of_optim(const struct dcp_out *out, const struct dcp_tensor *tensor,
                        bool *ok)
{
    const char *kept, *path;

    if (in_tree(out, tensor, &kept, &path))
        return false;
    const char *key = dcp_keys_real(&out->keys, out->catalog, tensor);
    const char *rest = key ? dcp_keys_inside(out->keys.optim, key) : NULL;

    *ok = key != NULL;
    return rest && dcp_str_starts(rest, "state.");
}

/* A count that is made is that of all weights. */
static int check_count(const struct dcp_catalog *catalog, struct dcp_error *err)
{
    bool differ;

    DCP_TRY(dcp_training_counts_differ(catalog, &differ, err));
    if (!differ)
        return DCP_OK;
    dcp_error_set(err, DCP_E_MISMATCH,
                  "the source does not say how often each weight was updated, only that "
                  "some were more often than others");
    dcp_error_hint(err, "--only model leaves out what training goes on from");
    return DCP_E_MISMATCH;
}

/* Every parameter with moments has a step, a tensor without dimensions. One item serves
 * them all. That they were made here is said once, or of each when there are others. */
static int add_steps(struct dcp_out *out, struct dcp_error *err)
{
    struct dcp_catalog *catalog = out->catalog;
    bool others = has_steps(out), own, ok = true;
    size_t item = 0, n_made = 0, shared = 0;
    int64_t updates;
    int rc = DCP_OK;

    for (size_t t = 0; t < catalog->n_tensors && !rc && ok; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        struct dcp_out_key key = { .tensor = -1, .is_step = true };
        if (!wants_step(tensor) || !is_of_optim(out, tensor, &ok) ||
            (out->own_optim && json_object_get(out->steps, tensor->param)))
            continue;
        key.key = dcp_out_state_key(out, tensor->param, "step");
        if (!key.key)
            return no_memory(err);
        if (dcp_out_has(out, key.key) || dcp_catalog_find_object(catalog, key.key) >= 0)
            continue;
        rc = find_own_step(out, tensor->param, &own, &updates, err);
        if (!rc && own) {
            rc = add_step_item(out, updates, &key.item, err);
        } else if (!rc) {
            if (!shared++)
                rc = check_count(catalog, err);
            if (!rc && shared == 1)
                rc = dcp_training_updates(catalog, &updates, err);
            if (!rc && shared == 1)
                rc = add_step_item(out, updates, &item, err);
            key.item = item;
        }
        n_made++;
        key.path = dcp_keys_path(&out->keys, catalog, key.key, false);
        ok = key.path &&
             (!others || dcp_out_note(out, "made", key.key, json_string("step")));
        if (!rc && ok)
            rc = dcp_out_add(out, &key, err);
    }
    if (!rc && ok && n_made && !others)
        ok = !json_object_set_new(out->ours, "steps", json_string(out->keys.optim));
    return rc || ok ? rc : no_memory(err);
}

static int find_weight(const struct dcp_catalog *catalog, const char *param)
{
    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (catalog->tensors[t].role == DCP_ROLE_MODEL && !catalog->tensors[t].tied_to &&
            !strcmp(catalog->tensors[t].param, param))
            return (int)t;
    return -1;
}

/* A model whose head is its embedding: PyTorch has both names in a state dict, and asks
 * for both. */
static int add_tied_head(struct dcp_out *out, struct dcp_error *err)
{
    struct dcp_catalog *catalog = out->catalog;
    struct dcp_out_key key = { 0 };
    char head[DCP_NAMES_MAX_BYTES], embedding[DCP_NAMES_MAX_BYTES];
    bool tied;
    int rc = dcp_model_config_tied_head(catalog, &tied, head, embedding, err);

    if (rc || !tied)
        return rc;
    key.tensor = find_weight(catalog, embedding);
    key.key = dcp_keys_join(catalog, out->keys.model, head);
    if (!key.key)
        return no_memory(err);
    if (key.tensor < 0 || dcp_out_has(out, key.key))
        return DCP_OK;
    key.path = dcp_keys_path(&out->keys, catalog, key.key, true);
    if (!key.path || !dcp_out_note(out, "made", key.key,
                                   json_string(catalog->tensors[key.tensor].param)))
        return no_memory(err);
    return dcp_out_add(out, &key, err);
}

int dcp_out_make(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                 const char *what, struct dcp_out *out, struct dcp_error *err)
{
    *out = (struct dcp_out){ .catalog = catalog, .target = what, .ours = json_object() };
    DCP_TRY(dcp_keys_load(&out->keys, catalog, err));
    if (!out->ours)
        return no_memory(err);
    DCP_TRY(dcp_tree_load(&out->tree, catalog, err));
    DCP_TRY(dcp_out_spell(out, options, err));
    DCP_TRY(add_tensors(out, err));
    if (out->keys.flat && json_object_set_new(out->ours, "flat", json_true()))
        return no_memory(err);
    if (!out->tree.tensors || out->own_model)
        DCP_TRY(add_tied_head(out, err));
    if (!out->tree.tensors || out->own_optim)
        DCP_TRY(add_steps(out, err));
    return dcp_out_objects(out, err);
}
