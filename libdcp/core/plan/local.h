/* local: a caller's state as a catalog, and the states of all ranks as one. */
#ifndef DCP_CORE_PLAN_LOCAL_H
#define DCP_CORE_PLAN_LOCAL_H

#include <dcp/checkpoint.h>

/* Tensors of a state and this rank's pieces, in memory, not sorted. Caller owns.
 * model_only leaves the optimizer's tensors out. Errors: USAGE (a region outside its
 * tensor, no data), MEMORY. */
int dcp_local_catalog(const struct dcp_state *state, int rank, bool model_only,
                      struct dcp_catalog **out_catalog, struct dcp_error *err);

/* Collective. The pieces of all ranks in one catalog, the same on each: sorted, checked
 * for holes and overlaps, replicas assigned to one rank. piece->data is set for the
 * pieces of this rank. */
int dcp_local_merge(struct dcp_comm *comm, const struct dcp_state *state,
                    struct dcp_catalog **out_catalog, struct dcp_error *err);

#endif
