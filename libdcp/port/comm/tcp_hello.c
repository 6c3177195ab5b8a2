#include "tcp_hello.h"

#include "base/buf.h"
#include "base/bytes.h"
#include <string.h>

/* Not text, so that no server of anything else begins with it. */
#define MAGIC \
    "\x89"    \
    "dcpTCP\n"
#define MAGIC_BYTES 8
#define NONCE_BYTES 16
#define ANSWERED_BYTES (DCP_TCP_ANSWER_BYTES - DCP_TCP_PROOF_BYTES)
#define WHO_BYTES 8

int dcp_tcp_key_of(const struct dcp_comm_tcp_options *options, struct dcp_tcp_key *out,
                   struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf job = { 0 };
    const char *secret = options->secret ? options->secret : "";
    /* Jobs without a name are told apart by their port. */
    dcp_buf_add_fmt(&job, "libdcp job %d %s", options->port,
                    options->job ? options->job : "");
    if (job.failed ||
        !dcp_sha256_hmac(secret, strlen(secret), job.data, job.size_bytes, out->bytes))
        return dcp_error_memory(err, "the key of a job");
    return DCP_OK;
}

static void put_version(unsigned char *out)
{
    memcpy(out, MAGIC, MAGIC_BYTES);
    dcp_put_le32(out + MAGIC_BYTES, DCP_TCP_VERSION);
}

enum dcp_tcp_speech dcp_tcp_recognise(const unsigned char *in)
{
    if (memcmp(in, MAGIC, MAGIC_BYTES) != 0)
        return DCP_TCP_STRANGE;
    return dcp_le32(in + MAGIC_BYTES) == DCP_TCP_VERSION ? DCP_TCP_OURS
                                                         : DCP_TCP_OTHER_VERSION;
}

static bool prove(const struct dcp_tcp_talk *talk, const struct dcp_tcp_key *key,
                  const char who[WHO_BYTES], unsigned char out[DCP_TCP_PROOF_BYTES])
{
    unsigned char said[WHO_BYTES + 4 + DCP_TCP_CHALLENGE_BYTES + ANSWERED_BYTES];
    unsigned char *at = said + WHO_BYTES + 4;
    memcpy(said, who, WHO_BYTES);
    dcp_put_le32(said + WHO_BYTES, (uint32_t)talk->port);
    memcpy(at, talk->challenge, DCP_TCP_CHALLENGE_BYTES);
    memcpy(at + DCP_TCP_CHALLENGE_BYTES, talk->answer, ANSWERED_BYTES);
    return dcp_sha256_hmac(key->bytes, sizeof key->bytes, said, sizeof said, out);
}

static bool prove_guest(const struct dcp_tcp_talk *talk, const struct dcp_tcp_key *key,
                        unsigned char out[DCP_TCP_PROOF_BYTES])
{
    return prove(talk, key, "a rank\0", out);
}

int dcp_tcp_put_challenge(struct dcp_tcp_talk *talk, struct dcp_error *err)
{
    put_version(talk->challenge);
    dcp_put_le32(talk->challenge + DCP_TCP_VERSION_BYTES, 0);
    return dcp_random(talk->challenge + DCP_TCP_VERSION_BYTES + 4, NONCE_BYTES, err);
}

int dcp_tcp_put_answer(struct dcp_tcp_talk *talk, const struct dcp_tcp_key *key,
                       const struct dcp_tcp_claim *claim, struct dcp_error *err)
{
    unsigned char *at = talk->answer + DCP_TCP_VERSION_BYTES;
    put_version(talk->answer);
    dcp_put_le32(at, claim->world_size);
    dcp_put_le32(at + 4, claim->rank);
    dcp_put_le32(at + 8, claim->port);
    int rc = dcp_random(at + 12, NONCE_BYTES, err);
    if (!rc && !prove_guest(talk, key, talk->answer + ANSWERED_BYTES))
        rc = dcp_error_memory(err, "a proof");
    return rc;
}

bool dcp_tcp_check_answer(const struct dcp_tcp_talk *talk, const struct dcp_tcp_key *key,
                          struct dcp_tcp_claim *out)
{
    unsigned char proof[DCP_TCP_PROOF_BYTES];
    const unsigned char *at = talk->answer + DCP_TCP_VERSION_BYTES;
    *out = (struct dcp_tcp_claim){ dcp_le32(at), dcp_le32(at + 4), dcp_le32(at + 8) };
    return prove_guest(talk, key, proof) &&
           dcp_sha256_equal(proof, talk->answer + ANSWERED_BYTES);
}

bool dcp_tcp_put_proof(const struct dcp_tcp_talk *talk, const struct dcp_tcp_key *key,
                       unsigned char out[DCP_TCP_PROOF_BYTES])
{
    return prove(talk, key, "a host\0", out);
}

bool dcp_tcp_check_proof(const struct dcp_tcp_talk *talk, const struct dcp_tcp_key *key,
                         const unsigned char in[DCP_TCP_PROOF_BYTES])
{
    unsigned char proof[DCP_TCP_PROOF_BYTES];
    return dcp_tcp_put_proof(talk, key, proof) && dcp_sha256_equal(proof, in);
}
