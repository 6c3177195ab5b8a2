#include "tcp_link.h"

#include "base/clock.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A connection may be idle for long between two saves. */
#define KEEPALIVE_IDLE_S 60
#define KEEPALIVE_EVERY_S 20
#define KEEPALIVE_TRIES 6

/* --- the connection --- */

struct dcp_tcp_link dcp_tcp_link_init(int fd)
{
    return (struct dcp_tcp_link){ .fd = fd };
}

void dcp_tcp_link_close(struct dcp_tcp_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    *link = dcp_tcp_link_init(-1);
}

void dcp_tcp_prepare(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        { IPPROTO_TCP, TCP_NODELAY, 1 },
        { SOL_SOCKET, SO_KEEPALIVE, 1 },
        { IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S },
        { IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EVERY_S },
        { IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_TRIES },
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) /* works without, too */
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof options[i].value);
}

void dcp_tcp_set_port(struct sockaddr_storage *at, int port)
{
    if (at->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)at)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)at)->sin_port = htons((uint16_t)port);
}

int dcp_tcp_port_of(const struct sockaddr_storage *at)
{
    return ntohs(at->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)at)->sin6_port
                                           : ((const struct sockaddr_in *)at)->sin_port);
}

socklen_t dcp_tcp_address(const struct addrinfo *from, int port,
                          struct sockaddr_storage *out)
{
    *out = (struct sockaddr_storage){ 0 };
    memcpy(out, from->ai_addr, from->ai_addrlen);
    dcp_tcp_set_port(out, port);
    return from->ai_addrlen;
}

int dcp_tcp_listen(const struct sockaddr_storage *at, socklen_t size)
{
    int on = 1, off = 0;
    int fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (at->ss_family == AF_INET6) /* the wildcard is both kinds at once */
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind(fd, (const struct sockaddr *)at, size) && !listen(fd, SOMAXCONN))
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

/* What a call that moved nothing means; the first reason is the one to tell. */
static enum dcp_relay_progress stopped(struct dcp_tcp_link *link, ssize_t n)
{
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return DCP_RELAY_MORE;
    if (!link->lost && n < 0 && errno != EPIPE && errno != ECONNRESET)
        link->lost_errno = errno;
    link->lost = true;
    return DCP_RELAY_LOST;
}

void dcp_tcp_begin_send(struct dcp_tcp_link *link,
                        const unsigned char head[DCP_RELAY_HEAD_BYTES], const void *body,
                        size_t size_bytes)
{
    memcpy(link->head_out, head, DCP_RELAY_HEAD_BYTES);
    link->body = body;
    link->body_bytes = size_bytes;
    link->sent = 0;
    link->lost = link->lost || link->midway;
}

enum dcp_relay_progress dcp_tcp_send(struct dcp_tcp_link *link)
{
    size_t total = DCP_RELAY_HEAD_BYTES + link->body_bytes;
    if (link->lost)
        return DCP_RELAY_LOST;
    while (link->sent < total) {
        size_t head =
            link->sent < DCP_RELAY_HEAD_BYTES ? link->sent : DCP_RELAY_HEAD_BYTES;
        size_t body = link->sent - head;
        struct iovec parts[2] = {
            { link->head_out + head, DCP_RELAY_HEAD_BYTES - head },
            { NULL, 0 },
        };
        if (link->body_bytes) {
            parts[1].iov_base = (unsigned char *)link->body + body;
            parts[1].iov_len = link->body_bytes - body;
        }
        struct msghdr all = { .msg_iov = parts, .msg_iovlen = 2 };
        ssize_t n = sendmsg(link->fd, &all, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0)
            return stopped(link, n);
        link->sent += (size_t)n;
        link->midway = link->sent < total;
    }
    return DCP_RELAY_DONE;
}

/* Receives into out what of the message lies between two offsets; NULL throws it away. */
static enum dcp_relay_progress receive(struct dcp_tcp_link *link, unsigned char *out,
                                       size_t begin, size_t end)
{
    unsigned char unwanted[8192];
    while (link->received < end) {
        unsigned char *to = out ? out + (link->received - begin) : unwanted;
        size_t most = end - link->received;
        if (!out && most > sizeof unwanted)
            most = sizeof unwanted;
        ssize_t n = recv(link->fd, to, most, MSG_DONTWAIT);
        if (n <= 0) {
            enum dcp_relay_progress progress = stopped(link, n);
            link->ended = progress == DCP_RELAY_LOST;
            return progress;
        }
        link->received += (size_t)n;
    }
    return DCP_RELAY_DONE;
}

enum dcp_relay_progress dcp_tcp_receive_head(struct dcp_tcp_link *link)
{
    return receive(link, link->head, 0, DCP_RELAY_HEAD_BYTES);
}

enum dcp_relay_progress dcp_tcp_receive_body(struct dcp_tcp_link *link, void *out,
                                             size_t size_bytes)
{
    return receive(link, out, DCP_RELAY_HEAD_BYTES, DCP_RELAY_HEAD_BYTES + size_bytes);
}

/* --- waiting --- */

int dcp_tcp_wait(struct pollfd *polls, size_t n, uint64_t deadline)
{
    uint64_t now = dcp_clock_ns();
    uint64_t ms = deadline > now ? (deadline - now + DCP_RELAY_MS - 1) / DCP_RELAY_MS : 0;
    int ready = poll(polls, n, ms > INT32_MAX ? INT32_MAX : (int)ms);
    for (size_t i = 0; ready < 0 && i < n; i++)
        polls[i].revents = 0;
    return ready < 0 ? 0 : ready;
}

bool dcp_tcp_has_gone(short revents)
{
    return (revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

bool dcp_tcp_is_gone(int fd)
{
    struct pollfd one = { .fd = fd, .events = POLLRDHUP };
    return fd >= 0 && poll(&one, 1, 0) > 0 && dcp_tcp_has_gone(one.revents);
}
