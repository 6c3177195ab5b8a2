/* out_objects: objects under keys. Dicts are taken apart as PyTorch's planner does
 * (_traverse.py): dicts always, lists when a dict stands in them, tuples never; every
 * value is an item of its own. */
#include "base/hex.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "carried.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include "formats/torch/torch.h"
#include "keys.h"
#include "optim.h"
#include "out.h"
#include <stdio.h>
#include <string.h>

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the objects of a checkpoint");
}

/* -- one value ----------------------------------------------------------------------- */

/* The item of a value; equal values share one. */
static int item_of(struct dcp_out *out, json_t *value, size_t *out_item,
                   struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = dcp_json_text(value, 0);
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };

    if (!text)
        return no_memory(err);
    int64_t known = dcp_map_find(&out->values, text, strlen(text));
    *out_item = (size_t)known;
    if (known >= 0)
        return DCP_OK;
    DCP_TRY(dcp_torch_item_object(out->keys.style, value, &buf, err));
    DCP_TRY(dcp_out_add_item(out, buf.data, buf.size_bytes, out_item, err));
    const char *kept = dcp_catalog_text(out->catalog, text);
    out->items[*out_item].json = kept;
    return kept && dcp_map_set(&out->values, kept, strlen(kept), (int64_t)*out_item)
               ? DCP_OK
               : no_memory(err);
}

static int put_value(void *self, const char *key, const char *path, json_t *value,
                     struct dcp_error *err)
{
    struct dcp_out *out = self;
    struct dcp_out_key entry = { .key = key, .path = path, .tensor = -1 };

    DCP_TRY(item_of(out, value, &entry.item, err));
    return dcp_out_add(out, &entry, err);
}

/* One value under the name of its object, as a path of that one part: it is found again
 * by its name. */
static int put_named(struct dcp_out *out, const char *name, json_t *value,
                     struct dcp_error *err)
{
    return put_value(out, name, name, value, err);
}

/* The key and the path of an object in a state dict. */
static bool find_key(struct dcp_out *out, const char *name, const char **out_key,
                     const char **out_path)
{
    if (!dcp_tree_find(out->tree.objects, out->catalog, name, out_key, out_path)) {
        *out_key = name;
        *out_path = dcp_keys_path(&out->keys, out->catalog, name, false);
    }
    return *out_path;
}

/* One value that stood under such a key in a state dict. */
static int put_whole(struct dcp_out *out, const char *name, json_t *value,
                     struct dcp_error *err)
{
    const char *key, *path;

    return find_key(out, name, &key, &path) ? put_value(out, key, path, value, err)
                                            : no_memory(err);
}

/* -- dicts, taken apart -------------------------------------------------------------- */

struct leaf {
    const char *key, *path;
    json_t *value;
};
struct leaves {
    struct dcp_out *out;
    struct leaf *items;
    size_t n, cap;
    bool strict;  /* no keys but PyTorch's */
    bool reduced; /* they do not tell all: keys were no texts, or a dict empty */
};

/* Whether it is a dict to Python, whatever its keys are. */
static bool is_mapping(json_t *value)
{
    return dcp_py_is_dict(value) || dcp_py_pairs(value);
}

/* A list of empty dicts is one value, unless only PyTorch's own keys may stand there: it
 * asks for the list when it reads one. */
static bool is_terminal(json_t *value, bool strict)
{
    json_t *item;
    size_t i;

    if (!json_is_array(value))
        return !dcp_py_is_dict(value) || !json_object_size(value);
    json_array_foreach(value, i, item)
    {
        if ((is_mapping(item) && (strict || json_object_size(item))) ||
            (json_is_array(item) && !is_terminal(item, strict)))
            return false;
    }
    return true;
}

static const char *longer(struct dcp_catalog *catalog, const char *text, char mark,
                          const char *part)
{
    size_t n = strlen(text) + strlen(part) + 2;
    char *made = dcp_catalog_alloc(catalog, n, 1);

    if (made)
        snprintf(made, n, "%s%c%s", text, mark, part);
    return made;
}

