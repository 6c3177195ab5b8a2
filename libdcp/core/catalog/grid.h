/* grid: whether what is told of pieces is so. */
#ifndef DCP_CORE_CATALOG_GRID_H
#define DCP_CORE_CATALOG_GRID_H

#include <dcp/grid.h>

/* What is told of tensors holds for the pieces of a sorted catalog that has all of them;
 * holes and overlaps are dcp_catalog_check's to name. Errors: CORRUPT, MEMORY. */
int dcp_grids_check(struct dcp_catalog *catalog, struct dcp_error *err);

#endif
