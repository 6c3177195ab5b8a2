/* agree: dcp_agree (see <dcp/comm.h>) where what is agreed on went round with something
 * else. */
#ifndef DCP_CORE_COLLECTIVE_AGREE_H
#define DCP_CORE_COLLECTIVE_AGREE_H

#include <dcp/comm.h>

/* What a rank says that ended with `rc`: its number if it failed, else more than any. */
int dcp_agree_vote(const struct dcp_comm *comm, int rc);

/* Collective where a rank failed, as all know by `least`, the least of what they said. */
int dcp_agree_on(struct dcp_comm *comm, int64_t least, int rc, struct dcp_error *err);

#endif
