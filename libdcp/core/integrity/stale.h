/* stale: whether what was saved looks as if it were not what was trained. */
#ifndef DCP_CORE_INTEGRITY_STALE_H
#define DCP_CORE_INTEGRITY_STALE_H

#include <dcp/checkpoint.h>
#include <dcp/log.h>

/* What was saved last. */
struct dcp_last_step {
    int64_t step;
    uint64_t weights; /* their fingerprint; 0: none */
};

/* The weights of the step before, or moments that nothing was learned with (`learned`:
 * some moment is not zero): true, and a warning, if there was training. The catalog's
 * step is the last one then. log may be NULL. */
bool dcp_stale_check(struct dcp_last_step *last, const struct dcp_catalog *catalog,
                     bool trains, bool learned, const struct dcp_log *log);

#endif
