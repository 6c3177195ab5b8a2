/* The half of the start of who is connected to: rank 0, then every rank that has
 * children.
 */
#include "tcp_start.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* Who has connected and not yet answered: a rank does so at once, a stranger may never.
 */
#define MAX_GUESTS 64
#define GUEST_TIME (3000 * DCP_RELAY_MS)
#define GUEST_TIME_FULL (250 * DCP_RELAY_MS) /* when others wait at the door */
#define SPARE_FILES 1000                     /* that a program may have open besides */
#define MAX_NAMED 8                          /* missing ranks that the sentence lists */

struct guest {
    int fd;
    uint64_t came;
    size_t got; /* of its answer */
    struct dcp_tcp_talk talk;
};

struct host {
    const struct dcp_tcp_start *start;
    struct dcp_branch at;       /* whose children come: with rank 0, all ranks */
    struct dcp_tcp_link *links; /* of those that have come, by slot */
    uint32_t *ports;            /* at which they listen; NULL: nobody asks */
    int listener, port;
    struct guest guests[MAX_GUESTS];
    int n_guests;
    struct pollfd *polls; /* listener, children, guests */
    bool met_others;      /* ranks of another job, secret or version */
    int refused;          /* a rank that may not come, to be told why; -1: none */
    struct dcp_error failure;
};

/* --- listening --- */

/* Is it an address of this machine alone? */
static bool is_loopback(const struct sockaddr *address)
{
    const struct sockaddr_in6 *six = (const void *)address;
    const struct sockaddr_in *four = (const void *)address;
    if (address->sa_family != AF_INET6)
        return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
        return six->sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

static bool means_loopback(const char *host)
{
    return !strcmp(host, "localhost") || !strcmp(host, "::1") ||
           dcp_str_starts(host, "127.");
}

/* At the first port that is free. Loopback addresses of a name that means another one
 * (Debian gives each host one) are passed over. A port that is in use is the better
 * reason to tell than an address that this host does not have. */
static int listen_somewhere(struct host *host, const struct addrinfo *all,
                            bool loopback_too)
{
    const struct dcp_tcp_start *start = host->start;
    int last_errno = EADDRNOTAVAIL;
    for (int port = start->first_port; port <= start->last_port; port++)
        for (const struct addrinfo *a = all; a; a = a->ai_next) {
            struct sockaddr_storage at;
            socklen_t size = dcp_tcp_address(a, port, &at);
            if (!loopback_too && is_loopback(a->ai_addr))
                continue;
            int fd = dcp_tcp_listen(&at, size);
            host->port = port;
            if (fd >= 0)
                return fd;
            if (errno == EADDRINUSE || last_errno == EADDRNOTAVAIL)
                last_errno = errno;
        }
    errno = last_errno;
    return -1;
}

/* At the address that the others were told, and no other. Where this host does not have
 * it, since it is translated or not known yet, at all; IPv6 takes IPv4 along. */
static int open_listener(struct host *host)
{
    const struct dcp_tcp_start *start = host->start;
    const char *name = start->options->host;
    const struct {
        const char *name;
        int family;
    } places[] = { { name, AF_UNSPEC }, { NULL, AF_INET6 }, { NULL, AF_INET } };
    int why = 0;
    for (size_t i = 0; i < DCP_ARRAY_LEN(places) && host->listener < 0; i++) {
        struct addrinfo hints = { .ai_flags = AI_PASSIVE,
                                  .ai_family = places[i].family,
                                  .ai_socktype = SOCK_STREAM };
        struct addrinfo *all = NULL;
        if (why == EADDRINUSE ||
            getaddrinfo(places[i].name, places[i].name ? NULL : "0", &hints, &all))
            continue;
        host->listener = listen_somewhere(host, all, means_loopback(name));
        why = errno;
        freeaddrinfo(all);
    }
    if (host->listener < 0)
        return dcp_error_sys(&host->failure, DCP_E_COMM, why,
                             "rank 0 cannot listen on any of the ports %d to %d",
                             start->first_port, start->last_port);
    return DCP_OK;
}

/* --- guests --- */

static void remove_guest(struct host *host, int i)
{
    host->guests[i] = host->guests[--host->n_guests];
}

static void drop_guest(struct host *host, int i)
{
    close(host->guests[i].fd);
    remove_guest(host, i);
}

/* Until all have come rank 0 has a connection to each. */
static int fail_files(struct host *host, int why)
{
    int n = host->at.world_size;
    dcp_error_sys(&host->failure, DCP_E_COMM, why,
                  "rank %d cannot take the connections of %d ranks", host->at.rank, n);
    if (why == EMFILE)
        dcp_error_hint(&host->failure,
                       "let rank 0 have %d open files or more: ulimit -n %d, or "
                       "LimitNOFILE of what starts it",
                       n + SPARE_FILES, n + SPARE_FILES);
    return host->failure.code;
}

/* Is it certain that there are too few? */
static int check_files(struct host *host)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur >= (rlim_t)host->at.world_size)
        return DCP_OK;
    return fail_files(host, EMFILE);
}

