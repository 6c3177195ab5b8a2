/* tree: the nesting of a state dict, which files of torch.save say by a tree
 * ("torch.tree", torch/torch.h) and distributed checkpoints by the path of each key
 * (keys.h). */
#ifndef DCP_FORMATS_STATE_DICT_TREE_H
#define DCP_FORMATS_STATE_DICT_TREE_H

#include <dcp/tensor.h>
#include <jansson.h>

/* The paths in a tree: by the name of a tensor, and of an object. Lists have paths of
 * positions, keys that are numbers become texts, as PyTorch's planner has it. NULL: the
 * catalog has no tree, or it is a plain dict of tensors. */
struct dcp_tree {
    json_t *tensors, *objects;
};
/* dcp_tree_fini also after a failure. Errors: CORRUPT, MEMORY. */
int dcp_tree_load(struct dcp_tree *tree, const struct dcp_catalog *catalog,
                  struct dcp_error *err);
void dcp_tree_fini(struct dcp_tree *tree);

/* The path, and the key: the path with dots. False: the tree (one of the two members)
 * does not have the name. Texts belong to the catalog; *out_path is NULL when there is no
 * memory. */
bool dcp_tree_find(json_t *paths, struct dcp_catalog *catalog, const char *name,
                   const char **out_key, const char **out_path);

#endif
