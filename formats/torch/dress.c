/* dress: parameters, classes of tensors, arrays of NumPy, storages: read from the
 * calls that make them. */
#include "dress.h"
#include "base/mem.h"
#include "formats/numpy/npy.h"
#include <stdio.h>
#include <string.h>

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the objects of a pickle");
}

/* The hook of the tree, below a path. */
struct below {
    const struct dcp_pickle_hook *hook;
    const char *path;
};

static int take_below(void *self, const struct dcp_pickle_node *node, const char *path,
                      json_t **out, struct dcp_error *err)
{
    const struct below *b = self;
    size_t n = strlen(b->path) + strlen(path) + 2;
    DCP_CLEANUP_FREE char *whole = malloc(n);

    if (!whole)
        return no_memory(err);
    snprintf(whole, n, "%s%s%s", b->path, b->path[0] && path[0] ? "." : "", path);
    return b->hook->take(b->hook->self, node, whole, out, err);
}

static bool is_call(const struct dcp_pickle_node *node, const char *name)
{
    return dcp_pickle_is_call(node, "torch._utils", name);
}

static bool is_true(const struct dcp_pickle_node *node)
{
    return node && node->kind == DCP_PICKLE_BOOL && node->truth;
}

/* What makes arrays, in either spelling and version of NumPy. */
static const char *array_module(const struct dcp_pickle_node *node)
{
    static const char *const modules[][2] = {
        { "numpy.core.multiarray", "numpy.core.numeric" },
        { "numpy._core.multiarray", "numpy._core.numeric" },
    };

    for (size_t i = 0; i < DCP_ARRAY_LEN(modules); i++)
        if (dcp_pickle_is_call(node, modules[i][0], "_reconstruct") ||
            dcp_pickle_is_call(node, modules[i][1], "_frombuffer"))
            return modules[i][0];
    return NULL;
}

static bool set(json_t *value, const char *key, json_t *member)
{
    return !json_object_set_new(value, key, member);
}

/* A part of a call as a member; None and empty dicts are nothing. hook is NULL where
 * parts are left out. */
static int set_json(const struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                    const struct dcp_pickle_hook *hook, json_t *value, const char *key,
                    struct dcp_error *err)
{
    json_t *json = NULL;

    if (!hook || !node || node->kind == DCP_PICKLE_NONE ||
        (node->kind == DCP_PICKLE_DICT && !node->list.n))
        return DCP_OK;
    int rc = dcp_pickle_to_json(node, file->arena, hook, &json, err);
    return rc || set(value, key, json) ? rc : no_memory(err);
}

/* _rebuild_from_type_v2(function, type, args, state) */
static int dress_typed(const struct dcp_torch_file *file,
                       const struct dcp_pickle_node *node,
                       const struct dcp_pickle_hook *hook, json_t *value,
                       struct dcp_error *err)
{
    const struct dcp_pickle_node *class = dcp_pickle_item(node, 1);
    json_t *type = NULL;
    int rc = class && class->kind == DCP_PICKLE_GLOBAL
                 ? dcp_pickle_to_json(class, file->arena, NULL, &type, err)
                 : DCP_OK;
    json_t *name = dcp_py_get(type, DCP_PY_GLOBAL);

    if (!rc && name && !set(value, "type", json_incref(name)))
        rc = no_memory(err);
    json_decref(type);
    return rc ? rc : set_json(file, dcp_pickle_item(node, 3), hook, value, "state", err);
}

static int dress(const struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                 const struct dcp_pickle_hook *hook, json_t *value, struct dcp_error *err)
{
    const struct dcp_pickle_node *args = NULL;
    const char *module = array_module(node);
    bool ok = true, untyped = false;
    enum dcp_dtype dtype;
    int rc = DCP_OK;

    while ((is_call(node, "_rebuild_parameter") ||
            is_call(node, "_rebuild_parameter_with_state")) &&
           dcp_pickle_item(node, 0) && !rc) {
        ok = ok && set(value, "parameter", json_true()) &&
             (!is_true(dcp_pickle_item(node, 1)) || set(value, "grad", json_true()));
        rc = set_json(file, dcp_pickle_item(node, 3), hook, value, "attributes", err);
        node = dcp_pickle_item(node, 0);
    }
    if (rc)
        return rc;
    if (module) {
        ok = set(value, "array", json_string(module));
    } else if (node->kind == DCP_PICKLE_PERSID && file->form != DCP_TORCH_TAR) {
        if (dcp_torch_class_dtype(dcp_pickle_item(node->id, 1), &dtype, &untyped))
            ok = set(value, "storage", json_string(untyped ? "untyped" : "typed"));
    } else if (dcp_pickle_is_call(node, "torch._tensor", "_rebuild_from_type_v2")) {
        rc = dress_typed(file, node, hook, value, err);
        args = dcp_pickle_item(node, 2);
    } else if (is_call(node, "_rebuild_tensor_v2") ||
               is_call(node, "_rebuild_tensor_v3")) {
        args = node->object->args;
    }
    if (is_true(dcp_pickle_item(args, 4)))
        ok = ok && set(value, "grad", json_true());
    return rc || ok ? rc : no_memory(err);
}

int dcp_torch_dress(const struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                    const char *path, const struct dcp_pickle_hook *hook, json_t *value,
                    struct dcp_error *err)
{
    struct below below = { hook, path };
    const struct dcp_pickle_hook inner = { .take = take_below,
                                           .self = &below,
                                           .used = hook ? hook->used : NULL };

    return dress(file, node, hook ? &inner : NULL, value, err);
}
