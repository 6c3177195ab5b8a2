/* delta: the description of a step whose shards were written as deltas (see write.h).
 */
#ifndef DCP_CORE_WRITE_DELTA_H
#define DCP_CORE_WRITE_DELTA_H

#include "write.h"

/* A file of the step that was coded. */
struct dcp_coded_file {
    const char *name;
    uint64_t size_bytes; /* as what it stands for */
    struct dcp_coded coded;
};

struct dcp_write_delta {
    const struct dcp_store *store;
    const char *prefix; /* of the step's folder, a sibling of the base's */
    const char *base;   /* a full step, with these files: */
    const struct dcp_catalog *base_files;
    const struct dcp_catalog *catalog; /* of the step, with all of its files */
    struct dcp_coded_file *coded; /* of all ranks, in any order; sorted by the call */
    size_t n_coded;
    int number; /* which save it is on this base, from 1 */
};

/* Writes delta.json, instead of one that is there, and enters the folder through the
 * store: base and files are what it says, as far as names, sizes and the base's manifest
 * tell. Errors: CORRUPT (the base is another one, or gone), IO, MEMORY. */
int dcp_write_delta(const struct dcp_write_delta *delta, struct dcp_error *err);

#endif
