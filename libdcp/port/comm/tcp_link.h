/* tcp_link: one connection between two ranks, and what goes over it.
 *
 * First each side proves that it belongs to the job (tcp_hello.h). Then come the messages
 * of relay_message.h. Nothing here waits but dcp_tcp_wait. */
#ifndef DCP_PORT_COMM_TCP_LINK_H
#define DCP_PORT_COMM_TCP_LINK_H

#include "relay_link.h"
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct dcp_tcp_link {
    int fd;                /* -1: none */
    size_t sent, received; /* of the present messages; to receive the next, set 0 */
    bool midway;           /* part of a message is sent */
    bool lost;             /* nothing can be sent; what came before may still be read */
    bool ended;            /* nor is there any more of that */
    int lost_errno;        /* 0: the other side closed it, or its process ended */
    unsigned char head[DCP_RELAY_HEAD_BYTES];     /* that came last */
    unsigned char head_out[DCP_RELAY_HEAD_BYTES]; /* of what is sent */
    const unsigned char *body;                    /* of the same; borrowed */
    size_t body_bytes;
};

struct dcp_tcp_link dcp_tcp_link_init(int fd);
void dcp_tcp_link_close(struct dcp_tcp_link *link);
/* Small messages go at once, and a host that vanished is noticed some day. */
void dcp_tcp_prepare(int fd);

/* An address with a port, for bind and connect; returns its length. */
socklen_t dcp_tcp_address(const struct addrinfo *from, int port,
                          struct sockaddr_storage *out);

int dcp_tcp_port_of(const struct sockaddr_storage *at);
void dcp_tcp_set_port(struct sockaddr_storage *at, int port);

/* A listening socket, or -1 with errno. */
int dcp_tcp_listen(const struct sockaddr_storage *at, socklen_t size);

/* In the middle of the message before, the link is lost. */
void dcp_tcp_begin_send(struct dcp_tcp_link *link,
                        const unsigned char head[DCP_RELAY_HEAD_BYTES], const void *body,
                        size_t size_bytes);
/* Sends and receives as much as is possible at once. The body is received behind the
 * head, once the caller has seen from the head that it comes; out NULL: it is thrown
 * away. */
enum dcp_relay_progress dcp_tcp_send(struct dcp_tcp_link *link);
enum dcp_relay_progress dcp_tcp_receive_head(struct dcp_tcp_link *link);
enum dcp_relay_progress dcp_tcp_receive_body(struct dcp_tcp_link *link, void *out,
                                             size_t size_bytes);

/* poll until a time of dcp_clock_ns; how many are ready, 0 too when a signal came. */
int dcp_tcp_wait(struct pollfd *polls, size_t n, uint64_t deadline);
/* What poll said: the other side has gone. */
bool dcp_tcp_has_gone(short revents);
/* The same, asked now. */
bool dcp_tcp_is_gone(int fd);

#endif
