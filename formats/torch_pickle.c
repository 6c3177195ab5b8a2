/* torch_pickle: data.pkl of a file that is written: the tree that "torch.tree" keeps, or
 * a plain dict of the tensors. */
#include "base/json.h"
#include "base/mem.h"
#include "dcp_tree.h"
#include "pickle_json.h"
#include "torch.h"
#include "torch_value.h"
#include "training.h"
#include <string.h>

struct pickler {
    struct dcp_torch_writer w;
    struct dcp_catalog *catalog;
    bool *named_tensors, *named_objects; /* the tree refers to them */
    bool kept;                           /* the tree is the one of a file */
    bool opaque; /* a tensor stands in an object of a class that cannot be written */
};

/* Marks what the tree refers to. The tree came from a file; its depth is limited by the
 * parser. */
static void mark(struct pickler *p, json_t *value, bool in_opaque)
{
    const char *class = json_string_value(json_object_get(value, "$object"));
    const char *tensor = dcp_torch_json_tensor(value);
    const char *object = json_string_value(dcp_pickle_json_tagged(value, "$value"));
    const char *key;
    json_t *item;
    size_t i;
    int at;

    in_opaque = in_opaque || (class && !dcp_torch_class_is_known(class));
    if (tensor && (at = dcp_catalog_find(p->w.catalog, tensor)) >= 0) {
        p->named_tensors[at] = true;
        p->opaque = p->opaque || in_opaque;
    }
    if (object && (at = dcp_catalog_find_object(p->w.catalog, object)) >= 0)
        p->named_objects[at] = true;
    json_array_foreach(value, i, item)
    {
        mark(p, item, in_opaque);
    }
    json_object_foreach(value, key, item)
    {
        mark(p, item, in_opaque);
    }
}

/* A file of nothing but weights is a plain state dict, which is what every loader
 * expects: other objects ride along only beside an optimizer. */
static bool takes_objects(const struct dcp_catalog *catalog)
{
    for (size_t i = 0; i < catalog->n_tensors; i++)
        if (dcp_role_is_optim(catalog->tensors[i].role))
            return true;
    return dcp_catalog_find_object(catalog, DCP_TRAINING_OPTIMIZER) >= 0;
}

/* Adds references to what the tree does not name yet. */
static int add_rest(struct pickler *p, json_t *dict, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = p->w.catalog;
    bool objects = takes_objects(catalog);
    int failed = 0;

    for (size_t i = 0; i < catalog->n_tensors && !failed; i++) {
        const char *name = catalog->tensors[i].name;
        if (!p->named_tensors[i])
            failed = json_object_set_new(dict, name, json_pack("{s:s}", "$tensor", name));
    }
    for (size_t i = 0; i < catalog->n_objects && objects && !failed; i++) {
        const char *name = catalog->objects[i].name;
        if (p->kept && !strcmp(name, DCP_TRAINING_OPTIMIZER))
            continue; /* the tree has it in torch's words */
        if (!p->named_objects[i] && !dcp_object_is_spelling(name) &&
            !json_object_get(dict, name))
            failed = json_object_set_new(dict, name, json_pack("{s:s}", "$value", name));
    }
    return failed ? dcp_error_memory(err, "a PyTorch file") : DCP_OK;
}

static bool names_all_tensors(const struct pickler *p)
{
    for (size_t i = 0; i < p->w.catalog->n_tensors; i++)
        if (!p->named_tensors[i])
            return false;
    return true;
}

/* The object to write: the tree, when there is one or keys tell of one, it can be
 * written, and the tensors have their place in it or can be added to it. Otherwise, as
 * for a whole nn.Module or a sparse tensor, a dict by the tensors' names: a state dict.
 */
static int make_tree(struct pickler *p, json_t **out, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = p->w.catalog;
    int at = dcp_catalog_find_object(catalog, DCP_TORCH_TREE);
    json_t *tree = NULL;

    if (at >= 0 && catalog->objects[at].kind == DCP_OBJECT_JSON) {
        const struct dcp_object *object = &catalog->objects[at];
        int rc =
            dcp_json_parse(object->data, object->size_bytes, DCP_TORCH_TREE, &tree, err);
        if (rc)
            return rc;
        mark(p, tree, false);
    } else {
        int rc = dcp_tree_make(p->catalog, &tree, err);
        if (rc)
            return rc;
        mark(p, tree, false);
        for (size_t o = 0; tree && o < catalog->n_objects; o++)
            p->named_objects[o] = true;
    }
    bool open = json_is_object(tree) && !json_object_get(tree, "$object") &&
                !(json_object_size(tree) == 1 &&
                  json_object_iter_key(json_object_iter(tree))[0] == '$');
    if (tree && (p->opaque || (!open && !names_all_tensors(p)))) {
        json_decref(tree);
        tree = NULL;
    }
    if (!tree) {
        memset(p->named_tensors, 0, catalog->n_tensors * sizeof *p->named_tensors);
        memset(p->named_objects, 0, catalog->n_objects * sizeof *p->named_objects);
        open = true;
        tree = json_object();
    } else {
        p->kept = true;
    }
    int rc = tree ? DCP_OK : dcp_error_memory(err, "a PyTorch file");
    if (!rc && open)
        rc = add_rest(p, tree, err);
    if (rc) {
        json_decref(tree);
        tree = NULL;
    }
    *out = tree;
    return rc;
}

int dcp_torch_pickle(struct dcp_catalog *catalog, struct dcp_buf *out, size_t *first_seen,
                     size_t *out_n_storages, struct dcp_error *err)
{
    struct dcp_pickle_out pickle = { 0 };
    DCP_CLEANUP_JSON json_t *tree = NULL;
    DCP_CLEANUP_FREE bool *tensors = dcp_mem_calloc(catalog->n_tensors, sizeof *tensors);
    DCP_CLEANUP_FREE bool *objects = dcp_mem_calloc(catalog->n_objects, sizeof *objects);
    DCP_CLEANUP_FREE int64_t *storage =
        dcp_mem_calloc(catalog->n_tensors, sizeof *storage);
    DCP_CLEANUP_FREE struct dcp_torch_memo *memo =
        dcp_mem_calloc(catalog->n_tensors, sizeof *memo);
    struct dcp_arena *arena = dcp_arena_new();
    struct pickler p = { .w = { .catalog = catalog,
                                .out = &pickle,
                                .arena = arena,
                                .first_seen = first_seen,
                                .storage = storage,
                                .memo = memo },
                         .catalog = catalog,
                         .named_tensors = tensors,
                         .named_objects = objects };

    int rc = arena && tensors && objects && storage && memo
                 ? make_tree(&p, &tree, err)
                 : dcp_error_memory(err, "a PyTorch file");
    for (size_t i = 0; i < catalog->n_tensors && !rc; i++)
        storage[i] = -1;
    if (!rc) {
        dcp_pickle_begin(&pickle);
        rc = dcp_torch_write_value(&p.w, tree, err);
        dcp_pickle_end(&pickle);
    }
    if (!rc)
        rc = dcp_buf_check(&pickle.buf, err);
    if (!rc) {
        *out = pickle.buf; /* handed over */
        pickle.buf = (struct dcp_buf){ 0 };
        *out_n_storages = p.w.n_storages;
    }
    dcp_pickle_out_fini(&pickle);
    dcp_arena_free(arena);
    return rc;
}
