/* destination: whether a path may become the target of a reshard. */
#ifndef DCP_CORE_RUN_DESTINATION_H
#define DCP_CORE_RUN_DESTINATION_H

#include <dcp/reshard.h>

/* Splits the path into folder and name (caller frees both, after a failure too), and
 * refuses what must not be written: the source, what is inside or around it; what exists,
 * unless `force`, and then whatever is no checkpoint, and run folders. Errors: USAGE,
 * EXISTS, NOT_FOUND (a folder that is not there, and a path that climbs out of it),
 * MEMORY. Other folders that are not there are made by dcp_reshard_run. */
int dcp_destination_check(const struct dcp_location *source, const char *path, bool force,
                          char **out_dir, char **out_name, struct dcp_error *err);

/* A target named as a step of a run is that step: the number must be the one it holds, or
 * becomes it where none is known. Errors: USAGE. */
int dcp_destination_step(const char *name, struct dcp_catalog *target,
                         struct dcp_error *err);

#endif