/* Rank 0 speaks first, so that a rank may knock at many doors and choose one. */
static int accept_guests(struct host *host)
{
    while (host->n_guests < MAX_GUESTS) {
        struct guest guest = { .came = dcp_clock_ns(), .talk.port = host->port };
        guest.fd = accept4(host->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (guest.fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
            return fail_files(host, errno);
        if (guest.fd < 0) /* nobody waits any more, or one has left again */
            break;
        dcp_tcp_prepare(guest.fd);
        int rc = dcp_tcp_put_challenge(&guest.talk, &host->failure);
        const unsigned char *challenge = guest.talk.challenge;
        if (!rc && send(guest.fd, challenge, DCP_TCP_CHALLENGE_BYTES, MSG_NOSIGNAL) ==
                       DCP_TCP_CHALLENGE_BYTES)
            host->guests[host->n_guests++] = guest;
        else
            close(guest.fd);
        if (rc)
            return rc;
    }
    return DCP_OK;
}

static int refuse(struct host *host, int i, int rank)
{
    host->refused = host->guests[i].fd;
    remove_guest(host, i);
    host->failure.rank = rank;
    return host->failure.code;
}

/* Whoever proved that it knows the secret is proved to that we do. */
static bool prove(const struct host *host, const struct guest *guest)
{
    unsigned char proof[DCP_TCP_PROOF_BYTES];
    return dcp_tcp_put_proof(&guest->talk, &host->start->key, proof) &&
           send(guest->fd, proof, sizeof proof, MSG_NOSIGNAL) == sizeof proof;
}

/* A mistake of whoever started us is the failure of all. */
static void check_claim(struct host *host, const struct dcp_tcp_claim *claim)
{
    int rank = (int)claim->rank, world_size = host->at.world_size;
    if (claim->world_size != (uint32_t)world_size)
        dcp_error_set(&host->failure, DCP_E_USAGE,
                      "rank %d was started as one of %u ranks, rank 0 as one of %d", rank,
                      claim->world_size, world_size);
    else if (rank >= world_size)
        dcp_error_set(&host->failure, DCP_E_USAGE,
                      "rank %d is out of range: the world size is %d", rank, world_size);
    else if (host->links[rank].fd >= 0 && !dcp_tcp_is_gone(host->links[rank].fd))
        dcp_error_set(&host->failure, DCP_E_USAGE,
                      "two processes of this job were started as rank %d", rank);
}

/* To any rank but 0 only its children come, and they have been to rank 0. */
static bool is_child(const struct host *host, const struct dcp_tcp_claim *claim)
{
    int slot = dcp_branch_find(&host->at, (int)claim->rank);
    return claim->world_size == (uint32_t)host->at.world_size && slot &&
           dcp_branch_rank(&host->at, slot) == (int)claim->rank &&
           (host->links[slot].fd < 0 || dcp_tcp_is_gone(host->links[slot].fd));
}

/* A guest that has answered is a rank, a stranger, or a mistake. */
static int judge_guest(struct host *host, int i)
{
    struct dcp_tcp_claim claim;
    struct guest *guest = &host->guests[i];
    bool knows = dcp_tcp_check_answer(&guest->talk, &host->start->key, &claim);
    host->met_others |= !knows;
    if (!knows || claim.rank < 1 || claim.rank > INT32_MAX ||
        (host->at.rank && !is_child(host, &claim)) || !prove(host, guest)) {
        drop_guest(host, i);
        return DCP_OK;
    }
    if (!host->at.rank)
        check_claim(host, &claim);
    if (host->failure.code)
        return refuse(host, i, (int)claim.rank);
    int slot = dcp_branch_find(&host->at, (int)claim.rank);
    dcp_tcp_link_close(&host->links[slot]);
    host->links[slot] = dcp_tcp_link_init(guest->fd);
    if (host->ports)
        host->ports[slot] = claim.port;
    remove_guest(host, i);
    return DCP_OK;
}

/* Receives of a guest's answer what is there. False: it is none, or comes no more. */
static bool hear(struct host *host, struct guest *guest)
{
    ssize_t n = recv(guest->fd, guest->talk.answer + guest->got,
                     DCP_TCP_ANSWER_BYTES - guest->got, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    guest->got += (size_t)n;
    if (guest->got < DCP_TCP_VERSION_BYTES)
        return true;
    enum dcp_tcp_speech speech = dcp_tcp_recognise(guest->talk.answer);
    host->met_others |= speech == DCP_TCP_OTHER_VERSION;
    return speech == DCP_TCP_OURS;
}

/* From the last to the first: a guest that leaves has the last one take its place. */
static int hear_guests(struct host *host)
{
    uint64_t now = dcp_clock_ns();
    uint64_t life = host->n_guests < MAX_GUESTS ? GUEST_TIME : GUEST_TIME_FULL;
    for (int i = host->n_guests - 1; i >= 0 && !host->failure.code; i--) {
        struct guest *guest = &host->guests[i];
        bool stays = hear(host, guest) && now - guest->came <= life;
        if (stays && guest->got == DCP_TCP_ANSWER_BYTES)
            judge_guest(host, i);
        else if (!stays)
            drop_guest(host, i);
    }
    return host->failure.code;
}

/* --- the wait for all --- */

static int count_missing(const struct host *host)
{
    int n = 0;
    for (int slot = 1; slot <= host->at.n_children; slot++)
        n += host->links[slot].fd < 0;
    return n;
}

static void wait_for_news(struct host *host, uint64_t deadline)
{
    struct pollfd *polls = host->polls;
    int n_slots = host->at.n_children + 1;
    bool full = host->n_guests == MAX_GUESTS;
    polls[0] = (struct pollfd){ .fd = full ? -1 : host->listener, .events = POLLIN };
    for (int slot = 1; slot < n_slots; slot++)
        polls[slot] = (struct pollfd){ .fd = host->links[slot].fd, .events = POLLRDHUP };
    for (int i = 0; i < host->n_guests; i++)
        polls[n_slots + i] =
            (struct pollfd){ .fd = host->guests[i].fd, .events = POLLIN };
    uint64_t look = dcp_clock_ns() + (full ? GUEST_TIME_FULL : GUEST_TIME) / 2;
    if (host->n_guests && look < deadline) /* for those who say nothing */
        deadline = look;
    dcp_tcp_wait(polls, (size_t)(n_slots + host->n_guests), deadline);
    for (int slot = 1; slot < n_slots; slot++) /* who has left must come again */
        if (dcp_tcp_has_gone(polls[slot].revents))
            dcp_tcp_link_close(&host->links[slot]);
}

/* "ranks 2, 3 and 5 of 8 did not come within 60 s" */
static int fail_missing(struct host *host, int n_missing)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    int n = 0, first = -1, listed = n_missing <= MAX_NAMED ? n_missing : MAX_NAMED;
    dcp_buf_add_text(&text, n_missing == 1 ? "rank " : "ranks ");
    for (int r = 1; r < host->at.world_size && n < listed; r++) {
        if (host->links[r].fd >= 0)
            continue;
        first = n ? first : r;
        const char *before = !n ? "" : n == n_missing - 1 ? " and " : ", ";
        dcp_buf_add_fmt(&text, "%s%d", before, r);
        n++;
    }
    if (n_missing > listed)
        dcp_buf_add_fmt(&text, " and %d more", n_missing - listed);
    if (dcp_buf_check(&text, &host->failure))
        return host->failure.code;
    dcp_error_set(&host->failure, DCP_E_COMM, "%s of %d did not connect within %.3g s%s",
                  (char *)text.data, host->at.world_size,
                  (double)host->start->time_ns / 1e9,
                  host->met_others ? "; a process with another secret, or of another "
                                     "job or version, was rejected"
                                   : "");
    host->failure.rank = first;
    host->failure.rank_state = DCP_RANK_SILENT;
    return host->failure.code;
}

/* The number of those that have not come by then, unless something else failed. */
static int wait_for_all(struct host *host, uint64_t deadline)
{
    for (;;) {
        int n_missing = count_missing(host);
        if (!n_missing || host->failure.code || dcp_clock_ns() >= deadline)
            return n_missing;
        wait_for_news(host, deadline);
        if (!hear_guests(host))
            accept_guests(host);
    }
}

static int close_host(struct host *host)
{
    while (host->n_guests)
        drop_guest(host, 0);
    if (host->listener >= 0)
        close(host->listener);
    free(host->polls);
    free(host->ports);
    return host->failure.code;
}

/* --- the tree to be --- */

/* The branch of a rank, by the fan-out that all have. */
static struct dcp_branch branch_of(const struct host *host, int rank)
{
    return dcp_branch_of(rank, host->at.world_size, host->start->at.fanout);
}

/* Where a rank is for rank 0. An IPv4 address is written as one. */
static bool find_address(const struct host *host, int rank, char *text, size_t size,
                         bool *out_loopback)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    char name[100]; /* of numbers */
    const char *mapped = "::ffff:";
    if (getpeername(host->links[rank].fd, (struct sockaddr *)&at, &n) ||
        getnameinfo((struct sockaddr *)&at, n, name, sizeof name, NULL, 0,
                    NI_NUMERICHOST))
        return false;
    bool is_four = dcp_str_starts(name, mapped) && strchr(name, '.');
    snprintf(text, size, "%s %u", is_four ? name + strlen(mapped) : name,
             host->ports[rank]);
    *out_loopback = is_loopback((struct sockaddr *)&at);
    return true;
}

/* Tells a rank where its parent is. False: it is nowhere, or it has an address of rank
 * 0's machine alone, and the rank is elsewhere. */
static bool place_rank(const struct host *host, int rank, char *out, size_t size)
{
    struct dcp_branch at = branch_of(host, rank);
    bool is_here, parent_is_here;
    char own[DCP_RELAY_WHY_BYTES];
    if (!at.parent)
        return snprintf(out, size, "rank 0") > 0;
    return host->ports[at.parent] &&
           find_address(host, rank, own, sizeof own, &is_here) &&
           find_address(host, at.parent, out, size, &parent_is_here) &&
           is_here == parent_is_here;
}

static bool can_be_tree(const struct host *host)
{
    char parent[DCP_RELAY_WHY_BYTES];
    bool can = host->start->at.levels > 1 && !host->failure.code;
    for (int r = 1; can && r < host->at.world_size; r++)
        can = place_rank(host, r, parent, sizeof parent);
    return can;
}

/* --- rank 0 --- */

/* All that have come are told how the start ended, and of the tree. */
static void tell(struct host *host, bool is_tree)
{
    unsigned char bytes[DCP_RELAY_HEAD_BYTES];
    struct dcp_relay_head head = dcp_relay_notice_of(&host->failure);
    struct dcp_tcp_link refused = dcp_tcp_link_init(host->refused);
    for (int r = 1; r < host->at.world_size; r++) {
        if (host->links[r].fd < 0)
            continue;
        if (is_tree && !place_rank(host, r, head.why, sizeof head.why))
            snprintf(head.why, sizeof head.why, "gone");
        dcp_relay_put_head(bytes, &head);
        dcp_tcp_begin_send(&host->links[r], bytes, NULL, 0);
        (void)dcp_tcp_send(&host->links[r]);
    }
    dcp_relay_put_head(bytes, &head);
    dcp_tcp_begin_send(&refused, bytes, NULL, 0);
    if (refused.fd >= 0)
        (void)dcp_tcp_send(&refused);
    dcp_tcp_link_close(&refused);
    for (int r = 1; host->failure.code && r < host->at.world_size; r++)
        dcp_tcp_link_close(&host->links[r]);
}

static bool host_init(struct host *host, const struct dcp_tcp_start *start,
                      struct dcp_branch at, struct dcp_tcp_link *links)
{
    *host = (struct host){
        .start = start, .at = at, .links = links, .listener = -1, .refused = -1
    };
    size_t n = (size_t)at.n_children + 1;
    host->polls = dcp_mem_calloc(n + MAX_GUESTS, sizeof *host->polls);
    host->ports = dcp_mem_calloc(n, sizeof *host->ports);
    return host->polls && host->ports;
}

int dcp_tcp_host(const struct dcp_tcp_start *start, struct dcp_tcp_link *links,
                 struct dcp_tcp_place *out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct host *host = dcp_mem_calloc(1, sizeof *host);
    int world_size = start->options->world_size;
    if (!host ||
        !host_init(host, start, dcp_branch_of(0, world_size, world_size), links)) {
        if (host)
            close_host(host);
        return dcp_error_memory(err, "the start of a TCP communicator");
    }
    if (!check_files(host) && !open_listener(host)) {
        int n_missing = wait_for_all(host, start->begin + start->time_ns);
        if (n_missing && !host->failure.code)
            fail_missing(host, n_missing);
    }
    bool is_tree = can_be_tree(host);
    tell(host, is_tree);
    *out = (struct dcp_tcp_place){ .listener = -1 };
    if (is_tree)
        place_rank(host, dcp_branch_rank(&start->at, 1), out->parent, sizeof out->parent);
    if (host->failure.code && host->failure.rank < 0)
        host->failure.rank = 0;
    dcp_tcp_hint(start, &host->failure);
    if (err && !err->code)
        *err = host->failure;
    return close_host(host);
}

/* --- the others --- */

bool dcp_tcp_await(const struct dcp_tcp_start *start, int listener, uint64_t deadline,
                   struct dcp_tcp_link *links)
{
    struct sockaddr_storage at = { 0 };
    socklen_t n = sizeof at;
    DCP_CLEANUP_FREE struct host *host = dcp_mem_calloc(1, sizeof *host);
    if (!host)
        return false;
    bool ready = host_init(host, start, start->at, links) &&
                 !getsockname(listener, (struct sockaddr *)&at, &n);
    host->listener = listener;
    host->port = dcp_tcp_port_of(&at);
    bool all = ready && !wait_for_all(host, deadline);
    host->listener = -1; /* the caller's */
    return !close_host(host) && all;
}
