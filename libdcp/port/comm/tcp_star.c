/* Every call is one round over a star: each rank sends to rank 0, which answers all.
 * Rank 0 waits for three quarters of the time-out and then tells the others who is
 * missing; they wait for all of it, and when no answer came, rank 0 is the one to name.
 * What a rank sent before it died is read before its death is, so nobody waits for more.
 *
 * Messages go straight from and to the memory of the call: a round allocates nothing. */
#include "tcp_star.h"

#include "base/clock.h"
#include "base/mem.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define VERDICT_TIME (100 * DCP_TCP_MS) /* for sending it, when someone does not read */

struct round {
    struct dcp_tcp_call call;
    const unsigned char *in;
    unsigned char *out;
    uint64_t begin, time_ns;
    unsigned char head[DCP_TCP_HEAD_BYTES]; /* of what is sent */
};

/* --- failure --- */

static int fail(struct dcp_tcp_star *star, int rank, int fate, const char *why)
{
    if (!star->failure.code) {
        dcp_error_set(&star->failure, DCP_E_COMM, "rank %d %s", rank, why);
        star->failure.rank = rank;
        star->failure.rank_fate = fate;
    }
    return DCP_E_COMM;
}

static int fail_silent(struct dcp_tcp_star *star, int rank, const struct round *round)
{
    char why[80];
    snprintf(why, sizeof why, "did not answer within %.1f s",
             (double)(dcp_clock_ns() - round->begin) / 1e9);
    return fail(star, rank, DCP_RANK_SILENT, why);
}

static int fail_lost(struct dcp_tcp_star *star, int rank, int sys_errno)
{
    char text[128], why[sizeof text + 32];
    if (!sys_errno)
        return fail(star, rank, DCP_RANK_DEAD, "is gone");
    snprintf(why, sizeof why, "cannot be reached: %s",
             strerror_r(sys_errno, text, sizeof text));
    return fail(star, rank, DCP_RANK_UNKNOWN, why);
}

static int fail_other_call(struct dcp_tcp_star *star, int rank)
{
    return fail(star, rank, DCP_RANK_UNKNOWN,
                "is in another call, or in one of another size");
}

/* As rank 0's verdict says. */
static int fail_as_told(struct dcp_tcp_star *star, const struct dcp_tcp_head *head)
{
    if (!star->failure.code) {
        dcp_error_set(&star->failure, DCP_E_COMM, "%s", head->why);
        star->failure.rank = head->rank;
        star->failure.rank_fate = head->fate;
    }
    return DCP_E_COMM;
}

static int report_failure(struct dcp_tcp_star *star, struct dcp_error *err)
{
    dcp_error_hint(&star->failure,
                   "look at the output of rank %d; all ranks must be started again",
                   star->failure.rank);
    if (err && !err->code)
        *err = star->failure;
    return star->failure.code;
}

/* --- one round --- */

static bool same_call(const struct dcp_tcp_call *a, const struct dcp_tcp_call *b)
{
    return a->round == b->round && a->kind == b->kind && a->root == b->root &&
           a->size_bytes == b->size_bytes;
}

/* Bytes of the call that a rank sends to rank 0, and that rank 0 answers. */
static size_t up_bytes(const struct dcp_tcp_call *call, int rank)
{
    bool sends = call->kind == DCP_TCP_ALLGATHER || call->root == (uint64_t)rank;
    return sends ? (size_t)call->size_bytes : 0;
}

static size_t down_bytes(const struct dcp_tcp_star *star, const struct dcp_tcp_call *call,
                         int rank)
{
    if (call->kind == DCP_TCP_ALLGATHER)
        return (size_t)call->size_bytes * (size_t)star->world;
    return call->root == (uint64_t)rank ? 0 : (size_t)call->size_bytes;
}

/* Rank 0: where a rank's bytes go. */
static unsigned char *place_of(const struct round *round, int rank)
{
    if (round->call.kind == DCP_TCP_BCAST || !round->call.size_bytes)
        return round->out;
    return round->out + (size_t)rank * (size_t)round->call.size_bytes;
}

static enum dcp_tcp_progress receive_up(struct dcp_tcp_star *star,
                                        const struct round *round, int rank)
{
    struct dcp_tcp_link *link = &star->links[rank];
    enum dcp_tcp_progress progress = dcp_tcp_receive_head(link);
    if (progress != DCP_TCP_DONE)
        return progress;
    struct dcp_tcp_head head = dcp_tcp_get_head(link->head);
    if (!same_call(&head.call, &round->call))
        return DCP_TCP_DONE; /* nobody knows how many bytes come; gather says so */
    return dcp_tcp_receive_body(link, place_of(round, rank),
                                up_bytes(&round->call, rank));
}

