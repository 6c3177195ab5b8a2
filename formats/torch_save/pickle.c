/* pickle: data.pkl of a file that is written: the tree that "torch.tree" keeps, or
 * a plain dict of the tensors. */
#include "base/json.h"
#include "base/mem.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include "formats/state_dict/carried.h"
#include "formats/state_dict/nested.h"
#include "formats/torch/torch.h"
#include "formats/torch/value.h"
#include "torch_save.h"
#include <string.h>

struct pickler {
    struct dcp_torch_writer w;
    struct dcp_catalog *catalog;
    bool *named_tensors, *named_objects; /* the tree refers to them, or says as much */
    bool nested; /* the tree is made of a distributed checkpoint */
};

static void mark(struct pickler *p, json_t *value);

/* Of a tensor's dress only these are written (torch/dress.c). */
static void mark_tensor(struct pickler *p, const char *name, json_t *value)
{
    int at = dcp_catalog_find(p->w.catalog, name);

    if (at < 0)
        return;
    p->named_tensors[at] = true;
    if (json_is_true(json_object_get(value, "parameter")))
        mark(p, json_object_get(value, "attributes"));
    if (json_is_string(json_object_get(value, "type")))
        mark(p, json_object_get(value, "state"));
}

/* Marks what the tree refers to. The tree came from a file; its depth is limited by the
 * parser. */
static void mark(struct pickler *p, json_t *value)
{
    struct dcp_py_parts parts = dcp_py_children(value);
    const char *tensor = dcp_py_tensor(value), *object = dcp_py_value(value);
    int at = object ? dcp_catalog_find_object(p->w.catalog, object) : -1;

    if (tensor) {
        mark_tensor(p, tensor, value);
        return;
    }
    if (at >= 0)
        p->named_objects[at] = true;
    while (dcp_py_next(&parts))
        mark(p, parts.value);
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
            failed = json_object_set_new(dict, name, dcp_py_name(DCP_PY_TENSOR, name));
    }
    for (size_t i = 0; i < catalog->n_objects && objects && !failed; i++) {
        const char *name = catalog->objects[i].name;
        if (p->named_objects[i] || dcp_object_is_spelling(name) ||
            json_object_get(dict, name))
            continue;
        failed = json_object_set_new(dict, name, dcp_py_name(DCP_PY_VALUE, name));
        p->named_objects[i] = true;
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

/* A dict by the tensors' names: a state dict. */
static int make_dict(struct pickler *p, json_t **out, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = p->w.catalog;
    json_t *dict = json_object();

    memset(p->named_tensors, 0, catalog->n_tensors * sizeof *p->named_tensors);
    memset(p->named_objects, 0, catalog->n_objects * sizeof *p->named_objects);
    p->nested = false;
    int rc = dict ? add_rest(p, dict, err) : dcp_error_memory(err, "a PyTorch file");
    if (rc) {
        json_decref(dict);
        dict = NULL;
    }
    *out = dict;
    return rc;
}

/* The object to write: the tree, when there is one or keys tell of one, and the tensors
 * have their place in it or can be added to it. Otherwise a dict. */
static int make_tree(struct pickler *p, json_t **out, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = p->w.catalog;
    json_t *tree = NULL;
    int rc = dcp_training_read(catalog, DCP_TORCH_TREE, &tree, err);
    bool nested = !rc && !tree;

    if (nested)
        rc = dcp_nested_make(p->catalog, &tree, err);
    if (rc)
        return rc;
    mark(p, tree);
    p->nested = nested && tree;
    for (size_t o = 0; p->nested && o < catalog->n_objects; o++)
        p->named_objects[o] = true;
    bool open = dcp_py_is_dict(tree);
    if (tree && !open && !names_all_tensors(p)) {
        json_decref(tree);
        tree = NULL;
    }
    if (!tree)
        return make_dict(p, out, err);
    int at_tree = dcp_catalog_find_object(catalog, DCP_TORCH_TREE);
    if (at_tree >= 0)
        p->named_objects[at_tree] = true;
    int at_optimizer = dcp_catalog_find_object(catalog, DCP_TRAINING_OPTIMIZER);
    if (at_optimizer >= 0)
        p->named_objects[at_optimizer] = true; /* in torch's words */
    rc = open ? add_rest(p, tree, err) : DCP_OK;
    if (rc) {
        json_decref(tree);
        tree = NULL;
    }
    *out = tree;
    return rc;
}

/* Whether every tensor was met, and its bytes have one place: a tree of a file can
 * promise more than the writer finds in it. */
static bool met_all(const struct pickler *p)
{
    size_t n_places = 0;

    for (size_t i = 0; i < p->w.catalog->n_tensors; i++) {
        if (!p->w.memo[i].has_tensor)
            return false;
        n_places += dcp_torch_tie(p->w.catalog, i) == i;
    }
    return n_places == p->w.n_storages + p->w.n_holes;
}

static int write_tree(struct pickler *p, json_t *tree, struct dcp_error *err)
{
    size_t n = p->w.catalog->n_tensors;

    memset(p->w.memo, 0, n * sizeof *p->w.memo);
    for (size_t i = 0; i < n; i++)
        p->w.storage[i] = -1;
    p->w.n_storages = p->w.n_holes = 0;
    dcp_pickle_begin(p->w.out);
    int rc = dcp_torch_write_value(&p->w, tree, err);
    dcp_pickle_end(p->w.out);
    return rc ? rc : dcp_buf_check(&p->w.out->buf, err);
}

void dcp_torch_pickle_fini(struct dcp_torch_pickled_catalog *pickle)
{
    dcp_buf_fini(&pickle->text);
    free(pickle->first_seen);
    free(pickle->holes);
    *pickle = (struct dcp_torch_pickled_catalog){ 0 };
}

int dcp_torch_pickle(struct dcp_catalog *catalog, struct dcp_torch_pickled_catalog *out,
                     struct dcp_error *err)
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

    *out = (struct dcp_torch_pickled_catalog){
        .first_seen = dcp_mem_calloc(catalog->n_tensors, sizeof *out->first_seen),
        .holes = dcp_mem_calloc(catalog->n_tensors, sizeof *out->holes),
    };
    struct pickler p = { .w = { .catalog = catalog,
                                .out = &pickle,
                                .arena = arena,
                                .first_seen = out->first_seen,
                                .storage = storage,
                                .memo = memo,
                                .holes = out->holes },
                         .catalog = catalog,
                         .named_tensors = tensors,
                         .named_objects = objects };

    bool ok = arena && tensors && objects && storage && memo && out->first_seen;
    int rc = ok && out->holes ? make_tree(&p, &tree, err)
                              : dcp_error_memory(err, "a PyTorch file");
    if (!rc)
        rc = write_tree(&p, tree, err);
    if (!rc && !met_all(&p)) {
        dcp_pickle_out_fini(&pickle);
        json_decref(tree);
        tree = NULL;
        rc = make_dict(&p, &tree, err);
        if (!rc)
            rc = write_tree(&p, tree, err);
    }
    for (size_t o = 0; !rc && o < catalog->n_objects; o++)
        catalog->objects[o].held =
            objects[o] &&
            !(p.nested && dcp_is_carried(catalog, catalog->objects[o].name));
    if (!rc) {
        out->text = pickle.buf; /* handed over */
        pickle.buf = (struct dcp_buf){ 0 };
        out->n_storages = p.w.n_storages;
        out->n_holes = p.w.n_holes;
    }
    dcp_pickle_out_fini(&pickle);
    dcp_arena_free(arena);
    return rc;
}
