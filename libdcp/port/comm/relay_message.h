/* relay_message: what goes between the ranks of relay.h: a head of 256 bytes, all its
 * numbers little-endian, then the bytes of the call, if any. */
#ifndef DCP_PORT_COMM_RELAY_MESSAGE_H
#define DCP_PORT_COMM_RELAY_MESSAGE_H

#include "branch.h"
#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_RELAY_HEAD_BYTES 256
#define DCP_RELAY_WHY_BYTES 200
#define DCP_RELAY_NUMBER_BYTES sizeof(uint64_t) /* of a rank, in LEAST */

enum dcp_relay_kind {
    DCP_RELAY_ALLGATHER,
    DCP_RELAY_BCAST,
    DCP_RELAY_GATHER,
    DCP_RELAY_LEAST,
    DCP_RELAY_NOTICE, /* the comm has failed: why, and by whom */
    DCP_RELAY_ASK,    /* time is up: who is missing? */
};

/* Both sides of a message must be in the same one. */
struct dcp_relay_call {
    uint64_t round, kind, root, size_bytes;
};

struct dcp_relay_head {
    struct dcp_relay_call call;
    int code;                      /* DCP_OK: the bytes of the call follow */
    int rank, rank_state;          /* of whom the sentence speaks, as in dcp_error */
    char why[DCP_RELAY_WHY_BYTES]; /* the sentence */
};

void dcp_relay_put_head(unsigned char out[DCP_RELAY_HEAD_BYTES],
                        const struct dcp_relay_head *head);
struct dcp_relay_head dcp_relay_get_head(const unsigned char in[DCP_RELAY_HEAD_BYTES]);
/* The notice of a failure. */
struct dcp_relay_head dcp_relay_notice_of(const struct dcp_error *failure);

bool dcp_relay_same_call(const struct dcp_relay_call *a, const struct dcp_relay_call *b);
/* Bytes that come up from a child or, with slot 0, go up to the parent. */
size_t dcp_relay_up_bytes(const struct dcp_branch *at, const struct dcp_relay_call *call,
                          int slot);
/* What rank 0 answers. */
size_t dcp_relay_answer_bytes(const struct dcp_branch *at,
                              const struct dcp_relay_call *call);
/* Of that, what goes down to a child or, with slot 0, comes from the parent. */
size_t dcp_relay_down_bytes(const struct dcp_branch *at,
                            const struct dcp_relay_call *call, int slot);

#endif
