/* labels: tsan */
/* wrap: malloc */
/* A TCP communicator whose ranks make a tree of several levels. Eleven ranks with two
 * children each:
 *
 *              0
 *         1         6
 *       2   4     7   9
 *       3   5     8   10
 */
#include "base/clock.h"
#include "lib/check_comm.h"
#include "lib/must.h"
#include "lib/tcp_group.h"
#include "port/comm/relay.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD_SIZE = 11, FANOUT = 2 };

/* --- an allocation that fails on one rank: its size tells which --- */

static size_t no_malloc_of; /* atomic; 0: all do */

static bool has_memory(size_t size)
{
    return size != __atomic_load_n(&no_malloc_of, __ATOMIC_RELAXED) || !size;
}

#ifdef TEST_IS_WRAPPED
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

void *__wrap_malloc(size_t size)
{
    return has_memory(size) ? __real_malloc(size) : NULL;
}
#else
void *__libc_malloc(size_t size);

__attribute__((visibility("default"))) void *malloc(size_t size)
{
    return has_memory(size) ? __libc_malloc(size) : NULL;
}
#endif

/* --- ranks as threads --- */

/* Where a rank really stands: it may have stayed with the star. */
static const struct dcp_branch *branch_of(const struct dcp_comm *comm)
{
    return &((const struct dcp_relay *)comm->self)->at;
}

static void start_ranks(int world_size, int fanout, struct dcp_comm *comms)
{
    struct dcp_branch shape = dcp_branch_of(0, world_size, fanout);
    struct tcp_rank ranks[CHECK_COMM_MAX_WORLD_SIZE];
    int port, agent = tcp_group_agent(&port);
    tcp_group_fill(ranks, world_size, port, "a tree");
    for (int r = 0; r < world_size; r++)
        ranks[r].fanout = fanout;
    tcp_group_start(ranks, world_size);
    close(agent);
    for (int r = 0; r < world_size; r++) {
        if (ranks[r].rc)
            fail_msg("rank %d: %s", r, ranks[r].err.message);
        comms[r] = ranks[r].comm;
        assert_int_equal(branch_of(&comms[r])->fanout, shape.fanout);
    }
}

static void run_ranks(int world_size, int fanout, int timeout_ms,
                      int (*run)(struct dcp_comm *comm))
{
    struct dcp_comm comms[CHECK_COMM_MAX_WORLD_SIZE];
    start_ranks(world_size, fanout, comms);
    assert_int_equal(check_comm_run(comms, world_size, timeout_ms, run), 0);
}

static int count_sockets(void)
{
    int n = 0, listens;
    for (int fd = 3; fd < 256; fd++) {
        socklen_t size = sizeof listens;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size))
            continue;
        assert_int_equal(listens, 0);
        n++;
    }
    return n;
}

/* Both ends of ten connections are here; those of the start are closed, and so are all
 * that listened. */
static void a_tree_has_few_connections(void **state)
{
    (void)state;
    struct dcp_comm comms[CHECK_COMM_MAX_WORLD_SIZE];
    start_ranks(WORLD_SIZE, FANOUT, comms);
    assert_int_equal(count_sockets(), 2 * (WORLD_SIZE - 1));
    assert_int_equal(check_comm_run(comms, WORLD_SIZE, 0, check_comm_values), 0);
    assert_int_equal(count_sockets(), 0);
}

static void values(void **state)
{
    (void)state;
    static const int fanouts[] = { 1, 2, 3 };
    for (size_t i = 0; i < sizeof fanouts / sizeof *fanouts; i++)
        for (int world_size = 3; world_size <= 9; world_size += 3)
            run_ranks(world_size, fanouts[i], 0, check_comm_values);
    run_ranks(13, 3, 0, check_comm_values);
    run_ranks(WORLD_SIZE, FANOUT, 0, check_comm_bad_arguments);
}

/* Who makes another call than rank 0 is named by all; of several, the lowest. */
static int other_caller;

static int call_another(struct dcp_comm *comm)
{
    enum { N = 1 << 16 };
    char *in = calloc(1, N), *all = calloc(WORLD_SIZE, N);
    bool other = comm->rank == other_caller || (other_caller && comm->rank == 10);
    must(in && all);
    for (int i = 0; i < 2; i++) {
        struct dcp_error err = { 0 };
        int rc = i && other ? dcp_comm_bcast(comm, in, N, 0, &err)
                            : dcp_comm_allgather(comm, in, N, all, &err);
        WANT(rc == (i ? DCP_E_COMM : 0));
        WANT(!i || err.rank == (other_caller ? other_caller : 1));
        WANT(!i || strstr(err.message, "called another collective"));
    }
    free(in);
    free(all);
    return 0;
}

static void other_calls_are_noticed_everywhere(void **state)
{
    (void)state;
    static const int callers[] = { 0, 1, 2, 3, 7, 10 };
    for (size_t i = 0; i < sizeof callers / sizeof *callers; i++) {
        other_caller = callers[i];
        run_ranks(WORLD_SIZE, FANOUT, 60000, call_another);
    }
}

