#include "relay_message.h"

#include "base/bytes.h"
#include <string.h>

void dcp_relay_put_head(unsigned char out[DCP_RELAY_HEAD_BYTES],
                        const struct dcp_relay_head *head)
{
    dcp_put_le64(out, head->call.round);
    dcp_put_le64(out + 8, head->call.kind);
    dcp_put_le64(out + 16, head->call.root);
    dcp_put_le64(out + 24, head->call.size_bytes);
    dcp_put_le64(out + 32, (uint64_t)head->code);
    dcp_put_le64(out + 40, (uint64_t)head->rank);
    dcp_put_le64(out + 48, (uint64_t)head->rank_state);
    memcpy(out + 56, head->why, DCP_RELAY_WHY_BYTES);
}

struct dcp_relay_head dcp_relay_get_head(const unsigned char in[DCP_RELAY_HEAD_BYTES])
{
    struct dcp_relay_head head = {
        .call = { dcp_le64(in), dcp_le64(in + 8), dcp_le64(in + 16), dcp_le64(in + 24) },
        .code = (int)(int64_t)dcp_le64(in + 32),
        .rank = (int)(int64_t)dcp_le64(in + 40),
        .rank_state = (int)(int64_t)dcp_le64(in + 48),
    };
    memcpy(head.why, in + 56, DCP_RELAY_WHY_BYTES - 1);
    return head;
}

struct dcp_relay_head dcp_relay_notice_of(const struct dcp_error *failure)
{
    struct dcp_relay_head head = { .call.kind = DCP_RELAY_NOTICE,
                                   .code = failure->code,
                                   .rank = failure->rank,
                                   .rank_state = failure->rank_state };
    memcpy(head.why, failure->message,
           strnlen(failure->message, sizeof head.why - 1)); /* the rest is zero */
    return head;
}

bool dcp_relay_same_call(const struct dcp_relay_call *a, const struct dcp_relay_call *b)
{
    return a->round == b->round && a->kind == b->kind && a->root == b->root &&
           a->size_bytes == b->size_bytes;
}

size_t dcp_relay_up_bytes(const struct dcp_branch *at, const struct dcp_relay_call *call,
                          int slot)
{
    struct dcp_span ranks = dcp_branch_span(at, slot);
    size_t n = (size_t)(ranks.end - ranks.begin);
    if (call->kind == DCP_RELAY_BCAST)
        n = (uint64_t)ranks.begin <= call->root && call->root < (uint64_t)ranks.end;
    return (call->kind == DCP_RELAY_LEAST ? 1 : n) * (size_t)call->size_bytes;
}

size_t dcp_relay_answer_bytes(const struct dcp_branch *at,
                              const struct dcp_relay_call *call)
{
    if (call->kind == DCP_RELAY_GATHER)
        return 0;
    size_t n = call->kind == DCP_RELAY_ALLGATHER ? (size_t)at->world_size : 1;
    return n * (size_t)call->size_bytes;
}

/* Whoever has passed on the bytes of a bcast's root knows them. */
size_t dcp_relay_down_bytes(const struct dcp_branch *at,
                            const struct dcp_relay_call *call, int slot)
{
    bool knows = call->kind == DCP_RELAY_BCAST && dcp_relay_up_bytes(at, call, slot);
    return knows ? 0 : dcp_relay_answer_bytes(at, call);
}
