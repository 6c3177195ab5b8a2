#include "relay_round.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "relay_fail.h"
#include <stdio.h>
#include <string.h>

static int fail_silent(struct dcp_relay *relay, int slot,
                       const struct dcp_relay_round *round)
{
    char why[80];
    snprintf(why, sizeof why, "did not answer within %.1f s",
             (double)(dcp_relay_now() - round->begin) / 1e9);
    return dcp_relay_fail(relay, dcp_branch_rank(&relay->at, slot), DCP_RANK_SILENT, why);
}

/* --- what a round moves --- */

/* Where the bytes of a child go; NULL: nowhere. */
static unsigned char *place_of(const struct dcp_relay *relay,
                               const struct dcp_relay_round *round, int slot)
{
    size_t each = (size_t)round->call.size_bytes;
    if (!each || !round->part || round->call.kind == DCP_RELAY_BCAST)
        return round->part;
    if (round->call.kind == DCP_RELAY_LEAST)
        return round->part + (size_t)slot * each;
    return round->part +
           (size_t)(dcp_branch_span(&relay->at, slot).begin - relay->at.rank) * each;
}

/* Another call weighs more than a lack of memory, and a lower rank than a higher one. */
static void object(struct dcp_relay_round *round, const struct dcp_relay_head *head)
{
    const struct dcp_relay_head *known = &round->objection;
    bool heavier = head->code == DCP_E_COMM && known->code != DCP_E_COMM;
    if (!known->code || heavier ||
        (head->code == known->code && head->rank < known->rank))
        round->objection = *head;
    round->objection.call = round->call;
}

static void object_to_call(struct dcp_relay_round *round, int rank)
{
    struct dcp_relay_head head = { .code = DCP_E_COMM,
                                   .rank = rank,
                                   .rank_state = DCP_RANK_UNKNOWN };
    snprintf(head.why, sizeof head.why,
             "rank %d called another collective, or one of another size", rank);
    object(round, &head);
}

static void object_for_memory(struct dcp_relay_round *round, int rank)
{
    struct dcp_relay_head head = { .code = DCP_E_MEMORY, .rank = rank };
    snprintf(head.why, sizeof head.why, "rank %d has no memory for a message", rank);
    object(round, &head);
}

static bool reserve(struct dcp_relay *relay, const struct dcp_relay_call *call)
{
    size_t up = relay->at.rank ? dcp_relay_up_bytes(&relay->at, call, 0) : 0;
    size_t down = relay->at.n_children ? dcp_relay_answer_bytes(&relay->at, call) : 0;
    size_t received = relay->at.rank ? dcp_relay_down_bytes(&relay->at, call, 0) : 0;
    for (int slot = 1; slot <= relay->at.n_children; slot++)
        received += dcp_relay_up_bytes(&relay->at, call, slot);
    return !relay->link->reserve ||
           relay->link->reserve(relay, up > down ? up : down, received);
}

/* The place for what the subtree says. In a gather only rank 0 was given one, and a leaf
 * needs none: it sends from where its bytes are. */
static void make_place(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    size_t n = dcp_relay_up_bytes(&relay->at, &round->call, 0);
    bool is_leaf = !relay->at.n_children;
    round->part = round->out;
    if (round->call.kind == DCP_RELAY_GATHER && relay->at.rank) {
        round->part = is_leaf || !n ? NULL : malloc(n);
        if (!is_leaf && n && !round->part)
            object_for_memory(round, relay->at.rank);
    } else if (round->call.kind == DCP_RELAY_ALLGATHER && n) {
        round->part += (size_t)relay->at.rank * (size_t)round->call.size_bytes;
    }
}