/* Values nest no deeper than base/json.h reads them. Of an empty dict nothing is left
 * where only PyTorch's keys may stand. */
static int collect(struct leaves *leaves, const char *key, const char *path,
                   json_t *value, struct dcp_error *err)
{
    struct dcp_catalog *catalog = leaves->out->catalog;
    struct dcp_py_parts parts = dcp_py_parts(value);
    bool mapping = leaves->strict && is_mapping(value);

    if (!mapping && is_terminal(value, leaves->strict)) {
        struct leaf *grown =
            dcp_mem_grow(leaves->items, &leaves->cap, leaves->n + 1, sizeof *grown);
        if (!grown)
            return no_memory(err);
        leaves->items = grown;
        grown[leaves->n++] = (struct leaf){ key, path, value };
        return DCP_OK;
    }
    if (mapping && (parts.kind == DCP_PY_PAIRS || !json_object_size(value)))
        leaves->reduced = true;
    while (dcp_py_next(&parts)) {
        bool index = parts.kind == DCP_PY_LIST;
        if (!parts.name)
            continue;
        const char *longer_key = longer(catalog, key, '.', parts.name),
                   *longer_path = longer(
                       catalog, path, index ? DCP_PATH_INDEX : DCP_PATH_KEY, parts.name);
        DCP_TRY(longer_key && longer_path
                    ? collect(leaves, longer_key, longer_path, parts.value, err)
                    : no_memory(err));
    }
    return DCP_OK;
}

/* Whether the keys are free, and do not look like the marks in paths. */
static bool fits(const struct dcp_out *out, const struct leaves *leaves)
{
    for (size_t i = 0; i < leaves->n; i++) {
        const char *key = leaves->items[i].key;
        if (dcp_out_has(out, key) || strchr(key, DCP_PATH_KEY) ||
            strchr(key, DCP_PATH_INDEX))
            return false;
    }
    return true;
}

/* Whether it refers to tensors or objects, as "torch.tree" does. */
static bool has_references(const json_t *value)
{
    struct dcp_py_parts parts = dcp_py_children(value);
    bool has =
        json_object_get(value, DCP_PY_TENSOR) || json_object_get(value, DCP_PY_VALUE);

    while (!has && dcp_py_next(&parts))
        has = has_references(parts.value);
    return has;
}

/* What a tensor is called in the checkpoint: the keys of all tensors come first, in their
 * order. */
static const char *key_of(const struct dcp_out *out, const char *name)
{
    int tensor = dcp_catalog_find(out->catalog, name);

    return tensor < 0 ? name : out->list[tensor].key;
}

/* In a copy of a tree, the names of tensors as they are called in the checkpoint. */
static bool name_keys(const struct dcp_out *out, json_t *value)
{
    struct dcp_py_parts parts = dcp_py_children(value);
    const char *name = dcp_py_tensor(value);
    bool ok = true;

    if (name)
        return !json_object_set_new(value, dcp_py_tag(value),
                                    json_string(key_of(out, name)));
    while (ok && dcp_py_next(&parts))
        ok = name_keys(out, parts.value);
    return ok;
}

/* The JSON text itself, as a value that only this library understands. */
static int put_text(struct dcp_out *out, const struct dcp_object *object, json_t *value,
                    struct dcp_error *err)
{
    bool tree = !strcmp(object->name, DCP_TORCH_TREE);
    DCP_CLEANUP_FREE char *named =
        tree && name_keys(out, value) ? dcp_json_text(value, 0) : NULL;
    DCP_CLEANUP_JSON json_t *text = named ? json_string(named)
                                    : tree
                                        ? NULL
                                        : json_stringn(object->data, object->size_bytes);