static unsigned char large_byte(int rank, size_t i)
{
    return (unsigned char)((i * 2654435761u >> 16) + (unsigned)rank * 97);
}

static int exchange_large(struct dcp_comm *comm)
{
    enum { N = 1 << 20 };
    unsigned char *mine = malloc(N), *all = malloc((size_t)WORLD_SIZE * N);
    must(mine && all);
    for (size_t i = 0; i < N; i++)
        mine[i] = large_byte(comm->rank, i);
    for (int how = 0; how < 2; how++) {
        bool gets = !how || comm->rank == 0;
        WANT((how ? comm->ops->gather : comm->ops->allgather)(
                 comm->self, mine, N, gets ? all : NULL, 60000, NULL) == 0);
        for (int r = 0; gets && r < WORLD_SIZE; r++)
            for (size_t i = 0; i < N; i++)
                WANT(all[(size_t)r * N + i] == large_byte(r, i));
        memset(all, 0, (size_t)WORLD_SIZE * N);
    }
    for (int root = 0; root < WORLD_SIZE; root++) {
        WANT(dcp_comm_bcast(comm, comm->rank == root ? mine : all, N, root, NULL) == 0);
        for (size_t i = 0; comm->rank != root && i < N; i++)
            WANT(all[i] == large_byte(root, i));
    }
    free(mine);
    free(all);
    return 0;
}

static void large_messages_pass_small_buffers(void **state)
{
    (void)state;
    struct dcp_comm comms[CHECK_COMM_MAX_WORLD_SIZE];
    start_ranks(WORLD_SIZE, FANOUT, comms);
    for (int fd = 3; fd < 256; fd++) {
        int small = 32 << 10;
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    }
    assert_int_equal(check_comm_run(comms, WORLD_SIZE, 0, exchange_large), 0);
}

/* Rank 6 passes on what five ranks say, and has no memory for that. */
static int gather_without_memory(struct dcp_comm *comm)
{
    enum { N = 50021 };
    char *in = calloc(1, N), *out = comm->rank ? NULL : calloc(WORLD_SIZE, N);
    for (int i = 0; i < 3; i++) {
        struct dcp_error err = { 0 };
        char c = 0, all[WORLD_SIZE];
        WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
        if (comm->rank == 6)
            __atomic_store_n(&no_malloc_of, i == 1 ? 5 * N : 0, __ATOMIC_RELAXED);
        WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
        int rc = comm->ops->gather(comm->self, in, N, out, 60000, &err);
        /* rank 1 has as large a subtree, and may be the one to miss it */
        WANT(rc == (i == 1 ? DCP_E_MEMORY : 0));
        WANT(i != 1 || err.rank == 1);
    }
    free(in);
    free(out);
    return 0;
}

static void lack_of_memory_fails_one_gather(void **state)
{
    (void)state;
    run_ranks(WORLD_SIZE, FANOUT, 60000, gather_without_memory);
}

/* --- ranks that leave --- */

static int victim;

static int leave(struct dcp_comm *comm)
{
    char c = 0, all[WORLD_SIZE], message[40];
    WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
    if (comm->rank == victim) {
        dcp_comm_free(comm);
        return 0;
    }
    snprintf(message, sizeof message, "rank %d is gone", victim);
    WANT(check_comm_failure(comm, victim, DCP_RANK_DEAD, message) == 0);
    WANT(dcp_comm_peer_dead(comm) == victim);
    return 0;
}

/* Nobody is in a call. */
static int watch(struct dcp_comm *comm)
{
    int dead;
    char message[40];
    if (comm->rank == victim) {
        dcp_comm_free(comm);
        return 0;
    }
    while ((dead = dcp_comm_peer_dead(comm)) < 0)
        dcp_clock_sleep_us(1000);
    WANT(dead == victim);
    snprintf(message, sizeof message, "rank %d is gone", victim);
    return check_comm_failure(comm, victim, DCP_RANK_DEAD, message);
}

/* Rank 2 leaves because rank 3 did: rank 1 hears of rank 3, and so do all, though rank 0
 * comes later still. */
static int leave_after_another(struct dcp_comm *comm)
{
    if (comm->rank == 2)
        while (dcp_comm_peer_dead(comm) < 0)
            dcp_clock_sleep_us(1000);
    if (comm->rank == 2 || comm->rank == 3) {
        dcp_comm_free(comm);
        return 0;
    }
    if (comm->rank < 2)
        dcp_clock_sleep_us(comm->rank ? 300000 : 600000);
    return check_comm_failure(comm, 3, DCP_RANK_DEAD, "rank 3 is gone");
}

static void a_rank_that_left_is_gone(void **state)
{
    (void)state;
    static const int places[] = { 0, 1, 2, 3, 10 };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        victim = places[i];
        run_ranks(WORLD_SIZE, FANOUT, 60000, leave);
        run_ranks(WORLD_SIZE, FANOUT, 60000, watch);
    }
    run_ranks(WORLD_SIZE, FANOUT, 60000, leave_after_another);
}

/* --- ranks as processes --- */

enum how { KILLED, KILLED_LATER, STOPPED, LATE, LATE_PARENT };

