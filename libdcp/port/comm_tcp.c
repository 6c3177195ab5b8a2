/* Ranks that were started without MPI.
 *
 * Every call is one round over a star: each rank sends to rank 0, which answers all.
 * Rank 0 waits for three quarters of the time-out and then tells the others who is
 * missing; they wait for all of it, and when no answer came, rank 0 is the one to name.
 * What a rank sent before it died is read before its death is, so nobody waits for more.
 *
 * Messages go straight from and to the memory of the call: a round allocates nothing. */
#include "tcp_start.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define START_TIMEOUT_MS 60000
#define VERDICT_TIME (100 * DCP_TCP_MS) /* for sending it, when someone does not read */

enum kind { ALLGATHER, BCAST };

struct tcp {
    int rank, world;
    uint64_t round;
    int n_links;                /* rank 0: one for each rank; others: one */
    struct dcp_tcp_link *links; /* rank 0's own is none */
    struct pollfd *polls;       /* as many */
    struct dcp_error failure;   /* the first; from then on every call fails so */
};

struct round {
    struct dcp_tcp_call call;
    const unsigned char *in;
    unsigned char *out;
    uint64_t begin, time_ns;
    unsigned char head[DCP_TCP_HEAD_BYTES]; /* of what is sent */
};

/* --- failure --- */

static int fail(struct tcp *tcp, int rank, int fate, const char *why)
{
    if (!tcp->failure.code) {
        dcp_error_set(&tcp->failure, DCP_E_COMM, "rank %d %s", rank, why);
        tcp->failure.rank = rank;
        tcp->failure.rank_fate = fate;
    }
    return DCP_E_COMM;
}

static int fail_silent(struct tcp *tcp, int rank, const struct round *round)
{
    char why[80];
    snprintf(why, sizeof why, "did not answer within %.1f s",
             (double)(dcp_clock_ns() - round->begin) / 1e9);
    return fail(tcp, rank, DCP_RANK_SILENT, why);
}

static int fail_lost(struct tcp *tcp, int rank, int sys_errno)
{
    char text[128], why[sizeof text + 32];
    if (!sys_errno)
        return fail(tcp, rank, DCP_RANK_DEAD, "is gone");
    snprintf(why, sizeof why, "cannot be reached: %s",
             strerror_r(sys_errno, text, sizeof text));
    return fail(tcp, rank, DCP_RANK_UNKNOWN, why);
}

static int fail_other_call(struct tcp *tcp, int rank)
{
    return fail(tcp, rank, DCP_RANK_UNKNOWN,
                "is in another call, or in one of another size");
}

/* As rank 0's verdict says. */
static int fail_as_told(struct tcp *tcp, const struct dcp_tcp_head *head)
{
    if (!tcp->failure.code) {
        dcp_error_set(&tcp->failure, DCP_E_COMM, "%s", head->why);
        tcp->failure.rank = head->rank;
        tcp->failure.rank_fate = head->fate;
    }
    return DCP_E_COMM;
}

static int report_failure(struct tcp *tcp, struct dcp_error *err)
{
    dcp_error_hint(&tcp->failure,
                   "look at the output of rank %d; all ranks must be started again",
                   tcp->failure.rank);
    if (err && !err->code)
        *err = tcp->failure;
    return tcp->failure.code;
}

/* --- one round --- */

static bool same_call(const struct dcp_tcp_call *a, const struct dcp_tcp_call *b)
{
    return a->round == b->round && a->kind == b->kind && a->root == b->root &&
           a->size_bytes == b->size_bytes;
}

/* Bytes of the call that a rank sends to rank 0, and that rank 0 answers. */
static size_t up_bytes(const struct dcp_tcp_call *call, int rank)
{
    bool sends = call->kind == ALLGATHER || call->root == (uint64_t)rank;
    return sends ? (size_t)call->size_bytes : 0;
}

