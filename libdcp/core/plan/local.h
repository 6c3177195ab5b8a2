/* local: a caller's state as a catalog, and a rank's share of the states of all. */
#ifndef DCP_CORE_PLAN_LOCAL_H
#define DCP_CORE_PLAN_LOCAL_H

#include <dcp/checkpoint.h>
#include <dcp/device.h>

/* Tensors of a state and this rank's pieces, in memory, not sorted. Caller owns.
 * model_only leaves the optimizer's tensors out. Errors: USAGE (a region outside its
 * tensor, no data), MEMORY. */
int dcp_local_catalog(const struct dcp_state *state, int rank, bool model_only,
                      struct dcp_catalog **out_catalog, struct dcp_error *err);

/* Collective, but for its end, with which the caller agrees. rc and err: how this rank
 * came here; nothing is done if one failed. The tensors of a state, and of its pieces
 * those that this rank writes, in memory, sorted: no rank learns the pieces of others.
 * Between all ranks each element is held once; of replicas one is written, and small
 * tensors that are cut are rank 0's, whole, in memory of the catalog. Errors: USAGE,
 * MISMATCH (the ranks list other tensors; an element that no rank holds, or several),
 * MEMORY, COMM. */
int dcp_local_merge(struct dcp_comm *comm, const struct dcp_device *device,
                    const struct dcp_state *state, int rc,
                    struct dcp_catalog **out_catalog, struct dcp_error *err);

#endif
