/* ties: second names for tensors, as JSON: {"lm_head.weight": "transformer.wte.weight"}.
 */
#ifndef DCP_FORMATS_COMMON_TIES_H
#define DCP_FORMATS_COMMON_TIES_H

#include <dcp/tensor.h>
#include <jansson.h>

/* Adds a second name for every member whose value is a tensor of the catalog and whose
 * key is none, and takes it out of the map; its param has the place in its name that the
 * tensor's has. What the others mean is the caller's
 * business. Errors: CORRUPT, MEMORY. */
int dcp_ties_index(struct dcp_catalog *catalog, json_t *map, struct dcp_error *err);

#endif
