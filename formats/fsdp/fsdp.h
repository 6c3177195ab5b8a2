/* fsdp: a folder of files that the ranks of PyTorch's FSDP saved, each with torch.save
 * and on its own, as verl and others do:
 *
 *   model_world_size_4_rank_0.pt         {name: a piece of a tensor}
 *   optim_world_size_4_rank_0.pt         {"state": {number or name: {"exp_avg": …}},
 *                                         "param_groups": […]}
 *   extra_state_world_size_4_rank_0.pt   the scheduler, random numbers
 *
 * A piece is a DTensor (fully_shard, or FSDP with a device mesh), a ShardedTensor (FSDP
 * without), or a plain tensor, which every rank has whole. Sources: files of
 * PyTorch 2.13; torch/distributed/tensor (placement_types.py: how a dimension is cut) and
 * torch/distributed/_shard of 2.0 to 2.13; verl/utils/checkpoint. */
#ifndef DCP_FORMATS_FSDP_FSDP_H
#define DCP_FORMATS_FSDP_FSDP_H

#include "formats/common/optim_ids.h"
#include "formats/torch/torch.h"
#include <dcp/format.h>

extern const struct dcp_format dcp_format_fsdp_ranks;

#define DCP_FSDP_MAX_WORLD_SIZE (1 << 16)
#define DCP_FSDP_INLINE_BYTES                                 \
    (64u << 10) /* of a tensor of one rank, kept in an object \
                 */

enum dcp_fsdp_kind { DCP_FSDP_MODEL, DCP_FSDP_OPTIM, DCP_FSDP_EXTRA, DCP_FSDP_N_KINDS };

/* -- the folder ---------------------------------------------------------------------- */

struct dcp_fsdp_folder {
    struct dcp_source source; /* a folder */
    char *dir;                /* its name; owned */
    int world_size;
    bool has[DCP_FSDP_N_KINDS];
};
/* "model_world_size_4_rank_0.pt" */
void dcp_fsdp_name(char out[80], enum dcp_fsdp_kind kind, int world_size, int rank);
/* What a source's folder holds; of a source that is one file, the folder around it and
 * that file's world size. Every rank has each kind that is there at all. Freed with
 * dcp_fsdp_close, also after a failure. Errors: NOT_FOUND (a rank's file: it is named),
 * UNSUPPORTED (files of several world sizes; none), IO, MEMORY. */
int dcp_fsdp_open(struct dcp_fsdp_folder *out, const struct dcp_source *source,
                  struct dcp_error *err);
void dcp_fsdp_close(struct dcp_fsdp_folder *folder);
/* As above, for probe: whether there is a file of rank 0, and which. */
bool dcp_fsdp_find(const struct dcp_source *source, char out_name[80]);

/* -- a piece ------------------------------------------------------------------------- */

/* What one rank has of a tensor. */
struct dcp_fsdp_piece {
    struct dcp_torch_view view; /* its bytes, and its own shape */
    bool plain;                 /* a whole tensor: there is nothing to its offset */
    enum dcp_dtype dtype;
    int ndim; /* of the tensor */
    int64_t shape[DCP_MAX_NDIM];
    int64_t offset[DCP_MAX_NDIM]; /* of the piece; its size is the view's shape */
    bool is_empty;                /* it holds no element */
    bool is_replica;              /* a rank before this one has the same */
};
/* Whether a node is a tensor or a piece of one, in the file of that rank, and which.
 * `name` is for messages. Errors: CORRUPT, UNSUPPORTED (a placement), MEMORY. */
int dcp_fsdp_view(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                  int rank, const char *name, bool *out_found, struct dcp_fsdp_piece *out,
                  struct dcp_error *err);
/* -- reading ------------------------------------------------------------------------- */

/* What is known of a tensor of the catalog. */
struct dcp_fsdp_known_tensor {
    bool plain; /* it is not cut */
    int file;   /* that gave of it last; -1: none of FSDP's */
};
struct dcp_fsdp_reader {
    struct dcp_fsdp_folder folder;
    struct dcp_catalog *catalog;
    struct dcp_fsdp_known_tensor *known; /* of each tensor */
    size_t cap_known;
    struct dcp_optim_ids ids; /* of the optimizer, when it has numbers for names */
    const size_t *order;      /* of the weights, as the model has them; NULL: the order */
    bool unordered;           /* of the catalog; unordered: nobody knows it */
};
/* Opens a file of the folder and reads its tree; adds it to the catalog. Closed with
 * dcp_torch_close, also after a failure. */
int dcp_fsdp_open_name(struct dcp_fsdp_reader *r, const char *name, int rank,
                       struct dcp_torch_file *file, int *out_file, struct dcp_error *err);
/* The same for the file of a rank. */
int dcp_fsdp_open_file(struct dcp_fsdp_reader *r, enum dcp_fsdp_kind kind, int rank,
                       struct dcp_torch_file *file, int *out_file, struct dcp_error *err);
/* Adds what one rank has of a tensor, and the tensor when it is new. name, role, param
 * and group are those of `tensor`; dtype and shape are the piece's. Errors: CORRUPT (the
 * ranks do not agree), UNSUPPORTED (two keys of a file give that name), MEMORY. */
int dcp_fsdp_add(struct dcp_fsdp_reader *r, const struct dcp_torch_file *file,
                 int file_index, int rank, const struct dcp_tensor *tensor,
                 const struct dcp_fsdp_piece *piece, struct dcp_error *err);
/* The name of a weight without the words that wrappers of modules put into it. Belongs to
 * the catalog; NULL: out of memory. */
const char *dcp_fsdp_param(struct dcp_catalog *catalog, const char *name);
/* Adds a value of a pickle as an object; what is there already stays. */
int dcp_fsdp_add_value(struct dcp_fsdp_reader *r, const struct dcp_torch_file *file,
                       const char *name, const struct dcp_pickle_node *node,
                       struct dcp_error *err);
/* The optimizer's files, once the model's are read; n_weights of the catalog's tensors
 * are the model's. */
int dcp_fsdp_index_optim(struct dcp_fsdp_reader *r, size_t n_weights,
                         struct dcp_error *err);
/* One file of a whole optimizer, whoever saved it: the world size is 1. */
int dcp_fsdp_index_whole_optim(struct dcp_fsdp_reader *r, const char *name,
                               size_t n_weights, struct dcp_error *err);
/* The files of extra state. */
int dcp_fsdp_index_extra(struct dcp_fsdp_reader *r, struct dcp_error *err);
/* One such file, as an object of that name. A tensor in it that is too large for an
 * object is a tensor of the catalog, named after the object and its path. */
int dcp_fsdp_index_value(struct dcp_fsdp_reader *r, const char *name, const char *object,
                         int rank, struct dcp_error *err);

#endif
