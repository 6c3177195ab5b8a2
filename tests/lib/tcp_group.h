/* tcp_group: ports that no other test uses, and ranks of dcp_comm_tcp as threads or
 * processes. */
#ifndef TESTS_LIB_TCP_GROUP_H
#define TESTS_LIB_TCP_GROUP_H

#include <dcp/comm.h>
#include <stdbool.h>
#include <sys/types.h>

/* A port with someone behind it, as torchrun is behind MASTER_PORT; returns the socket.
 * No other test gets the same port as long as it is open. */
int tcp_group_agent(int *out_port);
/* A connection to the first port behind `port` at which something listens; waits for one.
 */
int tcp_group_connect(int port);
/* A connection to a port of 127.0.0.1, or -1. */
int tcp_group_connect_to(int port);
/* Listens at a port of 127.0.0.1; -1: it is taken. */
int tcp_group_listen(int port);

/* A stranger's half of the start: takes the challenge of rank 0 and answers as the
 * options say. Returns whether rank 0 then proved that it is of the same job. */
bool tcp_group_answer(int fd, const struct dcp_comm_tcp_options *options);

/* The start of one rank, and how it ended. */
struct tcp_rank {
    struct dcp_comm_tcp_options options;
    int fanout; /* the largest; 0: as always */
    int rc;
    struct dcp_comm comm;
    struct dcp_error err;
};

/* Fills the options of `n` ranks: 127.0.0.1, 30 s. */
void tcp_group_fill(struct tcp_rank *ranks, int n, int port, const char *job);
/* Starts ranks on threads, and returns when every start has ended. */
void tcp_group_start(struct tcp_rank *ranks, int n);

/* A rank as a process of its own, which ends with what run returns; 99: its start failed.
 */
pid_t tcp_group_fork(const struct tcp_rank *rank, int (*run)(struct dcp_comm *comm));
/* The exit status of a process, or minus the signal that ended it. */
int tcp_group_wait(pid_t pid);

#endif
