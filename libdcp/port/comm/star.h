/* star: the rounds of a comm in which every rank has a link to rank 0, and to no other.
 *
 * In a round each rank sends to rank 0, which answers all. Rank 0 waits for three
 * quarters of the time-out and then tells the others who is missing; they wait for all of
 * it, and when no answer came, rank 0 is the one to name. What a rank sent before it died
 * is read before its death is, so nobody waits for more.
 *
 * A message is a head of 256 bytes, all its numbers little-endian, then the bytes of the
 * call, if any. It uses nothing hidden of libdcp: a link may be a library of its own. */
#ifndef DCP_PORT_COMM_STAR_H
#define DCP_PORT_COMM_STAR_H

#include <dcp/comm.h>
#include <stdbool.h>
#include <stdint.h>

#define DCP_STAR_MS UINT64_C(1000000) /* in nanoseconds */
#define DCP_STAR_HEAD_BYTES 256
#define DCP_STAR_WHY_BYTES 200

/* Both sides of a message must be in the same one. */
struct dcp_star_call {
    uint64_t round, kind, root, size_bytes;
};

struct dcp_star_head {
    struct dcp_star_call call;
    int code;                     /* DCP_OK: the bytes of the call follow */
    int rank, rank_state;         /* of whom the sentence speaks, as in dcp_error */
    char why[DCP_STAR_WHY_BYTES]; /* the sentence */
};

void dcp_star_put_head(unsigned char out[DCP_STAR_HEAD_BYTES],
                       const struct dcp_star_head *head);
struct dcp_star_head dcp_star_get_head(const unsigned char in[DCP_STAR_HEAD_BYTES]);
/* The head that tells others of a failure. */
struct dcp_star_head dcp_star_head_of(const struct dcp_error *failure);

enum dcp_star_progress { DCP_STAR_MORE, DCP_STAR_DONE, DCP_STAR_LOST };

/* How bytes go: rank 0 has a link to every rank, the others have one to rank 0. self is
 * what begins with the star. Nothing but `wait` waits; what said MORE is called again
 * with the same arguments. */
struct dcp_star_link {
    /* Optional: memory for the bodies of a round; false: there is none. */
    bool (*reserve)(void *self, size_t send_bytes, size_t receive_bytes);
    /* What is sent from now on, to each rank so much of the body as `send` says, which is
     * borrowed meanwhile. In the middle of the message before, a link is lost. */
    void (*begin_send)(void *self, const unsigned char head[DCP_STAR_HEAD_BYTES],
                       const void *body, size_t size_bytes);
    enum dcp_star_progress (*send)(void *self, int rank, size_t size_bytes);
    /* The next message of each rank; its body is received behind its head, once the
     * caller has seen from that that it comes. */
    void (*begin_receive)(void *self);
    enum dcp_star_progress (*receive_head)(void *self, int rank,
                                           const unsigned char **out_head);
    enum dcp_star_progress (*receive_body)(void *self, int rank, void *out,
                                           size_t size_bytes);
    /* Until something happened, but with the ranks in `skip` (NULL: with any). */
    void (*wait)(void *self, const bool *skip, uint64_t deadline);
    /* The lowest rank that is known to have gone, or -1; `now`: look once more. */
    int (*find_gone)(void *self, bool now);
    /* Why a link is lost, as "cannot be reached: …"; false: the rank is gone. */
    bool (*tell_loss)(void *self, int rank, char *out, size_t size);
    /* Optional: this rank has given up; rank 0 must not answer it any more. */
    void (*give_up)(void *self);
};

struct dcp_star {
    const struct dcp_star_link *link;
    int rank, world_size;
    size_t max_bytes;         /* of a body */
    uint64_t round;           /* how many were begun */
    struct dcp_error failure; /* the first; from then on every round fails so */
    int gone;                 /* who went before its answer came; 0: none */
    bool *done;               /* by rank, in the present act */
    unsigned char *numbers;   /* rank 0: one of each rank; others: one */
};

/* Errors: MEMORY. */
int dcp_star_init(struct dcp_star *star, const struct dcp_star_link *link, int rank,
                  int world_size, size_t max_bytes, struct dcp_error *err);
void dcp_star_fini(struct dcp_star *star);
/* Those of dcp_comm_ops: self is what begins with the star. MEMORY: a rank's link has
 * none; all are told, and the next round may do. USAGE: no such root, or a size that no
 * memory or link has. */
int dcp_star_allgather(void *self, const void *in, size_t size_bytes, void *out,
                       int timeout_ms, struct dcp_error *err);
int dcp_star_bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                   struct dcp_error *err);
int dcp_star_gather(void *self, const void *in, size_t size_bytes, void *out,
                    int timeout_ms, struct dcp_error *err);
int dcp_star_least(void *self, int64_t mine, int64_t *out, int timeout_ms,
                   struct dcp_error *err);
/* Rank 0, between two rounds, has seen that a rank went: fails, and tells the others. */
void dcp_star_lose(struct dcp_star *star, int rank);
/* Nanoseconds of a clock that never goes back: that of all deadlines. */
uint64_t dcp_star_now(void);

#endif
