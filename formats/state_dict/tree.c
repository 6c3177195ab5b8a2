/* tree: paths of a tree. */
#include "tree.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/roles.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include "formats/torch/torch.h"
#include "keys.h"
#include <string.h>

static const char marks[] = { DCP_PATH_KEY, DCP_PATH_INDEX, '\0' };

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the nesting of a state dict");
}

/* -- paths of a tree ----------------------------------------------------------------- */

struct walk {
    struct dcp_tree *tree;
    struct dcp_buf path;
    bool odd; /* a key looks like the marks in paths */
    struct dcp_error *err;
};

static int walk(struct walk *w, json_t *value);

static int walk_part(struct walk *w, char mark, const char *part, json_t *value)
{
    size_t old = w->path.size_bytes;

    w->odd = w->odd || part[strcspn(part, marks)];
    dcp_buf_add_fmt(&w->path, "%.*s%s", old > 0, &mark, part);
    if (w->path.failed)
        return no_memory(w->err);
    int rc = walk(w, value);
    w->path.size_bytes = old;
    w->path.data[old] = '\0';
    return rc;
}

static int take(struct walk *w, json_t **paths, const char *name)
{
    if (!*paths)
        *paths = json_object();
    return !json_object_get(*paths, name) &&
                   json_object_set_new(
                       *paths, name,
                       json_stringn((const char *)w->path.data, w->path.size_bytes))
               ? no_memory(w->err)
               : DCP_OK;
}

static int walk(struct walk *w, json_t *value)
{
    const char *tensor = dcp_py_tensor(value), *object = dcp_py_value(value);
    struct dcp_py_parts parts = dcp_py_parts(value);

    if ((tensor || object) && !w->path.size_bytes)
        return DCP_OK; /* a tensor that is the whole file has no path */
    if (tensor || object)
        return take(w, tensor ? &w->tree->tensors : &w->tree->objects,
                    tensor ? tensor : object);
    while (dcp_py_next(&parts)) {
        if (parts.kind == DCP_PY_MEMBERS && dcp_py_is_tag(parts.name))
            return DCP_OK; /* an object of some class: what is in it has no path */
        if (parts.name)
            DCP_TRY(walk_part(w,
                              parts.kind == DCP_PY_LIST ? DCP_PATH_INDEX : DCP_PATH_KEY,
                              parts.name, parts.value));
    }
    return DCP_OK;
}

/* A plain dict of tensors is a model's, whatever container it is put into; so is one of
 * this library, which names an optimizer's tensors in its own way. */
static bool is_flat(const struct dcp_tree *tree)
{
    bool own = false;
    const char *name, *param;
    json_t *path;

    json_object_foreach(tree->tensors, name, path)
    {
        if (strpbrk(json_string_value(path), marks))
            return false;
        own = own || dcp_role_is_optim(dcp_role_of_name(name, &param));
    }
    return own || !tree->objects;
}

int dcp_tree_load(struct dcp_tree *tree, const struct dcp_catalog *catalog,
                  struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *root = NULL;
    struct walk w = { .tree = tree, .err = err };
    int rc = dcp_training_read(catalog, DCP_TORCH_TREE, &root, err);

    *tree = (struct dcp_tree){ 0 };
    if (rc || !root)
        return rc;
    rc = walk(&w, root);
    dcp_buf_fini(&w.path);
    if (rc || w.odd || is_flat(tree))
        dcp_tree_fini(tree);
    return rc;
}

void dcp_tree_fini(struct dcp_tree *tree)
{
    json_decref(tree->tensors);
    json_decref(tree->objects);
    *tree = (struct dcp_tree){ 0 };
}

bool dcp_tree_find(json_t *paths, struct dcp_catalog *catalog, const char *name,
                   const char **out_key, const char **out_path)
{
    const char *path = json_string_value(json_object_get(paths, name));

    if (!path || !path[0])
        return false;
    char *key = dcp_catalog_alloc(catalog, strlen(path) + 1, 1);
    *out_path = key ? dcp_catalog_text(catalog, path) : NULL;
    *out_key = key;
    for (size_t i = 0; key && path[i]; i++)
        key[i] = strchr(marks, path[i]) ? '.' : path[i];
    return true;
}
