/* delta: a step that was written becomes a delta before it gets its name. */
#ifndef DCP_CORE_WRITE_DELTA_H
#define DCP_CORE_WRITE_DELTA_H

#include <dcp/delta.h>

/* What it takes: a coder, its windows of blocks, and decoded blocks of base and result.
 */
#define DCP_WRITE_DELTA_MEMORY ((uint64_t)26 << 20)

/* The native step in the temporary folder `tmp`, a sibling of the step `base`, becomes a
 * delta on it: coded beside its files, read back, and then those go. `plain` (or NULL) is
 * a file that stays as it is. After a failure it is what it was, unless *out_torn says
 * that this could not be done: then it is of no use. One thread. Errors: UNSUPPORTED (a
 * store in which deltas are not read), CORRUPT (the base is, or what was written does not
 * come back), NOT_FOUND (it is gone), NO_SPACE, IO, MEMORY. */
int dcp_write_delta(const struct dcp_store *store, const char *tmp, const char *base,
                    const char *plain, struct dcp_delta_result *out_result,
                    bool *out_torn, struct dcp_error *err);

#endif
