/* tcp_hello: how two ranks prove to each other that they belong to one job, before they
 * say anything else. The host is rank 0, or a rank that its children connect to.
 *
 *   host    challenge   magic, version, 0, nonce                              32 bytes
 *   guest   answer      magic, version, world size, rank, port, nonce, proof  72 bytes
 *   host    proof                                                             32 bytes
 *
 * A proof is the HMAC-SHA256 of who speaks, of the port where the host listens and of all
 * that was said, under a key of the job. So what one side said proves nothing when it is
 * sent back, said again, or said at another port; and nothing that is sent tells the
 * secret or the job. Whoever has no secret knows the key by the job's name. The first 12
 * bytes are the same in every version. All numbers are little-endian. */
#ifndef DCP_PORT_COMM_TCP_HELLO_H
#define DCP_PORT_COMM_TCP_HELLO_H

#include "base/sha256.h"
#include <dcp/comm.h>
#include <stdint.h>

#define DCP_TCP_VERSION 3
#define DCP_TCP_VERSION_BYTES 12 /* magic and version, of whatever is said */
#define DCP_TCP_CHALLENGE_BYTES 32
#define DCP_TCP_ANSWER_BYTES 72
#define DCP_TCP_PROOF_BYTES DCP_SHA256_BYTES

struct dcp_tcp_key {
    unsigned char bytes[DCP_SHA256_BYTES];
};

/* What a guest says of itself. */
struct dcp_tcp_claim {
    uint32_t world_size, rank;
    uint32_t port; /* where its own children are to connect to, 0: nowhere */
};

/* What is said at one port. */
struct dcp_tcp_talk {
    int port;
    unsigned char challenge[DCP_TCP_CHALLENGE_BYTES];
    unsigned char answer[DCP_TCP_ANSWER_BYTES];
};

enum dcp_tcp_speech { DCP_TCP_OURS, DCP_TCP_OTHER_VERSION, DCP_TCP_STRANGE };

/* Errors: MEMORY. */
int dcp_tcp_key_of(const struct dcp_comm_tcp_options *options, struct dcp_tcp_key *out,
                   struct dcp_error *err);
/* What the first DCP_TCP_VERSION_BYTES of a challenge or an answer are. */
enum dcp_tcp_speech dcp_tcp_recognise(const unsigned char *in);
/* Errors: IO. */
int dcp_tcp_put_challenge(struct dcp_tcp_talk *talk, struct dcp_error *err);
/* The guest's answer to the challenge. Errors: IO, MEMORY. */
int dcp_tcp_put_answer(struct dcp_tcp_talk *talk, const struct dcp_tcp_key *key,
                       const struct dcp_tcp_claim *claim, struct dcp_error *err);
/* False: it is not of this job. */
bool dcp_tcp_check_answer(const struct dcp_tcp_talk *talk, const struct dcp_tcp_key *key,
                          struct dcp_tcp_claim *out);
/* The host's own, once it has checked the answer. False: out of memory. */
bool dcp_tcp_put_proof(const struct dcp_tcp_talk *talk, const struct dcp_tcp_key *key,
                       unsigned char out[DCP_TCP_PROOF_BYTES]);
bool dcp_tcp_check_proof(const struct dcp_tcp_talk *talk, const struct dcp_tcp_key *key,
                         const unsigned char in[DCP_TCP_PROOF_BYTES]);

#endif
