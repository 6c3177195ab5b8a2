/* agree: dcp_agree (see <dcp/comm.h>) with a number that goes round in the same message,
 * and in two halves. */
#ifndef DCP_CORE_COLLECTIVE_AGREE_H
#define DCP_CORE_COLLECTIVE_AGREE_H

#include <dcp/comm.h>

/* Room that a rank has before it agrees on how much is to come: what is larger takes one
 * more agreement, on who has the memory. */
enum { DCP_READY_BYTES = 4096 };

/* As dcp_agree. Where all ranks went well *number, 0 to DCP_AGREE_MOST, is the least of
 * those that they gave. */
#define DCP_AGREE_MOST (INT64_MAX - INT32_MAX)
int dcp_agree_least(struct dcp_comm *comm, int rc, int64_t *number,
                    struct dcp_error *err);

/* The vote of a rank that ended with `rc`: its number if it failed, else the world size.
 */
int dcp_agree_vote(const struct dcp_comm *comm, int rc);

/* The rest of an agreement: `least` is the least vote of all ranks. Returns, and sets
 * err, as dcp_agree does; collective if `least` is a rank that failed. */
int dcp_agree_on(struct dcp_comm *comm, int64_t least, int rc, struct dcp_error *err);

#endif
