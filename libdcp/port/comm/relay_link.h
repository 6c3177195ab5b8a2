/* relay_link: what the rounds of relay.h know of a comm, and of how its bytes go.
 *
 * It uses nothing hidden of libdcp: a link may be a library of its own. */
#ifndef DCP_PORT_COMM_RELAY_LINK_H
#define DCP_PORT_COMM_RELAY_LINK_H

#include "branch.h"
#include "relay_message.h"
#include <dcp/comm.h>
#include <stdbool.h>
#include <stdint.h>

#define DCP_RELAY_MS UINT64_C(1000000) /* in nanoseconds */

enum dcp_relay_progress { DCP_RELAY_MORE, DCP_RELAY_DONE, DCP_RELAY_LOST };

/* How bytes go to and from the neighbours. self is what begins with the relay. Nothing
 * but `wait` waits; what said MORE is called again with the same arguments. */
struct dcp_relay_link {
    /* Optional: memory for the bodies of a round; false: there is none. */
    bool (*reserve)(void *self, size_t send_bytes, size_t receive_bytes);
    /* The body of the messages that are begun from now on, which is borrowed meanwhile.
     */
    void (*begin_body)(void *self, const void *body, size_t size_bytes);
    /* A message with so much of the body. In the middle of the message before, the link
     * is lost. */
    void (*begin_send)(void *self, int slot,
                       const unsigned char head[DCP_RELAY_HEAD_BYTES], size_t size_bytes);
    enum dcp_relay_progress (*send)(void *self, int slot);
    /* The next message. Its body is received behind its head, once the caller has seen
     * from that that it comes; out NULL: it is thrown away. */
    void (*begin_receive)(void *self, int slot);
    enum dcp_relay_progress (*receive_head)(void *self, int slot,
                                            const unsigned char **out_head);
    enum dcp_relay_progress (*receive_body)(void *self, int slot, void *out,
                                            size_t size_bytes);
    /* Until something happened, but with the slots in `skip` (NULL: with any). */
    void (*wait)(void *self, const bool *skip, uint64_t deadline);
    /* Optional: the lowest rank that is known to have gone, be it a neighbour or not, or
     * -1. */
    int (*find_gone)(void *self);
    /* Why a link is lost, as "cannot be reached: …"; false: the rank is gone. */
    bool (*tell_loss)(void *self, int slot, char *out, size_t size);
};

struct dcp_relay {
    const struct dcp_relay_link *link;
    struct dcp_branch at;
    size_t max_bytes;         /* of a body */
    uint64_t round;           /* how many were begun */
    struct dcp_error failure; /* the first, or the verdict; every round after fails so */
    bool warned;              /* the parent knows it */
    bool parted;              /* so do the children, as far as they can be told */
    bool sending_up;          /* a message to the parent is under way */
    bool *done;               /* by slot, in the present act */
    unsigned char *numbers;   /* by slot, 0 our own */
};

/* Nanoseconds of a clock that never goes back: that of all deadlines. */
uint64_t dcp_relay_now(void);
void dcp_relay_begin_send(struct dcp_relay *relay, int slot,
                          const struct dcp_relay_head *head, size_t size_bytes);
/* The first child that is not done, or 0. */
int dcp_relay_first_open(const struct dcp_relay *relay);
/* Sends what was begun to whoever is not done; who is lost counts as done. Returns a
 * child that has not taken its message by the deadline, or 0. */
int dcp_relay_send_all(struct dcp_relay *relay, uint64_t deadline);

#endif
