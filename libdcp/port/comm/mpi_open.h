/* mpi_open: dcp_comm_mpi with a fan-out of one's own, so that few ranks make a tree of
 * many levels. */
#ifndef DCP_PORT_COMM_MPI_OPEN_H
#define DCP_PORT_COMM_MPI_OPEN_H

#include <dcp/comm.h>

/* The fan-out is the same on all ranks. */
int dcp_mpi_open(struct dcp_comm *out_comm, const void *mpi_comm, int largest_fanout,
                 struct dcp_error *err);

#endif
