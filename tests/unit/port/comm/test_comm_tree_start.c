/* labels: tsan */
/* How ranks of a TCP communicator make a tree of several levels, and when they stay with
 * a star. */
#include "base/clock.h"
#include "lib/check_comm.h"
#include "lib/must.h"
#include "lib/tcp_group.h"
#include "port/comm/relay.h"
#include "port/comm/tcp.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD_SIZE = 7, FANOUT = 2 }; /* ranks 1 and 4 have two children each */

static int fill(struct tcp_rank *ranks, int timeout_ms)
{
    int port, agent = tcp_group_agent(&port);
    tcp_group_fill(ranks, WORLD_SIZE, port, "a tree");
    for (int r = 0; r < WORLD_SIZE; r++) {
        ranks[r].fanout = FANOUT;
        ranks[r].options.secret = "the secret of this job";
        ranks[r].options.timeout_ms = timeout_ms;
    }
    return agent;
}

static void expect_levels(const struct tcp_rank *ranks, int levels)
{
    struct dcp_comm comms[WORLD_SIZE];
    for (int r = 0; r < WORLD_SIZE; r++) {
        if (ranks[r].rc)
            fail_msg("rank %d: %s", r, ranks[r].err.message);
        comms[r] = ranks[r].comm;
        const struct dcp_relay *relay = comms[r].self;
        assert_int_equal(relay->at.levels, levels);
    }
    assert_int_equal(check_comm_run(comms, WORLD_SIZE, 60000, check_comm_values), 0);
}

/* --- while the last rank is missing --- */

static void *start_first(void *arg)
{
    tcp_group_start(arg, WORLD_SIZE - 1);
    return NULL;
}

/* Fills the sockets at which ranks 1 and 4 wait for their children. */
static void find_listeners(int master_port, int fds[2], int ports[2])
{
    for (int n = 0; n < 2;) {
        dcp_clock_sleep_us(20000);
        n = 0;
        for (int fd = 3; fd < 256 && n < 2; fd++) {
            struct sockaddr_in at;
            int listens = 0;
            socklen_t size = sizeof listens, n_at = sizeof at;
            if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) || !listens)
                continue;
            must(!getsockname(fd, (struct sockaddr *)&at, &n_at));
            int port = ntohs(at.sin_port);
            assert_int_equal(ntohl(at.sin_addr.s_addr), INADDR_LOOPBACK); /* alone */
            if (port >= master_port && port <= master_port + 16)
                continue;
            fds[n] = fd;
            ports[n++] = port;
        }
    }
}

/* Connects to both, does something, and then starts the last rank. */
static void start_with(struct tcp_rank *ranks,
                       void (*disturb)(const struct tcp_rank *ranks, const int fds[2],
                                       const int ports[2]))
{
    pthread_t first;
    int fds[2], ports[2];
    assert_int_equal(pthread_create(&first, NULL, start_first, ranks), 0);
    find_listeners(ranks[0].options.port, fds, ports);
    disturb(ranks, fds, ports);
    tcp_group_start(ranks + WORLD_SIZE - 1, 1);
    pthread_join(first, NULL);
}

/* --- strangers at the ports of ranks that wait for their children --- */

enum { N_SILENT = 70, N_STRANGERS = N_SILENT + 5 };

static int strangers[2][N_STRANGERS];
static pthread_t talker;
static struct dcp_comm_tcp_options job; /* of rank 2, a child of rank 1 */

/* Nobody hears them before the last rank is there. */
static void *talk(void *arg)
{
    (void)arg;
    for (int i = 0; i < 2; i++) {
        struct dcp_comm_tcp_options other = job;
        const int *fds = strangers[i];
        must(send(fds[0], "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
        other.secret = NULL;
        must(!tcp_group_answer(fds[1], &other));
        other.secret = "the secret of others";
        must(!tcp_group_answer(fds[2], &other));
        other = job;
        other.rank = 1; /* a child of rank 0 */
        must(!tcp_group_answer(fds[3], &other));
        other = job;
        other.world_size++;
        must(!tcp_group_answer(fds[4], &other));
    }
    return NULL;
}

static void send_strangers(const struct tcp_rank *ranks, const int fds[2],
                           const int ports[2])
{
    (void)fds;
    job = ranks[2].options;
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < N_STRANGERS; n++)
            strangers[i][n] = tcp_group_connect_to(ports[i]);
    assert_int_equal(pthread_create(&talker, NULL, talk, NULL), 0);
}

static void strangers_take_no_child_s_place(void **state)
{
    (void)state;
    struct tcp_rank ranks[WORLD_SIZE];
    int agent = fill(ranks, 30000);
    start_with(ranks, send_strangers);
    pthread_join(talker, NULL);
    expect_levels(ranks, 2);
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < N_STRANGERS; n++) {
            char said[200];
            while (recv(strangers[i][n], said, sizeof said, 0) > 0)
                ; /* until it is closed */
            close(strangers[i][n]);
        }
    close(agent);
}

