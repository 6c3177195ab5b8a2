/* peers: the processes of a job's other ranks, watched as far as they run on this host
 * and share our process numbers. No communication: the kernel tells when one ends.
 * Thread rule: all but new and free from any thread. */
#ifndef DCP_PORT_COMM_PEERS_H
#define DCP_PORT_COMM_PEERS_H

#include <stdbool.h>
#include <stdint.h>

/* Who a process is, to be sent to the other ranks. */
struct dcp_peer {
    char boot_id[40]; /* of the kernel, "" when unknown */
    uint64_t pid_ns;  /* of its process numbers, 0 when unknown */
    int64_t pid;
};

struct dcp_peers;

void dcp_peer_identify(struct dcp_peer *out_self);
/* Watches all but `rank`; a rank that cannot be watched never counts as dead. Caller
 * owns; NULL: no memory. */
struct dcp_peers *dcp_peers_new(const struct dcp_peer *all, int world_size, int rank);
void dcp_peers_free(struct dcp_peers *peers);
/* Asks the kernel, at once. True: someone is dead. */
bool dcp_peers_look(struct dcp_peers *peers);
/* As of the last look. */
bool dcp_peers_is_dead(struct dcp_peers *peers, int rank);

#endif
