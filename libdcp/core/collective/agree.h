/* agree: dcp_agree (see <dcp/comm.h>) in two halves, for votes that go round together
 * with something else. */
#ifndef DCP_CORE_COLLECTIVE_AGREE_H
#define DCP_CORE_COLLECTIVE_AGREE_H

#include <dcp/comm.h>

/* The vote of a rank that ended with `rc`: its number if it failed, else the world size.
 */
int dcp_agree_vote(const struct dcp_comm *comm, int rc);

/* The rest of an agreement: `least` is the least vote of all ranks. Returns, and sets
 * err, as dcp_agree does; collective if `least` is a rank that failed. */
int dcp_agree_on(struct dcp_comm *comm, int64_t least, int rc, struct dcp_error *err);

#endif
