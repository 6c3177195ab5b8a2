/* Ranks that were started without MPI: how they find each other is in tcp_host.c and
 * tcp_visit.c. Messages go straight from and to the memory of the call. */
#include "tcp.h"

#include "base/clock.h"
#include "base/mem.h"
#include "relay.h"
#include "tcp_link.h"
#include "tcp_start.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define START_TIMEOUT_MS 60000

struct tcp {
    struct dcp_relay relay;     /* first */
    int n_slots;                /* of neighbours; rank 0's first one is none */
    struct dcp_tcp_link *links; /* by slot */
    struct pollfd *polls;       /* as many: what each waits for, and what came */
    const void *body;           /* of what is begun next */
};

/* --- the link --- */

/* A link that waits for something is not tried before poll has seen it. */
static bool is_due(const struct tcp *tcp, int slot, short event)
{
    const struct pollfd *poll = &tcp->polls[slot];
    return !(poll->events & event) || (poll->revents & event) ||
           dcp_tcp_has_gone(poll->revents);
}

static enum dcp_relay_progress note(struct tcp *tcp, int slot, short event,
                                    enum dcp_relay_progress progress)
{
    struct pollfd *poll = &tcp->polls[slot];
    poll->events = (short)(progress == DCP_RELAY_MORE ? poll->events | event
                                                      : poll->events & ~event);
    poll->revents = (short)(poll->revents & ~event);
    return progress;
}

static void link_begin_body(void *self, const void *body, size_t size_bytes)
{
    struct tcp *tcp = self;
    (void)size_bytes;
    tcp->body = body;
}

static void link_begin_send(void *self, int slot,
                            const unsigned char head[DCP_RELAY_HEAD_BYTES],
                            size_t size_bytes)
{
    struct tcp *tcp = self;
    dcp_tcp_begin_send(&tcp->links[slot], head, tcp->body, size_bytes);
}

static enum dcp_relay_progress link_send(void *self, int slot)
{
    struct tcp *tcp = self;
    if (!is_due(tcp, slot, POLLOUT))
        return DCP_RELAY_MORE;
    return note(tcp, slot, POLLOUT, dcp_tcp_send(&tcp->links[slot]));
}

static void link_begin_receive(void *self, int slot)
{
    struct tcp *tcp = self;
    tcp->links[slot].received = 0;
}

static enum dcp_relay_progress link_receive_head(void *self, int slot,
                                                 const unsigned char **out_head)
{
    struct tcp *tcp = self;
    struct dcp_tcp_link *link = &tcp->links[slot];
    *out_head = link->head;
    if (link->received >= DCP_RELAY_HEAD_BYTES)
        return DCP_RELAY_DONE;
    return is_due(tcp, slot, POLLIN) ? note(tcp, slot, POLLIN, dcp_tcp_receive_head(link))
                                     : DCP_RELAY_MORE;
}

static enum dcp_relay_progress link_receive_body(void *self, int slot, void *out,
                                                 size_t size_bytes)
{
    struct tcp *tcp = self;
    struct dcp_tcp_link *link = &tcp->links[slot];
    return is_due(tcp, slot, POLLIN)
               ? note(tcp, slot, POLLIN, dcp_tcp_receive_body(link, out, size_bytes))
               : DCP_RELAY_MORE;
}

/* Of a link that has ended nothing more comes. */
static void link_wait(void *self, const bool *skip, uint64_t deadline)
{
    struct tcp *tcp = self;
    for (int i = 0; i < tcp->n_slots; i++)
        tcp->polls[i].fd =
            (skip && skip[i]) || tcp->links[i].ended ? -1 : tcp->links[i].fd;
    dcp_tcp_wait(tcp->polls, (size_t)tcp->n_slots, deadline);
}

static bool link_tell_loss(void *self, int slot, char *out, size_t size)
{
    const struct tcp *tcp = self;
    char text[128];
    if (!tcp->links[slot].lost_errno)
        return false;
    snprintf(out, size, "cannot be reached: %s",
             strerror_r(tcp->links[slot].lost_errno, text, sizeof text));
    return true;
}

static const struct dcp_relay_link tcp_link = {
    .begin_body = link_begin_body,
    .begin_send = link_begin_send,
    .send = link_send,
    .begin_receive = link_begin_receive,
    .receive_head = link_receive_head,
    .receive_body = link_receive_body,
    .wait = link_wait,
    .tell_loss = link_tell_loss,
};

/* --- the life of a comm --- */

/* A rank sees its neighbours, and hears what they notice. Between two rounds nothing is
 * half sent, so it can pass that on at once. */
static int tcp_peer_dead(void *self)
{
    struct tcp *tcp = self;
    const struct dcp_error *failure = &tcp->relay.failure;
    dcp_relay_look(&tcp->relay);
    if (failure->code && failure->rank_state == DCP_RANK_DEAD)
        return failure->rank;
    for (int slot = 0; slot < tcp->n_slots; slot++)
        if (dcp_tcp_is_gone(tcp->links[slot].fd)) {
            if (!failure->code)
                dcp_relay_lose(&tcp->relay, slot);
            return dcp_branch_rank(&tcp->relay.at, slot);
        }
    return -1;
}

static void tcp_drop(struct tcp *tcp)
{
    for (int i = 0; i < tcp->n_slots; i++)
        dcp_tcp_link_close(&tcp->links[i]);
    dcp_relay_fini(&tcp->relay);
    free(tcp->links);
    free(tcp->polls);
    free(tcp);
}

