/* prune: what may go, once the new step is durable. */
#ifndef DCP_CORE_PRUNE_H
#define DCP_CORE_PRUNE_H

#include <dcp/store.h>
#include <stdint.h>

/* As dcp_prune, for a caller that holds the lease. `spare` (may be NULL) is the name of a
 * temporary folder in use. */
int dcp_prune_held(const struct dcp_store *store, int keep, int keep_every,
                   const char *spare, size_t *out_removed, struct dcp_error *err);

#endif
