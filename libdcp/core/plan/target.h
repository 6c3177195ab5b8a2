/* target: a checkpoint that is written, as its format sees it: see struct dcp_target. */
#ifndef DCP_CORE_PLAN_TARGET_H
#define DCP_CORE_PLAN_TARGET_H

#include <dcp/format.h>

/* Format, catalog and options are set, the rest is zero. Opens the target, cuts its
 * tensors, whose pieces get the codec, and assigns their extents; the catalog is sorted
 * then. dcp_target_close also after a failure. Errors: MISMATCH, USAGE, MEMORY. */
int dcp_target_open(struct dcp_target *target, enum dcp_codec codec,
                    struct dcp_error *err);
/* The same for tensors that are cut: their pieces lie in memory. */
int dcp_target_open_cut(struct dcp_target *target, struct dcp_error *err);
/* The format's finalize and finish. */
int dcp_target_finalize(struct dcp_target *target, int rank, struct dcp_error *err);
int dcp_target_finish(struct dcp_target *target, struct dcp_error *err);
void dcp_target_close(struct dcp_target *target);

#endif
