#include "relay.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "relay_fail.h"
#include "relay_round.h"
#include <string.h>

static int report_failure(struct dcp_relay *relay, struct dcp_error *err)
{
    dcp_error_hint(&relay->failure,
                   "look at the output of rank %d; all ranks must be started again",
                   relay->failure.rank);
    if (err && !err->code)
        *err = relay->failure;
    return relay->failure.code;
}

static int report_refusal(const struct dcp_relay_head *refusal, struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_MEMORY, "%s", refusal->why);
    if (err)
        err->rank = refusal->rank;
    return DCP_E_MEMORY;
}

static int run(struct dcp_relay *relay, const struct dcp_relay_call *call, const void *in,
               void *out, int timeout_ms, struct dcp_error *err)
{
    struct dcp_relay_round round = { .call = *call, .in = in, .out = out };
    size_t most, size_bytes = (size_t)call->size_bytes;
    if (relay->failure.code) {
        dcp_relay_part(relay, DCP_RELAY_PART_NS);
        return report_failure(relay, err);
    }
    if (call->root >= (uint64_t)relay->at.world_size)
        return dcp_error_set(err, DCP_E_USAGE, "there is no rank %d among %d",
                             (int)call->root, relay->at.world_size);
    bool one = call->kind == DCP_RELAY_BCAST;
    if (!dcp_mul_size(size_bytes, one ? 1 : (size_t)relay->at.world_size, &most) ||
        most > relay->max_bytes)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%zu bytes are too many for a message between %d ranks",
                             size_bytes, relay->at.world_size);
    round.call.round = ++relay->round;
    round.begin = dcp_relay_now();
    round.time_ns = (uint64_t)timeout_ms * DCP_RELAY_MS;
    int rc = dcp_relay_round(relay, &round);
    if (!rc && round.objection.code)
        return report_refusal(&round.objection, err);
    return rc ? report_failure(relay, err) : DCP_OK;
}

int dcp_relay_allgather(void *self, const void *in, size_t size_bytes, void *out,
                        int timeout_ms, struct dcp_error *err)
{
    struct dcp_relay_call call = { .kind = DCP_RELAY_ALLGATHER,
                                   .size_bytes = size_bytes };
    return run(self, &call, in, out, timeout_ms, err);
}

int dcp_relay_bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                    struct dcp_error *err)
{
    struct dcp_relay_call call = { .kind = DCP_RELAY_BCAST,
                                   .root = (uint64_t)root,
                                   .size_bytes = size_bytes };
    return run(self, &call, data, data, timeout_ms, err);
}

int dcp_relay_gather(void *self, const void *in, size_t size_bytes, void *out,
                     int timeout_ms, struct dcp_error *err)
{
    struct dcp_relay_call call = { .kind = DCP_RELAY_GATHER, .size_bytes = size_bytes };
    return run(self, &call, in, out, timeout_ms, err);
}

int dcp_relay_least(void *self, int64_t mine, int64_t *out, int timeout_ms,
                    struct dcp_error *err)
{
    struct dcp_relay *relay = self;
    struct dcp_relay_call call = { .kind = DCP_RELAY_LEAST,
                                   .size_bytes = DCP_RELAY_NUMBER_BYTES };
    unsigned char in[DCP_RELAY_NUMBER_BYTES];
    dcp_put_le64(in, (uint64_t)mine);
    int rc = run(self, &call, in, relay->numbers, timeout_ms, err);
    *out = rc ? mine : (int64_t)dcp_le64(relay->numbers);
    return rc;
}

/* --- between two rounds --- */

/* A question of a round that is over is passed over; a message of the next round waits
 * for it. */
void dcp_relay_look(struct dcp_relay *relay)
{
    const unsigned char *bytes;
    if (relay->failure.code)
        return;
    relay->link->wait(relay, NULL, 0);
    for (int slot = relay->at.rank ? 0 : 1; slot <= relay->at.n_children; slot++) {
        enum dcp_relay_progress progress;
        while ((progress = relay->link->receive_head(relay, slot, &bytes)) ==
               DCP_RELAY_DONE) {
            struct dcp_relay_head head = dcp_relay_get_head(bytes);
            if (head.call.kind == DCP_RELAY_NOTICE)
                dcp_relay_take_notice(relay, slot, &head);
            if (head.call.kind != DCP_RELAY_ASK || head.call.round > relay->round)
                break;
            relay->link->begin_receive(relay, slot);
        }
        if (progress == DCP_RELAY_LOST)
            dcp_relay_fail_lost(relay, slot);
    }
    if (relay->failure.code)
        dcp_relay_part(relay, DCP_RELAY_PART_NS);
}

void dcp_relay_lose(struct dcp_relay *relay, int slot)
{
    dcp_relay_fail_lost(relay, slot);
    dcp_relay_part(relay, DCP_RELAY_PART_NS);
}

/* --- the life of a relay --- */

int dcp_relay_init(struct dcp_relay *relay, const struct dcp_relay_link *link,
                   struct dcp_branch at, size_t max_bytes, struct dcp_error *err)
{
    size_t n_slots = (size_t)at.n_children + 1;
    *relay = (struct dcp_relay){ .link = link, .at = at, .max_bytes = max_bytes };
    relay->done = calloc(n_slots, sizeof *relay->done);
    relay->numbers = calloc(n_slots, DCP_RELAY_NUMBER_BYTES);
    if (relay->done && relay->numbers)
        return DCP_OK;
    dcp_relay_fini(relay);
    return dcp_error_memory(err, "a comm");
}

void dcp_relay_fini(struct dcp_relay *relay)
{
    free(relay->done);
    free(relay->numbers);
    relay->done = NULL;
    relay->numbers = NULL;
}
