/* delta_target: the folder that an act on deltas makes, file by file, under a temporary
 * name. */
#ifndef DCP_CORE_DELTA_TARGET_H
#define DCP_CORE_DELTA_TARGET_H

#include "core/run/publish.h"
#include <dcp/delta.h>

struct dcp_delta_target {
    struct dcp_store store; /* of the folder that it is made in */
    struct dcp_publication publish;
    char *dir, *name;
    char *made;    /* the first folder above it that was not there, or NULL */
    bool replaces; /* what has the name goes, once this is whole */
    bool begun, done;
};

/* Whether `path` may become a target that is made of `source`; fills dir and name.
 * Errors: USAGE, EXISTS, NOT_FOUND, MEMORY. End it in any case. */
int dcp_delta_target_check(struct dcp_delta_target *target,
                           const struct dcp_location *source, const char *path,
                           struct dcp_error *err);
/* Makes the temporary folder. Errors: also NO_SPACE (less is free than need_bytes), IO.
 */
int dcp_delta_target_begin(struct dcp_delta_target *target, uint64_t need_bytes,
                           struct dcp_error *err);
/* Gives it its name. */
int dcp_delta_target_commit(struct dcp_delta_target *target, struct dcp_error *err);
/* Removes what is left of one that has no name yet, and frees. */
void dcp_delta_target_end(struct dcp_delta_target *target, const struct dcp_log *log);

#endif
