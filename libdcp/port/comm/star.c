#include "star.h"

#include "base/bytes.h"
#include "base/mem.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

#define VERDICT_TIME                                                  \
    (100 * DCP_STAR_MS) /* for sending it, when someone does not read \
                         */

enum kind { ALLGATHER, BCAST, GATHER, LEAST };

#define NUMBER_BYTES sizeof(uint64_t) /* of a rank, in LEAST */

struct round {
    struct dcp_star_call call;
    const unsigned char *in;
    unsigned char *out;
    uint64_t begin, time_ns;
    struct dcp_star_head refusal; /* of who has no memory for it; code DCP_OK: none */
};

uint64_t dcp_star_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * DCP_STAR_MS + (uint64_t)now.tv_nsec;
}

/* --- heads --- */

void dcp_star_put_head(unsigned char out[DCP_STAR_HEAD_BYTES],
                       const struct dcp_star_head *head)
{
    dcp_put_le64(out, head->call.round);
    dcp_put_le64(out + 8, head->call.kind);
    dcp_put_le64(out + 16, head->call.root);
    dcp_put_le64(out + 24, head->call.size_bytes);
    dcp_put_le64(out + 32, (uint64_t)head->code);
    dcp_put_le64(out + 40, (uint64_t)head->rank);
    dcp_put_le64(out + 48, (uint64_t)head->rank_state);
    memcpy(out + 56, head->why, DCP_STAR_WHY_BYTES);
}

struct dcp_star_head dcp_star_get_head(const unsigned char in[DCP_STAR_HEAD_BYTES])
{
    struct dcp_star_head head = {
        .call = { dcp_le64(in), dcp_le64(in + 8), dcp_le64(in + 16), dcp_le64(in + 24) },
        .code = (int)(int64_t)dcp_le64(in + 32),
        .rank = (int)(int64_t)dcp_le64(in + 40),
        .rank_state = (int)(int64_t)dcp_le64(in + 48),
    };
    memcpy(head.why, in + 56, DCP_STAR_WHY_BYTES - 1);
    return head;
}

struct dcp_star_head dcp_star_head_of(const struct dcp_error *failure)
{
    struct dcp_star_head head = { .code = failure->code,
                                  .rank = failure->rank,
                                  .rank_state = failure->rank_state };
    memcpy(head.why, failure->message,
           strnlen(failure->message, sizeof head.why - 1)); /* the rest is zero */
    return head;
}

/* The head of a rank that has come. */
static struct dcp_star_head head_from(struct dcp_star *star, int rank)
{
    const unsigned char *bytes;
    star->link->receive_head(star, rank, &bytes);
    return dcp_star_get_head(bytes);
}

static void begin_send(struct dcp_star *star, const struct dcp_star_head *head,
                       const void *body, size_t size_bytes)
{
    unsigned char bytes[DCP_STAR_HEAD_BYTES];
    dcp_star_put_head(bytes, head);
    star->link->begin_send(star, bytes, body, size_bytes);
}

/* --- failure --- */

static int fail(struct dcp_star *star, int rank, int rank_state, const char *why)
{
    if (!star->failure.code) {
        dcp_error_set(&star->failure, DCP_E_COMM, "rank %d %s", rank, why);
        star->failure.rank = rank;
        star->failure.rank_state = rank_state;
    }
    return DCP_E_COMM;
}

static int fail_silent(struct dcp_star *star, int rank, const struct round *round)
{
    char why[80];
    snprintf(why, sizeof why, "did not answer within %.1f s",
             (double)(dcp_star_now() - round->begin) / 1e9);
    return fail(star, rank, DCP_RANK_SILENT, why);
}

static int fail_gone(struct dcp_star *star, int rank)
{
    return fail(star, rank, DCP_RANK_DEAD, "is gone");
}

static int fail_lost(struct dcp_star *star, int rank)
{
    char why[DCP_STAR_WHY_BYTES];
    if (!star->link->tell_loss(star, rank, why, sizeof why))
        return fail_gone(star, rank);
    return fail(star, rank, DCP_RANK_UNKNOWN, why);
}

static int fail_other_call(struct dcp_star *star, int rank)
{
    return fail(star, rank, DCP_RANK_UNKNOWN,
                "called another collective, or one of another size");
}

/* As rank 0's verdict says. */
static int fail_as_told(struct dcp_star *star, const struct dcp_star_head *head)
{
    if (!star->failure.code) {
        dcp_error_set(&star->failure, DCP_E_COMM, "%s", head->why);
        star->failure.rank = head->rank;
        star->failure.rank_state = head->rank_state;
    }
    return DCP_E_COMM;
}

