/* relay_fail: a comm fails once and for good. The first reason counts, until the parent's
 * verdict takes its place. */
#ifndef DCP_PORT_COMM_RELAY_FAIL_H
#define DCP_PORT_COMM_RELAY_FAIL_H

#include "relay_link.h"

#define DCP_RELAY_PART_NS \
    (100 * DCP_RELAY_MS) /* for the verdict, when someone does not read */

/* These return DCP_E_COMM. */
int dcp_relay_fail(struct dcp_relay *relay, int rank, int rank_state, const char *why);
int dcp_relay_fail_gone(struct dcp_relay *relay, int rank);
int dcp_relay_fail_lost(struct dcp_relay *relay, int slot);
/* As another rank says. */
int dcp_relay_fail_as_told(struct dcp_relay *relay, const struct dcp_relay_head *head);
/* The same, from a neighbour: what a child notices counts unless we know more, what the
 * parent says always does. */
void dcp_relay_take_notice(struct dcp_relay *relay, int slot,
                           const struct dcp_relay_head *head);
/* The neighbours are told, once, as far as they listen. */
void dcp_relay_part(struct dcp_relay *relay, uint64_t time_ns);

#endif
