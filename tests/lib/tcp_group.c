#include "tcp_group.h"
#include "base/clock.h"
#include "must.h"
#include "port/comm/branch.h"
#include "port/comm/tcp.h"
#include "port/comm/tcp_hello.h"
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_PORTS = 16, MAX_RANKS = 16 };

/* An agent has a block of ports: no other agent's port lies in it, and no port that the
 * system gives away by itself (those begin at 32768). Else a rank or a stranger that
 * looks for rank 0 may find the listener of a test that runs beside this one. */
enum {
    BLOCK = 2 * N_PORTS,
    FIRST_BLOCK = 10240 / BLOCK,
    N_BLOCKS = 32768 / BLOCK - FIRST_BLOCK
};

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET,
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                 .sin_port = htons((uint16_t)port) };
}

int tcp_group_listen(int port)
{
    struct sockaddr_in at = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;
    must(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, 16))
        return fd;
    close(fd);
    return -1;
}

int tcp_group_agent(int *out_port)
{
    static unsigned next;
    if (!next)
        next = (unsigned)getpid();
    for (;;) {
        *out_port = (FIRST_BLOCK + (int)(next++ % N_BLOCKS)) * BLOCK;
        int fd = tcp_group_listen(*out_port);
        if (fd >= 0)
            return fd;
    }
}

int tcp_group_connect_to(int port)
{
    struct sockaddr_in at = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0);
    if (!connect(fd, (struct sockaddr *)&at, sizeof at))
        return fd;
    close(fd);
    return -1;
}

int tcp_group_connect(int port)
{
    for (int i = 0;; i = (i + 1) % N_PORTS) {
        int fd = tcp_group_connect_to(port + 1 + i);
        if (fd >= 0)
            return fd;
        dcp_clock_sleep_us(1000);
    }
}

bool tcp_group_answer(int fd, const struct dcp_comm_tcp_options *options)
{
    struct sockaddr_in at;
    socklen_t n = sizeof at;
    struct dcp_tcp_key key;
    struct dcp_tcp_talk talk;
    unsigned char proof[DCP_TCP_PROOF_BYTES];
    must(!getpeername(fd, (struct sockaddr *)&at, &n));
    talk.port = ntohs(at.sin_port);
    must(!dcp_tcp_key_of(options, &key, NULL));
    if (recv(fd, talk.challenge, sizeof talk.challenge, MSG_WAITALL) !=
        sizeof talk.challenge)
        return false;
    struct dcp_tcp_claim claim = { (uint32_t)options->world_size, (uint32_t)options->rank,
                                   0 };
    must(!dcp_tcp_put_answer(&talk, &key, &claim, NULL));
    must(send(fd, talk.answer, sizeof talk.answer, MSG_NOSIGNAL) == sizeof talk.answer);
    return recv(fd, proof, sizeof proof, MSG_WAITALL) == sizeof proof &&
           dcp_tcp_check_proof(&talk, &key, proof);
}

void tcp_group_fill(struct tcp_rank *ranks, int n, int port, const char *job)
{
    for (int r = 0; r < n; r++)
        ranks[r] = (struct tcp_rank){ .options = { .rank = r,
                                                   .world_size = n,
                                                   .host = "127.0.0.1",
                                                   .port = port,
                                                   .job = job,
                                                   .timeout_ms = 30000 } };
}

static int open_rank(const struct tcp_rank *rank, struct dcp_comm *out_comm,
                     struct dcp_error *err)
{
    return rank->fanout ? dcp_tcp_open(out_comm, &rank->options, rank->fanout, err)
                        : dcp_comm_tcp(out_comm, &rank->options, err);
}

static void *start_rank(void *arg)
{
    struct tcp_rank *rank = arg;
    rank->rc = open_rank(rank, &rank->comm, &rank->err);
    return NULL;
}

void tcp_group_start(struct tcp_rank *ranks, int n)
{
    pthread_t threads[MAX_RANKS];
    must(n <= MAX_RANKS);
    for (int r = 0; r < n; r++)
        must(!pthread_create(&threads[r], NULL, start_rank, &ranks[r]));
    for (int r = 0; r < n; r++)
        pthread_join(threads[r], NULL);
}

pid_t tcp_group_fork(const struct tcp_rank *rank, int (*run)(struct dcp_comm *comm))
{
    pid_t pid = fork();
    must(pid >= 0);
    if (pid)
        return pid;
    struct dcp_comm comm;
    struct dcp_error err = { 0 };
    if (open_rank(rank, &comm, &err)) {
        fprintf(stderr, "rank %d: %s\n", rank->options.rank, err.message);
        _exit(99);
    }
    int wrong = run(&comm);
    if (wrong)
        fprintf(stderr, "rank %d: line %d\n", comm.rank, wrong);
    dcp_comm_free(&comm);
    _exit(wrong != 0);
}

int tcp_group_wait(pid_t pid)
{
    int status;
    must(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}
