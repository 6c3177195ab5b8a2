/* torch_save: a file of torch.save as a checkpoint: the tensors and objects in it, and
 * the state dict that is written (torch/torch.h has what such files are made of). */
#ifndef DCP_FORMATS_TORCH_SAVE_TORCH_SAVE_H
#define DCP_FORMATS_TORCH_SAVE_TORCH_SAVE_H

#include "formats/torch/torch.h"

extern const struct dcp_format dcp_format_torch;

/* Reads one file of a source (NULL: the source itself) into a catalog. */
int dcp_torch_index_file(const struct dcp_source *source, const char *name,
                         struct dcp_catalog *catalog, struct dcp_error *err);

/* -- reading, for the files of this folder ------------------------------------------- */

/* A file of one rank of several of Megatron-LM, which is no model. Errors: UNSUPPORTED.
 */
int dcp_torch_refuse_megatron(const struct dcp_torch_file *file, struct dcp_error *err);
/* Adds the file's tensors and objects to the catalog, as pieces of file `file_index`. */
int dcp_torch_tree_index(struct dcp_torch_file *file, struct dcp_catalog *catalog,
                         int file_index, struct dcp_error *err);
/* Sets roles and params of the tensors by their places in the tree. Errors: MEMORY. */
int dcp_torch_roles(struct dcp_catalog *catalog, json_t *tree, struct dcp_error *err);
/* Gives the states of optimizers to their weights, where the file has numbers for names,
 * and adds the object "optimizer" of the first whose weights are known. */
int dcp_torch_optimizers(struct dcp_torch_file *file, struct dcp_catalog *catalog,
                         json_t *tree, struct dcp_error *err);
/* Turns the JSON of the whole tree into "torch.tree" and objects, and sets roles. */
int dcp_torch_objects_index(struct dcp_torch_file *file, struct dcp_catalog *catalog,
                            json_t *tree, struct dcp_error *err);

/* -- writing ------------------------------------------------------------------------- */

/* The pickle of a catalog. Its tensors lie on storages "0", "1", … in the order in which
 * the pickle meets them, or, those that are arrays of NumPy, in holes of the pickle. */
struct dcp_torch_hole;
struct dcp_torch_pickled_catalog {
    struct dcp_buf text;          /* without the bytes of the holes */
    size_t *first_seen;           /* the tensor of each storage */
    struct dcp_torch_hole *holes; /* in order */
    size_t n_storages, n_holes;
};
/* dcp_torch_pickle_fini also after a failure. Errors: CORRUPT, MISMATCH, MEMORY. */
int dcp_torch_pickle(struct dcp_catalog *catalog, struct dcp_torch_pickled_catalog *out,
                     struct dcp_error *err);
void dcp_torch_pickle_fini(struct dcp_torch_pickled_catalog *pickle);

#endif