/* Whoever went after its bytes had come is named in the next round, by all. */
static enum dcp_tcp_progress send_down(struct dcp_tcp_star *star,
                                       const struct round *round, int rank)
{
    struct dcp_tcp_message message = { round->head, round->out,
                                       down_bytes(star, &round->call, rank) };
    enum dcp_tcp_progress progress = dcp_tcp_send(&star->links[rank], &message);
    return progress == DCP_TCP_LOST ? DCP_TCP_DONE : progress;
}

static enum dcp_tcp_progress send_verdict(struct dcp_tcp_star *star,
                                          const struct round *round, int rank)
{
    struct dcp_tcp_message message = { round->head, NULL, 0 };
    struct dcp_tcp_link *link = &star->links[rank];
    if (link->lost)
        return DCP_TCP_DONE;
    enum dcp_tcp_progress progress = dcp_tcp_send(link, &message);
    return progress == DCP_TCP_LOST ? DCP_TCP_DONE : progress;
}

/* What rank 0 does with all other ranks at once. */
struct act {
    enum dcp_tcp_progress (*step)(struct dcp_tcp_star *star, const struct round *round,
                                  int rank);
    short event;       /* when a step can be made */
    bool watch;        /* whoever is done must stay */
    uint64_t deadline; /* for all of them */
};

/* A step with one rank, if there is reason for one. */
static enum dcp_tcp_progress step_with(struct dcp_tcp_star *star,
                                       const struct round *round, const struct act *act,
                                       int rank)
{
    struct pollfd *ready = &star->polls[rank];
    if (!(ready->events & act->event)) /* is done */
        return dcp_tcp_has_gone(ready->revents) ? DCP_TCP_LOST : DCP_TCP_DONE;
    enum dcp_tcp_progress progress =
        ready->revents ? act->step(star, round, rank) : DCP_TCP_MORE;
    if (progress == DCP_TCP_DONE)
        *ready =
            (struct pollfd){ .fd = act->watch ? ready->fd : -1, .events = POLLRDHUP };
    return progress;
}

/* Whoever has gone among those that must stay, else 0; once more at the end, since an
 * answer to who is no longer there would be a success that others call a failure. */
static int find_gone(struct dcp_tcp_star *star, const struct act *act)
{
    if (act->watch)
        dcp_tcp_wait(star->polls + 1, (size_t)star->world - 1, 0);
    for (int r = 1; act->watch && r < star->world; r++)
        if (dcp_tcp_has_gone(star->polls[r].revents))
            return r;
    return 0;
}

static int drive(struct dcp_tcp_star *star, const struct round *round,
                 const struct act *act)
{
    for (int r = 1; r < star->world; r++)
        star->polls[r] = (struct pollfd){ .fd = star->links[r].fd,
                                          .events = (short)(act->event | POLLRDHUP),
                                          .revents = act->event };
    for (;;) {
        int open = 0;
        for (int r = 1; r < star->world; r++) {
            enum dcp_tcp_progress progress = step_with(star, round, act, r);
            if (progress == DCP_TCP_LOST)
                return fail_lost(star, r, star->links[r].lost_errno);
            if (progress == DCP_TCP_MORE && !open)
                open = r;
        }
        if (!open) {
            int gone = find_gone(star, act);
            return gone ? fail_lost(star, gone, 0) : DCP_OK;
        }
        if (dcp_clock_ns() >= act->deadline)
            return fail_silent(star, open, round);
        dcp_tcp_wait(star->polls + 1, (size_t)star->world - 1, act->deadline);
    }
}

/* Rank 0 tells the others, as far as they listen, why the comm failed. In the middle of
 * an answer a verdict would be taken for a part of it. */
static void tell(struct dcp_tcp_star *star, uint64_t time_ns)
{
    struct round verdict = { .begin = dcp_clock_ns() };
    struct dcp_tcp_head head = dcp_tcp_head_of(&star->failure);
    dcp_tcp_put_head(verdict.head, &head);
    for (int r = 1; r < star->world; r++) {
        star->links[r].lost |= star->links[r].midway;
        star->links[r].sent = 0;
    }
    struct act act = { send_verdict, POLLOUT, false, verdict.begin + time_ns };
    drive(star, &verdict, &act);
}

static int gather(struct dcp_tcp_star *star, const struct round *round)
{
    for (int r = 1; r < star->world; r++)
        star->links[r].received = 0;
    struct act act = { receive_up, POLLIN, true, round->begin + round->time_ns / 4 * 3 };
    if (drive(star, round, &act))
        return star->failure.code;
    for (int r = 1; r < star->world; r++) {
        struct dcp_tcp_head head = dcp_tcp_get_head(star->links[r].head);
        if (!same_call(&head.call, &round->call))
            return fail_other_call(star, r);
    }
    return DCP_OK;
}

static int answer(struct dcp_tcp_star *star, const struct round *round)
{
    for (int r = 1; r < star->world; r++)
        star->links[r].sent = 0;
    struct act act = { send_down, POLLOUT, false, round->begin + round->time_ns / 8 * 7 };
    return drive(star, round, &act);
}

