/* delta: a checkpoint told by what differs from another one, its base.
 *
 * A delta is of files: whatever the format, the folder that it stands for comes back byte
 * for byte, and any part of a file is read from the same part of the base's. The base may
 * be a delta itself; docs/FORMAT.md, chapter 14, is the format. Nothing that a delta
 * gives is used before it has the digest of what was there when the delta was made. */
#ifndef DCP_DELTA_H
#define DCP_DELTA_H

#include <dcp/reshard.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCP_DELTA_MAX_CHAIN 64  /* deltas one upon the other, that are ever read */
#define DCP_DELTA_USUAL_CHAIN 8 /* that are made, unless more is asked for */
#define DCP_DELTA_N_WAYS 4      /* unchanged, sparse, planes, raw */

/* A store in which every folder that holds a delta reads as the folder it stands for; all
 * else is passed on to inner. A base is found by its path: in the store, or, where inner
 * is the folder `path` of the file system, beside it; path NULL: only in the store. With
 * `base` (NULL: none) that folder is the base of the delta that is the root, wherever
 * delta.json says it is. inner moves into the store, after a failure too; caller owns.
 * Thread rule: that of inner. Errors: MEMORY. Those of reading: CORRUPT, when the delta
 * is damaged, or its base is gone, damaged or another one. */
DCP_PUBLIC int dcp_store_delta(struct dcp_store *out_store, struct dcp_store *inner,
                               const char *path, const char *base, struct dcp_error *err);

/* The same of a folder of the file system: see dcp_store_dir. */
DCP_PUBLIC int dcp_store_delta_dir(struct dcp_store *out_store, const char *path,
                                   bool create, struct dcp_error *err);

/* Reads all files of at most 1 MiB of a folder of such a store that is a delta, but of a
 * step, which has digests of its own. Other formats are recognised by such files, and
 * some do without one that cannot be read: damage must not look like absence. Does
 * nothing when the folder is no delta. Errors: CORRUPT, IO, UNSUPPORTED, MEMORY. */
DCP_PUBLIC int dcp_delta_check_small(const struct dcp_store *store, const char *folder,
                                     struct dcp_error *err);

/* Which folder a delta is against, as its path from the delta's folder (caller frees),
 * and how many deltas are one upon the other from there on. Errors: NOT_FOUND (`folder`
 * is none), CORRUPT, UNSUPPORTED, IO, MEMORY. */
DCP_PUBLIC int dcp_delta_base(const struct dcp_store *store, const char *folder,
                              char **out_base, int *out_chain, struct dcp_error *err);

/* Bytes of the files that such a folder stands for, and of the delta's own, delta.json
 * left out. Errors: as above. */
DCP_PUBLIC int dcp_delta_sizes(const struct dcp_store *store, const char *folder,
                               uint64_t *out_full_bytes, uint64_t *out_stored_bytes,
                               struct dcp_error *err);

struct dcp_delta_options {
    int max_chain; /* 0: DCP_DELTA_USUAL_CHAIN */
    int threads;   /* 0: 2 */
    bool dry_run;  /* everything but writing */
    bool force;    /* replace what has the name, after success */
    struct dcp_progress progress;
    const struct dcp_log *log; /* what could not be removed is a warning; NULL: silence */
};
struct dcp_delta_result {
    int chain;                           /* of the delta */
    size_t n_files;                      /* of the folder that it stands for, */
    uint64_t full_bytes;                 /* and their bytes; */
    uint64_t stored_bytes;               /* those of the delta's files, in all */
    uint64_t n_blocks[DCP_DELTA_N_WAYS]; /* by what became of them */
    uint64_t n_elements, n_changed;      /* in them, of the width each was coded with */
};

/* Makes the folder `path` the delta that gives `target` when its base is `base`, both
 * folders and the same in format and sharding. What was written is read back against what
 * it came from before the folder gets its name. The source of a rebase is a delta as
 * target. Nothing is left at the name after a failure. Errors: MISMATCH (they do not go
 * together, the chain would be too long), UNSUPPORTED (a codec, parity, a signature),
 * EXISTS, CORRUPT (a source is damaged), NO_SPACE, IO, INTERRUPTED, MEMORY. */
DCP_PUBLIC int dcp_delta_make(struct dcp_location *base, struct dcp_location *target,
                              const char *path, const struct dcp_delta_options *options,
                              struct dcp_delta_result *out_result, struct dcp_error *err);
/* Makes the folder `path` what a delta stands for: every file is held against its digest
 * while it is written, and read back, before the folder gets its name. Errors: as above;
 * USAGE (it is no delta). */
DCP_PUBLIC int dcp_delta_apply(struct dcp_location *delta, const char *path,
                               const struct dcp_delta_options *options,
                               struct dcp_delta_result *out_result,
                               struct dcp_error *err);

/* What a delta between two arrays would take, block by block. Thread rule: one meter, one
 * thread. */
struct dcp_delta_meter;
DCP_PUBLIC int dcp_delta_meter_new(struct dcp_delta_meter **out_meter,
                                   struct dcp_error *err);
/* Bytes that n bytes take (any n), elements of `width` bytes each: 1, 2, 4, 8, or 0 for
 * unknown. Errors: MEMORY. */
DCP_PUBLIC int dcp_delta_measure(struct dcp_delta_meter *meter, const void *base,
                                 const void *target, size_t n, int width,
                                 uint64_t *out_bytes, struct dcp_error *err);
DCP_PUBLIC void dcp_delta_meter_free(struct dcp_delta_meter *meter);

#ifdef __cplusplus
}
#endif
#endif