static size_t down_bytes(const struct tcp *tcp, const struct dcp_tcp_call *call, int rank)
{
    if (call->kind == ALLGATHER)
        return (size_t)call->size_bytes * (size_t)tcp->world;
    return call->root == (uint64_t)rank ? 0 : (size_t)call->size_bytes;
}

/* Rank 0: where a rank's bytes go. */
static unsigned char *place_of(const struct round *round, int rank)
{
    if (round->call.kind == BCAST || !round->call.size_bytes)
        return round->out;
    return round->out + (size_t)rank * (size_t)round->call.size_bytes;
}

static enum dcp_tcp_progress receive_up(struct tcp *tcp, const struct round *round,
                                        int rank)
{
    struct dcp_tcp_link *link = &tcp->links[rank];
    enum dcp_tcp_progress progress = dcp_tcp_receive_head(link);
    if (progress != DCP_TCP_DONE)
        return progress;
    struct dcp_tcp_head head = dcp_tcp_get_head(link->head);
    if (!same_call(&head.call, &round->call))
        return DCP_TCP_DONE; /* nobody knows how many bytes come; gather says so */
    return dcp_tcp_receive_body(link, place_of(round, rank),
                                up_bytes(&round->call, rank));
}

/* Whoever went after its bytes had come is named in the next round, by all. */
static enum dcp_tcp_progress send_down(struct tcp *tcp, const struct round *round,
                                       int rank)
{
    struct dcp_tcp_message message = { round->head, round->out,
                                       down_bytes(tcp, &round->call, rank) };
    enum dcp_tcp_progress progress = dcp_tcp_send(&tcp->links[rank], &message);
    return progress == DCP_TCP_LOST ? DCP_TCP_DONE : progress;
}

static enum dcp_tcp_progress send_verdict(struct tcp *tcp, const struct round *round,
                                          int rank)
{
    struct dcp_tcp_message message = { round->head, NULL, 0 };
    struct dcp_tcp_link *link = &tcp->links[rank];
    if (link->lost)
        return DCP_TCP_DONE;
    enum dcp_tcp_progress progress = dcp_tcp_send(link, &message);
    return progress == DCP_TCP_LOST ? DCP_TCP_DONE : progress;
}

/* What rank 0 does with all other ranks at once. */
struct act {
    enum dcp_tcp_progress (*step)(struct tcp *tcp, const struct round *round, int rank);
    short event;       /* when a step can be made */
    bool watch;        /* whoever is done must stay */
    uint64_t deadline; /* for all of them */
};

/* A step with one rank, if there is reason for one. */
static enum dcp_tcp_progress step_with(struct tcp *tcp, const struct round *round,
                                       const struct act *act, int rank)
{
    struct pollfd *ready = &tcp->polls[rank];
    if (!(ready->events & act->event)) /* is done */
        return dcp_tcp_has_gone(ready->revents) ? DCP_TCP_LOST : DCP_TCP_DONE;
    enum dcp_tcp_progress progress =
        ready->revents ? act->step(tcp, round, rank) : DCP_TCP_MORE;
    if (progress == DCP_TCP_DONE)
        *ready =
            (struct pollfd){ .fd = act->watch ? ready->fd : -1, .events = POLLRDHUP };
    return progress;
}

/* Whoever has gone among those that must stay, else 0; once more at the end, since an
 * answer to who is no longer there would be a success that others call a failure. */
static int find_gone(struct tcp *tcp, const struct act *act)
{
    if (act->watch)
        dcp_tcp_wait(tcp->polls + 1, (size_t)tcp->world - 1, 0);
    for (int r = 1; act->watch && r < tcp->world; r++)
        if (dcp_tcp_has_gone(tcp->polls[r].revents))
            return r;
    return 0;
}

