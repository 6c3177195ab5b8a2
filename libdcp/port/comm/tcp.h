/* tcp: dcp_comm_tcp with a fan-out of one's own, so that few ranks make a tree of many
 * levels. */
#ifndef DCP_PORT_COMM_TCP_H
#define DCP_PORT_COMM_TCP_H

#include <dcp/comm.h>

/* The fan-out is the same on all ranks. */
int dcp_tcp_open(struct dcp_comm *out_comm, const struct dcp_comm_tcp_options *options,
                 int largest_fanout, struct dcp_error *err);

#endif