/* Who leaves because another rank has died says so first, or its children would take this
 * leaving for the death. */
static void tcp_free(void *self)
{
    struct tcp *tcp = self;
    if (tcp->relay.at.n_children)
        (void)tcp_peer_dead(tcp);
    tcp_drop(tcp);
}

static const struct dcp_comm_ops tcp_ops = {
    .allgather = dcp_relay_allgather,
    .bcast = dcp_relay_bcast,
    .gather = dcp_relay_gather,
    .least = dcp_relay_least,
    .peer_dead = tcp_peer_dead,
    .free = tcp_free,
};

static struct tcp *tcp_new(struct dcp_branch at)
{
    struct tcp *tcp = dcp_mem_calloc(1, sizeof *tcp);
    size_t n = (size_t)at.n_children + 1;
    struct dcp_tcp_link *links = dcp_mem_calloc(n, sizeof *links);
    struct pollfd *polls = dcp_mem_calloc(n, sizeof *polls);
    if (!tcp || !links || !polls ||
        dcp_relay_init(&tcp->relay, &tcp_link, at, PTRDIFF_MAX, NULL)) {
        free(links);
        free(polls);
        free(tcp);
        return NULL;
    }
    tcp->links = links;
    tcp->polls = polls;
    tcp->n_slots = (int)n;
    for (size_t i = 0; i < n; i++) {
        links[i] = dcp_tcp_link_init(-1);
        polls[i].events = POLLRDHUP;
    }
    return tcp;
}

/* --- the start --- */

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

static struct dcp_tcp_start start_of(const struct dcp_comm_tcp_options *options,
                                     int fanout)
{
    int timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : START_TIMEOUT_MS;
    int last_port = options->port + DCP_TCP_N_PORTS;
    return (struct dcp_tcp_start){
        .options = options,
        .first_port = options->port + 1,
        .last_port = last_port < 65535 ? last_port : 65535,
        .begin = dcp_clock_ns(),
        .time_ns = (uint64_t)timeout_ms * DCP_RELAY_MS,
        .at = dcp_branch_of(options->rank, options->world_size, fanout),
    };
}

/* The links that a tree has besides those of the star. */
static bool add_links(struct tcp *tree, const struct dcp_tcp_start *start,
                      const struct dcp_tcp_place *place)
{
    uint64_t deadline = dcp_clock_ns() + start->time_ns / 4;
    if (start->at.depth > 1 &&
        !dcp_tcp_join(start, place->parent, deadline, &tree->links[0]))
        return false;
    return !start->at.depth || !start->at.n_children ||
           (place->listener >= 0 &&
            dcp_tcp_await(start, place->listener, deadline, tree->links));
}

/* What both have goes from the star to the tree. */
static void move_links(struct tcp *star, struct tcp *tree)
{
    for (int slot = 0; slot < tree->n_slots; slot++) {
        int rank = dcp_branch_rank(&tree->relay.at, slot);
        int from = star->relay.at.rank ? 0 : rank;
        if (tree->links[slot].fd >= 0 || from < 0)
            continue;
        tree->links[slot] = star->links[from];
        star->links[from] = dcp_tcp_link_init(-1);
    }
}

/* From the star, in which all have found rank 0, to the tree. Where a rank cannot reach
 * its parent, all stay with the star. */
static int grow(struct tcp **tcp, const struct dcp_tcp_start *start,
                const struct dcp_tcp_place *place, struct dcp_error *err)
{
    struct tcp *star = *tcp, *tree = tcp_new(start->at);
    int64_t works = tree && add_links(tree, start, place);
    int rc =
        dcp_relay_least(star, works, &works, (int)(start->time_ns / DCP_RELAY_MS), err);
    bool grown = !rc && works;
    if (grown) {
        move_links(star, tree);
        *tcp = tree;
    }
    if (grown || tree)
        tcp_drop(grown ? star : tree);
    if (place->listener >= 0)
        close(place->listener);
    return rc;
}

static int start_tcp(struct tcp **tcp, const struct dcp_tcp_start *start,
                     struct dcp_error *err)
{
    struct dcp_tcp_place place = { .listener = -1 };
    if (start->at.world_size == 1)
        return DCP_OK;
    int rc = start->at.rank ? dcp_tcp_visit(start, (*tcp)->links, &place, err)
                            : dcp_tcp_host(start, (*tcp)->links, &place, err);
    return rc || !place.parent[0] ? rc : grow(tcp, start, &place, err);
}

int dcp_tcp_open(struct dcp_comm *out_comm, const struct dcp_comm_tcp_options *options,
                 int largest_fanout, struct dcp_error *err)
{
    *out_comm = (struct dcp_comm){ 0 };
    DCP_TRY(check_options(options, err));
    struct dcp_tcp_start start = start_of(options, largest_fanout);
    DCP_TRY(dcp_tcp_key_of(options, &start.key, err));
    struct tcp *tcp =
        tcp_new(dcp_branch_of(options->rank, options->world_size, options->world_size));
    if (!tcp)
        return dcp_error_memory(err, "a TCP communicator");
    int rc = start_tcp(&tcp, &start, err);
    if (rc) {
        tcp_drop(tcp);
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

int dcp_comm_tcp(struct dcp_comm *out_comm, const struct dcp_comm_tcp_options *options,
                 struct dcp_error *err)
{
    return dcp_tcp_open(out_comm, options, DCP_BRANCH_FANOUT, err);
}
