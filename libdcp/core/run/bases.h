/* bases: which folders of a run deltas in it are against. */
#ifndef DCP_CORE_RUN_BASES_H
#define DCP_CORE_RUN_BASES_H

#include <dcp/store.h>

/* Whether a step, or one that was superseded, is the base of a delta in the run folder,
 * but for those in `without` (n of them), which are about to go. What cannot be read may
 * be such a delta: true, as without memory. */
bool dcp_is_base(const struct dcp_store *store, const char *name,
                 const char *const *without, size_t n);

#endif