/* --- a star instead --- */

static void shut_listener(const struct tcp_rank *ranks, const int fds[2],
                          const int ports[2])
{
    (void)ranks, (void)ports;
    assert_int_equal(shutdown(fds[1], SHUT_RDWR), 0);
}

static void a_parent_that_cannot_be_reached(void **state)
{
    (void)state;
    struct tcp_rank ranks[WORLD_SIZE];
    int agent = fill(ranks, 4000);
    start_with(ranks, shut_listener);
    expect_levels(ranks, 1);
    close(agent);
}

/* Ranks 1 and 2 reach rank 0 by an address of this machine alone, as on its own host, the
 * others by one that others can use: what is told of rank 1 is good for rank 2 alone. */
static void addresses_of_one_machine(void **state)
{
    (void)state;
    struct tcp_rank ranks[WORLD_SIZE];
    struct ifaddrs *all = NULL;
    char host[INET_ADDRSTRLEN] = "";
    assert_int_equal(getifaddrs(&all), 0);
    for (struct ifaddrs *a = all; a && !*host; a = a->ifa_next) {
        const struct sockaddr_in *at = (const void *)a->ifa_addr;
        if (at && at->sin_family == AF_INET && ntohl(at->sin_addr.s_addr) >> 24 != 127)
            inet_ntop(AF_INET, &at->sin_addr, host, sizeof host);
    }
    freeifaddrs(all);
    if (!*host) {
        printf("skipped: this machine has no address that others can use\n");
        return;
    }
    for (int mixed = 0; mixed < 2; mixed++) {
        int agent = fill(ranks, 30000);
        for (int r = 0; r < WORLD_SIZE; r++)
            ranks[r].options.host = !r ? "0.0.0.0" : mixed && r < 3 ? "127.0.0.1" : host;
        tcp_group_start(ranks, WORLD_SIZE);
        expect_levels(ranks, mixed ? 1 : 2);
        close(agent);
    }
}

/* --- starts that fail --- */

/* A rank that ends with 10 and the number of who is to blame. */
static pid_t fork_start(const struct tcp_rank *rank)
{
    pid_t pid = fork();
    must(pid >= 0);
    if (pid)
        return pid;
    struct dcp_comm comm;
    struct dcp_error err = { 0 };
    int rc = dcp_tcp_open(&comm, &rank->options, rank->fanout, &err);
    _exit(rc == DCP_E_COMM ? 10 + err.rank : 1);
}

static void a_parent_that_stops_in_the_start(void **state)
{
    (void)state;
    struct tcp_rank ranks[WORLD_SIZE];
    pid_t pids[WORLD_SIZE];
    int agent = fill(ranks, 3000);
    for (int r = 0; r < WORLD_SIZE - 1; r++)
        pids[r] = fork_start(&ranks[r]);
    dcp_clock_sleep_us(700000);
    kill(pids[1], SIGSTOP);
    pids[WORLD_SIZE - 1] = fork_start(&ranks[WORLD_SIZE - 1]);
    for (int r = 0; r < WORLD_SIZE; r++)
        if (r != 1)
            assert_int_equal(tcp_group_wait(pids[r]), 11);
    kill(pids[1], SIGKILL);
    assert_int_equal(tcp_group_wait(pids[1]), -SIGKILL);
    close(agent);
}

static void too_few_files(void **state)
{
    (void)state;
    struct tcp_rank ranks[WORLD_SIZE];
    int agent = fill(ranks, 30000);
    pid_t pid = fork();
    must(pid >= 0);
    if (!pid) {
        struct rlimit few = { WORLD_SIZE - 1, WORLD_SIZE - 1 };
        struct dcp_comm comm;
        struct dcp_error err = { 0 };
        must(!setrlimit(RLIMIT_NOFILE, &few));
        int rc = dcp_tcp_open(&comm, &ranks[0].options, FANOUT, &err);
        _exit(rc == DCP_E_COMM && err.rank == 0 &&
                      strstr(err.message,
                             "rank 0 cannot take the connections of 7 ranks: ") &&
                      strstr(err.hint, "ulimit -n")
                  ? 0
                  : 1);
    }
    assert_int_equal(tcp_group_wait(pid), 0);
    close(agent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_parent_that_stops_in_the_start), /* processes before threads */
        cmocka_unit_test(too_few_files),
        cmocka_unit_test(strangers_take_no_child_s_place),
        cmocka_unit_test(a_parent_that_cannot_be_reached),
        cmocka_unit_test(addresses_of_one_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
