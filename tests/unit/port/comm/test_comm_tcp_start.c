/* labels: tsan */
/* How the ranks of a TCP communicator find each other, and who is rejected. */
#include "base/clock.h"
#include "lib/check_comm.h"
#include "lib/must.h"
#include "lib/tcp_group.h"
#include "port/comm/tcp_hello.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* The ranks of one comm see themselves and nobody else, then leave. */
static int only_us(struct dcp_comm *comm)
{
    int mine = comm->timeout_ms * 100 + comm->rank, all[CHECK_COMM_MAX_WORLD_SIZE];
    WANT(dcp_comm_allgather(comm, &mine, sizeof mine, all, NULL) == 0);
    for (int r = 0; r < comm->world_size; r++)
        WANT(all[r] == comm->timeout_ms * 100 + r);
    return 0;
}

/* `mark` is the time-out of the calls, and what the ranks tell each other. */
static void expect_world_size(struct tcp_rank *ranks, int world_size, int mark)
{
    struct dcp_comm comms[CHECK_COMM_MAX_WORLD_SIZE];
    for (int r = 0; r < world_size; r++) {
        if (ranks[r].rc)
            fail_msg("rank %d: %s", r, ranks[r].err.message);
        comms[r] = ranks[r].comm;
    }
    assert_int_equal(check_comm_run(comms, world_size, mark, only_us), 0);
}

static void expect_refusal(const struct tcp_rank *rank, int rc, int culprit,
                           const char *message)
{
    if (rank->rc != rc || !strstr(rank->err.message, message))
        fail_msg("rank %d: %d %s", rank->options.rank, rank->rc, rank->err.message);
    assert_int_equal(rank->err.code, rc);
    assert_int_equal(rank->err.rank, culprit);
    assert_true(rank->err.hint[0] != '\0');
    assert_null(rank->comm.ops);
}

static void addresses(void **state)
{
    (void)state;
    static const char *const hosts[] = { "127.0.0.1", "localhost", "::1", "0.0.0.0" };
    for (size_t h = 0; h < sizeof hosts / sizeof *hosts; h++) {
        struct tcp_rank ranks[3];
        int port, agent = tcp_group_agent(&port);
        struct sockaddr_in6 six = { .sin6_family = AF_INET6,
                                    .sin6_addr = IN6ADDR_LOOPBACK_INIT };
        int fd = socket(AF_INET6, SOCK_STREAM, 0);
        int has_six = fd >= 0 && !bind(fd, (struct sockaddr *)&six, sizeof six);
        close(fd);
        tcp_group_fill(ranks, 3, port, "addresses");
        for (int r = 0; r < 3; r++)
            ranks[r].options.host = hosts[h];
        if (strcmp(hosts[h], "::1") != 0 || has_six) {
            tcp_group_start(ranks, 3);
            expect_world_size(ranks, 3, 60000);
        }
        close(agent);
    }
}

static void sockets_are_as_they_should_be(void **state)
{
    (void)state;
    struct tcp_rank ranks[2];
    int port, agent = tcp_group_agent(&port), n = 0;
    tcp_group_fill(ranks, 2, port, NULL);
    tcp_group_start(ranks, 2);
    close(agent);
    for (int fd = 3; fd < 256; fd++) {
        int on = 0, listens = 1;
        socklen_t size = sizeof on;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size))
            continue;
        n++;
        assert_int_equal(listens, 0); /* that is over */
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &size), 0);
        assert_true(on);
        on = 0;
        assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &size), 0);
        assert_true(on);
    }
    assert_int_equal(n, 2);
    expect_world_size(ranks, 2, 60000);
}

static void one_rank_needs_nobody(void **state)
{
    (void)state;
    struct tcp_rank rank = { .options = { .world_size = 1 } };
    assert_int_equal(dcp_comm_tcp(&rank.comm, &rank.options, &rank.err), 0);
    expect_world_size(&rank, 1, 60000);
}