static int report_failure(struct dcp_star *star, struct dcp_error *err)
{
    dcp_error_hint(&star->failure,
                   "look at the output of rank %d; all ranks must be started again",
                   star->failure.rank);
    if (err && !err->code)
        *err = star->failure;
    return star->failure.code;
}

static int report_refusal(const struct dcp_star_head *refusal, struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_MEMORY, "%s", refusal->why);
    if (err)
        err->rank = refusal->rank;
    return DCP_E_MEMORY;
}

/* --- one round --- */

static bool same_call(const struct dcp_star_call *a, const struct dcp_star_call *b)
{
    return a->round == b->round && a->kind == b->kind && a->root == b->root &&
           a->size_bytes == b->size_bytes;
}

/* Bytes of the call that a rank sends to rank 0, and that rank 0 answers. */
static size_t up_bytes(const struct dcp_star_call *call, int rank)
{
    bool sends = call->kind != BCAST || call->root == (uint64_t)rank;
    return sends ? (size_t)call->size_bytes : 0;
}

static size_t all_bytes(const struct dcp_star *star, const struct dcp_star_call *call)
{
    size_t n = call->kind == BCAST ? 1 : (size_t)star->world_size;
    return n * (size_t)call->size_bytes;
}

/* What rank 0 answers, to whomever. */
static size_t answer_bytes(const struct dcp_star *star, const struct dcp_star_call *call)
{
    if (call->kind == LEAST)
        return NUMBER_BYTES;
    return call->kind == GATHER ? 0 : all_bytes(star, call);
}

static size_t down_bytes(const struct dcp_star *star, const struct dcp_star_call *call,
                         int rank)
{
    bool knows = call->kind == BCAST && call->root == (uint64_t)rank;
    return knows ? 0 : answer_bytes(star, call);
}

static bool reserve(struct dcp_star *star, size_t send_bytes, size_t receive_bytes)
{
    return !star->link->reserve || star->link->reserve(star, send_bytes, receive_bytes);
}

/* Rank 0: where a rank's bytes go. */
static unsigned char *slot_of(const struct round *round, int rank)
{
    if (round->call.kind == BCAST || !round->call.size_bytes)
        return round->out;
    return round->out + (size_t)rank * (size_t)round->call.size_bytes;
}

static enum dcp_star_progress receive_up(struct dcp_star *star, const struct round *round,
                                         int rank)
{
    const unsigned char *bytes;
    enum dcp_star_progress progress = star->link->receive_head(star, rank, &bytes);
    if (progress != DCP_STAR_DONE)
        return progress;
    struct dcp_star_head head = dcp_star_get_head(bytes);
    if (head.code || !same_call(&head.call, &round->call))
        return DCP_STAR_DONE; /* no bytes, or nobody knows how many: gather says so */
    return star->link->receive_body(star, rank, slot_of(round, rank),
                                    up_bytes(&round->call, rank));
}

/* Whoever went after its bytes had come is named in the next round, by all. */
static enum dcp_star_progress send_down(struct dcp_star *star, const struct round *round,
                                        int rank)
{
    size_t n = round->refusal.code ? 0 : down_bytes(star, &round->call, rank);
    enum dcp_star_progress progress = star->link->send(star, rank, n);
    if (progress == DCP_STAR_LOST && !star->gone)
        star->gone = rank;
    return progress == DCP_STAR_LOST ? DCP_STAR_DONE : progress;
}

static enum dcp_star_progress send_verdict(struct dcp_star *star,
                                           const struct round *round, int rank)
{
    enum dcp_star_progress progress = star->link->send(star, rank, 0);
    (void)round;
    return progress == DCP_STAR_LOST ? DCP_STAR_DONE : progress;
}

/* What rank 0 does with all other ranks at once. */
struct act {
    enum dcp_star_progress (*step)(struct dcp_star *star, const struct round *round,
                                   int rank);
    bool watch;        /* whoever is done must stay */
    uint64_t deadline; /* for all of them */
};

/* Who must stay is looked for once more at the end, since an answer to who is no longer
 * there would be a success that others call a failure. */
