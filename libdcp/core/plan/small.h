/* small: tensors of few bytes are not cut over ranks, because a piece costs more than the
 * bytes are worth: where a sharding cuts one, rank 0 writes it whole; and what has no
 * bytes at all. Pure. */
#ifndef DCP_CORE_PLAN_SMALL_H
#define DCP_CORE_PLAN_SMALL_H

#include <dcp/tensor.h>

#define DCP_SMALL_BYTES 1024u /* of a whole tensor */

/* Whether a region is a part, and not an empty one, of a small tensor. */
bool dcp_small_is_cut(const struct dcp_tensor *tensor, const struct dcp_region *region);
/* Gives the small tensors of a sorted catalog that are cut, and those without elements,
 * to rank 0, and sorts it again. Errors: MEMORY. */
int dcp_small_join(struct dcp_catalog *catalog, struct dcp_error *err);

#endif
