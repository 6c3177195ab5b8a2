#include "relay_link.h"

#include <string.h>
#include <time.h>

uint64_t dcp_relay_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * DCP_RELAY_MS + (uint64_t)now.tv_nsec;
}

void dcp_relay_begin_send(struct dcp_relay *relay, int slot,
                          const struct dcp_relay_head *head, size_t size_bytes)
{
    unsigned char bytes[DCP_RELAY_HEAD_BYTES];
    dcp_relay_put_head(bytes, head);
    relay->link->begin_send(relay, slot, bytes, size_bytes);
}

int dcp_relay_first_open(const struct dcp_relay *relay)
{
    for (int slot = 1; slot <= relay->at.n_children; slot++)
        if (!relay->done[slot])
            return slot;
    return 0;
}

int dcp_relay_send_all(struct dcp_relay *relay, uint64_t deadline)
{
    for (;;) {
        for (int slot = 0; slot <= relay->at.n_children; slot++)
            relay->done[slot] =
                relay->done[slot] || relay->link->send(relay, slot) != DCP_RELAY_MORE;
        int open = dcp_relay_first_open(relay);
        if (!open || dcp_relay_now() >= deadline)
            return open;
        relay->link->wait(relay, relay->done, deadline);
    }
}
