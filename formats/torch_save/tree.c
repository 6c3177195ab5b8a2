/* tree: walks the Python object of a file. Tensors go to the catalog; the rest
 * becomes JSON, in which their names stand for them. */
#include "base/map.h"
#include "base/mem.h"
#include "formats/common/roles.h"
#include "formats/pickle/json.h"
#include "formats/torch/dress.h"
#include "formats/torch/torch.h"
#include "torch_save.h"
#include <stdio.h>
#include <string.h>

enum { MAX_NAME_BYTES = 4096, MAX_SPELLINGS = 9 };

struct walk {
    struct dcp_torch_file *file;
    struct dcp_catalog *catalog;
    int file_index;
    struct dcp_map seen; /* pointers to tensors of the tree */
    struct dcp_pickle_used used;
};

/* Remembers a node. *out_again: it stood in the tree before. */
static int see(struct walk *w, const struct dcp_pickle_node *node, bool *out_again,
               struct dcp_error *err)
{
    *out_again = dcp_map_find(&w->seen, &node, sizeof node) >= 0;
    return dcp_map_set(&w->seen, &node, sizeof node, 0)
               ? DCP_OK
               : dcp_error_memory(err, "the objects of a pickle");
}

int dcp_torch_view_piece(const struct dcp_torch_view *view, int file_index,
                         struct dcp_catalog *catalog, struct dcp_piece *out,
                         struct dcp_error *err)
{
    size_t n = (size_t)view->stored_size;

    *out = (struct dcp_piece){
        .file = view->memory ? -1 : file_index,
        .offset = view->offset,
        .stored_size = view->stored_size,
        .codec = view->codec,
        .skip = view->skip,
        .stride = view->dense ? NULL : view->stride,
    };
    if (!view->memory)
        return DCP_OK;
    out->data = dcp_catalog_alloc(catalog, n, 1);
    if (!out->data)
        return dcp_error_memory(err, "a NumPy array");
    memcpy(out->data, view->memory, n);
    return DCP_OK;
}

int dcp_torch_add_piece(struct dcp_catalog *catalog, int file_index, int tensor,
                        const struct dcp_torch_view *view, struct dcp_error *err)
{
    struct dcp_piece piece;
    int rc = dcp_torch_view_piece(view, file_index, catalog, &piece, err);

    piece.tensor = tensor;
    return rc ? rc : dcp_catalog_add_piece(catalog, &piece, err);
}

/* Adds the tensor and makes the JSON that stands for it. */
static int add_tensor(struct walk *w, const char *name, const struct dcp_torch_view *view,
                      const char *tag, json_t **out, struct dcp_error *err)
{
    struct dcp_tensor tensor = {
        .name = name[0] ? name : DCP_TORCH_BARE_TENSOR,
        .dtype = view->dtype,
        .ndim = view->ndim,
        .shape = view->shape,
        .is_meta = !view->has_data,
    };
    char spelled[MAX_NAME_BYTES];
    int index;

    if (strstr(name, DCP_PICKLE_JSON_NO_NAME))
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' has a tensor under a key that is empty or holds NUL, "
                             "which is no name",
                             w->file->in.shown);
    /* The keys 1 and "1" lead to one name, and so do "a.b" and "a" with "b" in it. */
    for (int n = 2; n <= MAX_SPELLINGS && dcp_catalog_find(w->catalog, tensor.name) >= 0;
         n++) {
        if (snprintf(spelled, sizeof spelled, "%s#%d", name, n) >= (int)sizeof spelled)
            break;
        tensor.name = spelled;
    }
    tensor.role = dcp_role_of_name(tensor.name, &tensor.param);
    int rc = dcp_catalog_add_tensor(w->catalog, &tensor, &index, err);
    if (!rc && view->has_data)
        rc = dcp_torch_add_piece(w->catalog, w->file_index, index, view, err);
    if (rc) {
        dcp_error_prefix(err, "'%s'", w->file->in.shown);
        return rc;
    }
    *out = dcp_py_name(tag, tensor.name);
    return *out ? DCP_OK : dcp_error_memory(err, "the objects of a pickle");
}

