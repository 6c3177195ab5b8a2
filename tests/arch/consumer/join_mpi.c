/* Joins MPI's default communicator through libdcp_mpi. */
#include <dcp/dcp.h>
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    MPI_Comm world_size = MPI_COMM_WORLD;
    struct dcp_error err = { 0 };
    struct dcp_comm comm;
    int rc;

    MPI_Init(&argc, &argv);
    rc = dcp_comm_mpi(&comm, &world_size, &err);
    if (rc == 0) {
        rc = dcp_agree(&comm, 0, &err);
        dcp_comm_free(&comm);
    }
    if (rc < 0) {
        fprintf(stderr, "%s\n", err.message);
    }
    MPI_Finalize();
    return dcp_error_exit(rc);
}
