/* The half of the start of who connects: to rank 0, then to the parent. */
#include "tcp_start.h"

#include "base/clock.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A door that says nothing for so long is not rank 0's, or a firewall's. */
#define DOOR_TIME (2000 * DCP_RELAY_MS)
#define FIRST_PAUSE (50 * DCP_RELAY_MS)
#define LONGEST_PAUSE (1000 * DCP_RELAY_MS)
#define RESOLVE_PAUSE_US 200000

/* One port where the host may be; its addresses are tried in turn. */
struct door {
    int fd;       /* -1: between two tries */
    int listener; /* for our children, at the address that we reach this one by; -1: none
                   */
    uint64_t until; /* end of this try, or of the pause before the next */
    uint64_t pause; /* grows */
    const struct addrinfo *address;
    size_t got; /* of the challenge, then of the proof */
    bool answered;
    struct dcp_tcp_talk talk;
    unsigned char proof[DCP_TCP_PROOF_BYTES];
};

struct visit {
    const struct dcp_tcp_start *start;
    struct addrinfo *addresses;
    struct door doors[DCP_TCP_N_PORTS];
    int n_doors;
    bool met_other; /* a host of another job, secret or version */
    struct dcp_tcp_link *link;
    int listener;    /* of the door that was entered */
    bool is_joining; /* the parent: who listens for us does so already */
};

void dcp_tcp_hint(const struct dcp_tcp_start *start, struct dcp_error *err)
{
    if (err->hint[0])
        return;
    if (err->code == DCP_E_USAGE)
        dcp_error_hint(err, "start every rank once, with the same program, WORLD_SIZE, "
                            "MASTER_ADDR and MASTER_PORT");
    else if (err->code == DCP_E_COMM)
        dcp_error_hint(
            err,
            "MASTER_ADDR and MASTER_PORT must be those of rank 0's host on all "
            "ranks, and connections to its ports %d to %d be allowed; look at "
            "the output of rank %d",
            start->first_port, start->last_port, err->rank < 0 ? 0 : err->rank);
}

/* --- doors --- */

static void shut(struct door *door)
{
    if (door->fd >= 0)
        close(door->fd);
    if (door->listener >= 0)
        close(door->listener);
    door->fd = door->listener = -1;
    door->until = dcp_clock_ns() + door->pause;
    door->pause += door->pause / 2;
    if (door->pause > LONGEST_PAUSE)
        door->pause = LONGEST_PAUSE;
}