    if (!text || !dcp_out_note(out, "objects", object->name, json_string("whole")))
        return no_memory(err);
    return put_named(out, object->name, text, err);
}

static int put_leaves(struct dcp_out *out, const struct leaves *leaves,
                      struct dcp_error *err)
{
    for (size_t i = 0; i < leaves->n; i++)
        DCP_TRY(put_value(out, leaves->items[i].key, leaves->items[i].path,
                          leaves->items[i].value, err));
    return DCP_OK;
}

static int put_tree(struct dcp_out *out, const struct dcp_object *object, json_t *value,
                    struct dcp_error *err)
{
    struct leaves leaves = { .out = out };
    bool terminal = is_terminal(value, false);

    if (terminal && !dcp_out_has(out, object->name))
        return put_whole(out, object->name, value, err);
    int rc = collect(&leaves, object->name, object->name, value, err);

    if (!rc && !fits(out, &leaves)) {
        rc = terminal ? dcp_error_set(err, DCP_E_MISMATCH,
                                      "%s cannot hold: two values under one key ('%s')",
                                      out->target, DCP_SHOWN(object->name))
                      : put_text(out, object, value, err);
        leaves.n = 0;
        terminal = true;
    }
    if (!rc)
        rc = put_leaves(out, &leaves, err);
    if (!rc && !terminal &&
        !dcp_out_note(out, "objects", object->name, json_string("tree")))
        rc = no_memory(err);
    free(leaves.items);
    return rc;
}

/* An object of a state dict, in the keys that PyTorch would give it, and no others: it
 * asks for all of them or none. */
static int put_placed(struct dcp_out *out, const char *name, const char *key,
                      const char *path, json_t *value, struct dcp_error *err)
{
    struct leaves leaves = { .out = out, .strict = true };
    int rc = path ? collect(&leaves, key, path, value, err) : no_memory(err);

    if (!rc)
        rc = put_leaves(out, &leaves, err);
    bool alone = leaves.n == 1 && leaves.items[0].value == value;
    if (!rc && !alone &&
        !dcp_out_note(out, "objects", name,
                      leaves.reduced ? json_pack("[s,O]", path, value)
                                     : json_pack("[s]", path)))
        rc = no_memory(err);
    free(leaves.items);
    return rc;
}

/* -- objects ------------------------------------------------------------------------- */

static int put_bytes(struct dcp_out *out, const struct dcp_object *object, bool archive,
                     struct dcp_error *err)
{
    struct dcp_out_key key = { .key = object->name, .tensor = -1 };

    if (archive) {
        DCP_TRY(
            find_key(out, object->name, &key.key, &key.path)
                ? dcp_out_add_item(out, object->data, object->size_bytes, &key.item, err)
                : no_memory(err));
        return dcp_out_add(out, &key, err);
    }
    DCP_CLEANUP_JSON json_t *value =
        dcp_py_hex(DCP_PY_BYTES, object->data, object->size_bytes);
    if (!value || !dcp_out_note(out, "objects", object->name, json_string("whole")))
        return no_memory(err);
    return put_named(out, object->name, value, err);
}

/* A value among the states of the optimizer, under the weight's name. A step that was
 * made says it already. */
static int put_state(struct dcp_out *out, const char *param, const char *member,
                     json_t *value, struct dcp_error *err)
{
    const char *key = dcp_out_state_key(out, param, member);
    const char *path = key ? dcp_keys_path(&out->keys, out->catalog, key, false) : NULL;

    if (!path)
        return no_memory(err);
    if (dcp_out_has(out, key) && dcp_str_ends(key, ".step"))
        return DCP_OK;
    return put_value(out, key, path, value, err);
}

static int put_object(struct dcp_out *out, const struct dcp_object *object,
                      struct dcp_error *err)
{
    const char *kind = json_string_value(json_object_get(out->keys.items, object->name));
    DCP_CLEANUP_JSON json_t *value = NULL;
    const char *key, *path, *state = dcp_out_state_before(out, object->name);
    bool archive = kind && !strcmp(kind, "archive");

