/* clones: which blocks of a target's files may be shared with the source's, in place of
 * being written: ranges of a plan that are copied as they lie, and lie at the same place
 * of a block of the file system on both sides. Pure. */
#ifndef DCP_CORE_PLAN_CLONES_H
#define DCP_CORE_PLAN_CLONES_H

#include "plan.h"

/* Whole blocks, in bytes. */
struct dcp_clone {
    int src_file;
    uint64_t from, to, n; /* from: in the source's file; to: in the target's */
};

struct dcp_clones {
    struct dcp_clone *items; /* by file of the target, then by place in it */
    size_t n, cap;
    size_t *first; /* those of file f: first[f] .. first[f + 1]; of n_files */
    size_t n_files;
};

/* Of a plan onto a target whose extents are known. What has a codec, another dtype or
 * other bytes on either side is not there. Errors: MEMORY; dcp_clones_fini also then. */
int dcp_clones_init(struct dcp_clones *clones, const struct dcp_plan *plan,
                    const struct dcp_catalog *src, const struct dcp_catalog *dst,
                    uint64_t block_bytes, struct dcp_error *err);
void dcp_clones_fini(struct dcp_clones *clones);
/* Bytes of a file that can be shared; one that the plan did not know has none. */
uint64_t dcp_clones_bytes(const struct dcp_clones *clones, size_t file);

#endif
