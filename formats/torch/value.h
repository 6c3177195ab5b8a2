/* value: JSON as pickle/py.h describes it, written back as Python objects. */
#ifndef DCP_FORMATS_TORCH_VALUE_H
#define DCP_FORMATS_TORCH_VALUE_H

#include "base/arena.h"
#include "formats/pickle/write.h"
#include <dcp/tensor.h>

/* Where the memo of a pickle has what can stand in it again. */
struct dcp_torch_memo {
    uint32_t key;    /* the text that names the storage */
    uint32_t tensor; /* the tensor itself, */
    bool has_tensor; /* once it is written */
};

/* The class of objects that a format makes: called with its arguments, or only made
 * (__new__) and then filled. */
struct dcp_torch_class {
    const char *name; /* as pickle/py.h spells it */
    const char *module, *class;
    bool made;
};

/* A place in the pickle where the bytes of a tensor are to stand. */
struct dcp_torch_hole {
    size_t tensor;
    size_t at; /* in the pickle without the bytes of any hole */
};

/* Where the values go, and the tensors that are met on the way. */
struct dcp_torch_writer {
    const struct dcp_catalog *catalog;
    struct dcp_pickle_out *out;
    struct dcp_arena *arena; /* scratch */
    size_t *first_seen;      /* tensor of storage i */
    int64_t *storage;        /* of each tensor, -1 before it is met; NULL: no tensors */
    struct dcp_torch_memo *memo; /* of each tensor; NULL: nothing stands in it
                                  * again */
    size_t n_storages;
    struct dcp_torch_hole *holes; /* room for all tensors; NULL: there can be none */
    size_t n_holes;
    /* For formats with tensors and classes of their own, or NULL. `take` writes what
     * stands for a JSON object and returns true, or returns false. The list of classes
     * ends with an empty one. */
    bool (*take)(struct dcp_torch_writer *w, const json_t *value);
    void *self;
    const struct dcp_torch_class *classes;
};

/* Writes a row-major tensor that begins at the first element of storage number `key`, of
 * n_elems elements. */
void dcp_torch_write_view(struct dcp_pickle_out *out, enum dcp_dtype dtype, int ndim,
                          const int64_t *shape, size_t key, int64_t n_elems);
/* Writes a tensor on its storage, or on that of the tensor it is tied to. */
void dcp_torch_write_tensor(struct dcp_torch_writer *w, size_t tensor);
/* Writes any value. References to what the catalog does not hold are left out of dicts
 * and are None elsewhere. Classes are written as what they are: which of them a target
 * may have is decided before (core/catalog/objects.h). Errors: CORRUPT (an object that is
 * no JSON), MEMORY. */
int dcp_torch_write_value(struct dcp_torch_writer *w, json_t *value,
                          struct dcp_error *err);

/* For this folder. A value at a depth; the items of a list, and [key, value] pairs, into
 * what is on the stack; a tuple. */
int dcp_torch_write_inner(struct dcp_torch_writer *w, json_t *value, int depth,
                          struct dcp_error *err);
int dcp_torch_write_items(struct dcp_torch_writer *w, json_t *list, int depth,
                          struct dcp_error *err);
int dcp_torch_write_pairs(struct dcp_torch_writer *w, json_t *pairs,
                          enum dcp_pickle_fill fill, int depth, struct dcp_error *err);
int dcp_torch_write_tuple(struct dcp_torch_writer *w, json_t *list, int depth,
                          struct dcp_error *err);
/* {"$object": …}, of pickle/py.h. */
int dcp_torch_write_call(struct dcp_torch_writer *w, json_t *object, int depth,
                         struct dcp_error *err);
/* "module.name", "module:Outer.name"; false when that is none. */
bool dcp_torch_write_global(struct dcp_pickle_out *out, const char *text);
/* The function that rebuilds a tensor, its arguments, and its storage alone. */
void dcp_torch_write_rebuild(struct dcp_torch_writer *w, size_t tensor);
void dcp_torch_write_arguments(struct dcp_torch_writer *w, size_t tensor, bool grad);
void dcp_torch_write_storage(struct dcp_torch_writer *w, size_t tensor, bool untyped);

/* For value*.c. Writes the tensor in its dress (dress.h); what does not fit its dtype is
 * left off. */
int dcp_torch_write_dressed(struct dcp_torch_writer *w, size_t tensor, json_t *value,
                            int depth, struct dcp_error *err);

#endif
