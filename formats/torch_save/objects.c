/* objects: what a file holds beside its tensors. Values that stand beside tensors
 * become objects; what is left is the tree, kept unless names alone tell as much. */
#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include "formats/torch/torch.h"
#include "torch_save.h"
#include <stdio.h>
#include <string.h>

struct splitter {
    struct dcp_catalog *catalog;
    struct dcp_error *err;
    size_t n_objects;
};

static bool is_ordered_dict(const json_t *value)
{
    const char *class = dcp_py_class(value);

    return class && !strcmp(class, DCP_PY_ORDERED);
}

/* A dict with plain strings as keys. */
static bool is_plain_dict(json_t *value)
{
    const char *key;
    json_t *item;

    json_object_foreach(value, key, item)
    {
        if (dcp_py_is_tag(key))
            return false;
    }
    return json_is_object(value);
}

/* -- objects of their own ------------------------------------------------------------ */

static int split(struct splitter *s, json_t *value, const char *path);

/* A child without tensors becomes an object, and *out_new the reference to it. */
static int split_child(struct splitter *s, json_t *child, const char *path,
                       const char *part, json_t **out_new)
{
    size_t n = strlen(path) + strlen(part) + 2;
    DCP_CLEANUP_FREE char *name = malloc(n);

    *out_new = NULL;
    if (!name)
        return dcp_error_memory(s->err, "the name of an object");
    snprintf(name, n, "%s%s%s", path, path[0] ? "." : "", part);
    if (dcp_py_holds_tensor(child))
        return split(s, child, name);
    if (!name[0] || !strcmp(name, DCP_TORCH_TREE) ||
        s->n_objects >= DCP_TORCH_MAX_OBJECTS ||
        dcp_catalog_find_object(s->catalog, name) >= 0)
        return DCP_OK;
    s->n_objects++;
    int rc = dcp_training_add(s->catalog, name, json_incref(child), s->err);
    if (!rc && !(*out_new = dcp_py_name(DCP_PY_VALUE, name)))
        rc = dcp_error_memory(s->err, "an object");
    return rc;
}

/* Containers are descended into; whatever else holds tensors stays whole in the tree. */
static int split(struct splitter *s, json_t *value, const char *path)
{
    struct dcp_py_parts parts = dcp_py_parts(value);
    json_t *child;

    if (parts.kind == DCP_PY_MEMBERS && !is_plain_dict(value))
        return DCP_OK;
    while (dcp_py_next(&parts)) {
        if (!parts.name || parts.is_word)
            continue;
        DCP_TRY(split_child(s, parts.value, path, parts.name, &child));
        if (child && !dcp_py_put(&parts, child))
            return dcp_error_memory(s->err, "an object");
    }
    return DCP_OK;
}

/* -- what stays in the tree ---------------------------------------------------------- */

static bool holds_value(const json_t *value);

/* Attributes are no part of a tensor's numbers. */
static bool dress_holds_value(const json_t *tensor)
{
    return holds_value(json_object_get(tensor, "attributes")) ||
           holds_value(json_object_get(tensor, "state"));
}

/* Whether it says more than tensors, and of which classes it is. */
static bool holds_value(const json_t *value)
{
    struct dcp_py_parts parts = dcp_py_children(value);
    bool holds = value && parts.kind == DCP_PY_PLAIN;
    bool is_object = json_object_get(value, DCP_PY_OBJECT);

    if (dcp_py_tensor(value))
        return dress_holds_value(value);
    while (!holds && dcp_py_next(&parts)) {
        bool of_class = is_object && (!strcmp(parts.name, DCP_PY_OBJECT) ||
                                      !strcmp(parts.name, "new"));
        holds = !of_class && holds_value(parts.value);
    }
    return holds;
}

