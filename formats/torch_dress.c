/* torch_dress: parameters, classes of tensors, arrays of NumPy, storages: read from the
 * calls that make them, and written as such calls. */
#include "torch_dress.h"
#include "base/mem.h"
#include "npy.h"
#include <stdio.h>
#include <string.h>

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the objects of a pickle");
}

/* -- reading ------------------------------------------------------------------------- */

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
    json_t *name = dcp_pickle_json_tagged(type, "$global");

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

/* -- writing ------------------------------------------------------------------------- */

static void call(struct dcp_pickle_out *out, size_t n_args)
{
    dcp_pickle_tuple_end(out, n_args);
    dcp_pickle_op(out, 'R');
}

static void no_hooks(struct dcp_pickle_out *out)
{
    dcp_pickle_global(out, "collections", "OrderedDict");
    call(out, 0);
    dcp_pickle_put(out);
}

/* dtype('f4', False, True), filled with (3, '<', None, None, None, -1, -1, 0) */
static void write_dtype(struct dcp_pickle_out *out, enum dcp_dtype dtype)
{
    dcp_pickle_global(out, "numpy", "dtype");
    dcp_pickle_shared_text(out, dcp_npy_code(dtype));
    dcp_pickle_bool(out, false);
    dcp_pickle_bool(out, true);
    call(out, 3);
    dcp_pickle_put(out);
    dcp_pickle_tuple_begin(out, 8);
    dcp_pickle_int(out, 3);
    dcp_pickle_shared_text(out, dcp_dtype_size(dtype) > 1 ? "<" : "|");
    for (int i = 0; i < 3; i++)
        dcp_pickle_none(out);
    dcp_pickle_int(out, -1);
    dcp_pickle_int(out, -1);
    dcp_pickle_int(out, 0);
    dcp_pickle_tuple_end(out, 8);
    dcp_pickle_op(out, 'b');
}

/* _reconstruct(ndarray, (0,), b'b'), filled with (1, shape, dtype, False, bytes); the
 * bytes are a hole. */
static void write_array(struct dcp_torch_writer *w, size_t tensor, const char *module)
{
    const struct dcp_tensor *t = &w->catalog->tensors[tensor];
    uint64_t n = dcp_tensor_bytes(t);
    const int64_t zero = 0;
    struct dcp_pickle_out *out = w->out;

    dcp_pickle_global(out, module, "_reconstruct");
    dcp_pickle_global(out, "numpy", "ndarray");
    dcp_pickle_numbers(out, &zero, 1);
    dcp_pickle_bytes_call(out, (const unsigned char *)"b", 1);
    call(out, 3);
    dcp_pickle_put(out);
    dcp_pickle_tuple_begin(out, 5);
    dcp_pickle_int(out, 1);
    dcp_pickle_numbers(out, t->shape, (size_t)t->ndim);
    write_dtype(out, t->dtype);
    dcp_pickle_bool(out, false);
    dcp_pickle_op(out, n > UINT32_MAX ? '\x8e' : 'B');
    if (n > UINT32_MAX)
        dcp_buf_add_le64(&out->buf, n);
    else
        dcp_buf_add_le32(&out->buf, (uint32_t)n);
    w->holes[w->n_holes++] = (struct dcp_torch_hole){ tensor, out->buf.size_bytes };
    dcp_pickle_put(out);
    dcp_pickle_tuple_end(out, 5);
    dcp_pickle_op(out, 'b');
}

static int write_typed(struct dcp_torch_writer *w, size_t tensor, json_t *value,
                       int depth, struct dcp_error *err)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    json_t *state = json_object_get(value, "state");
    int rc = DCP_OK;

    dcp_pickle_global(w->out, "torch._tensor", "_rebuild_from_type_v2");
    dcp_pickle_tuple_begin(w->out, 4);
    dcp_torch_write_rebuild(w, tensor);
    if (!dcp_torch_write_global(w->out, type))
        dcp_pickle_global(w->out, "torch", "Tensor");
    dcp_torch_write_arguments(w, tensor, json_is_true(json_object_get(value, "grad")));
    if (state) {
        rc = dcp_torch_write_inner(w, state, depth, err);
    } else {
        dcp_pickle_op(w->out, '}');
        dcp_pickle_put(w->out);
    }
    call(w->out, 4);
    return rc;
}

static int write_bare(struct dcp_torch_writer *w, size_t tensor, json_t *value, int depth,
                      struct dcp_error *err)
{
    bool parameter = json_is_true(json_object_get(value, "parameter"));

    if (json_is_string(json_object_get(value, "type")))
        return write_typed(w, tensor, value, depth, err);
    dcp_torch_write_rebuild(w, tensor);
    dcp_torch_write_arguments(w, tensor,
                              !parameter && json_is_true(json_object_get(value, "grad")));
    dcp_pickle_op(w->out, 'R');
    return DCP_OK;
}

static int write_parameter(struct dcp_torch_writer *w, size_t tensor, json_t *value,
                           int depth, struct dcp_error *err)
{
    json_t *attributes = json_object_get(value, "attributes");
    size_t n_args = attributes ? 4 : 3;

    dcp_pickle_global(w->out, "torch._utils",
                      attributes ? "_rebuild_parameter_with_state"
                                 : "_rebuild_parameter");
    dcp_pickle_tuple_begin(w->out, n_args);
    int rc = write_bare(w, tensor, value, depth, err);
    dcp_pickle_put(w->out);
    dcp_pickle_bool(w->out, json_is_true(json_object_get(value, "grad")));
    no_hooks(w->out);
    if (!rc && attributes)
        rc = dcp_torch_write_inner(w, attributes, depth, err);
    call(w->out, n_args);
    return rc;
}

/* An array that another name shares is a tensor; so is one of a dtype that NumPy has
 * not. */
static bool is_array(const struct dcp_torch_writer *w, size_t tensor)
{
    const struct dcp_tensor *t = &w->catalog->tensors[tensor];
    bool free = w->holes && !t->tied_to && w->storage[tensor] < 0;

    for (size_t h = 0; h < w->n_holes && free; h++)
        free = w->holes[h].tensor != tensor;
    return free && dcp_npy_code(t->dtype);
}

int dcp_torch_write_dressed(struct dcp_torch_writer *w, size_t tensor, json_t *value,
                            int depth, struct dcp_error *err)
{
    const char *module = json_string_value(json_object_get(value, "array")),
               *storage = json_string_value(json_object_get(value, "storage"));

    if (module && is_array(w, tensor)) {
        write_array(w, tensor,
                    strcmp(module, "numpy._core.multiarray") ? "numpy.core.multiarray"
                                                             : module);
        return DCP_OK;
    }
    if (storage && dcp_torch_storage_class(w->catalog->tensors[tensor].dtype)) {
        dcp_torch_write_storage(w, tensor, !strcmp(storage, "untyped"));
        return DCP_OK;
    }
    return json_is_true(json_object_get(value, "parameter"))
               ? write_parameter(w, tensor, value, depth, err)
               : write_bare(w, tensor, value, depth, err);
}
