/* A rank of an MPI job. */
#include "join.h"

#include <mpi.h>
#include <stdlib.h>

int join_mpi_open(struct join *join, struct dcp_error *err)
{
    MPI_Comm world_size = MPI_COMM_WORLD, local;
    int given;
    /* More ranks than cores: a rank that waits gives its core away. */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &given) != MPI_SUCCESS)
        return dcp_error_set(err, DCP_E_COMM, "MPI cannot be started");
    join->mpi = true;
    join->mpi_threads = given == MPI_THREAD_MULTIPLE;
    MPI_Comm_set_errhandler(world_size, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world_size, &join->rank);
    MPI_Comm_size(world_size, &join->world_size);
    if (MPI_Comm_split_type(world_size, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local) ==
        MPI_SUCCESS) {
        MPI_Comm_size(local, &join->local_world_size);
        MPI_Comm_rank(local, &join->local_rank);
        MPI_Comm_free(&local);
    }
    int rc = dcp_comm_mpi(&join->comm, &world_size, err);
    return rc ? rc : coll_mpi(&join->coll, &world_size, &join->comm, err);
}

void join_mpi_close(struct join *join)
{
    (void)join;
    MPI_Finalize();
}