/* _rebuild_sparse_tensor(layout, (indices, values, size, …)): two tensors. */
static int take_sparse(struct walk *w, const struct dcp_pickle_node *node,
                       const char *path, json_t **out, struct dcp_error *err)
{
    static const char *const parts[] = { "indices", "values" };
    const struct dcp_pickle_node *args = dcp_pickle_item(node, 1);
    const struct dcp_pickle_hook plain = { .used = &w->used };
    json_t *tuple = json_array(), *layout = NULL, *size = NULL;
    struct dcp_torch_view view;
    char name[1024];
    bool found = true;
    int rc = tuple ? DCP_OK : dcp_error_memory(err, "a sparse tensor");

    if (!rc)
        rc = dcp_pickle_to_json(dcp_pickle_item(node, 0), w->file->arena, &plain, &layout,
                                err);
    for (size_t i = 0; i < DCP_ARRAY_LEN(parts) && !rc; i++) {
        json_t *part = NULL;
        found = snprintf(name, sizeof name, "%s#%s", path, parts[i]) < (int)sizeof name;
        if (found)
            rc = dcp_torch_view(w->file, dcp_pickle_item(args, i), name, &found, &view,
                                err);
        if (!rc && !found)
            rc = dcp_error_set(err, DCP_E_CORRUPT, "'%s': a sparse tensor is malformed",
                               w->file->in.shown);
        if (!rc)
            rc = add_tensor(w, name, &view, DCP_PY_TENSOR, &part, err);
        if (!rc && json_array_append_new(tuple, part))
            rc = dcp_error_memory(err, "a sparse tensor");
    }
    if (!rc)
        rc = dcp_pickle_to_json(dcp_pickle_item(args, 2), w->file->arena, &plain, &size,
                                err);
    if (!rc &&
        (json_array_append(tuple, size) ||
         !(*out = dcp_py_object("torch._utils._rebuild_sparse_tensor", "args",
                                json_pack("[O,{s:O}]", layout, DCP_PY_TUPLE, tuple)))))
        rc = dcp_error_memory(err, "a sparse tensor");
    json_decref(tuple);
    json_decref(layout);
    json_decref(size);
    return rc;
}

static int take(void *self, const struct dcp_pickle_node *node, const char *path,
                json_t **out, struct dcp_error *err)
{
    struct walk *w = self;
    struct dcp_torch_view view;
    bool found, again = false;

    if (node->kind == DCP_PICKLE_GLOBAL)
        return DCP_OK;
    if (dcp_pickle_is_call(node, "torch._utils", "_rebuild_sparse_tensor") &&
        dcp_pickle_is_text(dcp_pickle_item(dcp_pickle_item(node, 0), 0),
                           "torch.sparse_coo") &&
        dcp_pickle_item(dcp_pickle_item(node, 1), 2))
        return take_sparse(w, node, path, out, err);
    int rc = dcp_torch_view(w->file, node, path, &found, &view, err);
    if (rc || !found)
        return rc;
    if (view.has_data && !view.memory)
        rc = see(w, node, &again, err);
    if (!rc)
        rc = add_tensor(w, path, &view, again ? DCP_PY_AGAIN : DCP_PY_TENSOR, out, err);
    const struct dcp_pickle_hook hook = { take, w, &w->used };
    if (!rc && view.has_data)
        rc = dcp_torch_dress(w->file, node, path, again ? NULL : &hook, *out, err);
    if (rc) {
        json_decref(*out);
        *out = NULL;
    }
    return rc;
}

int dcp_torch_tree_index(struct dcp_torch_file *file, struct dcp_catalog *catalog,
                         int file_index, struct dcp_error *err)
{
    struct walk w = { .file = file, .catalog = catalog, .file_index = file_index };
    const struct dcp_pickle_hook hook = { take, &w, &w.used };
    json_t *tree = NULL;
    int rc = dcp_pickle_to_json(file->tree, file->arena, &hook, &tree, err);

    dcp_map_fini(&w.seen);
    if (!rc)
        rc = dcp_torch_tie_views(catalog, err);
    if (!rc)
        rc = dcp_torch_objects_index(file, catalog, tree, err);
    json_decref(tree);
    return rc;
}
