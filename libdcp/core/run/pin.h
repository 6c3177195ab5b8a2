/* pin: a reader's lease on a step, which retention respects, and the other side of it.
 * docs/decisions/readers-pin-steps.md says why it is a lock of the manifest. */
#ifndef DCP_CORE_RUN_PIN_H
#define DCP_CORE_RUN_PIN_H

#include <dcp/store.h>

/* Since when retention waits for the readers of a step: see dcp_pin_yields. */
#define DCP_DUE_PREFIX ".due-"

/* Pins a step ("": the store's root) for reading, where the store can; *out is NULL where
 * it cannot, or where the step has no manifest. Given back with dcp_unpin. Errors:
 * NOT_FOUND when there is no such folder any more. */
int dcp_pin(const struct dcp_store *store, const char *step, struct dcp_store_file **out,
            struct dcp_error *err);
void dcp_unpin(const struct dcp_store *store, struct dcp_store_file **pin);

/* Whether a step went: there is no such folder any more. */
bool dcp_is_gone(const struct dcp_store *store, const char *step);

/* Whether a reader pins a step. If not, *out keeps new readers away; given back with
 * dcp_unpin. */
bool dcp_is_read(const struct dcp_store *store, const char *step,
                 struct dcp_store_file **out);
/* For who removes a step and holds the lease: false while a reader pins it or somebody
 * marks it, unless it has been due for longer than timeout_s. With `remember` the store
 * keeps since when it is. *out keeps new readers away and *out_marks new marks, both are
 * given back with dcp_unpin. */
bool dcp_pin_yields(const struct dcp_store *store, const char *step, double timeout_s,
                    bool remember, struct dcp_store_file **out,
                    struct dcp_store_file **out_marks);
/* Whether a living process holds a folder: it makes a temporary one, or marks a step. If
 * not, *out keeps others away; given back with dcp_unpin. */
bool dcp_is_in_use(const struct dcp_store *store, const char *name,
                   struct dcp_store_file **out);
/* Invalidates since when a step is due, for it is gone or stays. */
void dcp_pin_invalidate(const struct dcp_store *store, const char *step);

#endif