static int drive(struct tcp *tcp, const struct round *round, const struct act *act)
{
    for (int r = 1; r < tcp->world; r++)
        tcp->polls[r] = (struct pollfd){ .fd = tcp->links[r].fd,
                                         .events = (short)(act->event | POLLRDHUP),
                                         .revents = act->event };
    for (;;) {
        int open = 0;
        for (int r = 1; r < tcp->world; r++) {
            enum dcp_tcp_progress progress = step_with(tcp, round, act, r);
            if (progress == DCP_TCP_LOST)
                return fail_lost(tcp, r, tcp->links[r].lost_errno);
            if (progress == DCP_TCP_MORE && !open)
                open = r;
        }
        int gone = open ? 0 : find_gone(tcp, act);
        if (!open)
            return gone ? fail_lost(tcp, gone, 0) : DCP_OK;
        if (dcp_clock_ns() >= act->deadline)
            return fail_silent(tcp, open, round);
        dcp_tcp_wait(tcp->polls + 1, (size_t)tcp->world - 1, act->deadline);
    }
}

/* Rank 0 tells the others, as far as they listen, why the comm failed. In the middle of
 * an answer a verdict would be taken for a part of it. */
static void tell(struct tcp *tcp, uint64_t time_ns)
{
    struct round verdict = { .begin = dcp_clock_ns() };
    struct dcp_tcp_head head = dcp_tcp_head_of(&tcp->failure);
    dcp_tcp_put_head(verdict.head, &head);
    for (int r = 1; r < tcp->world; r++) {
        tcp->links[r].lost |= tcp->links[r].midway;
        tcp->links[r].sent = 0;
    }
    struct act act = { send_verdict, POLLOUT, false, verdict.begin + time_ns };
    drive(tcp, &verdict, &act);
}

static int gather(struct tcp *tcp, const struct round *round)
{
    for (int r = 1; r < tcp->world; r++)
        tcp->links[r].received = 0;
    struct act act = { receive_up, POLLIN, true, round->begin + round->time_ns / 4 * 3 };
    if (drive(tcp, round, &act))
        return tcp->failure.code;
    for (int r = 1; r < tcp->world; r++) {
        struct dcp_tcp_head head = dcp_tcp_get_head(tcp->links[r].head);
        if (!same_call(&head.call, &round->call))
            return fail_other_call(tcp, r);
    }
    return DCP_OK;
}

static int answer(struct tcp *tcp, const struct round *round)
{
    for (int r = 1; r < tcp->world; r++)
        tcp->links[r].sent = 0;
    struct act act = { send_down, POLLOUT, false, round->begin + round->time_ns / 8 * 7 };
    return drive(tcp, round, &act);
}

static int root_round(struct tcp *tcp, const struct round *round)
{
    size_t n = up_bytes(&round->call, 0);
    if (n)
        memmove(place_of(round, 0), round->in, n);
    if (!gather(tcp, round) && !answer(tcp, round))
        return DCP_OK;
    uint64_t rest = round->time_ns / 8;
    tell(tcp, rest < VERDICT_TIME ? rest : VERDICT_TIME);
    return tcp->failure.code;
}

/* Any rank but 0: the answer, or a verdict instead of it. */
static enum dcp_tcp_progress receive_down(struct tcp *tcp, const struct round *round,
                                          bool sending)
{
    struct dcp_tcp_link *link = &tcp->links[0];
    enum dcp_tcp_progress progress = dcp_tcp_receive_head(link);
    if (progress != DCP_TCP_DONE)
        return progress;
    struct dcp_tcp_head head = dcp_tcp_get_head(link->head);
    if (head.code)
        fail_as_told(tcp, &head);
    else if (sending || !same_call(&head.call, &round->call))
        fail_other_call(tcp, 0);
    if (tcp->failure.code)
        return DCP_TCP_DONE;
    return dcp_tcp_receive_body(link, round->out,
                                down_bytes(tcp, &round->call, tcp->rank));
}