static void options_that_cannot_be(void **state)
{
    (void)state;
    static const struct dcp_comm_tcp_options wrong[] = {
        { .rank = 0, .world_size = 0, .host = "::1", .port = 1000 },
        { .rank = 2, .world_size = 2, .host = "::1", .port = 1000 },
        { .rank = -1, .world_size = 2, .host = "::1", .port = 1000 },
        { .rank = 0, .world_size = 2, .host = "::1", .port = 0 },
        { .rank = 0, .world_size = 2, .host = "::1", .port = 65535 },
        { .rank = 0, .world_size = 2, .port = 1000 },
        { .rank = 1, .world_size = 2, .host = "", .port = 1000 },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct dcp_comm comm;
        struct dcp_error err = { 0 };
        assert_int_equal(dcp_comm_tcp(&comm, &wrong[i], &err), DCP_E_USAGE);
        assert_true(err.message[0] != '\0');
        dcp_comm_free(&comm);
    }
}

/* --- strangers --- */

enum stranger {
    WEB_CLIENT,
    CUT_OFF,
    NO_SECRET,
    OTHER_SECRET,
    OTHER_JOB,
    ECHO,   /* of what rank 0 said */
    REPLAY, /* of what a rank said to another rank 0 */
    OTHER_VERSION,
    N_TALKING,
    N_SILENT = 70,
    N_ALL = N_TALKING + N_SILENT
};

struct strangers {
    struct dcp_comm_tcp_options options; /* of rank 1 */
    unsigned char heard[DCP_TCP_ANSWER_BYTES];
    int fds[N_ALL];
};

static void say(int fd, const void *data, size_t n)
{
    must(send(fd, data, n, MSG_NOSIGNAL) == (ssize_t)n);
}

static void talk(struct strangers *s, enum stranger who, int fd)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n"
                               "and more than an answer has, to be sure";
    struct dcp_comm_tcp_options options = s->options;
    unsigned char text[DCP_TCP_ANSWER_BYTES] = { 0 };
    options.secret = who == NO_SECRET      ? NULL
                     : who == OTHER_SECRET ? "the secret of others"
                                           : options.secret;
    options.job = who == OTHER_JOB ? "other" : options.job;
    if (who == WEB_CLIENT || who == CUT_OFF)
        say(fd, http, who == CUT_OFF ? 5 : sizeof http - 1);
    if (who == NO_SECRET || who == OTHER_SECRET || who == OTHER_JOB)
        must(!tcp_group_answer(fd, &options));
    if (who == ECHO || who == OTHER_VERSION)
        must(recv(fd, text, DCP_TCP_CHALLENGE_BYTES, MSG_WAITALL) > 0);
    text[8] ^= who == OTHER_VERSION;
    if (who == ECHO || who == OTHER_VERSION)
        say(fd, text, sizeof text);
    if (who == REPLAY)
        say(fd, s->heard, sizeof s->heard);
}

/* They are there before any rank but 0. */
static void *send_strangers(void *arg)
{
    struct strangers *s = arg;
    for (int i = 0; i < N_ALL; i++)
        s->fds[i] = tcp_group_connect(s->options.port);
    for (int i = 0; i < N_TALKING; i++)
        talk(s, (enum stranger)i, s->fds[i]);
    return NULL;
}

static void *start_one(void *arg)
{
    struct tcp_rank *rank = arg;
    rank->rc = dcp_comm_tcp(&rank->comm, &rank->options, &rank->err);
    return NULL;
}

