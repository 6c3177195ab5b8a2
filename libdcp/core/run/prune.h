/* prune: what may go, once the new step is durable. */
#ifndef DCP_CORE_RUN_PRUNE_H
#define DCP_CORE_RUN_PRUNE_H

#include "thin.h"

/* How optimizer state goes from steps, and from how many at most; 0: from all. */
struct dcp_thinning {
    dcp_thin_make *make;
    int most;
};

/* As dcp_prune, for a caller that holds the lease. `newest` (-1: none) is the step that
 * was just published: it counts as the newest there is, whatever its number; steps above
 * it are neither counted nor removed. Goes on after what cannot be removed, and tells the
 * first of it; err is set anew. */
int dcp_prune_held(const struct dcp_store *store, const struct dcp_retention *retention,
                   const struct dcp_thinning *thinning, int64_t newest,
                   size_t *out_removed, struct dcp_error *err);

#endif