static void knock(struct visit *visit, struct door *door, int port)
{
    door->address = door->address ? door->address->ai_next : NULL;
    if (!door->address)
        door->address = visit->addresses;
    struct sockaddr_storage at;
    socklen_t n = dcp_tcp_address(door->address, port, &at);
    door->got = 0;
    door->answered = false;
    door->talk.port = port;
    door->fd =
        socket(door->address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (door->fd >= 0 &&
        (!connect(door->fd, (struct sockaddr *)&at, n) || errno == EINPROGRESS))
        door->until = dcp_clock_ns() + DOOR_TIME;
    else
        shut(door);
}

/* A rank that will have children listens for them before it answers. Returns the port; 0:
 * there is none, so there will be no tree. */
static int open_listener(const struct visit *visit, struct door *door)
{
    struct sockaddr_storage at = { 0 };
    socklen_t size = sizeof at;
    if (!visit->start->at.n_children || visit->is_joining ||
        getsockname(door->fd, (struct sockaddr *)&at, &size))
        return 0;
    dcp_tcp_set_port(&at, 0); /* one that is free */
    door->listener = dcp_tcp_listen(&at, size);
    return door->listener < 0 ||
                   getsockname(door->listener, (struct sockaddr *)&at, &size)
               ? 0
               : dcp_tcp_port_of(&at);
}

static int answer(struct visit *visit, struct door *door, struct dcp_error *err)
{
    const struct dcp_comm_tcp_options *options = visit->start->options;
    enum dcp_tcp_speech speech = dcp_tcp_recognise(door->talk.challenge);
    visit->met_other |= speech == DCP_TCP_OTHER_VERSION;
    door->answered = true;
    door->got = 0;
    if (speech != DCP_TCP_OURS) {
        shut(door);
        return DCP_OK;
    }
    struct dcp_tcp_claim claim = { (uint32_t)options->world_size, (uint32_t)options->rank,
                                   (uint32_t)open_listener(visit, door) };
    int rc = dcp_tcp_put_answer(&door->talk, &visit->start->key, &claim, err);
    if (rc || send(door->fd, door->talk.answer, DCP_TCP_ANSWER_BYTES, MSG_NOSIGNAL) !=
                  DCP_TCP_ANSWER_BYTES)
        shut(door);
    return rc;
}

/* The host is behind this door. */
static void enter(struct visit *visit, struct door *door)
{
    dcp_tcp_prepare(door->fd);
    *visit->link = dcp_tcp_link_init(door->fd);
    visit->listener = door->listener;
    door->fd = door->listener = -1;
    for (int i = 0; i < visit->n_doors; i++)
        shut(&visit->doors[i]);
}

/* Reads what is behind a door: the challenge, then rank 0's proof. */
static int listen_at(struct visit *visit, struct door *door, struct dcp_error *err)
{
    unsigned char *to = door->answered ? door->proof : door->talk.challenge;
    size_t want = door->answered ? DCP_TCP_PROOF_BYTES : DCP_TCP_CHALLENGE_BYTES;
    ssize_t n = recv(door->fd, to + door->got, want - door->got, MSG_DONTWAIT);
    if (n <= 0 && (n == 0 || (errno != EAGAIN && errno != EINTR))) {
        visit->met_other |= door->answered; /* it did not like the answer */
        shut(door);
    }
    if (n <= 0)
        return DCP_OK;
    door->got += (size_t)n;
    if (door->got < want)
        return DCP_OK;
    if (!door->answered)
        return answer(visit, door, err);
    bool proved = dcp_tcp_check_proof(&door->talk, &visit->start->key, door->proof);
    visit->met_other |= !proved;
    if (proved)
        enter(visit, door);
    else
        shut(door);
    return DCP_OK;
}

/* One look at every door. */
static int try_doors(struct visit *visit, struct dcp_error *err)
{
    uint64_t now = dcp_clock_ns();
    int rc = DCP_OK;
    for (int i = 0; i < visit->n_doors && !rc && visit->link->fd < 0; i++) {
        struct door *door = &visit->doors[i];
        if (door->fd >= 0)
            rc = listen_at(visit, door, err);
        if (door->fd < 0 && now >= door->until)
            knock(visit, door, visit->start->first_port + i);
        else if (door->fd >= 0 && now >= door->until)
            shut(door);
    }
    return rc;
}

static void wait_at_doors(struct visit *visit, uint64_t deadline)
{
    struct pollfd polls[DCP_TCP_N_PORTS];
    for (int i = 0; i < visit->n_doors; i++) {
        const struct door *door = &visit->doors[i];
        polls[i] = (struct pollfd){ .fd = door->fd, .events = POLLIN };
        deadline = door->until < deadline ? door->until : deadline;
    }
    dcp_tcp_wait(polls, (size_t)visit->n_doors, deadline);
}

static int fail_silent(struct dcp_error *err)
{
    err->rank = 0;
    err->rank_state = DCP_RANK_SILENT;
    return err->code;
}

static int fail_unanswered(const struct visit *visit, struct dcp_error *err)
{
    const struct dcp_tcp_start *start = visit->start;
    dcp_error_set(
        err, DCP_E_COMM,
        "rank 0 did not answer at host '%s', ports %d to %d, within %.3g s%s",
        start->options->host, start->first_port, start->last_port,
        (double)start->time_ns / 1e9,
        visit->met_other ? "; only a rank 0 of another job, secret or version did" : "");
    return fail_silent(err);
}

static int fail_untold(const struct visit *visit, struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_COMM,
                  "rank 0 did not say within %.3g s that all ranks are there",
                  (double)visit->start->time_ns / 4e9 * 5);
    return fail_silent(err);
}

/* DCP_OK: it is found, or time is up. */
static int find_host(struct visit *visit, uint64_t deadline, struct dcp_error *err)
{
    for (;;) {
        int rc = try_doors(visit, err);
        if (rc || visit->link->fd >= 0 || dcp_clock_ns() >= deadline)
            return rc;
        wait_at_doors(visit, deadline);
    }
}

static int find_rank_0(struct visit *visit, struct dcp_error *err)
{
    int rc = find_host(visit, visit->start->begin + visit->start->time_ns, err);
    return !rc && visit->link->fd < 0 ? fail_unanswered(visit, err) : rc;
}

/* --- inside --- */

/* Rank 0 says when all have come, or why the start failed. It may have begun a little
 * later than this rank, so it is given a quarter of the time more. A rank 0 that goes
 * without a word may come back: then the link is none. */
