/* dress: what a tensor of a file is to Python beside its numbers. In the tree of a
 * file it stands beside the name, {"$tensor": name, …}, empty members left out:
 *
 *   "grad": true           it requires a gradient
 *   "parameter": true      it is an nn.Parameter, "attributes": … what was set in that
 *   "type": "torch.Tensor", "state": …    a class of tensors, and attributes
 *   "array": "numpy.core.multiarray"      an array of NumPy, by the module that makes it
 *   "storage": "typed" | "untyped"        a storage alone
 *
 * Strides are not kept: what is written is row-major. A tensor that stood in the tree
 * before has no "attributes" and no "state" again: it is the same object. */
#ifndef DCP_FORMATS_TORCH_DRESS_H
#define DCP_FORMATS_TORCH_DRESS_H

#include "formats/pickle/json.h"
#include "torch.h"

/* Adds the members of a node that dcp_torch_view takes for a tensor. hook is that of the
 * tree; attributes are named by its path. NULL: they are left out, and what a class of
 * tensors holds. Errors: those of dcp_pickle_to_json. */
int dcp_torch_dress(const struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                    const char *path, const struct dcp_pickle_hook *hook, json_t *value,
                    struct dcp_error *err);

#endif
