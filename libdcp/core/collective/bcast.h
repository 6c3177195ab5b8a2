/* bcast: rank 0's bytes to all, however many there are. */
#ifndef DCP_CORE_COLLECTIVE_BCAST_H
#define DCP_CORE_COLLECTIVE_BCAST_H

#include "base/buf.h"
#include <dcp/comm.h>

/* Collective. What rank 0 has in buf is in the empty buf of every other rank afterwards;
 * rc and err are how each rank came here, and all return alike, as dcp_agree does. */
int dcp_bcast_buf(struct dcp_comm *comm, struct dcp_buf *buf, int rc,
                  struct dcp_error *err);

#endif