/* What rank 1 says to a rank 0 that is none, and gives it no place. */
static void listen_to_rank(struct tcp_rank rank, int server, unsigned char *out_heard)
{
    struct dcp_tcp_talk said = { 0 };
    pthread_t thread;
    rank.options.timeout_ms = 3000;
    assert_int_equal(pthread_create(&thread, NULL, start_one, &rank), 0);
    int fd = accept(server, NULL, NULL);
    assert_int_equal(dcp_tcp_put_challenge(&said, NULL), 0);
    say(fd, said.challenge, sizeof said.challenge);
    assert_int_equal(recv(fd, out_heard, DCP_TCP_ANSWER_BYTES, MSG_WAITALL),
                     DCP_TCP_ANSWER_BYTES);
    say(fd, said.answer, DCP_TCP_PROOF_BYTES); /* no proof */
    assert_int_equal(recv(fd, said.answer, 1, 0), 0);
    close(fd);
    pthread_join(thread, NULL);
    expect_refusal(&rank, DCP_E_COMM, 0, "only a rank 0 of another job, secret");
}

static void strangers_who_connect(void **state)
{
    (void)state;
    struct tcp_rank ranks[3];
    struct strangers strangers;
    pthread_t root, others;
    int port, server, agent;
    do {
        agent = tcp_group_agent(&port);
        server = tcp_group_listen(port + 1);
    } while (server < 0);
    tcp_group_fill(ranks, 3, port, "strangers");
    for (int r = 0; r < 3; r++)
        ranks[r].options.secret = "the secret of this job";
    listen_to_rank(ranks[1], server, strangers.heard);
    close(server);
    strangers.options = ranks[1].options;
    assert_int_equal(pthread_create(&root, NULL, start_one, &ranks[0]), 0);
    assert_int_equal(pthread_create(&others, NULL, send_strangers, &strangers), 0);
    pthread_join(others, NULL);
    tcp_group_start(ranks + 1, 2);
    pthread_join(root, NULL);
    expect_world_size(ranks, 3, 60000);
    for (int i = 0; i < N_ALL; i++) {
        unsigned char said[DCP_TCP_CHALLENGE_BYTES];
        ssize_t n = recv(strangers.fds[i], said, sizeof said, MSG_WAITALL);
        if (n == sizeof said) /* if its turn came */
            assert_int_equal(dcp_tcp_recognise(said), DCP_TCP_OURS);
        assert_true(recv(strangers.fds[i], said, 1, 0) <= 0);
        close(strangers.fds[i]);
    }
    close(agent);
}

/* One that sits at a port before rank 0's and passes on what it hears takes nobody's
 * place: the answer that rank 1 gave there is good nowhere else. */
static void strangers_between(void **state)
{
    (void)state;
    struct tcp_rank ranks[2];
    struct dcp_tcp_key key;
    struct dcp_tcp_talk talk;
    pthread_t root;
    int port, agent = tcp_group_agent(&port);
    unsigned char proof[DCP_TCP_PROOF_BYTES];
    tcp_group_fill(ranks, 2, port, "between");
    assert_int_equal(pthread_create(&root, NULL, start_one, &ranks[0]), 0);
    int fd = tcp_group_connect(port);
    assert_int_equal(recv(fd, talk.challenge, sizeof talk.challenge, MSG_WAITALL),
                     sizeof talk.challenge);
    struct sockaddr_in at;
    socklen_t n = sizeof at;
    assert_int_equal(getpeername(fd, (struct sockaddr *)&at, &n), 0);
    talk.port = ntohs(at.sin_port) + 1;
    assert_int_equal(dcp_tcp_key_of(&ranks[1].options, &key, NULL), 0);
    assert_int_equal(
        dcp_tcp_put_answer(&talk, &key, &(struct dcp_tcp_claim){ 2, 1, 0 }, NULL), 0);
    say(fd, talk.answer, sizeof talk.answer);
    assert_true(recv(fd, proof, sizeof proof, MSG_WAITALL) <= 0); /* no proof comes */
    close(fd);
    tcp_group_start(ranks + 1, 1);
    pthread_join(root, NULL);
    expect_world_size(ranks, 2, 60000);
    close(agent);
}

