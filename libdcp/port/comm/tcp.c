/* Ranks that were started without MPI: how they find each other is in tcp_host.c and
 * tcp_visit.c. Messages go straight from and to the memory of the call: a round allocates
 * nothing. */
#include "tcp_link.h"
#include "tcp_start.h"

#include "base/clock.h"
#include "base/mem.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define START_TIMEOUT_MS 60000

struct tcp {
    struct dcp_star star;       /* first */
    int n_links;                /* rank 0: one for each rank; others: one */
    struct dcp_tcp_link *links; /* rank 0's own is none */
    struct pollfd *polls;       /* as many: what each waits for, and what came */
    unsigned char head[DCP_STAR_HEAD_BYTES];
    const void *body;
};

/* --- the link --- */

/* A link that waits for something is not tried before poll has seen it. */
static bool is_due(const struct tcp *tcp, int rank, short event)
{
    const struct pollfd *poll = &tcp->polls[rank];
    return !(poll->events & event) || (poll->revents & event) ||
           dcp_tcp_has_gone(poll->revents);
}

static enum dcp_star_progress note(struct tcp *tcp, int rank, short event,
                                   enum dcp_star_progress progress)
{
    struct pollfd *poll = &tcp->polls[rank];
    poll->events =
        (short)(progress == DCP_STAR_MORE ? poll->events | event : poll->events & ~event);
    poll->revents = (short)(poll->revents & ~event);
    return progress;
}

static void link_begin_send(void *self, const unsigned char head[DCP_STAR_HEAD_BYTES],
                            const void *body, size_t size_bytes)
{
    struct tcp *tcp = self;
    (void)size_bytes;
    memcpy(tcp->head, head, sizeof tcp->head);
    tcp->body = body;
    for (int i = 0; i < tcp->n_links; i++) {
        tcp->links[i].lost |= tcp->links[i].midway;
        tcp->links[i].sent = 0;
    }
}

static enum dcp_star_progress link_send(void *self, int rank, size_t size_bytes)
{
    struct tcp *tcp = self;
    const struct dcp_tcp_message message = { tcp->head, tcp->body, size_bytes };
    if (tcp->links[rank].lost)
        return DCP_STAR_LOST;
    if (!is_due(tcp, rank, POLLOUT))
        return DCP_STAR_MORE;
    return note(tcp, rank, POLLOUT, dcp_tcp_send(&tcp->links[rank], &message));
}

static void link_begin_receive(void *self)
{
    struct tcp *tcp = self;
    for (int i = 0; i < tcp->n_links; i++)
        tcp->links[i].received = 0;
}

static enum dcp_star_progress link_receive_head(void *self, int rank,
                                                const unsigned char **out_head)
{
    struct tcp *tcp = self;
    struct dcp_tcp_link *link = &tcp->links[rank];
    *out_head = link->head;
    if (link->received >= DCP_STAR_HEAD_BYTES)
        return DCP_STAR_DONE;
    return is_due(tcp, rank, POLLIN) ? note(tcp, rank, POLLIN, dcp_tcp_receive_head(link))
                                     : DCP_STAR_MORE;
}

static enum dcp_star_progress link_receive_body(void *self, int rank, void *out,
                                                size_t size_bytes)
{
    struct tcp *tcp = self;
    struct dcp_tcp_link *link = &tcp->links[rank];
    return is_due(tcp, rank, POLLIN)
               ? note(tcp, rank, POLLIN, dcp_tcp_receive_body(link, out, size_bytes))
               : DCP_STAR_MORE;
}

static void link_wait(void *self, const bool *skip, uint64_t deadline)
{
    struct tcp *tcp = self;
    int first = tcp->star.rank ? 0 : 1;
    for (int i = first; i < tcp->n_links; i++)
        tcp->polls[i].fd = skip && skip[i] ? -1 : tcp->links[i].fd;
    dcp_tcp_wait(tcp->polls + first, (size_t)(tcp->n_links - first), deadline);
}

/* Rank 0 sees all others; these see the end of their link when they read it. */
static int link_find_gone(void *self, bool now)
{
    struct tcp *tcp = self;
    if (tcp->star.rank)
        return -1;
    if (now)
        link_wait(tcp, NULL, 0);
    for (int r = 1; r < tcp->n_links; r++)
        if (dcp_tcp_has_gone(tcp->polls[r].revents))
            return r;
    return -1;
}

static bool link_tell_loss(void *self, int rank, char *out, size_t size)
{
    const struct tcp *tcp = self;
    char text[128];
    if (!tcp->links[rank].lost_errno)
        return false;
    snprintf(out, size, "cannot be reached: %s",
             strerror_r(tcp->links[rank].lost_errno, text, sizeof text));
    return true;
}

static void link_give_up(void *self)
{
    struct tcp *tcp = self;
    shutdown(tcp->links[0].fd, SHUT_WR);
}

static const struct dcp_star_link tcp_link = {
    .begin_send = link_begin_send,
    .send = link_send,
    .begin_receive = link_begin_receive,
    .receive_head = link_receive_head,
    .receive_body = link_receive_body,
    .wait = link_wait,
    .find_gone = link_find_gone,
    .tell_loss = link_tell_loss,
    .give_up = link_give_up,
};