/* "args: argparse.Namespace"; a dict is called one, whatever is its tag. */
static int tell(const struct dcp_value_listener *listener, const json_t *value,
                const char *path, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf name = { 0 };
    const char *class = dcp_py_class(value), *tag = dcp_py_tag(value);
    const char *what = class                  ? class
                       : dcp_py_tensor(value) ? "attributes"
                       : tag                  ? tag + 1
                                              : "dict";

    dcp_buf_add_fmt(&name, "%s: %s", path[0] ? path : DCP_TORCH_TREE, what);
    DCP_TRY(dcp_buf_check(&name, err));
    return listener->take(listener->self, (const char *)name.data, err);
}

/* What split left where it was, each container once. */
static int each_kept(const struct dcp_value_listener *listener, json_t *value,
                     const char *path, struct dcp_error *err)
{
    struct dcp_py_parts parts = dcp_py_parts(value);
    bool told = false;

    if (parts.kind == DCP_PY_MEMBERS && !is_plain_dict(value))
        return holds_value(value) && dcp_py_holds_tensor(value)
                   ? tell(listener, value, path, err)
                   : DCP_OK;
    while (dcp_py_next(&parts)) {
        DCP_CLEANUP_BUF struct dcp_buf inner = { 0 };
        if (!parts.name || parts.is_word) {
            if (!told && holds_value(parts.value))
                DCP_TRY(tell(listener, value, path, err));
            told = told || holds_value(parts.value);
            continue;
        }
        if (dcp_py_value(parts.value))
            continue;
        dcp_buf_add_fmt(&inner, "%s%s%s", path, path[0] ? "." : "", parts.name);
        DCP_TRY(dcp_buf_check(&inner, err));
        const char *name = (const char *)inner.data;
        DCP_TRY(dcp_py_holds_tensor(parts.value)
                    ? each_kept(listener, parts.value, name, err)
                    : listener->take(listener->self, name, err));
    }
    return DCP_OK;
}

/* -- the whole ----------------------------------------------------------------------- */

static bool is_tensor_named(const json_t *value, const char *name)
{
    const char *tensor = json_object_size(value) == 1 ? dcp_py_tensor(value) : NULL;

    return tensor && name && !strcmp(tensor, name);
}

/* A dict of plain tensors and nothing else: names and order say everything. */
static bool is_flat(json_t *tree)
{
    json_t *pairs = dcp_py_pairs(tree), *item;
    const char *key;
    size_t i;

    if (is_ordered_dict(tree) && json_object_size(tree) <= 2 &&
        (pairs || json_object_size(tree) == 1)) {
        json_array_foreach(pairs, i, item)
        {
            if (!is_tensor_named(json_array_get(item, 1),
                                 json_string_value(json_array_get(item, 0))))
                return false;
        }
        return true;
    }
    if (!is_plain_dict(tree))
        return false;
    json_object_foreach(tree, key, item)
    {
        if (!is_tensor_named(item, key))
            return false;
    }
    return true;
}

/* Ties come last in a target, so that only the tree knows the order of a dict. */
static bool has_ties(const struct dcp_catalog *catalog)
{
    for (size_t i = 0; i < catalog->n_tensors; i++)
        if (catalog->tensors[i].tied_to)
            return true;
    return false;
}

int dcp_torch_objects_kept(const struct dcp_object *object,
                           const struct dcp_value_listener *listener,
                           struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *tree = NULL;

    if (object->kind != DCP_OBJECT_JSON) /* somebody else's, of that name */
        return listener->take(listener->self, object->name, err);
    DCP_TRY(dcp_json_parse(object->data, object->size_bytes, object->name, &tree, err));
    return each_kept(listener, tree, "", err);
}

int dcp_torch_objects_index(struct dcp_torch_file *file, struct dcp_catalog *catalog,
                            json_t *tree, struct dcp_error *err)
{
    struct splitter s = { .catalog = catalog, .err = err };

    if (is_flat(tree) && !has_ties(catalog))
        return DCP_OK;
    DCP_TRY(dcp_torch_roles(catalog, tree, err));
    DCP_TRY(dcp_torch_optimizers(file, catalog, tree, err));
    DCP_TRY(split(&s, tree, ""));
    return dcp_training_add(catalog, DCP_TORCH_TREE, json_incref(tree), err);
}