/* The address that rank 0 listens at: the one that was asked for, and no other. */
static int listening_at(int port, in_addr_t address)
{
    for (int i = 1; i <= 16; i++) {
        struct sockaddr_in at = { .sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(address),
                                  .sin_port = htons((uint16_t)(port + i)) };
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        int rc = connect(fd, (struct sockaddr *)&at, sizeof at);
        close(fd);
        if (!rc)
            return 1;
    }
    return 0;
}

static void binds_to_one_address(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        int elsewhere; /* is it heard at another address, too? */
    } rows[] = { { "127.0.0.2", 0 }, { "0.0.0.0", 1 }, { "192.0.2.1", 1 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tcp_rank rank;
        pthread_t thread;
        int port, agent = tcp_group_agent(&port);
        tcp_group_fill(&rank, 1, port, "binds");
        rank.options.world_size = 2;
        rank.options.host = rows[i].host;
        rank.options.timeout_ms = 1000;
        assert_int_equal(pthread_create(&thread, NULL, start_one, &rank), 0);
        for (int n = 0; n < 50 && !listening_at(port, INADDR_LOOPBACK + 1); n++)
            dcp_clock_sleep_us(10000);
        assert_true(listening_at(port, INADDR_LOOPBACK + 1)); /* 127.0.0.2 */
        assert_int_equal(listening_at(port, INADDR_LOOPBACK + 2), rows[i].elsewhere);
        pthread_join(thread, NULL);
        expect_refusal(&rank, DCP_E_COMM, 1, "rank 1 of 2 did not connect within 1 s");
        close(agent);
    }
}

/* Servers of others at the first ports: one says nothing, one says something, at length.
 */
