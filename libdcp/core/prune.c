/* prune: retention as an act of its own. */
#include "core/run/prune.h"
#include "base/mem.h"
#include "core/write/weights.h"

int dcp_prune(const struct dcp_store *store, const struct dcp_retention *retention,
              size_t *out_removed, struct dcp_error *err)
{
    const struct dcp_thinning thinning = { .make = dcp_write_weights };

    if (out_removed)
        *out_removed = 0;
    if (retention->keep < 0 || retention->keep_every < 0 || retention->keep_optimizer < 0)
        return dcp_error_set(err, DCP_E_USAGE, "steps to keep cannot be negative");
    if (!retention->dry_run)
        DCP_TRY(store->ops->lock(store->self, err));
    int rc = dcp_prune_held(store, retention, &thinning, -1, out_removed, err);
    if (!retention->dry_run)
        store->ops->unlock(store->self);
    return rc;
}
