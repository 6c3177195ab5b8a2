/* relay_round: one round of a comm. What the ranks say goes up, rank 0 decides, and its
 * answer goes down. */
#ifndef DCP_PORT_COMM_RELAY_ROUND_H
#define DCP_PORT_COMM_RELAY_ROUND_H

#include "relay_link.h"

/* The caller sets the first ones. */
struct dcp_relay_round {
    struct dcp_relay_call call;
    const unsigned char *in;
    unsigned char *out;
    unsigned char *part; /* what the subtree says, in rank order; NULL: no place for it */
    uint64_t begin, time_ns;
    struct dcp_relay_head objection; /* of the lowest rank that called another collective,
                                      * or else has no memory; code DCP_OK: none */
    bool sent, answered;             /* our message to the parent, and its answer */
    bool late, asked;                /* time is up here or below; the parent was asked */
    bool wanted;                     /* the parent asks who is missing */
    int asked_slot;                  /* the child that was asked, 0: none */
    uint64_t search_end, give_up;    /* when nobody is waited for any more; 0: not yet */
};

/* Not DCP_OK: the comm has failed, and the neighbours were told. Else, where there is an
 * objection, it is of memory, the same on all ranks, and nothing was moved. */
int dcp_relay_round(struct dcp_relay *relay, struct dcp_relay_round *round);

#endif