static int drive(struct dcp_star *star, const struct round *round, const struct act *act)
{
    memset(star->done, 0, (size_t)star->world_size * sizeof *star->done);
    for (;;) {
        int open = 0;
        for (int r = 1; r < star->world_size; r++) {
            enum dcp_star_progress progress =
                star->done[r] ? DCP_STAR_DONE : act->step(star, round, r);
            if (progress == DCP_STAR_LOST)
                return fail_lost(star, r);
            star->done[r] = progress == DCP_STAR_DONE;
            if (!star->done[r] && !open)
                open = r;
        }
        int gone = act->watch ? star->link->find_gone(star, !open) : -1;
        if (gone >= 0 && (star->done[gone] || !open))
            return fail_gone(star, gone);
        if (!open)
            return DCP_OK;
        if (dcp_star_now() >= act->deadline)
            return fail_silent(star, open, round);
        star->link->wait(star, act->watch ? NULL : star->done, act->deadline);
    }
}

/* Rank 0 tells the others, as far as they listen, why the comm failed. */
static void tell(struct dcp_star *star, uint64_t time_ns)
{
    struct dcp_star_head head = dcp_star_head_of(&star->failure);
    struct act act = { send_verdict, false, dcp_star_now() + time_ns };
    struct round verdict = { .begin = 0 };
    begin_send(star, &head, NULL, 0);
    drive(star, &verdict, &act);
}

void dcp_star_lose(struct dcp_star *star, int rank)
{
    fail_lost(star, rank);
    tell(star, VERDICT_TIME);
}

static int gather(struct dcp_star *star, struct round *round)
{
    struct act act = { receive_up, true, round->begin + round->time_ns / 4 * 3 };
    star->link->begin_receive(star);
    if (drive(star, round, &act))
        return star->failure.code;
    for (int r = star->world_size - 1; r > 0; r--) {
        struct dcp_star_head head = head_from(star, r);
        if (head.code)
            round->refusal = head;
    }
    for (int r = 1; r < star->world_size; r++) {
        struct dcp_star_head head = head_from(star, r);
        if (!same_call(&head.call, &round->call))
            return fail_other_call(star, r);
    }
    return DCP_OK;
}

/* Rank 0: the least of the numbers that came takes the place of the first. */
static void find_least(const struct dcp_star *star, const struct round *round)
{
    int64_t least = (int64_t)dcp_le64(round->out);
    for (int r = 1; r < star->world_size; r++) {
        int64_t one = (int64_t)dcp_le64(slot_of(round, r));
        least = one < least ? one : least;
    }
    dcp_put_le64(round->out, (uint64_t)least);
}

static int answer(struct dcp_star *star, const struct round *round)
{
    struct act act = { send_down, false, round->begin + round->time_ns / 8 * 7 };
    struct dcp_star_head head = round->refusal;
    head.call = round->call;
    if (round->call.kind == LEAST && !head.code)
        find_least(star, round);
    begin_send(star, &head, round->out, head.code ? 0 : answer_bytes(star, &round->call));
    return drive(star, round, &act);
}

static int root_round(struct dcp_star *star, struct round *round)
{
    size_t n = up_bytes(&round->call, 0), all = all_bytes(star, &round->call);
    if (n)
        memmove(slot_of(round, 0), round->in, n);
    if (star->gone)
        fail_lost(star, star->gone);
    else if (!reserve(star, answer_bytes(star, &round->call), all))
        fail(star, 0, DCP_RANK_UNKNOWN, "has no memory for the messages");
    if (!star->failure.code && !gather(star, round) && !answer(star, round))
        return DCP_OK;
    uint64_t rest = round->time_ns / 8;
    tell(star, rest < VERDICT_TIME ? rest : VERDICT_TIME);
    return star->failure.code;
}

/* Any rank but 0: the answer, or a verdict instead of it. */
static enum dcp_star_progress receive_down(struct dcp_star *star, struct round *round)
{
    const unsigned char *bytes;
    enum dcp_star_progress progress = star->link->receive_head(star, 0, &bytes);
    if (progress != DCP_STAR_DONE)
        return progress;
    struct dcp_star_head head = dcp_star_get_head(bytes);
    bool same = same_call(&head.call, &round->call);
    if (head.code == DCP_E_MEMORY && same)
        round->refusal = head;
    else if (head.code)
        fail_as_told(star, &head);
    else if (!same)
        fail_other_call(star, 0);
    if (head.code || star->failure.code)
        return DCP_STAR_DONE;
    return star->link->receive_body(star, 0, round->out,
                                    down_bytes(star, &round->call, star->rank));
}

/* Says what this rank has; its own refusal comes back as the answer. */
static size_t begin_up(struct dcp_star *star, const struct round *round)
{
    struct dcp_star_head head = { .call = round->call };
    size_t n = up_bytes(&round->call, star->rank);
    if (!reserve(star, n, down_bytes(star, &round->call, star->rank))) {
        head.code = DCP_E_MEMORY;
        head.rank = star->rank;
        snprintf(head.why, sizeof head.why, "rank %d has no memory for a message",
                 star->rank);
        n = 0;
    }
    star->link->begin_receive(star);
    begin_send(star, &head, round->in, n);
    return n;
}