    if (!archive || object->kind != DCP_OBJECT_BYTES)
        DCP_TRY(dcp_training_value(object, &value, err));
    if (!value)
        return put_bytes(out, object, archive, err);
    if (state)
        return put_state(out, state, "", value, err);
    if (kind && !strcmp(kind, "value"))
        return put_whole(out, object->name, value, err);
    if (dcp_tree_find(out->tree.objects, out->catalog, object->name, &key, &path))
        return put_placed(out, object->name, key, path, value, err);
    if (kind && !strcmp(kind, "placed"))
        return find_key(out, object->name, &key, &path)
                   ? put_placed(out, object->name, key, path, value, err)
                   : no_memory(err);
    return has_references(value) ? put_text(out, object, value, err)
                                 : put_tree(out, object, value, err);
}

static bool has_optim(const struct dcp_catalog *catalog)
{
    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (dcp_role_is_optim(catalog->tensors[t].role))
            return true;
    return false;
}

/* The groups under PyTorch's keys; what else the object says is noted. */
static int put_optimizer(struct dcp_out *out, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *groups = NULL;
    DCP_CLEANUP_JSON json_t *optimizer = NULL;
    DCP_TRY(dcp_training_read(out->catalog, DCP_TRAINING_OPTIMIZER, &optimizer, err));
    const char *type = json_string_value(json_object_get(optimizer, "type"));

    DCP_TRY(dcp_training_groups(out->catalog, &groups, err));
    bool made = !out->tree.tensors || out->own_optim;
    if (made)
        DCP_TRY(dcp_optim_each(&out->keys, out->catalog, groups,
                               !type || strcmp(type, "Adam") != 0, put_value, out, err));
    if (!json_is_object(optimizer))
        return DCP_OK;
    bool apart = made && out->keys.groups != DCP_GROUPS_NONE;
    if ((apart && json_object_set_new(optimizer, "param_groups", json_null())) ||
        json_object_set(out->ours, DCP_TRAINING_OPTIMIZER, optimizer))
        return no_memory(err);
    return DCP_OK;
}

/* The key of an object. "optimizer" is what is known of the groups, so a value that
 * stands under that key has another name: torch_dist/index_objects.c. */
static const char *own_key(const struct dcp_out *out, const struct dcp_object *object)
{
    static const char other[] = DCP_TRAINING_OPTIMIZER "#rank";

    return object->kind == DCP_OBJECT_JSON && dcp_str_starts(object->name, other) &&
                   !json_object_get(out->keys.items, object->name) &&
                   strcmp(out->keys.optim, DCP_TRAINING_OPTIMIZER) != 0 &&
                   !dcp_out_has(out, DCP_TRAINING_OPTIMIZER)
               ? DCP_TRAINING_OPTIMIZER
               : object->name;
}

int dcp_out_objects(struct dcp_out *out, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = out->catalog;
    bool optim = has_optim(catalog) || out->own_optim;
    int rc = optim ? put_optimizer(out, err) : DCP_OK;

    for (size_t o = 0; o < catalog->n_objects && !rc; o++) {
        struct dcp_object object = catalog->objects[o];
        if (!strcmp(object.name, DCP_KEYS) || !strcmp(object.name, DCP_ATTRIBUTES) ||
            dcp_out_replaced(out, object.name) || dcp_is_carried(catalog, object.name) ||
            (optim && !strcmp(object.name, DCP_TRAINING_OPTIMIZER)))
            continue;
        if (optim)
            object.name = own_key(out, &object);
        if (dcp_training_is_option(object.name) && dcp_out_has(out, object.name))
            continue; /* its group has it */
        bool state = false;
        if (out->own_optim)
            rc = dcp_out_state(out, &object, put_state, &state, err);
        if (!rc && !state)
            rc = put_object(out, &object, err);
    }
    return rc;
}
