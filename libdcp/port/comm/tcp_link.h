/* tcp_link: one connection between rank 0 and another rank, and what goes over it.
 *
 * First each side proves that it belongs to the job (tcp_hello.h). Then come the messages
 * of star.h. Nothing here waits but dcp_tcp_wait. */
#ifndef DCP_PORT_COMM_TCP_LINK_H
#define DCP_PORT_COMM_TCP_LINK_H

#include "star.h"
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct dcp_tcp_message {
    const unsigned char *head; /* DCP_STAR_HEAD_BYTES */
    const void *body;
    size_t body_bytes;
};

struct dcp_tcp_link {
    int fd;                /* -1: none */
    size_t sent, received; /* of the present messages; to begin one, set 0 */
    bool midway;           /* part of a message is sent */
    bool lost;
    int lost_errno; /* 0: the other side closed it, or its process ended */
    unsigned char head[DCP_STAR_HEAD_BYTES]; /* that came last */
};

struct dcp_tcp_link dcp_tcp_link_init(int fd);
void dcp_tcp_link_close(struct dcp_tcp_link *link);
/* Small messages go at once, and a host that vanished is noticed some day. */
void dcp_tcp_prepare(int fd);

/* An address with a port, for bind and connect; returns its length. */
socklen_t dcp_tcp_address(const struct addrinfo *from, int port,
                          struct sockaddr_storage *out);

/* Sends and receives as much as is possible at once. The body is received behind the
 * head, once the caller has seen from the head that it comes. */
enum dcp_star_progress dcp_tcp_send(struct dcp_tcp_link *link,
                                    const struct dcp_tcp_message *message);
enum dcp_star_progress dcp_tcp_receive_head(struct dcp_tcp_link *link);
enum dcp_star_progress dcp_tcp_receive_body(struct dcp_tcp_link *link, void *out,
                                            size_t size_bytes);

/* poll until a time of dcp_clock_ns; how many are ready, 0 too when a signal came. */
int dcp_tcp_wait(struct pollfd *polls, size_t n, uint64_t deadline);
/* What poll said: the other side has gone. */
bool dcp_tcp_has_gone(short revents);
/* The same, asked now. */
bool dcp_tcp_is_gone(int fd);

#endif
