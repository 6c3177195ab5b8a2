/* np: 4 */
/* The ranks are a star, then a chain, which is the tree of fan-out 1. With arguments
 * "kill RANK FANOUT FOLDER" it is the program of comm_mpi_kill.bats. */
#include "port/comm/mpi_open.h"

#include <errno.h>
#include <mpi.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

/* --- allocation that fails on one rank --- */

static size_t realloc_limit = SIZE_MAX;

void *__libc_realloc(void *old, size_t size);

/* Takes the place of libc's for the whole process. */
__attribute__((visibility("default"))) void *realloc(void *old, size_t size)
{
    if (size > realloc_limit) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(old, size);
}

/* --- helpers --- */

static int make_comm(void **state, int fanout)
{
    static struct dcp_comm comm;
    MPI_Comm world_size = MPI_COMM_WORLD;
    struct dcp_error err = { 0 };
    MPI_Barrier(MPI_COMM_WORLD);
    if (fanout ? dcp_mpi_open(&comm, &world_size, fanout, &err)
               : dcp_comm_mpi(&comm, &world_size, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return -1;
    }
    *state = &comm;
    return 0;
}

static int make_star(void **state)
{
    return make_comm(state, 0);
}

static int make_chain(void **state)
{
    return make_comm(state, 1);
}

static int free_comm(void **state)
{
    dcp_comm_free(*state);
    MPI_Barrier(MPI_COMM_WORLD);
    return 0;
}

/* The same numbers on every rank: sizes are drawn from it. */
static uint64_t next(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

static unsigned char byte_of(int rank, size_t i, int round)
{
    return (unsigned char)(rank * 89 + (int)(i % 251) * 3 + round);
}

static unsigned char *make_data(int rank, size_t n, int round)
{
    unsigned char *data = malloc(n + 1);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++)
        data[i] = byte_of(rank, i, round);
    return data;
}

static void check_data(const unsigned char *data, int rank, size_t n, int round)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(data[i], byte_of(rank, i, round));
}

/* Mostly small, now and then beyond what MPI sends without asking the receiver. */
static size_t draw_size(uint64_t *seed)
{
    uint64_t v = next(seed);
    return (size_t)(v % 8 == 0 ? next(seed) % 200000 : v % 3000);
}

static pid_t pid_of_rank(struct dcp_comm *comm, int rank)
{
    pid_t mine = getpid(), all[16];
    assert_true(comm->world_size <= 16);
    assert_int_equal(dcp_comm_allgather(comm, &mine, sizeof mine, all, NULL), 0);
    return all[rank];
}

/* --- values --- */

static void values(void **state)
{
    struct dcp_comm *comm = *state;
    uint64_t seed = 11;
    for (int round = 0; round < 300; round++) {
        size_t n = draw_size(&seed);
        int root = (int)(next(&seed) % (uint64_t)comm->world_size);
        if (next(&seed) % 4 == 0 && comm->rank == (int)(next(&seed) % 4))
            usleep((useconds_t)(next(&seed) % 3000)); /* not all come at once */
        seed = 11 + (uint64_t)round * 7919;

        unsigned char *mine = make_data(comm->rank, n, round);
        unsigned char *all = malloc(n * (size_t)comm->world_size + 1);
        assert_non_null(all);
        assert_int_equal(dcp_comm_allgather(comm, mine, n, all, NULL), 0);
        for (int r = 0; r < comm->world_size; r++)
            check_data(all + (size_t)r * n, r, n, round);
        assert_int_equal(dcp_comm_bcast(comm, mine, n, root, NULL), 0);
        check_data(mine, root, n, round);
        free(all);
        free(mine);
    }
    assert_int_equal(dcp_comm_peer_dead(comm), -1);
}

