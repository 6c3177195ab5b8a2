/* out: a PyTorch file whose storages are filled with parts of tensors: what a file
 * of an optimizer that cuts flat arrays is.
 *
 * Its object is JSON as pickle/py.h spells it, in which {"$view": i} stands for view i
 * of a storage, from its first element on. Make storages in the order in which the object
 * meets them: torch numbers them so. */
#ifndef DCP_FORMATS_TORCH_OUT_H
#define DCP_FORMATS_TORCH_OUT_H

#include "archive.h"
#include "value.h"
#include <dcp/format.h>
#include <jansson.h>

struct dcp_torch_out_storage;
struct dcp_torch_out_view;
struct dcp_torch_out_part;

/* Fill in name, rank and tree, and the classes that the tree may use; zero the rest. */
struct dcp_torch_out {
    const char *name; /* of the file; must live as long as the catalog */
    int rank;         /* who writes it; its parts are his, or of rank 0 when there is no
                       * such rank in the world size */
    json_t *tree;     /* owned */
    const struct dcp_torch_class *classes; /* see value.h */

    struct dcp_torch_out_storage *storages;
    struct dcp_torch_out_view *views;
    struct dcp_torch_out_part *parts;
    size_t n_storages, cap_storages, n_views, cap_views, n_parts, cap_parts;
    bool failed; /* memory ran out; reported by assign */
};
void dcp_torch_out_fini(struct dcp_torch_out *out);

/* A storage; data (may be NULL: parts fill it, and zeros the rest) must live as long as
 * the catalog. Returns its number. */
size_t dcp_torch_out_storage(struct dcp_torch_out *out, enum dcp_dtype dtype,
                             int64_t n_elems, const void *data);
/* Elements begin .. end of a tensor of the catalog, of the storage's dtype, stand from
 * element `at` of a storage on. */
void dcp_torch_out_part(struct dcp_torch_out *out, size_t storage, int tensor,
                        int64_t begin, int64_t end, int64_t at);
/* The JSON of a view with that shape; NULL: out of memory. */
json_t *dcp_torch_out_view(struct dcp_torch_out *out, size_t storage, int ndim,
                           const int64_t *shape);

/* A copy of a value in which {"$tensor": name}, as files that were read have it, is a
 * view of the whole tensor on a storage of its own; None where the catalog has no such
 * tensor. NULL: out of memory. */
json_t *dcp_torch_out_value(struct dcp_torch_out *out, const struct dcp_catalog *catalog,
                            const json_t *value);
/* A whole tensor on a storage of its own; NULL: out of memory. */
json_t *dcp_torch_out_tensor(struct dcp_torch_out *out, const struct dcp_catalog *catalog,
                             int tensor);
/* Whether some of a tensor is in the file. */
bool dcp_torch_out_has(const struct dcp_torch_out *out, int tensor);

/* The files of a target, from assign to finalize; zero: none. */
struct dcp_torch_outs {
    struct dcp_torch_archive *items;
    size_t n, cap;
    size_t *order; /* pieces by file, then by offset; made by the first finalize */
};
/* Adds the file, a piece for each part, and the literals that do not depend on tensors.
 * Errors: CORRUPT, MISMATCH (the tree cannot be written), MEMORY. */
int dcp_torch_out_assign(struct dcp_torch_out *out, struct dcp_target *target,
                         struct dcp_torch_outs *outs, struct dcp_error *err);
/* Adds the rest of the literals of a rank's files, when their pieces have their crc32. */
int dcp_torch_outs_finalize(struct dcp_torch_outs *outs, struct dcp_target *target,
                            int rank, struct dcp_error *err);
void dcp_torch_outs_fini(struct dcp_torch_outs *outs);

#endif
