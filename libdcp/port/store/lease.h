/* lease: one process at a time may change a folder. A lock file with flock: the kernel
 * gives the lease back when its holder dies, however it dies. */
#ifndef DCP_PORT_STORE_LEASE_H
#define DCP_PORT_STORE_LEASE_H

#include <dcp/error.h>

#define DCP_LEASE_NAME ".dcp-lock"

/* Takes the lease of an open folder (`root` names it in messages); *out_lease is given
 * back with dcp_lease_drop. Errors: BUSY with who holds it, UNSUPPORTED (no locks there),
 * IO. */
int dcp_lease_take(int dir_fd, const char *root, int *out_lease, struct dcp_error *err);
/* Sets *lease to -1; does nothing when it is that already. */
void dcp_lease_drop(int *lease);

#endif