static void *serve_strangers(void *arg)
{
    static const char ssh[] =
        "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 and so on and on\r\n";
    int fd, server = *(int *)arg;
    while ((fd = accept(server, NULL, NULL)) >= 0) {
        (void)send(fd, ssh, sizeof ssh - 1, MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
    return NULL;
}

static void strangers_who_listen(void **state)
{
    (void)state;
    struct tcp_rank ranks[3];
    pthread_t thread;
    int port, agent = tcp_group_agent(&port);
    int silent = tcp_group_listen(port + 1), talks = tcp_group_listen(port + 2);
    tcp_group_fill(ranks, 3, port, NULL);
    if (talks >= 0)
        assert_int_equal(pthread_create(&thread, NULL, serve_strangers, &talks), 0);
    tcp_group_start(ranks, 3);
    expect_world_size(ranks, 3, 60000);
    if (talks >= 0) {
        shutdown(talks, SHUT_RDWR);
        pthread_join(thread, NULL);
        close(talks);
    }
    if (silent >= 0)
        close(silent);
    close(agent);
}

static void *start_late(void *arg)
{
    dcp_clock_sleep_us(300000);
    return start_one(arg);
}

/* While the rank 0 of one job is missing, its others meet that of the other job, which
 * waits for a rank, too. */
static void jobs_do_not_mix(void **state)
{
    (void)state;
    for (int named = 0; named < 2; named++) {
        struct tcp_rank ranks[6];
        pthread_t late, later;
        int port, agent = tcp_group_agent(&port);
        tcp_group_fill(ranks, 3, port, named ? "one" : NULL);
        tcp_group_fill(ranks + 3, 3, named ? port : port + 1, named ? "two" : NULL);
        assert_int_equal(pthread_create(&late, NULL, start_late, &ranks[0]), 0);
        assert_int_equal(pthread_create(&later, NULL, start_late, &ranks[5]), 0);
        tcp_group_start(ranks + 1, 4);
        pthread_join(late, NULL);
        pthread_join(later, NULL);
        expect_world_size(ranks, 3, 10000);
        expect_world_size(ranks + 3, 3, 20000);
        close(agent);
    }
}

/* --- starts that fail --- */

static void other_world_size(void **state)
{
    (void)state;
    struct tcp_rank ranks[3];
    int port, agent = tcp_group_agent(&port);
    tcp_group_fill(ranks, 3, port, "world sizes");
    ranks[1].options.timeout_ms = 2000;
    ranks[2].options.world_size = 4;
    tcp_group_start(ranks, 3);
    for (int r = 0; r < 3; r++)
        if (r != 1 || ranks[r].rc == DCP_E_USAGE) /* or it came when all was over */
            expect_refusal(&ranks[r], DCP_E_USAGE, 2,
                           "rank 2 was started as one of 4 ranks, rank 0 as one of 3");
    close(agent);
}

static void rank_twice(void **state)
{
    (void)state;
    struct tcp_rank ranks[3];
    int port, agent = tcp_group_agent(&port);
    tcp_group_fill(ranks, 3, port, "twins");
    for (int r = 0; r < 3; r++)
        ranks[r].options.world_size = 4;
    ranks[2].options.rank = 1;
    tcp_group_start(ranks, 3);
    for (int r = 0; r < 3; r++)
        expect_refusal(&ranks[r], DCP_E_USAGE, 1,
                       "two processes of this job were started as rank 1");
    close(agent);
}

/* One that does not belong to the job does not end it, whatever it says of itself. */
static void other_version(void **state)
{
    (void)state;
    struct tcp_rank rank;
    pthread_t thread;
    int port, agent = tcp_group_agent(&port);
    tcp_group_fill(&rank, 1, port, "versions");
    rank.options.world_size = 2;
    rank.options.timeout_ms = 3000;
    assert_int_equal(pthread_create(&thread, NULL, start_one, &rank), 0);
    unsigned char said[DCP_TCP_CHALLENGE_BYTES];
    int fd = tcp_group_connect(port);
    assert_int_equal(recv(fd, said, sizeof said, MSG_WAITALL), sizeof said);
    said[8]++;
    assert_int_equal(send(fd, said, sizeof said, MSG_NOSIGNAL), sizeof said);
    pthread_join(thread, NULL);
    expect_refusal(&rank, DCP_E_COMM, 1,
                   "rank 1 of 2 did not connect within 3 s; a process with another "
                   "secret, or of another job or version, was rejected");
    close(fd);
    close(agent);
}

static void missing_ranks_are_named(void **state)
{
    (void)state;
    struct tcp_rank all[16], here[16];
    int port, agent = tcp_group_agent(&port), n = 0;
    tcp_group_fill(all, 8, port, "missing");
    for (int r = 0; r < 8; r++)
        if (r != 2 && r != 5) {
            here[n] = all[r];
            here[n++].options.timeout_ms = 1000;
        }
    tcp_group_start(here, n);
    for (int i = 0; i < n; i++) {
        expect_refusal(&here[i], DCP_E_COMM, 2,
                       "ranks 2 and 5 of 8 did not connect within 1 s");
        assert_int_equal(here[i].err.rank_state, DCP_RANK_SILENT);
    }
    tcp_group_fill(all, 1, port, "missing");
    all[0].options.timeout_ms = 50;
    all[0].options.world_size = 2;
    tcp_group_start(all, 1);
    expect_refusal(&all[0], DCP_E_COMM, 1, "rank 1 of 2 did not connect within 0.05 s");
    all[0].err = (struct dcp_error){ 0 };
    all[0].options.world_size = 30;
    tcp_group_start(all, 1);
    expect_refusal(&all[0], DCP_E_COMM, 1,
                   "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 21 more of 30 did not");
    close(agent);
}

static void nobody_answers(void **state)
{
    (void)state;
    struct tcp_rank ranks[3];
    char message[200];
    int port, agent = tcp_group_agent(&port);
    tcp_group_fill(ranks, 3, port, "nobody");
    ranks[2].options.timeout_ms = 300;
    tcp_group_start(&ranks[2], 1);
    snprintf(message, sizeof message,
             "rank 0 did not answer at host '127.0.0.1', ports %d to %d, within 0.3 s",
             port + 1, port + 16);
    expect_refusal(&ranks[2], DCP_E_COMM, 0, message);

    ranks[0].options.timeout_ms = ranks[1].options.timeout_ms = 1000;
    ranks[1].options.job = "somebody";
    tcp_group_start(ranks, 2);
    expect_refusal(&ranks[1], DCP_E_COMM, 0,
                   "only a rank 0 of another job, secret or version did");
    close(agent);
}

/* The label is too long for a name, so no name server is asked. */
static void host_that_does_not_resolve(void **state)
{
    (void)state;
    struct tcp_rank ranks[2];
    char host[80] = { 0 };
    memset(host, 'a', 70);
    tcp_group_fill(ranks, 2, 1000, NULL);
    ranks[1].options.host = host;
    ranks[1].options.timeout_ms = 300;
    tcp_group_start(&ranks[1], 1);
    expect_refusal(&ranks[1], DCP_E_COMM, 0, "of rank 0 does not resolve: ");
    assert_non_null(strstr(ranks[1].err.hint, "MASTER_ADDR"));
}

static void no_port_is_free(void **state)
{
    (void)state;
    struct tcp_rank rank;
    int port, agent, n = 0, fds[16];
    while (n < 16) { /* others may have some of them */
        agent = tcp_group_agent(&port);
        for (n = 0; n < 16 && (fds[n] = tcp_group_listen(port + 1 + n)) >= 0; n++)
            ;
        for (int i = 0; n < 16 && i < n; i++)
            close(fds[i]);
        if (n < 16)
            close(agent);
    }
    tcp_group_fill(&rank, 1, port, NULL);
    rank.options.world_size = 2;
    rank.options.timeout_ms = 300;
    tcp_group_start(&rank, 1);
    expect_refusal(&rank, DCP_E_COMM, 0, "rank 0 cannot listen on any of the ports");
    for (int i = 0; i < 16; i++)
        close(fds[i]);
    close(agent);
}

/* A rank that died while it waited for the others, and was started again, is no twin; and
 * without it they are not complete. */
static void rank_that_comes_again(void **state)
{
    (void)state;
    struct tcp_rank ranks[3];
    int port, agent = tcp_group_agent(&port);
    tcp_group_fill(ranks, 3, port, "again");
    pid_t first = tcp_group_fork(&ranks[1], only_us);
    pid_t root = tcp_group_fork(&ranks[0], only_us);
    dcp_clock_sleep_us(500000);
    kill(first, SIGKILL);
    assert_int_equal(tcp_group_wait(first), -SIGKILL);
    pid_t last = tcp_group_fork(&ranks[2], only_us);
    dcp_clock_sleep_us(200000);
    pid_t second = tcp_group_fork(&ranks[1], only_us);
    assert_int_equal(tcp_group_wait(root), 0);
    assert_int_equal(tcp_group_wait(second), 0);
    assert_int_equal(tcp_group_wait(last), 0);
    close(agent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_that_comes_again), /* processes before threads */
        cmocka_unit_test(addresses),
        cmocka_unit_test(sockets_are_as_they_should_be),
        cmocka_unit_test(one_rank_needs_nobody),
        cmocka_unit_test(options_that_cannot_be),
        cmocka_unit_test(strangers_who_connect),
        cmocka_unit_test(strangers_between),
        cmocka_unit_test(binds_to_one_address),
        cmocka_unit_test(strangers_who_listen),
        cmocka_unit_test(jobs_do_not_mix),
        cmocka_unit_test(other_world_size),
        cmocka_unit_test(rank_twice),
        cmocka_unit_test(other_version),
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(nobody_answers),
        cmocka_unit_test(host_that_does_not_resolve),
        cmocka_unit_test(no_port_is_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