static void begin_round(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    const struct dcp_relay_call *call = &round->call;
    bool gives = call->kind != DCP_RELAY_BCAST || call->root == (uint64_t)relay->at.rank;
    bool is_leaf = relay->at.rank && !relay->at.n_children;
    memset(relay->done, 0, (size_t)(relay->at.n_children + 1) * sizeof *relay->done);
    make_place(relay, round);
    if (gives && call->size_bytes && round->part && !is_leaf)
        memmove(round->part, round->in, (size_t)call->size_bytes);
    if (reserve(relay, call))
        return;
    if (is_leaf)
        object_for_memory(round, relay->at.rank);
    else /* it cannot even throw away what its children send */
        dcp_relay_fail(relay, relay->at.rank, DCP_RANK_UNKNOWN,
                       "has no memory for the messages");
}

/* --- the way up --- */

static enum dcp_relay_progress take_message(struct dcp_relay *relay,
                                            struct dcp_relay_round *round, int slot,
                                            const struct dcp_relay_head *head)
{
    int rank = dcp_branch_rank(&relay->at, slot);
    enum dcp_relay_progress progress = DCP_RELAY_DONE;
    if (!dcp_relay_same_call(&head->call, &round->call))
        object_to_call(round, rank);
    else if (head->code)
        object(round, head);
    else
        progress =
            relay->link->receive_body(relay, slot, place_of(relay, round, slot),
                                      dcp_relay_up_bytes(&relay->at, &round->call, slot));
    relay->done[slot] = progress == DCP_RELAY_DONE;
    return progress;
}

/* A child's message, and what it notices before and after. Behind a message of another
 * call nothing can be read: nobody knows where it ends. */
static void hear_child(struct dcp_relay *relay, struct dcp_relay_round *round, int slot)
{
    const unsigned char *bytes;
    enum dcp_relay_progress progress;
    while ((progress = relay->link->receive_head(relay, slot, &bytes)) ==
           DCP_RELAY_DONE) {
        struct dcp_relay_head head = dcp_relay_get_head(bytes);
        if (head.call.kind == DCP_RELAY_NOTICE) {
            dcp_relay_take_notice(relay, slot, &head);
            return;
        }
        if (head.call.kind == DCP_RELAY_ASK)
            round->late = round->late || head.call.round == round->call.round;
        else if (relay->done[slot] || relay->failure.code)
            return;
        else if ((progress = take_message(relay, round, slot, &head)) != DCP_RELAY_DONE)
            break;
        else if (!dcp_relay_same_call(&head.call, &round->call))
            return;
        relay->link->begin_receive(relay, slot);
    }
    if (progress == DCP_RELAY_LOST)
        dcp_relay_fail_lost(relay, slot);
}

static void hear_children(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    for (int slot = 1; slot <= relay->at.n_children; slot++)
        hear_child(relay, round, slot);
}

/* The least of the numbers of the subtree takes the place of our own. */
static void find_least(const struct dcp_relay *relay)
{
    int64_t least = (int64_t)dcp_le64(relay->numbers);
    for (int slot = 1; slot <= relay->at.n_children; slot++) {
        int64_t one =
            (int64_t)dcp_le64(relay->numbers + (size_t)slot * DCP_RELAY_NUMBER_BYTES);
        least = one < least ? one : least;
    }
    dcp_put_le64(relay->numbers, (uint64_t)least);
}

/* The share of so many levels in the last eighth of the time. */
static uint64_t time_of(const struct dcp_relay *relay,
                        const struct dcp_relay_round *round, int levels)
{
    return round->time_ns / 16 * (uint64_t)levels / (uint64_t)relay->at.levels;
}

/* Time is up: the lowest rank that is missing is the first child that has not come, or is
 * below it. A child is asked where others are below it. */
static void search(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    int slot = dcp_relay_first_open(relay);
    struct dcp_span ranks = dcp_branch_span(&relay->at, slot);
    if (!round->search_end)
        round->search_end =
            dcp_relay_now() + time_of(relay, round, relay->at.levels - relay->at.depth);
    if (ranks.end - ranks.begin == 1 || dcp_relay_now() >= round->search_end) {
        fail_silent(relay, slot, round);
        return;
    }
    if (round->asked_slot != slot) {
        struct dcp_relay_head ask = { .call = { .round = round->call.round,
                                                .kind = DCP_RELAY_ASK } };
        dcp_relay_begin_send(relay, slot, &ask, 0);
        round->asked_slot = slot;
    }
    relay->link->send(relay, slot);
}