/* --- who is dead --- */

/* A verdict that came between two rounds names a dead rank; else -1. */
static int dead_by_verdict(const struct tcp *tcp)
{
    unsigned char bytes[DCP_STAR_HEAD_BYTES];
    ssize_t n = recv(tcp->links[0].fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    if (n != sizeof bytes)
        return -1;
    struct dcp_star_head head = dcp_star_get_head(bytes);
    return head.code && head.rank_state == DCP_RANK_DEAD ? head.rank : -1;
}

/* Rank 0 alone sees all others. Between two rounds no answer is half sent, so it can tell
 * them at once. */
static int tcp_peer_dead(void *self)
{
    struct tcp *tcp = self;
    const struct dcp_error *failure = &tcp->star.failure;
    if (failure->code && failure->rank_state == DCP_RANK_DEAD)
        return failure->rank;
    if (tcp->star.rank) {
        int told = failure->code ? -1 : dead_by_verdict(tcp);
        return told >= 0 ? told : dcp_tcp_is_gone(tcp->links[0].fd) ? 0 : -1;
    }
    for (int r = 1; r < tcp->n_links; r++)
        if (dcp_tcp_is_gone(tcp->links[r].fd)) {
            if (!failure->code)
                dcp_star_lose(&tcp->star, r);
            return r;
        }
    return -1;
}

/* --- the life of a comm --- */

static void tcp_free(void *self)
{
    struct tcp *tcp = self;
    if (tcp->star.rank == 0) /* or the others would take this leaving for the death */
        (void)tcp_peer_dead(tcp);
    for (int i = 0; i < tcp->n_links; i++)
        dcp_tcp_link_close(&tcp->links[i]);
    dcp_star_fini(&tcp->star);
    free(tcp->links);
    free(tcp->polls);
    free(tcp);
}

static const struct dcp_comm_ops tcp_ops = {
    .allgather = dcp_star_allgather,
    .bcast = dcp_star_bcast,
    .gather = dcp_star_gather,
    .least = dcp_star_least,
    .peer_dead = tcp_peer_dead,
    .free = tcp_free,
};

static struct tcp *tcp_new(int rank, int world_size)
{
    struct tcp *tcp = dcp_mem_calloc(1, sizeof *tcp);
    size_t n = rank == 0 ? (size_t)world_size : 1;
    struct dcp_tcp_link *links = dcp_mem_calloc(n, sizeof *links);
    struct pollfd *polls = dcp_mem_calloc(n, sizeof *polls);
    if (!tcp || !links || !polls ||
        dcp_star_init(&tcp->star, &tcp_link, rank, world_size, PTRDIFF_MAX, NULL)) {
        free(links);
        free(polls);
        free(tcp);
        return NULL;
    }
    tcp->links = links;
    tcp->polls = polls;
    tcp->n_links = (int)n;
    for (size_t i = 0; i < n; i++) {
        links[i] = dcp_tcp_link_init(-1);
        polls[i].events = POLLRDHUP;
    }
    return tcp;
}

static int check_options(const struct dcp_comm_tcp_options *options,
                         struct dcp_error *err)
{
    if (options->world_size < 1 || options->rank < 0 ||
        options->rank >= options->world_size)
        return dcp_error_set(err, DCP_E_USAGE,
                             "rank %d is out of range: the world size is %d",
                             options->rank, options->world_size);
    if (options->world_size > 1 && (options->port < 1 || options->port > 65534))
        return dcp_error_set(err, DCP_E_USAGE,
                             "MASTER_PORT %d leaves no port above it for rank 0",
                             options->port);
    if (options->world_size > 1 && (!options->host || !options->host[0]))
        return dcp_error_set(err, DCP_E_USAGE,
                             "there is no MASTER_ADDR to find rank 0 at");
    return DCP_OK;
}

static struct dcp_tcp_start start_of(const struct dcp_comm_tcp_options *options)
{
    int timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : START_TIMEOUT_MS;
    int last_port = options->port + DCP_TCP_N_PORTS;
    return (struct dcp_tcp_start){
        .options = options,
        .first_port = options->port + 1,
        .last_port = last_port < 65535 ? last_port : 65535,
        .begin = dcp_clock_ns(),
        .time_ns = (uint64_t)timeout_ms * DCP_STAR_MS,
    };
}

int dcp_comm_tcp(struct dcp_comm *out_comm, const struct dcp_comm_tcp_options *options,
                 struct dcp_error *err)
{
    *out_comm = (struct dcp_comm){ 0 };
    int rc = check_options(options, err);
    if (rc)
        return rc;
    struct dcp_tcp_start start = start_of(options);
    rc = dcp_tcp_key_of(options, &start.key, err);
    if (rc)
        return rc;
    struct tcp *tcp = tcp_new(options->rank, options->world_size);
    if (!tcp)
        return dcp_error_memory(err, "a TCP communicator");
    if (options->world_size > 1)
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
        .world_size = options->world_size,
    };
    return DCP_OK;
}