static enum how how;

/* In the middle of this, since it is more than sockets hold. */
static int gather_much(struct dcp_comm *comm, struct dcp_error *err)
{
    enum { N = 8 << 20 };
    char *in = calloc(1, N), *out = comm->rank ? NULL : calloc(WORLD_SIZE, N);
    must(in && (out || comm->rank));
    int rc = 0;
    for (int i = 0; i < 1000 && !rc; i++)
        rc = comm->ops->gather(comm->self, in, N, out, comm->timeout_ms, err);
    free(in);
    free(out);
    return rc;
}

static int lose_rank(struct dcp_comm *comm)
{
    char c = 0, all[WORLD_SIZE], message[60];
    bool is_victim = comm->rank == victim, dies = how == KILLED || how == KILLED_LATER;
    WANT(branch_of(comm)->fanout == FANOUT);
    comm->timeout_ms = dies ? 60000 : 4000;
    WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
    if (is_victim && how == KILLED)
        raise(SIGKILL);
    if (is_victim && how == KILLED_LATER)
        ualarm(50000 + 7000 * (useconds_t)comm->rank, 0);
    if (is_victim && (how == STOPPED || how == LATE_PARENT))
        raise(SIGSTOP);
    if (is_victim && how == LATE)
        dcp_clock_sleep_us(5500000);
    if (how == LATE_PARENT && comm->rank == (victim ? 2 : 1)) /* but in time */
        dcp_clock_sleep_us(2500000);
    if (how == KILLED_LATER) {
        struct dcp_error err = { 0 };
        WANT(gather_much(comm, &err) == DCP_E_COMM);
        if (err.rank != victim)
            fprintf(stderr, "rank %d: victim %d: %s\n", comm->rank, victim, err.message);
        WANT(err.rank == victim);
    }
    snprintf(message, sizeof message,
             dies ? "rank %d is gone" : "rank %d did not answer within", victim);
    if (is_victim && how != KILLED) /* it hears of itself, or that others have left */
        return dcp_comm_allgather(comm, &c, 1, all, NULL) == DCP_E_COMM ? 0 : __LINE__;
    WANT(check_comm_failure(comm, victim, dies ? DCP_RANK_DEAD : DCP_RANK_SILENT,
                            message) == 0);
    dcp_clock_sleep_us(300000); /* who ended first must not be taken for the victim */
    return 0;
}

struct job {
    int victim, agent;
    pid_t pids[WORLD_SIZE];
};

static void start_job(struct job *job, int the_victim)
{
    struct tcp_rank ranks[WORLD_SIZE];
    int port;
    victim = job->victim = the_victim;
    job->agent = tcp_group_agent(&port);
    tcp_group_fill(ranks, WORLD_SIZE, port, "processes");
    for (int r = 0; r < WORLD_SIZE; r++) {
        ranks[r].fanout = FANOUT;
        job->pids[r] = tcp_group_fork(&ranks[r], lose_rank);
    }
}

static void end_job(struct job *job, int expected)
{
    for (int r = 0; r < WORLD_SIZE; r++)
        if (r != job->victim)
            assert_int_equal(tcp_group_wait(job->pids[r]), 0);
    kill(job->pids[job->victim], SIGCONT);
    assert_int_equal(tcp_group_wait(job->pids[job->victim]), expected);
    close(job->agent);
}

/* Root, a rank below it, one below that, and a leaf, all at once where they only wait. */
static void lose(enum how the_how, int expected, bool at_once)
{
    static const int places[] = { 0, 1, 2, 3 };
    struct job jobs[sizeof places / sizeof *places];
    how = the_how;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        start_job(&jobs[i], places[i]);
        if (!at_once)
            end_job(&jobs[i], expected);
    }
    for (size_t i = 0; i < sizeof places / sizeof *places && at_once; i++)
        end_job(&jobs[i], expected);
}

static void killed_ranks_are_named(void **state)
{
    (void)state;
    lose(KILLED, -SIGKILL, false);
    lose(KILLED_LATER, -SIGALRM, false);
}

static void silent_ranks_are_named(void **state)
{
    (void)state;
    lose(STOPPED, 0, true);
    lose(LATE, 0, true);
}

/* A rank comes so late that its own time is not up when that of the others is: who is
 * missing below it, or above it, is named all the same. */
static void a_late_parent_knows_who_is_missing(void **state)
{
    (void)state;
    struct job below, above;
    how = LATE_PARENT;
    start_job(&below, 3);
    start_job(&above, 0);
    end_job(&below, 0);
    end_job(&above, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_ranks_are_named), /* processes before threads */
        cmocka_unit_test(silent_ranks_are_named),
        cmocka_unit_test(a_late_parent_knows_who_is_missing),
        cmocka_unit_test(a_tree_has_few_connections),
        cmocka_unit_test(values),
        cmocka_unit_test(other_calls_are_noticed_everywhere),
        cmocka_unit_test(large_messages_pass_small_buffers),
        cmocka_unit_test(lack_of_memory_fails_one_gather),
        cmocka_unit_test(a_rank_that_left_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