/* All of the subtree is there. */
static void begin_up(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    struct dcp_relay_head head = round->objection;
    size_t n = head.code ? 0 : dcp_relay_up_bytes(&relay->at, &round->call, 0);
    head.call = round->call;
    if (round->call.kind == DCP_RELAY_LEAST)
        find_least(relay);
    if (n)
        relay->link->begin_body(relay, relay->at.n_children ? round->part : round->in, n);
    dcp_relay_begin_send(relay, 0, &head, n);
    round->sent = true;
}

/* One after the other: what the subtree says; that time is up; that something failed. */
static void send_up(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    for (;;) {
        if (relay->sending_up && relay->link->send(relay, 0) == DCP_RELAY_MORE)
            return;
        relay->sending_up = true;
        if (relay->failure.code && !relay->warned) {
            struct dcp_relay_head notice = dcp_relay_notice_of(&relay->failure);
            dcp_relay_begin_send(relay, 0, &notice, 0);
            relay->warned = true;
        } else if (!relay->failure.code && !round->sent && !dcp_relay_first_open(relay)) {
            begin_up(relay, round);
        } else if (!relay->failure.code && round->late && !round->asked) {
            struct dcp_relay_head ask = { .call = { .round = round->call.round,
                                                    .kind = DCP_RELAY_ASK } };
            dcp_relay_begin_send(relay, 0, &ask, 0);
            round->asked = true;
        } else {
            relay->sending_up = false;
            return;
        }
    }
}

/* The answer, or a verdict instead of it. */
static enum dcp_relay_progress hear_parent(struct dcp_relay *relay,
                                           struct dcp_relay_round *round)
{
    const unsigned char *bytes;
    enum dcp_relay_progress progress;
    while ((progress = relay->link->receive_head(relay, 0, &bytes)) == DCP_RELAY_DONE) {
        struct dcp_relay_head head = dcp_relay_get_head(bytes);
        bool asks = head.call.kind == DCP_RELAY_ASK;
        if (asks) {
            round->wanted = round->wanted || head.call.round == round->call.round;
        } else if (head.call.kind == DCP_RELAY_NOTICE) {
            dcp_relay_take_notice(relay, 0, &head);
            return DCP_RELAY_DONE;
        } else if (!dcp_relay_same_call(&head.call, &round->call)) {
            dcp_relay_fail(relay, relay->at.parent, DCP_RANK_UNKNOWN,
                           "called another collective, or one of another size");
            return DCP_RELAY_DONE;
        } else if (head.code) {
            round->objection = head;
        } else {
            progress = relay->link->receive_body(
                relay, 0, round->out, dcp_relay_down_bytes(&relay->at, &round->call, 0));
            if (progress != DCP_RELAY_DONE)
                return progress;
        }
        relay->link->begin_receive(relay, 0);
        round->answered = !asks;
        if (round->answered)
            break;
    }
    return progress;
}

static uint64_t time_to_ask(const struct dcp_relay_round *round)
{
    return round->begin + round->time_ns / 8 * 7;
}

/* Does the parent get no more time? The ranks that are farthest from rank 0 wait for all
 * of the time-out, the others less; and so does who is asked from below. */
static bool has_waited(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    uint64_t now = dcp_relay_now();
    round->late = round->late || now >= time_to_ask(round);
    if (round->late && !round->give_up)
        round->give_up = now + time_of(relay, round, relay->at.levels + relay->at.depth);
    return round->late && now >= round->give_up;
}