static void values_of_different_sizes(void **state)
{
    struct dcp_comm *comm = *state;
    uint64_t seed = 5;
    for (int round = 0; round < 50; round++) {
        size_t sizes[16], got[16];
        for (int r = 0; r < comm->world_size; r++)
            sizes[r] = next(&seed) % 3 ? draw_size(&seed) : 0;
        unsigned char *mine = make_data(comm->rank, sizes[comm->rank], round);
        void *all;
        assert_int_equal(
            dcp_comm_allgatherv(comm, mine, sizes[comm->rank], &all, got, NULL), 0);
        const unsigned char *part = all;
        for (int r = 0; r < comm->world_size; r++) {
            assert_int_equal(got[r], sizes[r]);
            check_data(part, r, sizes[r], round);
            part += sizes[r];
        }
        free(all);
        free(mine);
    }
}

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void waiting_ranks_sleep(void **state)
{
    struct dcp_comm *comm = *state;
    char c = 0, all[16];
    double before = cpu_s();
    if (comm->rank == 1)
        usleep(1000000);
    assert_int_equal(dcp_comm_allgather(comm, &c, 1, all, NULL), 0);
    assert_true(cpu_s() - before < 0.25);
}

/* --- failure --- */

/* This and every later call names the rank. */
static void expect_failure(struct dcp_comm *comm, int rank, const char *message)
{
    char c = 0, all[16];
    for (int i = 0; i < 3; i++) {
        struct dcp_error err = { 0 };
        assert_int_equal(dcp_comm_allgather(comm, &c, 1, all, &err), DCP_E_COMM);
        assert_int_equal(err.code, DCP_E_COMM);
        assert_int_equal(err.rank, rank);
        assert_non_null(strstr(err.message, message));
        assert_true(err.hint[0] != '\0');
        assert_int_equal(dcp_comm_bcast(comm, all, 1, 0, NULL), DCP_E_COMM);
    }
}

