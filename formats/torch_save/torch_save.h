/* torch_save: a file of torch.save as a checkpoint: the tensors and objects in it, and
 * the state dict that is written (torch/torch.h has what such files are made of). */
#ifndef DCP_FORMATS_TORCH_SAVE_TORCH_SAVE_H
#define DCP_FORMATS_TORCH_SAVE_TORCH_SAVE_H

#include "formats/common/optim_ids.h"
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
/* The model of each tensor, a number for the dict that it stands in; freed with free,
 * NULL: out of memory. And dcp_optim_ids_find, where these tell which of the n weights
 * are of one model: weights of several are named only when one way of giving them to the
 * numbers fits the shapes, in whatever order the models are. Errors: MEMORY. */
size_t *dcp_torch_models(const struct dcp_catalog *catalog, const json_t *tree);
int dcp_torch_optim_ids(const struct dcp_catalog *catalog, const size_t *model,
                        const size_t *weights, size_t n, const json_t *groups,
                        const struct dcp_optim_shape *shapes, struct dcp_optim_ids *out,
                        struct dcp_error *err);
/* Turns the JSON of the whole tree into "torch.tree" and objects, and sets roles. */
int dcp_torch_objects_index(struct dcp_torch_file *file, struct dcp_catalog *catalog,
                            json_t *tree, struct dcp_error *err);
/* dcp_format.kept of "torch.tree": "args: argparse.Namespace" for the values in it. */
int dcp_torch_objects_kept(const struct dcp_object *object,
                           const struct dcp_value_listener *listener,
                           struct dcp_error *err);

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
