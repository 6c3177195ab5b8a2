/* objects: which objects of a target may stay in it. */
#ifndef DCP_CORE_CATALOG_OBJECTS_H
#define DCP_CORE_CATALOG_OBJECTS_H

#include <dcp/reshard.h>

/* Takes those from a target that is to hold objects which name what is not known safe,
 * and archives that the format cannot hold, when the options say so; facts count them.
 * Errors: MISMATCH (there are such), MEMORY. */
int dcp_objects_sift(const struct dcp_format *format,
                     const struct dcp_reshard_options *options,
                     struct dcp_catalog *target, struct dcp_reshard_plan *facts,
                     struct dcp_error *err);

#endif
