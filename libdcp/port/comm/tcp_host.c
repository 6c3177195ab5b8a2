/* Rank 0's half of the start. */
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
#include <sys/socket.h>
#include <unistd.h>

/* Who has connected and not yet answered: a rank does so at once, a stranger may never.
 */
#define MAX_GUESTS 64
#define GUEST_TIME (3000 * DCP_STAR_MS)
#define GUEST_TIME_FULL (250 * DCP_STAR_MS) /* when others wait at the door */
#define MAX_NAMED 8                         /* missing ranks that the sentence lists */

struct guest {
    int fd;
    uint64_t came;
    size_t got; /* of its answer */
    struct dcp_tcp_talk talk;
};

struct host {
    const struct dcp_tcp_start *start;
    struct dcp_tcp_link *links; /* of the ranks that have come */
    int world_size, listener, port;
    struct guest guests[MAX_GUESTS];
    int n_guests;
    struct pollfd *polls; /* listener, ranks from 1 on, guests */
    bool met_others;      /* ranks of another job, secret or version */
    int refused;          /* a rank that may not come, to be told why; -1: none */
    struct dcp_error failure;
};

/* --- listening --- */

static int listen_at(const struct addrinfo *address, int port)
{
    struct sockaddr_storage at;
    socklen_t n = dcp_tcp_address(address, port, &at);
    int on = 1, off = 0;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ai_family == AF_INET6) /* the wildcard is both kinds at once */
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind(fd, (struct sockaddr *)&at, n) && !listen(fd, SOMAXCONN))
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

/* Is it an address of this machine alone? */
static bool is_loopback(const struct addrinfo *address)
{
    const struct sockaddr_in6 *six = (const void *)address->ai_addr;
    const struct sockaddr_in *four = (const void *)address->ai_addr;
    return address->ai_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&six->sin6_addr)
                                          : ntohl(four->sin_addr.s_addr) >> 24 == 127;
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
            if (!loopback_too && is_loopback(a))
                continue;
            int fd = listen_at(a, port);
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

