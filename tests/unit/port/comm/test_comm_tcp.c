/* labels: tsan */
/* The calls of a TCP communicator; how ranks find each other is in test_comm_tcp_start.c.
 */
#include "base/clock.h"
#include "lib/check_comm.h"
#include "lib/must.h"
#include "lib/tcp_group.h"
#include "port/comm/tcp_link.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_WORLD_SIZE CHECK_COMM_MAX_WORLD_SIZE

/* A process group that is started; the comms are for check_comm_run. */
static void start_ranks(int world_size, struct dcp_comm *comms)
{
    struct tcp_rank ranks[MAX_WORLD_SIZE];
    int port, agent = tcp_group_agent(&port);
    tcp_group_fill(ranks, world_size, port, "a job");
    tcp_group_start(ranks, world_size);
    close(agent);
    for (int r = 0; r < world_size; r++) {
        if (ranks[r].rc)
            fail_msg("rank %d: %s", r, ranks[r].err.message);
        comms[r] = ranks[r].comm;
        assert_int_equal(comms[r].rank, r);
        assert_int_equal(comms[r].world_size, world_size);
    }
}

static void run_ranks(int world_size, int timeout_ms, int (*run)(struct dcp_comm *comm))
{
    struct dcp_comm comms[MAX_WORLD_SIZE];
    start_ranks(world_size, comms);
    assert_int_equal(check_comm_run(comms, world_size, timeout_ms, run), 0);
}

static void values(void **state)
{
    (void)state;
    for (int world_size = 1; world_size <= 8; world_size++)
        run_ranks(world_size, 0, check_comm_values);
    run_ranks(3, 0, check_comm_bad_arguments);
}

static void silent_rank_is_named(void **state)
{
    (void)state;
    run_ranks(5, 400, check_comm_silent);
}

static void different_calls_are_noticed(void **state)
{
    (void)state;
    run_ranks(3, 60000, check_comm_other_size);
    run_ranks(3, 60000, check_comm_other_kind);
    run_ranks(3, 60000, check_comm_other_number);
    run_ranks(3, 60000, check_comm_other_root);
}

/* --- large messages --- */

/* The sockets of this process, wherever the library keeps them. */
static void shrink_socket_buffers(void)
{
    int small = 32 << 10, n = 0;
    for (int fd = 3; fd < 256; fd++) {
        n += !setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    }
    assert_true(n >= 2);
}

static unsigned char large_byte(int rank, size_t i)
{
    return (unsigned char)((i * 2654435761u >> 16) + (unsigned)rank * 97);
}

static int exchange_large(struct dcp_comm *comm)
{
    enum { N = 4 << 20 };
    unsigned char *mine = malloc(N), *all = malloc((size_t)comm->world_size * N);
    must(mine && all);
    for (size_t i = 0; i < N; i++)
        mine[i] = large_byte(comm->rank, i);
    WANT(dcp_comm_allgather(comm, mine, N, all, NULL) == 0);
    for (int r = 0; r < comm->world_size; r++)
        for (size_t i = 0; i < N; i++)
            WANT(all[(size_t)r * N + i] == large_byte(r, i));
    for (int root = 0; root < comm->world_size; root++) {
        memset(all, 0, N);
        WANT(dcp_comm_bcast(comm, comm->rank == root ? mine : all, N, root, NULL) == 0);
        for (size_t i = 0; comm->rank != root && i < N; i++)
            WANT(all[i] == large_byte(root, i));
    }
    free(mine);
    free(all);
    return 0;
}

static void large_messages_through_small_buffers(void **state)
{
    (void)state;
    struct dcp_comm comms[MAX_WORLD_SIZE];
    start_ranks(4, comms);
    shrink_socket_buffers();
    assert_int_equal(check_comm_run(comms, 4, 0, exchange_large), 0);
}

/* A rank that sends 4 MB reads the verdict meanwhile, which says that nobody wants them.
 */
static int send_too_much(struct dcp_comm *comm)
{
    size_t n = comm->rank == 2 ? 4 << 20 : 16;
    unsigned char *mine = calloc(1, n), *all = calloc((size_t)comm->world_size, n);
    must(mine && all);
    struct dcp_error err = { 0 };
    WANT(dcp_comm_allgather(comm, mine, n, all, &err) == DCP_E_COMM);
    WANT(err.rank == 2 && strstr(err.message, "called another collective"));
    free(mine);
    free(all);
    return 0;
}

static void verdict_reaches_who_is_sending(void **state)
{
    (void)state;
    struct dcp_comm comms[MAX_WORLD_SIZE];
    start_ranks(3, comms);
    shrink_socket_buffers();
    assert_int_equal(check_comm_run(comms, 3, 60000, send_too_much), 0);
}

/* --- sleep --- */

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static int wait_for_rank_1(struct dcp_comm *comm)
{
    char c = 0, all[MAX_WORLD_SIZE];
    double before = cpu_s();
    if (comm->rank == 1)
        dcp_clock_sleep_us(1000000);
    WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
    WANT(cpu_s() - before < 0.25);
    return 0;
}

