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

socklen_t dcp_tcp_address(const struct addrinfo *from, int port,
                          struct sockaddr_storage *out)
{
    *out = (struct sockaddr_storage){ 0 };
    memcpy(out, from->ai_addr, from->ai_addrlen);
    if (from->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)out)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)out)->sin_port = htons((uint16_t)port);
    return from->ai_addrlen;
}

/* What a call that moved nothing means; the first reason is the one to tell. */
static enum dcp_star_progress stopped(struct dcp_tcp_link *link, ssize_t n)
{
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return DCP_STAR_MORE;
    if (!link->lost && n < 0 && errno != EPIPE && errno != ECONNRESET)
        link->lost_errno = errno;
    link->lost = true;
    return DCP_STAR_LOST;
}

enum dcp_star_progress dcp_tcp_send(struct dcp_tcp_link *link,
                                    const struct dcp_tcp_message *message)
{
    size_t total = DCP_STAR_HEAD_BYTES + message->body_bytes;
    while (link->sent < total) {
        size_t head = link->sent < DCP_STAR_HEAD_BYTES ? link->sent : DCP_STAR_HEAD_BYTES;
        size_t body = link->sent - head;
        struct iovec parts[2] = {
            { (void *)(message->head + head), DCP_STAR_HEAD_BYTES - head },
            { (void *)message->body, 0 },
        };
        if (message->body_bytes) {
            parts[1].iov_base = (unsigned char *)message->body + body;
            parts[1].iov_len = message->body_bytes - body;
        }
        struct msghdr all = { .msg_iov = parts, .msg_iovlen = 2 };
        ssize_t n = sendmsg(link->fd, &all, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0)
            return stopped(link, n);
        link->sent += (size_t)n;
        link->midway = link->sent < total;
    }
    return DCP_STAR_DONE;
}

/* Receives into out what of the message lies between two offsets. */
static enum dcp_star_progress receive(struct dcp_tcp_link *link, unsigned char *out,
                                      size_t begin, size_t end)
{
    while (link->received < end) {
        ssize_t n = recv(link->fd, out + (link->received - begin), end - link->received,
                         MSG_DONTWAIT);
        if (n <= 0)
            return stopped(link, n);
        link->received += (size_t)n;
    }
    return DCP_STAR_DONE;
}

enum dcp_star_progress dcp_tcp_receive_head(struct dcp_tcp_link *link)
{
    return receive(link, link->head, 0, DCP_STAR_HEAD_BYTES);
}

enum dcp_star_progress dcp_tcp_receive_body(struct dcp_tcp_link *link, void *out,
                                            size_t size_bytes)
{
    return receive(link, out, DCP_STAR_HEAD_BYTES, DCP_STAR_HEAD_BYTES + size_bytes);
}

/* --- waiting --- */

int dcp_tcp_wait(struct pollfd *polls, size_t n, uint64_t deadline)
{
    uint64_t now = dcp_clock_ns();
    uint64_t ms = deadline > now ? (deadline - now + DCP_STAR_MS - 1) / DCP_STAR_MS : 0;
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