/* One rank stops; another wakes it up when it has seen the failure. */
static void stop_rank(struct dcp_comm *comm, int stopped, int waker)
{
    pid_t pid = pid_of_rank(comm, stopped);
    char message[32];
    snprintf(message, sizeof message, "rank %d did not answer", stopped);
    comm->timeout_ms = 3000;
    if (comm->rank == stopped) {
        raise(SIGSTOP);
    } else {
        expect_failure(comm, stopped, message);
        if (comm->rank == waker) {
            usleep(300000); /* the others name it too before it moves again */
            assert_int_equal(kill(pid, SIGCONT), 0);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void stopped_leaf(void **state)
{
    struct dcp_comm *comm = *state;
    stop_rank(comm, 2, 0);
    if (comm->rank == 2) /* it is told on its return, what the others were told */
        expect_failure(comm, 2, "rank 2 did not answer");
}

static void stopped_root(void **state)
{
    stop_rank(*state, 0, 1);
}

static void stopped_between(void **state)
{
    stop_rank(*state, 1, 0);
}

static void different_calls(void **state)
{
    struct dcp_comm *comm = *state;
    char data[64] = { 0 }, all[16 * sizeof data];
    struct dcp_error err = { 0 };
    size_t n = comm->rank == 3 ? 8 : 16;
    assert_int_equal(dcp_comm_allgather(comm, data, n, all, &err), DCP_E_COMM);
    assert_int_equal(err.rank, 3);
    expect_failure(comm, 3, "called another collective");
}

/* A rank without memory fails the call on all, and the next call works. */
static void no_memory(void **state)
{
    struct dcp_comm *comm = *state;
    const size_t n = 1 << 20;
    unsigned char *mine = make_data(comm->rank, n, 1);
    unsigned char *all = malloc(n * (size_t)comm->world_size);
    assert_non_null(all);
    struct dcp_error err = { 0 };
    if (comm->rank == 3)
        realloc_limit = n;
    int rc = dcp_comm_allgather(comm, mine, n, all, &err);
    realloc_limit = SIZE_MAX;
    assert_int_equal(rc, DCP_E_MEMORY);
    assert_int_equal(err.rank, 3);
    assert_int_equal(dcp_comm_allgather(comm, mine, n, all, NULL), 0);
    for (int r = 0; r < comm->world_size; r++)
        check_data(all + (size_t)r * n, r, n, 1);
    if (comm->rank == 0)
        realloc_limit = n;
    err = (struct dcp_error){ 0 };
    unsigned char *more = calloc((size_t)comm->world_size, 3 * n);
    assert_non_null(more);
    rc = dcp_comm_allgather(comm, more, 3 * n / 2, more, &err);
    realloc_limit = SIZE_MAX;
    assert_int_equal(rc, DCP_E_COMM);
    assert_int_equal(err.rank, 0);
    free(more);
    free(all);
    free(mine);
}

/* A rank that passes on what others say is like rank 0 in this. */
static void no_memory_between(void **state)
{
    struct dcp_comm *comm = *state;
    const size_t n = 1 << 20;
    unsigned char *mine = make_data(comm->rank, n, 1);
    unsigned char *all = malloc(n * (size_t)comm->world_size);
    assert_non_null(all);
    struct dcp_error err = { 0 };
    if (comm->rank == 2)
        realloc_limit = n;
    int rc = dcp_comm_allgather(comm, mine, n, all, &err);
    realloc_limit = SIZE_MAX;
    assert_int_equal(rc, DCP_E_COMM);
    assert_int_equal(err.rank, 2);
    expect_failure(comm, 2, "rank 2 has no memory for the messages");
    free(all);
    free(mine);
}

static void bad_arguments(void **state)
{
    struct dcp_comm *comm = *state;
    char c = 0;
    assert_int_equal(dcp_comm_bcast(comm, &c, 1, comm->world_size, NULL), DCP_E_USAGE);
    assert_int_equal(dcp_comm_bcast(comm, &c, 1, -1, NULL), DCP_E_USAGE);
    assert_int_equal(dcp_comm_bcast(comm, &c, SIZE_MAX, 0, NULL), DCP_E_USAGE);
    assert_int_equal(dcp_comm_allgather(comm, &c, SIZE_MAX / 2, &c, NULL), DCP_E_USAGE);
    assert_int_equal(dcp_comm_bcast(comm, &c, 1, 0, NULL), 0);
}

/* --- the program that loses a rank --- */

static int lose_rank(int victim, int fanout, const char *folder)
{
    struct dcp_comm comm;
    MPI_Comm world_size = MPI_COMM_WORLD;
    struct dcp_error err = { 0 };
    char c = 0, all[16], path[4096];
    if (dcp_mpi_open(&comm, &world_size, fanout, &err) ||
        dcp_comm_allgather(&comm, &c, 1, all, &err))
        return 1;
    if (comm.rank == victim)
        raise(SIGKILL);
    int rc = dcp_comm_allgather(&comm, &c, 1, all, &err);
    snprintf(path, sizeof path, "%s/%d", folder, comm.rank);
    FILE *file = fopen(path, "w");
    if (!file)
        return 1;
    bool seen = dcp_comm_peer_dead(&comm) >= 0; /* others may have ended too by now */
    fprintf(file, "%s %d %s: %s\n", dcp_error_name(rc), err.rank, seen ? "dead" : "alive",
            err.message);
    fclose(file);
    dcp_comm_free(&comm);
    return 0;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (argc == 5)
        _exit(lose_rank(argv[2][0] - '0', argv[3][0] - '0', argv[4]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(values, make_star, free_comm),
        cmocka_unit_test_setup_teardown(values_of_different_sizes, make_star, free_comm),
        cmocka_unit_test_setup_teardown(waiting_ranks_sleep, make_star, free_comm),
        cmocka_unit_test_setup_teardown(stopped_leaf, make_star, free_comm),
        cmocka_unit_test_setup_teardown(stopped_root, make_star, free_comm),
        cmocka_unit_test_setup_teardown(different_calls, make_star, free_comm),
        cmocka_unit_test_setup_teardown(no_memory, make_star, free_comm),
        cmocka_unit_test_setup_teardown(bad_arguments, make_star, free_comm),
        cmocka_unit_test_setup_teardown(values, make_chain, free_comm),
        cmocka_unit_test_setup_teardown(waiting_ranks_sleep, make_chain, free_comm),
        cmocka_unit_test_setup_teardown(stopped_leaf, make_chain, free_comm),
        cmocka_unit_test_setup_teardown(stopped_root, make_chain, free_comm),
        cmocka_unit_test_setup_teardown(stopped_between, make_chain, free_comm),
        cmocka_unit_test_setup_teardown(different_calls, make_chain, free_comm),
        cmocka_unit_test_setup_teardown(no_memory, make_chain, free_comm),
        cmocka_unit_test_setup_teardown(no_memory_between, make_chain, free_comm),
        cmocka_unit_test_setup_teardown(bad_arguments, make_chain, free_comm),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Finalize();
    return failed;
}