static void waiting_ranks_sleep(void **state)
{
    (void)state;
    run_ranks(3, 0, wait_for_rank_1);
}

/* --- ranks that leave or die; the time-out is a minute away --- */

static int leave(struct dcp_comm *comm)
{
    char c = 0, all[MAX_WORLD_SIZE];
    WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
    if (comm->rank == 2) {
        dcp_comm_free(comm);
        return 0;
    }
    WANT(check_comm_failure(comm, 2, DCP_RANK_DEAD, "rank 2 is gone") == 0);
    WANT(dcp_comm_peer_dead(comm) == 2);
    return 0;
}

static int root_leaves(struct dcp_comm *comm)
{
    char c = 0, all[MAX_WORLD_SIZE];
    WANT(dcp_comm_peer_dead(comm) == -1);
    WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
    if (comm->rank == 0) {
        dcp_comm_free(comm);
        return 0;
    }
    WANT(check_comm_failure(comm, 0, DCP_RANK_DEAD, "rank 0 is gone") == 0);
    WANT(dcp_comm_peer_dead(comm) == 0);
    return 0;
}

static void a_rank_that_left_is_gone(void **state)
{
    (void)state;
    run_ranks(4, 60000, leave);
    run_ranks(4, 60000, root_leaves);
}

/* All others have given up, so rank 0 must not take the call for a good one. */
static int root_is_late(struct dcp_comm *comm)
{
    char c = 0, all[MAX_WORLD_SIZE];
    if (comm->rank == 0) {
        dcp_clock_sleep_us(600000);
        return dcp_comm_allgather(comm, &c, 1, all, NULL) == DCP_E_COMM ? 0 : __LINE__;
    }
    return check_comm_failure(comm, 0, DCP_RANK_SILENT, "rank 0 did not answer within");
}

static void late_rank_0_fails_too(void **state)
{
    (void)state;
    run_ranks(3, 200, root_is_late);
}

/* Nobody is in a call: rank 0 sees the death and tells the others. */
static int watch(struct dcp_comm *comm)
{
    if (comm->rank == 1) {
        dcp_comm_free(comm);
        return 0;
    }
    int dead;
    while ((dead = dcp_comm_peer_dead(comm)) < 0)
        dcp_clock_sleep_us(1000);
    WANT(dead == 1);
    return check_comm_failure(comm, 1, DCP_RANK_DEAD, "rank 1 is gone");
}

static void death_is_seen_between_calls(void **state)
{
    (void)state;
    run_ranks(4, 60000, watch);
}

/* Rank 0 leaves because rank 1 did; the others hear of rank 1, also one that is still
 * sending when the connection is closed. */
static int root_follows(struct dcp_comm *comm)
{
    size_t n = comm->rank == 3 ? 4 << 20 : 1;
    if (comm->rank == 1)
        dcp_comm_free(comm);
    if (comm->rank == 0) {
        dcp_clock_sleep_us(300000);
        dcp_comm_free(comm);
    }
    if (comm->rank < 2)
        return 0;
    if (comm->rank == 3)
        dcp_clock_sleep_us(600000);
    unsigned char *mine = calloc(1, n), *all = calloc((size_t)comm->world_size, n);
    must(mine && all);
    WANT(dcp_comm_allgather(comm, mine, n, all, NULL) == DCP_E_COMM);
    free(mine);
    free(all);
    return check_comm_failure(comm, 1, DCP_RANK_DEAD, "rank 1 is gone");
}

static void leaving_rank_0_says_who_was_first(void **state)
{
    (void)state;
    run_ranks(4, 60000, root_follows);
}

/* --- processes --- */

static int end_by(struct dcp_comm *comm, int victim, int number, int rank_state,
                  const char *message)
{
    char c = 0, all[MAX_WORLD_SIZE];
    WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
    if (comm->rank == victim)
        raise(number);
    WANT(check_comm_failure(comm, victim, rank_state, message) == 0);
    if (comm->rank != victim) /* who ended first must not be taken for the victim */
        dcp_clock_sleep_us(300000);
    return 0;
}

static int kill_leaf(struct dcp_comm *comm)
{
    comm->timeout_ms = 60000;
    return end_by(comm, 2, SIGKILL, DCP_RANK_DEAD, "rank 2 is gone");
}

static int kill_root(struct dcp_comm *comm)
{
    comm->timeout_ms = 60000;
    return end_by(comm, 0, SIGKILL, DCP_RANK_DEAD, "rank 0 is gone");
}

/* The victim wakes up to what the others were told. */
static int stop_leaf(struct dcp_comm *comm)
{
    comm->timeout_ms = 800;
    return end_by(comm, 2, SIGSTOP, DCP_RANK_SILENT, "rank 2 did not answer within");
}

