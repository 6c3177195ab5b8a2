/* deals: what rank 0 makes of what all ranks hold. It sees every piece once, tensor by
 * tensor, and keeps none: each rank writes what it alone holds, so only what several hold
 * has to be dealt, and told. Pure. */
#ifndef DCP_CORE_PLAN_DEALS_H
#define DCP_CORE_PLAN_DEALS_H

#include "base/buf.h"
#include "base/bytes.h"
#include <dcp/tensor.h>

/* Holdings of each rank of catalog->world_size, which has the tensors and no pieces. Adds
 * to it the pieces of what is dealt: replicas, each to one of its ranks (see balance.h),
 * and small tensors that are cut, whole, to rank 0, in memory of the catalog. Leaves it
 * sorted. Errors: MISMATCH (an element that no rank holds, or several), CORRUPT, MEMORY.
 */
int dcp_deals_make(struct dcp_catalog *catalog, struct dcp_cursor *holdings,
                   struct dcp_error *err);

/* The pieces of a sorted catalog as what all ranks are told. */
void dcp_deals_pack(const struct dcp_catalog *catalog, struct dcp_buf *buf);
/* What falls to `rank` of those deals and of what it holds itself, held[t] of tensor t,
 * in memory: adds the pieces to the catalog. Those that were dealt to rank 0 whole have
 * no data. Errors: CORRUPT, MEMORY. */
int dcp_deals_take(struct dcp_cursor *in, const struct dcp_piece *held, int rank,
                   struct dcp_catalog *out, struct dcp_error *err);

#endif
