/* torch_value: JSON as pickle_json.h describes it, written back as Python objects. */
#ifndef DCP_FORMATS_TORCH_VALUE_H
#define DCP_FORMATS_TORCH_VALUE_H

#include "base/arena.h"
#include "pickle_write.h"
#include <dcp/tensor.h>

/* Where the memo of a pickle has what can stand in it again. */
struct dcp_torch_memo {
    uint32_t key;    /* the text that names the storage */
    uint32_t tensor; /* the tensor itself, */
    bool has_tensor; /* once it is written */
};

/* A class by which Python makes an object: called with its arguments, or only made
 * (__new__) and then filled. */
struct dcp_torch_class {
    const char *name; /* as pickle_json.h spells it */
    const char *module, *class;
    bool made;
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
 * and are None elsewhere. Classes that torch's weights_only loader does not know are
 * written as the dicts that stand for them: nothing that this library writes can run
 * code. Errors: CORRUPT (an object that is no JSON), MEMORY. */
int dcp_torch_write_value(struct dcp_torch_writer *w, json_t *value,
                          struct dcp_error *err);
/* Whether a value stands for something: false for references to what is not there. */
bool dcp_torch_value_is_there(const struct dcp_torch_writer *w, const json_t *value);
/* Whether objects of that class ("torch.Size") are written as what they are. */
bool dcp_torch_class_is_known(const char *name);
/* An object of the catalog. */
int dcp_torch_write_object(struct dcp_torch_writer *w, const struct dcp_object *object,
                           struct dcp_error *err);

#endif