static int leaf_round(struct tcp *tcp, const struct round *round)
{
    struct dcp_tcp_link *link = &tcp->links[0];
    struct dcp_tcp_message message = { round->head, round->in,
                                       up_bytes(&round->call, tcp->rank) };
    bool sending = true;
    link->sent = link->received = 0;
    for (;;) {
        /* Where sending has failed, a verdict may still be there to be read. */
        sending = sending && dcp_tcp_send(link, &message) == DCP_TCP_MORE;
        enum dcp_tcp_progress progress = receive_down(tcp, round, sending);
        if (progress == DCP_TCP_DONE)
            return tcp->failure.code;
        if (progress == DCP_TCP_LOST)
            return fail_lost(tcp, 0, link->lost_errno);
        if (dcp_clock_ns() >= round->begin + round->time_ns) {
            shutdown(link->fd, SHUT_WR); /* rank 0 must not answer any more */
            return fail_silent(tcp, 0, round);
        }
        struct pollfd ready = { .fd = link->fd,
                                .events = (short)(POLLIN | (sending ? POLLOUT : 0)) };
        dcp_tcp_wait(&ready, 1, round->begin + round->time_ns);
    }
}

static int run_round(struct tcp *tcp, struct round *round, int timeout_ms,
                     struct dcp_error *err)
{
    const struct dcp_tcp_call *call = &round->call;
    size_t most, n = call->kind == ALLGATHER ? (size_t)tcp->world : 1;
    if (tcp->failure.code)
        return report_failure(tcp, err);
    if (call->root >= (uint64_t)tcp->world)
        return dcp_error_set(err, DCP_E_USAGE, "there is no rank %d among %d",
                             (int)call->root, tcp->world);
    if (!dcp_mul_size((size_t)call->size_bytes, n, &most) || most > PTRDIFF_MAX)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%zu bytes are too many for a message between %d ranks",
                             (size_t)call->size_bytes, tcp->world);
    struct dcp_tcp_head head = { .call = *call };
    head.call.round = round->call.round = ++tcp->round;
    dcp_tcp_put_head(round->head, &head);
    round->begin = dcp_clock_ns();
    round->time_ns = (uint64_t)timeout_ms * DCP_TCP_MS;
    int rc = tcp->rank == 0 ? root_round(tcp, round) : leaf_round(tcp, round);
    return rc ? report_failure(tcp, err) : DCP_OK;
}

static int tcp_allgather(void *self, const void *in, size_t size_bytes, void *out,
                         int timeout_ms, struct dcp_error *err)
{
    struct round round = { .call = { .kind = ALLGATHER, .size_bytes = size_bytes },
                           .in = in,
                           .out = out };
    return run_round(self, &round, timeout_ms, err);
}

static int tcp_bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                     struct dcp_error *err)
{
    struct round round = {
        .call = { .kind = BCAST, .root = (uint64_t)root, .size_bytes = size_bytes },
        .in = data,
        .out = data
    };
    return run_round(self, &round, timeout_ms, err);
}

/* --- who is dead --- */