static int root_round(struct dcp_tcp_star *star, const struct round *round)
{
    size_t n = up_bytes(&round->call, 0);
    if (n)
        memmove(place_of(round, 0), round->in, n);
    if (!gather(star, round) && !answer(star, round))
        return DCP_OK;
    uint64_t rest = round->time_ns / 8;
    tell(star, rest < VERDICT_TIME ? rest : VERDICT_TIME);
    return star->failure.code;
}

/* Any rank but 0: the answer, or a verdict instead of it. */
static enum dcp_tcp_progress receive_down(struct dcp_tcp_star *star,
                                          const struct round *round, bool sending)
{
    struct dcp_tcp_link *link = &star->links[0];
    enum dcp_tcp_progress progress = dcp_tcp_receive_head(link);
    if (progress != DCP_TCP_DONE)
        return progress;
    struct dcp_tcp_head head = dcp_tcp_get_head(link->head);
    if (head.code)
        fail_as_told(star, &head);
    else if (sending || !same_call(&head.call, &round->call))
        fail_other_call(star, 0);
    if (star->failure.code)
        return DCP_TCP_DONE;
    return dcp_tcp_receive_body(link, round->out,
                                down_bytes(star, &round->call, star->rank));
}

static int leaf_round(struct dcp_tcp_star *star, const struct round *round)
{
    struct dcp_tcp_link *link = &star->links[0];
    struct dcp_tcp_message message = { round->head, round->in,
                                       up_bytes(&round->call, star->rank) };
    bool sending = true;
    link->sent = link->received = 0;
    for (;;) {
        /* Where sending has failed, a verdict may still be there to be read. */
        sending = sending && dcp_tcp_send(link, &message) == DCP_TCP_MORE;
        enum dcp_tcp_progress progress = receive_down(star, round, sending);
        if (progress == DCP_TCP_DONE)
            return star->failure.code;
        if (progress == DCP_TCP_LOST)
            return fail_lost(star, 0, link->lost_errno);
        if (dcp_clock_ns() >= round->begin + round->time_ns) {
            shutdown(link->fd, SHUT_WR); /* rank 0 must not answer any more */
            return fail_silent(star, 0, round);
        }
        struct pollfd ready = { .fd = link->fd,
                                .events = (short)(POLLIN | (sending ? POLLOUT : 0)) };
        dcp_tcp_wait(&ready, 1, round->begin + round->time_ns);
    }
}

int dcp_tcp_star_run(struct dcp_tcp_star *star, const struct dcp_tcp_call *call,
                     const void *in, void *out, int timeout_ms, struct dcp_error *err)
{
    struct round round = { .call = *call, .in = in, .out = out };
    size_t most, n = call->kind == DCP_TCP_ALLGATHER ? (size_t)star->world : 1;
    if (star->failure.code)
        return report_failure(star, err);
    if (call->root >= (uint64_t)star->world)
        return dcp_error_set(err, DCP_E_USAGE, "there is no rank %d among %d",
                             (int)call->root, star->world);
    if (!dcp_mul_size((size_t)call->size_bytes, n, &most) || most > PTRDIFF_MAX)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%zu bytes are too many for a message between %d ranks",
                             (size_t)call->size_bytes, star->world);
    round.call.round = ++star->round;
    struct dcp_tcp_head head = { .call = round.call };
    dcp_tcp_put_head(round.head, &head);
    round.begin = dcp_clock_ns();
    round.time_ns = (uint64_t)timeout_ms * DCP_TCP_MS;
    int rc = star->rank == 0 ? root_round(star, &round) : leaf_round(star, &round);
    return rc ? report_failure(star, err) : DCP_OK;
}

/* --- who is dead --- */

/* A verdict that came between two rounds names a dead rank; else -1. */
static int dead_by_verdict(const struct dcp_tcp_star *star)
{
    unsigned char bytes[DCP_TCP_HEAD_BYTES];
    ssize_t n = recv(star->links[0].fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    if (n != sizeof bytes)
        return -1;
    struct dcp_tcp_head head = dcp_tcp_get_head(bytes);
    return head.code && head.fate == DCP_RANK_DEAD ? head.rank : -1;
}

/* Rank 0 alone sees all others. Between two rounds no answer is half sent, so it can tell
 * them at once. */
int dcp_tcp_star_dead(struct dcp_tcp_star *star)
{
    if (star->failure.code && star->failure.rank_fate == DCP_RANK_DEAD)
        return star->failure.rank;
    if (star->rank) {
        int told = star->failure.code ? -1 : dead_by_verdict(star);
        return told >= 0 ? told : dcp_tcp_is_gone(star->links[0].fd) ? 0 : -1;
    }
    for (int r = 1; r < star->world; r++)
        if (dcp_tcp_is_gone(star->links[r].fd)) {
            if (!star->failure.code) {
                fail_lost(star, r, 0);
                tell(star, VERDICT_TIME);
            }
            return r;
        }
    return -1;
}
