/* tcp_star: the rounds of a comm over TCP, once its ranks are connected. Rank 0 is in the
 * middle. */
#ifndef DCP_PORT_COMM_TCP_STAR_H
#define DCP_PORT_COMM_TCP_STAR_H

#include "tcp_link.h"

enum dcp_tcp_kind { DCP_TCP_ALLGATHER, DCP_TCP_BCAST };

struct dcp_tcp_star {
    int rank, world;
    uint64_t round;             /* how many were begun */
    int n_links;                /* rank 0: one for each rank; others: one */
    struct dcp_tcp_link *links; /* rank 0's own is none */
    struct pollfd *polls;       /* as many */
    struct dcp_error failure;   /* the first; from then on every round fails so */
};

/* One round of the kind, root and size of `call`. Errors: as in dcp_comm_ops, without
 * MEMORY; USAGE (no such root, a size that no memory has). */
int dcp_tcp_star_run(struct dcp_tcp_star *star, const struct dcp_tcp_call *call,
                     const void *in, void *out, int timeout_ms, struct dcp_error *err);
/* The lowest rank that is known to be dead, or -1. */
int dcp_tcp_star_dead(struct dcp_tcp_star *star);

#endif
