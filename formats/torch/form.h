/* form: the three containers of PyTorch files. Private to this folder.
 *
 * _probe looks at the first bytes only; _open reads what says that the file is sound and
 * of this form; _tree sets tree, storages and what else the form needs. */
#ifndef DCP_FORMATS_TORCH_FORM_H
#define DCP_FORMATS_TORCH_FORM_H

#include "torch.h"

#define DCP_TORCH_KEY_CAP 24
#define DCP_TORCH_HEAD_BYTES 512 /* of the file's beginning, that _probe is given */

bool dcp_torch_zip_probe(const unsigned char *head, size_t n);
int dcp_torch_zip_open(struct dcp_torch_file *file, struct dcp_error *err);
int dcp_torch_zip_tree(struct dcp_torch_file *file, struct dcp_error *err);

bool dcp_torch_stream_probe(const unsigned char *head, size_t n);
int dcp_torch_stream_open(struct dcp_torch_file *file, struct dcp_error *err);
int dcp_torch_stream_tree(struct dcp_torch_file *file, struct dcp_error *err);

bool dcp_torch_tar_probe(const unsigned char *head, size_t n);
int dcp_torch_tar_open(struct dcp_torch_file *file, struct dcp_error *err);
int dcp_torch_tar_tree(struct dcp_torch_file *file, struct dcp_error *err);

/* A pickle that stands between other things. */
struct dcp_torch_pickled {
    void *data; /* texts of the nodes lie in it; owned */
    struct dcp_pickle_node *root;
};
/* Reads the pickle at *at, which ends before `end`, and moves *at behind it. The caller
 * frees data. ids may be NULL. */
int dcp_torch_read_pickle(struct dcp_torch_file *file, uint64_t *at, uint64_t end,
                          struct dcp_pickle_ids *ids, struct dcp_torch_pickled *out,
                          struct dcp_error *err);

/* The number that is the key of a storage, a str of digits or an int; false: it is
 * neither. */
bool dcp_torch_key(const struct dcp_pickle_node *node, char out[DCP_TORCH_KEY_CAP]);
/* Sorts the storages by key, and refuses a key that is there twice. */
int dcp_torch_sort_storages(struct dcp_torch_file *file, struct dcp_error *err);

#endif
