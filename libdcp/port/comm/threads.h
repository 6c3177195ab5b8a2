/* threads: what tests do to a rank of dcp_comm_threads. */
#ifndef DCP_PORT_COMM_THREADS_H
#define DCP_PORT_COMM_THREADS_H

#include <dcp/comm.h>

/* From now on this rank is dead or silent, and the others must find out. */
void dcp_comm_threads_kill(struct dcp_comm *comm);

#endif
