/* leftover: temporary and trash folders, which a dead process may have left behind. */
#ifndef DCP_CORE_LEFTOVER_H
#define DCP_CORE_LEFTOVER_H

#include <dcp/store.h>

/* Finds a name for a new one: PREFIX NAME, where what a dead process left is removed.
 * When that cannot be removed it stays, and the name is PREFIX NAME~2, or ~3, and so on.
 * The caller holds the lease that keeps living processes away, and frees *out_name.
 * Errors: MEMORY, and those of remove when nothing helps. */
int dcp_leftover_clear(const struct dcp_store *store, const char *prefix,
                       const char *name, char **out_name, struct dcp_error *err);

#endif
