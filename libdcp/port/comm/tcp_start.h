/* tcp_start: how the ranks of a TCP communicator find each other.
 *
 * Rank 0 listens, and challenges whoever connects. The others knock at every port where
 * rank 0 may be, answer, and enter where the answer to that proves that it is rank 0 of
 * their job. When all have, rank 0 tells them, and with it, where the tree has more than
 * one level, where their parents are; when the start fails, it tells them why. Whoever
 * says anything else, or cannot prove it, is dropped.
 *
 * Ranks that will have children listen before they knock, at the address by which they
 * reach rank 0 and a port that the kernel chooses, and say which. Their children then
 * join them in the same way. */
#ifndef DCP_PORT_COMM_TCP_START_H
#define DCP_PORT_COMM_TCP_START_H

#include "tcp_hello.h"
#include "tcp_link.h"

#define DCP_TCP_N_PORTS 16 /* behind MASTER_PORT */

struct dcp_tcp_start {
    const struct dcp_comm_tcp_options *options;
    int first_port, last_port;
    uint64_t begin, time_ns;
    struct dcp_tcp_key key; /* of the job */
    struct dcp_branch at;   /* in the tree to be */
};

/* What a rank knows of the tree when all ranks have found rank 0. */
struct dcp_tcp_place {
    int listener;                     /* for its children, -1: none */
    char parent[DCP_RELAY_WHY_BYTES]; /* "ADDRESS PORT"; "": there will be no tree */
};

/* Rank 0: fills links[1] to links[world_size - 1]. Errors: COMM, USAGE (ranks that were
 * started in contradiction), MEMORY. */
int dcp_tcp_host(const struct dcp_tcp_start *start, struct dcp_tcp_link *links,
                 struct dcp_tcp_place *out, struct dcp_error *err);
/* Any other rank: fills the link to rank 0. Errors: COMM, USAGE, MEMORY. */
int dcp_tcp_visit(const struct dcp_tcp_start *start, struct dcp_tcp_link *link,
                  struct dcp_tcp_place *out, struct dcp_error *err);

/* The link to the parent. False: there is none by then. */
bool dcp_tcp_join(const struct dcp_tcp_start *start, const char *parent,
                  uint64_t deadline, struct dcp_tcp_link *link);
/* The links to the children, by slot. False: they have not all come by then. */
bool dcp_tcp_await(const struct dcp_tcp_start *start, int listener, uint64_t deadline,
                   struct dcp_tcp_link *links);

/* The next act after a start that failed. */
void dcp_tcp_hint(const struct dcp_tcp_start *start, struct dcp_error *err);

#endif