/* What no neighbour says. */
static void look_around(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    int gone = relay->link->find_gone ? relay->link->find_gone(relay) : -1;
    if (gone >= 0)
        dcp_relay_fail_gone(relay, gone);
    if (round->wanted && dcp_relay_first_open(relay) && !relay->failure.code)
        search(relay, round);
}

/* Any rank but 0, until the answer is there or the comm has failed. */
static int branch_round(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    for (;;) {
        hear_children(relay, round);
        enum dcp_relay_progress progress =
            round->answered ? DCP_RELAY_DONE : hear_parent(relay, round);
        if (progress == DCP_RELAY_LOST)
            return dcp_relay_fail_lost(relay, 0);
        if (progress == DCP_RELAY_DONE && !round->answered)
            return relay->failure.code;
        look_around(relay, round);
        if (relay->failure.code && relay->failure.rank == relay->at.parent)
            return relay->failure.code;
        if (has_waited(relay, round))
            return fail_silent(relay, 0, round);
        send_up(relay, round);
        if (round->answered && !relay->sending_up)
            return DCP_OK;
        uint64_t until = round->late ? round->give_up : time_to_ask(round);
        if (round->search_end > dcp_relay_now() && round->search_end < until)
            until = round->search_end;
        relay->link->wait(relay, NULL, until);
    }
}

/* Rank 0, until all have come or the comm has failed. It looks once more at the end,
 * since an answer to who is no longer there would be a success that others call a
 * failure. */
static int root_round(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    uint64_t deadline = round->begin + round->time_ns / 4 * 3;
    for (;;) {
        bool complete = !dcp_relay_first_open(relay);
        if (complete)
            relay->link->wait(relay, NULL, 0);
        hear_children(relay, round);
        round->wanted = round->late || dcp_relay_now() >= deadline;
        look_around(relay, round);
        if (complete || relay->failure.code)
            break;
        if (dcp_relay_first_open(relay))
            relay->link->wait(relay, NULL, round->wanted ? round->search_end : deadline);
    }
    if (!relay->failure.code && round->objection.code == DCP_E_COMM)
        dcp_relay_fail_as_told(relay, &round->objection);
    if (!relay->failure.code && round->call.kind == DCP_RELAY_LEAST)
        find_least(relay);
    return relay->failure.code;
}

/* --- the way down --- */

static int answer(struct dcp_relay *relay, const struct dcp_relay_round *round)
{
    uint64_t deadline = dcp_relay_now() + DCP_RELAY_PART_NS;
    uint64_t end = round->begin + round->time_ns / 8 * (relay->at.rank ? 8 : 7);
    struct dcp_relay_head head = round->objection;
    size_t n = head.code ? 0 : dcp_relay_answer_bytes(&relay->at, &round->call);
    head.call = round->call;
    if (n)
        relay->link->begin_body(relay, round->out, n);
    for (int slot = 1; slot <= relay->at.n_children; slot++)
        dcp_relay_begin_send(relay, slot, &head,
                             n ? dcp_relay_down_bytes(&relay->at, &round->call, slot)
                               : 0);
    memset(relay->done, 0, (size_t)(relay->at.n_children + 1) * sizeof *relay->done);
    relay->done[0] = true;
    int silent = dcp_relay_send_all(relay, end > deadline ? end : deadline);
    return silent ? fail_silent(relay, silent, round) : DCP_OK;
}

/* --- one round --- */

int dcp_relay_round(struct dcp_relay *relay, struct dcp_relay_round *round)
{
    begin_round(relay, round);
    int rc = relay->at.rank ? branch_round(relay, round) : root_round(relay, round);
    if (!rc)
        rc = answer(relay, round);
    uint64_t rest = round->time_ns / 8;
    if (rc)
        dcp_relay_part(relay, rest < DCP_RELAY_PART_NS ? rest : DCP_RELAY_PART_NS);
    if (round->call.kind == DCP_RELAY_GATHER && relay->at.rank)
        free(round->part);
    return rc;
}
