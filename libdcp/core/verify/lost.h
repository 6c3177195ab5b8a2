/* lost: checkpoints of which files are lost, as far as something still says what
 * was in them. */
#ifndef DCP_CORE_VERIFY_LOST_H
#define DCP_CORE_VERIFY_LOST_H

#include "core/parity/reconstruction.h"
#include <dcp/checkpoint.h>

/* Why a file is not read, as a clause that names no file. */
#define DCP_VERIFY_WHY_CAP 256
void dcp_verify_why(const struct dcp_error *why, char out[DCP_VERIFY_WHY_CAP]);

/* The sorted catalog of what is to be verified. Of a native step of which files are
 * missing or not as long as they were: the one that its parity gives (*out_rebuilt, else
 * NULL), or a partial one; the files are marked as lost. Caller owns both. Errors: those
 * of dcp_format_probe, and of index where not even a manifest can be read. */
int dcp_verify_index(const struct dcp_source *source, struct dcp_catalog **out_catalog,
                     struct dcp_reconstruction **out_rebuilt, struct dcp_error *err);

/* What is lost with a shard manifest, which alone says where pieces lie. Of a sorted
 * partial catalog: for each tensor of which elements are in no piece, one call of `add`,
 * from the first such element to the last; broken[tensor] becomes true. Errors: those of
 * add; MEMORY. */
int dcp_verify_lost(const struct dcp_catalog *catalog, _Atomic bool *broken,
                    int (*add)(void *self, const struct dcp_finding *finding,
                               struct dcp_error *err),
                    void *self, struct dcp_error *err);

#endif
