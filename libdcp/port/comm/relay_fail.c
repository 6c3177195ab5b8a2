#include "relay_fail.h"

#include <stdio.h>
#include <string.h>

int dcp_relay_fail(struct dcp_relay *relay, int rank, int rank_state, const char *why)
{
    if (!relay->failure.code) {
        dcp_error_set(&relay->failure, DCP_E_COMM, "rank %d %s", rank, why);
        relay->failure.rank = rank;
        relay->failure.rank_state = rank_state;
    }
    return DCP_E_COMM;
}

int dcp_relay_fail_gone(struct dcp_relay *relay, int rank)
{
    return dcp_relay_fail(relay, rank, DCP_RANK_DEAD, "is gone");
}

int dcp_relay_fail_lost(struct dcp_relay *relay, int slot)
{
    char why[DCP_RELAY_WHY_BYTES];
    int rank = dcp_branch_rank(&relay->at, slot);
    if (!relay->link->tell_loss(relay, slot, why, sizeof why))
        return dcp_relay_fail_gone(relay, rank);
    return dcp_relay_fail(relay, rank, DCP_RANK_UNKNOWN, why);
}

int dcp_relay_fail_as_told(struct dcp_relay *relay, const struct dcp_relay_head *head)
{
    relay->failure = (struct dcp_error){ 0 };
    dcp_error_set(&relay->failure, DCP_E_COMM, "%s", head->why);
    relay->failure.rank = head->rank;
    relay->failure.rank_state = head->rank_state;
    return DCP_E_COMM;
}

void dcp_relay_take_notice(struct dcp_relay *relay, int slot,
                           const struct dcp_relay_head *head)
{
    if (!slot || !relay->failure.code)
        dcp_relay_fail_as_told(relay, head);
    relay->warned = relay->warned || !slot;
}

void dcp_relay_part(struct dcp_relay *relay, uint64_t time_ns)
{
    struct dcp_relay_head notice = dcp_relay_notice_of(&relay->failure);
    if (relay->parted)
        return;
    relay->parted = true;
    memset(relay->done, 0, (size_t)(relay->at.n_children + 1) * sizeof *relay->done);
    relay->done[0] = relay->warned || !relay->at.rank;
    for (int slot = 0; slot <= relay->at.n_children; slot++)
        if (!relay->done[slot])
            dcp_relay_begin_send(relay, slot, &notice, 0);
    dcp_relay_send_all(relay, dcp_relay_now() + time_ns);
}
