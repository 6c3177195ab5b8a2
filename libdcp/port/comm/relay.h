/* relay: the rounds of a comm in which every rank has a link to its parent and to its
 * children (branch.h), and to no other.
 *
 * In a round what the ranks say goes up, each rank sending what its subtree said once
 * that is complete; rank 0 decides, and its answer goes down. Rank 0 alone decides that a
 * comm has failed, as far as it can be heard: whoever notices something tells its parent
 * and waits for the verdict, so all ranks name the same one. What a rank sent before it
 * died is read before its death is, so nobody waits for more.
 *
 * Time: rank 0 waits for three quarters of the time-out. Then it asks down who is
 * missing, child by child: the lowest rank that is, or that does not answer, is named.
 * The others wait longer, and then ask up: a parent that does not answer is named. The
 * last eighth of the time-out is divided among the levels, so that who is nearer to rank
 * 0 speaks first.
 */
#ifndef DCP_PORT_COMM_RELAY_H
#define DCP_PORT_COMM_RELAY_H

#include "relay_link.h"

/* Errors: MEMORY. */
int dcp_relay_init(struct dcp_relay *relay, const struct dcp_relay_link *link,
                   struct dcp_branch at, size_t max_bytes, struct dcp_error *err);
void dcp_relay_fini(struct dcp_relay *relay);
/* Those of dcp_comm_ops: self is what begins with the relay. MEMORY: a rank has none; all
 * are told, and the next round may do. USAGE: no such root, or a size that no memory or
 * link has. */
int dcp_relay_allgather(void *self, const void *in, size_t size_bytes, void *out,
                        int timeout_ms, struct dcp_error *err);
int dcp_relay_bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                    struct dcp_error *err);
int dcp_relay_gather(void *self, const void *in, size_t size_bytes, void *out,
                     int timeout_ms, struct dcp_error *err);
int dcp_relay_least(void *self, int64_t mine, int64_t *out, int timeout_ms,
                    struct dcp_error *err);
/* Between two rounds: hears what the neighbours notice, and passes it on. */
void dcp_relay_look(struct dcp_relay *relay);
/* Between two rounds: the neighbour in a slot has gone. Fails, and tells the others. */
void dcp_relay_lose(struct dcp_relay *relay, int slot);
#endif
