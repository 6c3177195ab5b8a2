/* np: 5 */
#include "lib/check_coll.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <mpi.h>

static struct dcp_comm comm;

/* The largest part is cut in several rounds. */
static void collectives(void **state)
{
    (void)state;
    struct coll coll;
    MPI_Comm world_size = MPI_COMM_WORLD;
    assert_int_equal(coll_mpi(&coll, &world_size, &comm, NULL), 0);
    assert_int_equal(check_coll(&coll, 700001), 0);
    assert_int_equal(coll_beside(&coll, NULL), 0);
    assert_int_equal(check_coll(&coll, 700001), 0);
    coll_free(&coll);
}

/* Ranks that wait for one that stays away name it, and do not wait again. */
static void silence_of(bool beside)
{
    struct coll coll;
    MPI_Comm world_size = MPI_COMM_WORLD;
    assert_int_equal(coll_mpi(&coll, &world_size, &comm, NULL), 0);
    assert_int_equal(beside ? coll_beside(&coll, NULL) : 0, 0);
    int timeout_ms = comm.timeout_ms;
    comm.timeout_ms = 300;
    if (comm.rank != 2) {
        double v = 1;
        struct dcp_error err = { 0 };
        assert_int_equal(coll_all_reduce(&coll, &v, 1, &err), DCP_E_COMM);
        assert_int_equal(err.rank, 2);
        assert_string_equal(err.message, "rank 2 does not answer");
        assert_int_equal(coll_all_reduce(&coll, &v, 1, NULL), DCP_E_COMM);
    }
    comm.timeout_ms = timeout_ms;
    MPI_Barrier(MPI_COMM_WORLD);
    coll_abort(&coll);
    coll_free(&coll);
}

static void silence(void **state)
{
    (void)state;
    silence_of(false);
    silence_of(true);
}

/* A rank that fails leaves what its thread waits for in vain. */
static void aborts(void **state)
{
    (void)state;
    struct coll coll;
    static char in[8], out[40];
    uint64_t call;
    const int64_t counts[] = { 8, 8, 8, 8, 8 };
    MPI_Comm world_size = MPI_COMM_WORLD;
    assert_int_equal(coll_mpi(&coll, &world_size, &comm, NULL), 0);
    assert_int_equal(coll_beside(&coll, NULL), 0);
    if (comm.rank == 1)
        assert_int_equal(coll_all_gather_begin(&coll, in, counts, 1, out, &call, NULL),
                         0);
    coll_abort(&coll);
    coll_free(&coll);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int given;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
    MPI_Comm world_size = MPI_COMM_WORLD;
    if (dcp_comm_mpi(&comm, &world_size, NULL))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives),
        cmocka_unit_test(silence),
        cmocka_unit_test(aborts),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dcp_comm_free(&comm);
    MPI_Finalize();
    return failed;
}