static int leaf_round(struct dcp_star *star, struct round *round)
{
    uint64_t deadline = round->begin + round->time_ns;
    size_t n = begin_up(star, round);
    bool sending = true;
    for (;;) {
        /* Where sending has failed, a verdict may still be there to be read. */
        sending = sending && star->link->send(star, 0, n) == DCP_STAR_MORE;
        enum dcp_star_progress progress = receive_down(star, round);
        if (star->failure.code || (progress == DCP_STAR_DONE && !sending))
            return star->failure.code;
        if (progress == DCP_STAR_LOST)
            return fail_lost(star, 0);
        int gone = star->link->find_gone(star, false);
        if (gone >= 0)
            return fail_gone(star, gone);
        if (dcp_star_now() >= deadline) {
            if (star->link->give_up)
                star->link->give_up(star);
            return fail_silent(star, 0, round);
        }
        star->link->wait(star, NULL, deadline);
    }
}

static int run(struct dcp_star *star, const struct dcp_star_call *call, const void *in,
               void *out, int timeout_ms, struct dcp_error *err)
{
    struct round round = { .call = *call, .in = in, .out = out };
    size_t most, size_bytes = (size_t)call->size_bytes;
    if (star->failure.code)
        return report_failure(star, err);
    if (call->root >= (uint64_t)star->world_size)
        return dcp_error_set(err, DCP_E_USAGE, "there is no rank %d among %d",
                             (int)call->root, star->world_size);
    if (!dcp_mul_size(size_bytes, call->kind == BCAST ? 1 : (size_t)star->world_size,
                      &most) ||
        most > star->max_bytes)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%zu bytes are too many for a message between %d ranks",
                             size_bytes, star->world_size);
    round.call.round = ++star->round;
    round.begin = dcp_star_now();
    round.time_ns = (uint64_t)timeout_ms * DCP_STAR_MS;
    int rc = star->rank == 0 ? root_round(star, &round) : leaf_round(star, &round);
    if (!rc && round.refusal.code)
        return report_refusal(&round.refusal, err);
    return rc ? report_failure(star, err) : DCP_OK;
}

int dcp_star_allgather(void *self, const void *in, size_t size_bytes, void *out,
                       int timeout_ms, struct dcp_error *err)
{
    struct dcp_star_call call = { .kind = ALLGATHER, .size_bytes = size_bytes };
    return run(self, &call, in, out, timeout_ms, err);
}

int dcp_star_bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                   struct dcp_error *err)
{
    struct dcp_star_call call = { .kind = BCAST,
                                  .root = (uint64_t)root,
                                  .size_bytes = size_bytes };
    return run(self, &call, data, data, timeout_ms, err);
}

int dcp_star_gather(void *self, const void *in, size_t size_bytes, void *out,
                    int timeout_ms, struct dcp_error *err)
{
    struct dcp_star_call call = { .kind = GATHER, .size_bytes = size_bytes };
    return run(self, &call, in, out, timeout_ms, err);
}

int dcp_star_least(void *self, int64_t mine, int64_t *out, int timeout_ms,
                   struct dcp_error *err)
{
    struct dcp_star *star = self;
    struct dcp_star_call call = { .kind = LEAST, .size_bytes = NUMBER_BYTES };
    unsigned char in[NUMBER_BYTES];
    dcp_put_le64(in, (uint64_t)mine);
    int rc = run(self, &call, in, star->numbers, timeout_ms, err);
    *out = rc ? mine : (int64_t)dcp_le64(star->numbers);
    return rc;
}

/* --- the life of a star --- */

int dcp_star_init(struct dcp_star *star, const struct dcp_star_link *link, int rank,
                  int world_size, size_t max_bytes, struct dcp_error *err)
{
    *star = (struct dcp_star){
        .link = link, .rank = rank, .world_size = world_size, .max_bytes = max_bytes
    };
    star->done = calloc((size_t)world_size, sizeof *star->done);
    star->numbers = calloc(rank ? 1 : (size_t)world_size, NUMBER_BYTES);
    if (star->done && star->numbers)
        return DCP_OK;
    dcp_star_fini(star);
    return dcp_error_memory(err, "a comm");
}

void dcp_star_fini(struct dcp_star *star)
{
    free(star->done);
    free(star->numbers);
    star->done = NULL;
    star->numbers = NULL;
}