/* A verdict that came between two rounds names a dead rank; else -1. */
static int dead_by_verdict(const struct tcp *tcp)
{
    unsigned char bytes[DCP_TCP_HEAD_BYTES];
    ssize_t n = recv(tcp->links[0].fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    if (n != sizeof bytes)
        return -1;
    struct dcp_tcp_head head = dcp_tcp_get_head(bytes);
    return head.code && head.fate == DCP_RANK_DEAD ? head.rank : -1;
}

/* Rank 0 alone sees all others. Between two rounds it may tell them at once, since they
 * read no answer then. */
static int tcp_peer_dead(void *self)
{
    struct tcp *tcp = self;
    if (tcp->failure.code && tcp->failure.rank_fate == DCP_RANK_DEAD)
        return tcp->failure.rank;
    if (tcp->rank) {
        int told = tcp->failure.code ? -1 : dead_by_verdict(tcp);
        return told >= 0 ? told : dcp_tcp_is_gone(tcp->links[0].fd) ? 0 : -1;
    }
    for (int r = 1; r < tcp->world; r++)
        if (dcp_tcp_is_gone(tcp->links[r].fd)) {
            if (!tcp->failure.code) {
                fail_lost(tcp, r, 0);
                tell(tcp, VERDICT_TIME);
            }
            return r;
        }
    return -1;
}

/* --- the life of a comm --- */

static void tcp_free(void *self)
{
    struct tcp *tcp = self;
    if (tcp->rank == 0) /* or the others would take this leaving for the death */
        (void)tcp_peer_dead(tcp);
    for (int i = 0; i < tcp->n_links; i++)
        dcp_tcp_link_close(&tcp->links[i]);
    free(tcp->links);
    free(tcp->polls);
    free(tcp);
}

static const struct dcp_comm_ops tcp_ops = {
    .allgather = tcp_allgather,
    .bcast = tcp_bcast,
    .peer_dead = tcp_peer_dead,
    .free = tcp_free,
};

static struct tcp *tcp_new(int rank, int world)
{
    struct tcp *tcp = dcp_mem_calloc(1, sizeof *tcp);
    if (!tcp)
        return NULL;
    *tcp = (struct tcp){ .rank = rank, .world = world };
    size_t n = rank == 0 ? (size_t)world : 1;
    tcp->links = dcp_mem_calloc(n, sizeof *tcp->links);
    tcp->polls = dcp_mem_calloc(n, sizeof *tcp->polls);
    if (!tcp->links || !tcp->polls) {
        free(tcp->links);
        free(tcp->polls);
        free(tcp);
        return NULL;
    }
    tcp->n_links = (int)n;
    for (size_t i = 0; i < n; i++)
        tcp->links[i] = dcp_tcp_link_init(-1);
    return tcp;
}

static int check_options(const struct dcp_comm_tcp_options *options,
                         struct dcp_error *err)
{
    if (options->world < 1 || options->rank < 0 || options->rank >= options->world)
        return dcp_error_set(err, DCP_E_USAGE, "there is no rank %d in a world of %d",
                             options->rank, options->world);
    if (options->world > 1 && (options->port < 1 || options->port > 65534))
        return dcp_error_set(err, DCP_E_USAGE,
                             "MASTER_PORT %d leaves no port behind it for rank 0",
                             options->port);
    if (options->world > 1 && (!options->host || !options->host[0]))
        return dcp_error_set(err, DCP_E_USAGE,
                             "there is no MASTER_ADDR to find rank 0 at");
    return DCP_OK;
}

/* The port is a part of the job's name: jobs without one are told apart by it. */
static uint64_t hash_job(const struct dcp_comm_tcp_options *options)
{
    const char *job = options->job ? options->job : "";
    uint64_t parts = dcp_hash_xxh3(job, strlen(job)) + (uint64_t)options->port;
    unsigned char bytes[8];
    dcp_put_le64(bytes, parts);
    return dcp_hash_xxh3(bytes, sizeof bytes);
}

int dcp_comm_tcp(struct dcp_comm *out_comm, const struct dcp_comm_tcp_options *options,
                 struct dcp_error *err)
{
    *out_comm = (struct dcp_comm){ 0 };
    int rc = check_options(options, err);
    if (rc)
        return rc;
    struct tcp *tcp = tcp_new(options->rank, options->world);
    if (!tcp)
        return dcp_error_memory(err, "a comm over TCP");
    int timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : START_TIMEOUT_MS;
    struct dcp_tcp_start start = {
        .options = options,
        .first_port = options->port + 1,
        .last_port = options->port + DCP_TCP_N_PORTS,
        .begin = dcp_clock_ns(),
        .time_ns = (uint64_t)timeout_ms * DCP_TCP_MS,
        .hello = { .version = DCP_TCP_VERSION,
                   .world = (uint32_t)options->world,
                   .rank = (uint32_t)options->rank,
                   .job = hash_job(options) },
    };
    if (start.last_port > 65535)
        start.last_port = 65535;
    if (options->world > 1)
        rc = options->rank ? dcp_tcp_visit(&start, tcp->links, err)
                           : dcp_tcp_host(&start, tcp->links, err);
    if (rc) {
        tcp_free(tcp);
        return rc;
    }
    *out_comm = (struct dcp_comm){
        .ops = &tcp_ops,
        .self = tcp,
        .rank = options->rank,
        .world = options->world,
    };
    return DCP_OK;
}