static int wait_inside(struct visit *visit, struct dcp_tcp_place *out,
                       struct dcp_error *err)
{
    const struct dcp_tcp_start *start = visit->start;
    struct dcp_tcp_link *link = visit->link;
    uint64_t deadline = start->begin + start->time_ns / 4 * 5;
    for (;;) {
        enum dcp_relay_progress progress = dcp_tcp_receive_head(link);
        if (progress == DCP_RELAY_LOST)
            dcp_tcp_link_close(link);
        if (progress != DCP_RELAY_MORE)
            break;
        if (dcp_clock_ns() >= deadline)
            return fail_untold(visit, err);
        struct pollfd ready = { .fd = link->fd, .events = POLLIN };
        dcp_tcp_wait(&ready, 1, deadline);
    }
    if (link->fd < 0)
        return DCP_OK;
    struct dcp_relay_head head = dcp_relay_get_head(link->head);
    link->received = 0;
    memcpy(out->parent, head.why, sizeof out->parent);
    if (!head.code)
        return DCP_OK;
    dcp_error_set(err, head.code == DCP_E_USAGE ? DCP_E_USAGE : DCP_E_COMM, "%s",
                  head.why);
    err->rank = head.rank;
    err->rank_state = head.rank_state;
    return err->code;
}

/* Name servers may need a while until they know a host that has just been started. */
static int resolve(struct visit *visit, struct dcp_error *err)
{
    const struct dcp_tcp_start *start = visit->start;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    for (;;) {
        int no = getaddrinfo(start->options->host, NULL, &hints, &visit->addresses);
        if (!no)
            return DCP_OK;
        if (no != EAI_AGAIN || dcp_clock_ns() >= start->begin + start->time_ns) {
            dcp_error_set(err, DCP_E_COMM,
                          "the address '%s' of rank 0 does not resolve: %s",
                          start->options->host, gai_strerror(no));
            dcp_error_hint(err, "MASTER_ADDR must be the name or the address of the host "
                                "of rank 0");
            return err->code;
        }
        dcp_clock_sleep_us(RESOLVE_PAUSE_US);
    }
}

static void open_doors(struct visit *visit)
{
    visit->n_doors = visit->start->last_port - visit->start->first_port + 1;
    visit->listener = -1;
    for (int i = 0; i < visit->n_doors; i++)
        visit->doors[i] = (struct door){ .fd = -1, .listener = -1, .pause = FIRST_PAUSE };
}

static void shut_doors(struct visit *visit)
{
    for (int i = 0; i < visit->n_doors; i++)
        shut(&visit->doors[i]);
    if (visit->addresses)
        freeaddrinfo(visit->addresses);
}

static void drop_listener(struct visit *visit)
{
    if (visit->listener >= 0)
        close(visit->listener);
    visit->listener = -1;
}

int dcp_tcp_visit(const struct dcp_tcp_start *start, struct dcp_tcp_link *link,
                  struct dcp_tcp_place *out, struct dcp_error *err)
{
    struct visit visit = { .start = start, .link = link };
    struct dcp_error failure = { 0 };
    open_doors(&visit);
    int rc = resolve(&visit, &failure);
    while (!rc && link->fd < 0) {
        drop_listener(&visit);
        rc = find_rank_0(&visit, &failure);
        if (!rc)
            rc = wait_inside(&visit, out, &failure);
    }
    shut_doors(&visit);
    if (rc)
        dcp_tcp_link_close(link);
    if (rc || !out->parent[0])
        drop_listener(&visit);
    out->listener = visit.listener;
    if (rc && failure.rank < 0)
        failure.rank = 0;
    dcp_tcp_hint(start, &failure);
    if (err && !err->code)
        *err = failure;
    return rc;
}

/* --- the parent --- */

bool dcp_tcp_join(const struct dcp_tcp_start *start, const char *parent,
                  uint64_t deadline, struct dcp_tcp_link *link)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV };
    struct dcp_tcp_start there = *start;
    struct visit visit = { .start = &there, .link = link, .is_joining = true };
    char host[DCP_RELAY_WHY_BYTES];
    if (sscanf(parent, "%199s %d", host, &there.first_port) != 2)
        return false;
    there.last_port = there.first_port;
    open_doors(&visit);
    if (!getaddrinfo(host, NULL, &hints, &visit.addresses))
        (void)find_host(&visit, deadline, NULL);
    shut_doors(&visit);
    return link->fd >= 0;
}