/* What the others sent it is there, but they have given up. */
static int stop_root(struct dcp_comm *comm)
{
    comm->timeout_ms = 800;
    if (comm->rank == 0) {
        char c = 0, all[MAX_WORLD_SIZE];
        WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
        raise(SIGSTOP);
        return dcp_comm_allgather(comm, &c, 1, all, NULL) == DCP_E_COMM ? 0 : __LINE__;
    }
    return end_by(comm, 0, SIGSTOP, DCP_RANK_SILENT, "rank 0 did not answer within");
}

/* Rank 2 has given its bytes and dies; rank 1 will never come. */
static int die_in_the_round(struct dcp_comm *comm)
{
    char c = 0, all[MAX_WORLD_SIZE];
    comm->timeout_ms = 60000;
    WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
    if (comm->rank == 2)
        ualarm(100000, 0);
    if (comm->rank == 1)
        while (dcp_comm_peer_dead(comm) < 0)
            dcp_clock_sleep_us(1000);
    return check_comm_failure(comm, 2, DCP_RANK_DEAD, "rank 2 is gone");
}

static void run_processes(int victim, int expected, int (*run)(struct dcp_comm *comm))
{
    struct tcp_rank ranks[4];
    pid_t pids[4];
    int port, agent = tcp_group_agent(&port);
    tcp_group_fill(ranks, 4, port, "processes");
    for (int r = 0; r < 4; r++)
        pids[r] = tcp_group_fork(&ranks[r], run);
    close(agent);
    for (int r = 0; r < 4; r++)
        if (r != victim)
            assert_int_equal(tcp_group_wait(pids[r]), 0);
    kill(pids[victim], SIGCONT);
    assert_int_equal(tcp_group_wait(pids[victim]), expected);
}

static void killed_ranks_are_named(void **state)
{
    (void)state;
    run_processes(2, -SIGKILL, kill_leaf);
    run_processes(0, -SIGKILL, kill_root);
}

static void death_of_who_has_given_is_noticed(void **state)
{
    (void)state;
    run_processes(2, -SIGALRM, die_in_the_round);
}

static void stopped_ranks_are_named(void **state)
{
    (void)state;
    run_processes(2, 0, stop_leaf);
    run_processes(0, 0, stop_root);
}

/* --- a rank that gives its bytes, and takes no answer --- */

static void *give_and_take_nothing(void *arg)
{
    int port = *(int *)arg, fd = tcp_group_connect(port);
    unsigned char head[DCP_RELAY_HEAD_BYTES];
    must(tcp_group_answer(
        fd, &(struct dcp_comm_tcp_options){ .port = port, .rank = 1, .world_size = 2 }));
    must(recv(fd, head, sizeof head, MSG_WAITALL) == sizeof head);
    must(dcp_relay_get_head(head).code == 0);

    int smallest = 1;
    struct dcp_relay_head mine = { .call = { 1, 1 /* bcast */, 0, 16 << 20 } };
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &smallest, sizeof smallest);
    dcp_relay_put_head(head, &mine);
    must(send(fd, head, sizeof head, 0) == sizeof head);
    char c;
    while (recv(fd, &c, 1, MSG_PEEK) > 0) /* until rank 0 has gone */
        dcp_clock_sleep_us(10000);
    close(fd);
    return NULL;
}

static void rank_that_takes_no_answer_is_silent(void **state)
{
    (void)state;
    struct tcp_rank rank;
    pthread_t thread;
    int port, agent = tcp_group_agent(&port);
    tcp_group_fill(&rank, 1, port, NULL);
    rank.options.world_size = 2;
    assert_int_equal(pthread_create(&thread, NULL, give_and_take_nothing, &port), 0);
    assert_int_equal(dcp_comm_tcp(&rank.comm, &rank.options, &rank.err), 0);
    unsigned char *data = calloc(16, 1 << 20);
    assert_non_null(data);
    rank.comm.timeout_ms = 400;
    assert_int_equal(dcp_comm_bcast(&rank.comm, data, 16 << 20, 0, &rank.err),
                     DCP_E_COMM);
    assert_int_equal(rank.err.rank, 1);
    assert_int_equal(rank.err.rank_state, DCP_RANK_SILENT);
    assert_int_equal(dcp_comm_peer_dead(&rank.comm), -1);
    dcp_comm_free(&rank.comm);
    shutdown(agent, SHUT_RDWR);
    close(agent);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_ranks_are_named), /* processes before threads */
        cmocka_unit_test(stopped_ranks_are_named),
        cmocka_unit_test(death_of_who_has_given_is_noticed),
        cmocka_unit_test(values),
        cmocka_unit_test(silent_rank_is_named),
        cmocka_unit_test(different_calls_are_noticed),
        cmocka_unit_test(large_messages_through_small_buffers),
        cmocka_unit_test(verdict_reaches_who_is_sending),
        cmocka_unit_test(waiting_ranks_sleep),
        cmocka_unit_test(a_rank_that_left_is_gone),
        cmocka_unit_test(late_rank_0_fails_too),
        cmocka_unit_test(death_is_seen_between_calls),
        cmocka_unit_test(leaving_rank_0_says_who_was_first),
        cmocka_unit_test(rank_that_takes_no_answer_is_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
