/* metadata: the index of a distributed checkpoint of PyTorch
 * (torch.distributed.checkpoint, DCP): the pickle of its class Metadata in the file
 * .metadata, or one in __<rank>.metadata for each rank that saved without collectives.
 *
 * It says which tensors there are, in which boxes each is stored, and for each box and
 * each object the item that holds it: a range of a file. What an item looks like inside
 * is the business of item.h. Nothing here opens a data file. Source: what
 * PyTorch 1.13, 2.6, 2.13 and 2.14 write, and their metadata.py and filesystem.py. */
#ifndef DCP_FORMATS_TORCH_DIST_METADATA_H
#define DCP_FORMATS_TORCH_DIST_METADATA_H

#include "base/arena.h"
#include "base/map.h"
#include <dcp/format.h>
#include <jansson.h>

#define DCP_TORCH_DIST_METADATA_NAME ".metadata"
#define DCP_TORCH_DIST_RANK_SUFFIX ".metadata" /* of __<rank>.metadata */
#define DCP_TORCH_DIST_FILE_SUFFIX ".distcp"   /* of __<rank>_<n>.distcp */
#define DCP_TORCH_DIST_MAX_EXTRA_VALUES \
    (1u << 16) /* of attributes that are not torch's */
#define DCP_TORCH_DIST_MAX_RANK (1 << 20)

/* What this library adds to a .metadata, attributes that PyTorch ignores. In Metadata,
 * last: "libdcp", a dict with "version", "step", "world", "layout", "files", what was
 * made for PyTorch to find ("steps", the optimizer's container; "made", second names of
 * weights), "tied" names, how "objects" and the "optimizer" were taken apart,
 * "flat" where there were no paths, "params", the role and the weight of tensors whose
 * keys do not tell them, and last of all "digest", the CRC-64 of all bytes before its 16
 * digits. In each tensor: "libdcp_fingerprint", "libdcp_role"; in each item:
 * "libdcp_crc64" of the piece in it. Numbers are signed as pickles have them. */
#define DCP_TORCH_DIST_OURS "libdcp"
#define DCP_TORCH_DIST_FINGERPRINT "libdcp_fingerprint"
#define DCP_TORCH_DIST_ROLE "libdcp_role"
#define DCP_TORCH_DIST_CRC "libdcp_crc64"
#define DCP_TORCH_DIST_DIGEST "digest"
#define DCP_TORCH_DIST_VERSION 1

/* An attribute of Megatron's: who wrote which item. Megatron saves by it again, so of
 * another folder it would be wrong: it is neither read nor written. */
#define DCP_TORCH_DIST_PLANS "all_local_plans"

/* A box of a tensor, or an object, and the item that holds it. */
struct dcp_torch_dist_part {
    int tensor;         /* -1: it is an object */
    int file;           /* -1: no item holds it */
    const int64_t *box; /* of a tensor: its number, offset, and size: 1 + 2 ndim */
    uint64_t offset, size_bytes; /* of the item */
    uint64_t crc;                /* of the piece */
    bool has_crc, zstd;
};
struct dcp_torch_dist_tensor {
    const char *name, *path;
    const int64_t *shape;
    enum dcp_dtype dtype;
    int ndim;
    int role; /* enum dcp_role, or -1: not said */
    int rank; /* of the last file that names it */
    bool has_fingerprint;
    uint64_t fingerprint;
    size_t first_part, n_parts; /* in the order of the file */
};
struct dcp_torch_dist_object {
    const char *name, *path;
    int rank; /* of the file that names it */
    size_t part;
};

/* All texts and arrays belong to the arena. */
struct dcp_torch_dist_metadata {
    struct dcp_arena *arena;
    struct dcp_torch_dist_tensor *tensors;
    struct dcp_torch_dist_object *objects;
    struct dcp_torch_dist_part *parts;
    const char **files;
    size_t n_tensors, n_objects, n_parts, n_files;
    size_t cap_tensors, cap_objects, cap_parts, cap_files;
    struct dcp_map keys; /* tensor i is i, object i is -2 - i */
    struct dcp_map file_names;
    bool old_classes;    /* TensorProperties stands with sharded tensors, as before 2.4 */
    const char *version; /* "" before there were any */
    json_t *ours;        /* the dict "libdcp", or NULL */
    json_t *extra;       /* other attributes of Metadata, or NULL */
};

/* Reads all there is of .metadata or __<rank>.metadata in a folder.
 * dcp_torch_dist_metadata_fini also after a failure. Errors: CORRUPT, UNSUPPORTED (a
 * dtype, a transform), NOT_FOUND, IO, MEMORY. */
int dcp_torch_dist_metadata_read(const struct dcp_source *source,
                                 struct dcp_torch_dist_metadata *out,
                                 struct dcp_error *err);
void dcp_torch_dist_metadata_fini(struct dcp_torch_dist_metadata *meta);
#define DCP_CLEANUP_TORCH_DIST_METADATA DCP_CLEANUP(dcp_torch_dist_metadata_fini)

/* Parts in the order of files and offsets, in which they are read fastest. */
int dcp_torch_dist_part_order(const struct dcp_torch_dist_part *p,
                              const struct dcp_torch_dist_part *q);

/* Adds what one pickle says. Errors: as above. */
int dcp_torch_dist_metadata_parse(const void *pickle, size_t size_bytes, int rank,
                                  struct dcp_torch_dist_metadata *meta,
                                  struct dcp_error *err);

/* "__3_0.distcp"; and the rank in such a name, or -1. */
void dcp_torch_dist_file_name(char out[64], int rank);
int dcp_torch_dist_file_rank(const char *name);

#endif