/* Rank 0 speaks first, so that a rank may knock at many doors and choose one. */
static int accept_guests(struct host *host)
{
    while (host->n_guests < MAX_GUESTS) {
        struct guest guest = { .came = dcp_clock_ns(), .talk.port = host->port };
        guest.fd = accept4(host->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (guest.fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
            return dcp_error_sys(&host->failure, DCP_E_COMM, errno,
                                 "rank 0 cannot take a connection");
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

/* Whoever proved that it knows the secret is proved to that rank 0 does. */
static bool prove(const struct host *host, const struct guest *guest)
{
    unsigned char proof[DCP_TCP_PROOF_BYTES];
    return dcp_tcp_put_proof(&guest->talk, &host->start->key, proof) &&
           send(guest->fd, proof, sizeof proof, MSG_NOSIGNAL) == sizeof proof;
}

/* A guest that has answered is a rank, a stranger, or a mistake of whoever started us. */
static int judge_guest(struct host *host, int i)
{
    uint32_t world_size, said;
    bool knows = dcp_tcp_check_answer(&host->guests[i].talk, &host->start->key,
                                      &world_size, &said);
    host->met_others |= !knows;
    if (!knows || said < 1 || said > INT32_MAX || !prove(host, &host->guests[i])) {
        drop_guest(host, i);
        return DCP_OK;
    }
    int rank = (int)said;
    if (world_size != (uint32_t)host->world_size)
        dcp_error_set(&host->failure, DCP_E_USAGE,
                      "rank %d was started as one of %u ranks, rank 0 as one of %d", rank,
                      world_size, host->world_size);
    else if (rank >= host->world_size)
        dcp_error_set(&host->failure, DCP_E_USAGE,
                      "rank %d is out of range: the world size is %d", rank,
                      host->world_size);
    else if (host->links[rank].fd >= 0 && !dcp_tcp_is_gone(host->links[rank].fd))
        dcp_error_set(&host->failure, DCP_E_USAGE,
                      "two processes of this job were started as rank %d", rank);
    if (host->failure.code)
        return refuse(host, i, rank);
    dcp_tcp_link_close(&host->links[rank]);
    host->links[rank] = dcp_tcp_link_init(host->guests[i].fd);
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
    for (int r = 1; r < host->world_size; r++)
        n += host->links[r].fd < 0;
    return n;
}

static void wait_for_news(struct host *host, uint64_t deadline)
{
    struct pollfd *polls = host->polls;
    bool full = host->n_guests == MAX_GUESTS;
    polls[0] = (struct pollfd){ .fd = full ? -1 : host->listener, .events = POLLIN };
    for (int r = 1; r < host->world_size; r++)
        polls[r] = (struct pollfd){ .fd = host->links[r].fd, .events = POLLRDHUP };
    for (int i = 0; i < host->n_guests; i++)
        polls[host->world_size + i] =
            (struct pollfd){ .fd = host->guests[i].fd, .events = POLLIN };
    uint64_t look = dcp_clock_ns() + (full ? GUEST_TIME_FULL : GUEST_TIME) / 2;
    if (host->n_guests && look < deadline) /* for those who say nothing */
        deadline = look;
    dcp_tcp_wait(polls, (size_t)(host->world_size + host->n_guests), deadline);
    for (int r = 1; r < host->world_size; r++) /* who has left again must come again */
        if (dcp_tcp_has_gone(polls[r].revents))
            dcp_tcp_link_close(&host->links[r]);
}

/* "ranks 2, 3 and 5 of 8 did not come within 60 s" */
static int fail_missing(struct host *host, int n_missing)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    int n = 0, first = -1, listed = n_missing <= MAX_NAMED ? n_missing : MAX_NAMED;
    dcp_buf_add_text(&text, n_missing == 1 ? "rank " : "ranks ");
    for (int r = 1; r < host->world_size && n < listed; r++) {
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
                  (char *)text.data, host->world_size, (double)host->start->time_ns / 1e9,
                  host->met_others ? "; a process with another secret, or of another "
                                     "job or version, was rejected"
                                   : "");
    host->failure.rank = first;
    host->failure.rank_state = DCP_RANK_SILENT;
    return host->failure.code;
}

static int wait_for_all(struct host *host)
{
    uint64_t deadline = host->start->begin + host->start->time_ns;
    for (;;) {
        int n_missing = count_missing(host);
        if (!n_missing)
            return DCP_OK;
        if (dcp_clock_ns() >= deadline)
            return fail_missing(host, n_missing);
        wait_for_news(host, deadline);
        if (hear_guests(host) || accept_guests(host))
            return host->failure.code;
    }
}

/* All that have come are told how the start ended. */
static void tell(struct host *host)
{
    unsigned char bytes[DCP_STAR_HEAD_BYTES];
    struct dcp_star_head head = dcp_star_head_of(&host->failure);
    struct dcp_tcp_message message = { bytes, NULL, 0 };
    struct dcp_tcp_link refused = dcp_tcp_link_init(host->refused);
    dcp_star_put_head(bytes, &head);
    for (int r = 1; r < host->world_size; r++)
        if (host->links[r].fd >= 0)
            (void)dcp_tcp_send(&host->links[r], &message);
    if (refused.fd >= 0)
        (void)dcp_tcp_send(&refused, &message);
    dcp_tcp_link_close(&refused);
    for (int r = 1; host->failure.code && r < host->world_size; r++)
        dcp_tcp_link_close(&host->links[r]);
}

int dcp_tcp_host(const struct dcp_tcp_start *start, struct dcp_tcp_link *links,
                 struct dcp_error *err)
{
    int world_size = start->options->world_size;
    DCP_CLEANUP_FREE struct host *host = dcp_mem_calloc(1, sizeof *host);
    DCP_CLEANUP_FREE struct pollfd *polls =
        dcp_mem_calloc((size_t)world_size + MAX_GUESTS, sizeof *polls);
    if (!host || !polls)
        return dcp_error_memory(err, "the start of a TCP communicator");
    *host = (struct host){ .start = start,
                           .links = links,
                           .world_size = world_size,
                           .listener = -1,
                           .polls = polls,
                           .refused = -1 };
    if (!open_listener(host))
        wait_for_all(host);
    tell(host);
    while (host->n_guests)
        drop_guest(host, 0);
    if (host->listener >= 0)
        close(host->listener);
    if (host->failure.code && host->failure.rank < 0)
        host->failure.rank = 0;
    dcp_tcp_hint(start, &host->failure);
    if (err && !err->code)
        *err = host->failure;
    return host->failure.code;
}
