/* mem: what tests do to a store of dcp_store_mem, which keeps apart what was not synced.
 */
#ifndef DCP_PORT_STORE_MEM_H
#define DCP_PORT_STORE_MEM_H

#include <dcp/store.h>

/* What a power cut leaves: data and names that were not synced are gone. Errors: MEMORY.
 */
int dcp_store_mem_crash(struct dcp_store *store, struct dcp_error *err);
/* The sizes of all files together may be `bytes` at most, as on a full disk; UINT64_MAX:
 * no limit. */
void dcp_store_mem_limit(struct dcp_store *store, uint64_t bytes);

#endif
