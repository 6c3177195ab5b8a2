/* Ranks of an MPI job: messages of relay.h, by nonblocking calls alone. Between two looks
 * at them a rank sleeps.
 *
 * After a failure MPI is not called again, but for the verdict: its requests may never
 * complete, so what they point to is memory of the link, and is left to MPI. A late
 * message can meet no later call, because there is none. It uses nothing hidden of
 * libdcp, being a library of its own. */
#include <dcp/comm.h>

#include "mpi_open.h"
#include "peers.h"
#include "relay.h"
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define START_TIMEOUT_MS 60000
#define TAG 0

/* Waiting, in nanoseconds. */
#define QUICK_LOOKS 50 /* before the first sleep */
#define FIRST_SLEEP (DCP_RELAY_MS / 20)
#define LONGEST_SLEEP (2 * DCP_RELAY_MS)
#define WATCH_EVERY (50 * DCP_RELAY_MS)
/* A dead rank's last message may still be on its way, and rank 0's verdict is the same
 * for all, so rank 0 waits a little for the first, and the others more for that. */
#define ROOT_GRACE (100 * DCP_RELAY_MS)
#define BRANCH_GRACE (500 * DCP_RELAY_MS)

/* What goes to and comes from a neighbour. */
struct side {
    int rank;
    MPI_Request head_out, body_out, head_in, body_in; /* null when there is none */
    bool has_head, has_body; /* of the present message: its receive was started */
    bool lost;               /* what was to be sent before it was not */
    unsigned char *body;     /* where it is received */
    int error;               /* of MPI */
    unsigned char head[DCP_RELAY_HEAD_BYTES], sent_head[DCP_RELAY_HEAD_BYTES];
};

struct mpi {
    struct dcp_relay relay; /* first */
    MPI_Comm comm;
    int n_slots;
    struct side *sides;      /* by slot; rank 0's first one is its own */
    struct dcp_peers *peers; /* NULL: not known */
    unsigned char *buffer;   /* bodies: what is sent, then what is received */
    size_t cap, send_bytes, received_bytes;
    int n_looks;
    uint64_t sleep, next_watch;
    uint64_t death; /* when a dead rank was noticed, 0: none was */
    int dead;
};

/* --- who is dead --- */

static bool is_dead(const struct mpi *mpi, int rank)
{
    return mpi->peers && dcp_peers_is_dead(mpi->peers, rank);
}

static int mpi_peer_dead(void *self)
{
    struct mpi *mpi = self;
    bool any = mpi->peers && dcp_peers_look(mpi->peers);
    for (int r = 0; any && r < mpi->relay.at.world_size; r++)
        if (is_dead(mpi, r))
            return r;
    return -1;
}

/* Looks now and then, and stays with the first that it saw: others end because of that
 * one. Who is told has had the time to send a last message. */
static int link_find_gone(void *self)
{
    struct mpi *mpi = self;
    uint64_t at = dcp_relay_now(), grace = mpi->relay.at.rank ? BRANCH_GRACE : ROOT_GRACE;
    if (!mpi->death && at >= mpi->next_watch) {
        mpi->next_watch = at + WATCH_EVERY;
        mpi->dead = mpi_peer_dead(mpi);
        mpi->death = mpi->dead < 0 ? 0 : at;
    }
    return mpi->death && at - mpi->death >= grace ? mpi->dead : -1;
}

/* --- waiting --- */

static void wake_up(struct mpi *mpi)
{
    mpi->n_looks = 0;
    mpi->sleep = FIRST_SLEEP;
}

static void link_wait(void *self, const bool *skip, uint64_t deadline)
{
    struct mpi *mpi = self;
    (void)skip;
    if (mpi->n_looks++ < QUICK_LOOKS || !deadline) {
        sched_yield();
        return;
    }
    struct timespec time = { .tv_nsec = (long)mpi->sleep };
    nanosleep(&time, NULL);
    mpi->sleep += mpi->sleep / 2;
    if (mpi->sleep > LONGEST_SLEEP)
        mpi->sleep = LONGEST_SLEEP;
}

/* --- messages --- */

static bool is_sending(const struct side *side)
{
    return side->head_out != MPI_REQUEST_NULL || side->body_out != MPI_REQUEST_NULL;
}

static bool is_open(const struct side *side)
{
    return is_sending(side) || side->head_in != MPI_REQUEST_NULL ||
           side->body_in != MPI_REQUEST_NULL;
}

/* What MPI said of a side; the first error is the one to tell. */
static bool is_good(struct side *side, int mpi_code)
{
    if (mpi_code != MPI_SUCCESS && !side->error)
        side->error = mpi_code;
    return mpi_code == MPI_SUCCESS;
}

static enum dcp_relay_progress or_lost(struct mpi *mpi, const struct side *side,
                                       bool done)
{
    if (done)
        return DCP_RELAY_DONE;
    bool gone = link_find_gone(mpi) >= 0 && is_dead(mpi, side->rank);
    return gone ? DCP_RELAY_LOST : DCP_RELAY_MORE;
}

static enum dcp_relay_progress look_at(struct mpi *mpi, struct side *side,
                                       MPI_Request *request)
{
    int done = 1;
    if (side->error || (*request != MPI_REQUEST_NULL &&
                        !is_good(side, MPI_Test(request, &done, MPI_STATUS_IGNORE))))
        return DCP_RELAY_LOST;
    return or_lost(mpi, side, done);
}

/* A round begins. No request is open between two rounds, so the buffer may move. */
static bool link_reserve(void *self, size_t send_bytes, size_t receive_bytes)
{
    struct mpi *mpi = self;
    size_t size = send_bytes + receive_bytes;
    mpi->next_watch = dcp_relay_now() + WATCH_EVERY;
    mpi->death = 0;
    wake_up(mpi);
    if (size > mpi->cap) {
        unsigned char *grown = realloc(mpi->buffer, size);
        if (!grown)
            return false;
        mpi->buffer = grown;
        mpi->cap = size;
    }
    mpi->send_bytes = send_bytes;
    mpi->received_bytes = 0;
    return true;
}

static void link_begin_body(void *self, const void *body, size_t size_bytes)
{
    struct mpi *mpi = self;
    memcpy(mpi->buffer, body, size_bytes);
}

static void link_begin_send(void *self, int slot,
                            const unsigned char head[DCP_RELAY_HEAD_BYTES],
                            size_t size_bytes)
{
    struct mpi *mpi = self;
    struct side *side = &mpi->sides[slot];
    wake_up(mpi);
    side->lost = side->lost || is_sending(side);
    if (side->lost)
        return;
    memcpy(side->sent_head, head, DCP_RELAY_HEAD_BYTES);
    if (is_good(side, MPI_Isend(side->sent_head, DCP_RELAY_HEAD_BYTES, MPI_BYTE,
                                side->rank, TAG, mpi->comm, &side->head_out)) &&
        size_bytes)
        is_good(side, MPI_Isend(mpi->buffer, (int)size_bytes, MPI_BYTE, side->rank, TAG,
                                mpi->comm, &side->body_out));
}

static enum dcp_relay_progress link_send(void *self, int slot)
{
    struct mpi *mpi = self;
    struct side *side = &mpi->sides[slot];
    if (side->lost)
        return DCP_RELAY_LOST;
    enum dcp_relay_progress head = look_at(mpi, side, &side->head_out);
    return head == DCP_RELAY_DONE ? look_at(mpi, side, &side->body_out) : head;
}

static void link_begin_receive(void *self, int slot)
{
    struct mpi *mpi = self;
    mpi->sides[slot].has_head = mpi->sides[slot].has_body = false;
    wake_up(mpi);
}

/* It is received once it is there, so that no request waits for what may never come. */
static enum dcp_relay_progress link_receive_head(void *self, int slot,
                                                 const unsigned char **out_head)
{
    struct mpi *mpi = self;
    struct side *side = &mpi->sides[slot];
    int is_there = 1;
    *out_head = side->head;
    if (!side->has_head) {
        if (side->error || !is_good(side, MPI_Iprobe(side->rank, TAG, mpi->comm,
                                                     &is_there, MPI_STATUS_IGNORE)))
            return DCP_RELAY_LOST;
        if (!is_there)
            return or_lost(mpi, side, false);
        side->has_head = true;
        is_good(side, MPI_Irecv(side->head, DCP_RELAY_HEAD_BYTES, MPI_BYTE, side->rank,
                                TAG, mpi->comm, &side->head_in));
    }
    return look_at(mpi, side, &side->head_in);
}

static enum dcp_relay_progress link_receive_body(void *self, int slot, void *out,
                                                 size_t size_bytes)
{
    struct mpi *mpi = self;
    struct side *side = &mpi->sides[slot];
    if (!size_bytes)
        return DCP_RELAY_DONE;
    if (!side->has_body) {
        side->has_body = true;
        side->body = mpi->buffer + mpi->send_bytes + mpi->received_bytes;
        mpi->received_bytes += size_bytes;
        if (!is_good(side, MPI_Irecv(side->body, (int)size_bytes, MPI_BYTE, side->rank,
                                     TAG, mpi->comm, &side->body_in)))
            return DCP_RELAY_LOST;
    }
    enum dcp_relay_progress progress = look_at(mpi, side, &side->body_in);
    if (progress == DCP_RELAY_DONE && out)
        memcpy(out, side->body, size_bytes);
    return progress;
}

static bool link_tell_loss(void *self, int slot, char *out, size_t size)
{
    const struct mpi *mpi = self;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    if (!mpi->sides[slot].error)
        return false;
    MPI_Error_string(mpi->sides[slot].error, text, &n);
    snprintf(out, size, "cannot be reached: %s", text);
    return true;
}

static const struct dcp_relay_link mpi_link = {
    .reserve = link_reserve,
    .begin_body = link_begin_body,
    .begin_send = link_begin_send,
    .send = link_send,
    .begin_receive = link_begin_receive,
    .receive_head = link_receive_head,
    .receive_body = link_receive_body,
    .wait = link_wait,
    .find_gone = link_find_gone,
    .tell_loss = link_tell_loss,
};

/* --- the life of a comm --- */

static void mpi_free(void *self)
{
    struct mpi *mpi = self;
    int finalized = 0;
    bool open = false;
    MPI_Finalized(&finalized);
    for (int slot = 0; mpi->sides && slot < mpi->n_slots; slot++)
        open = open || is_open(&mpi->sides[slot]);
    if (!mpi->relay.failure.code && mpi->comm != MPI_COMM_NULL && !open && !finalized)
        MPI_Comm_free(&mpi->comm);
    dcp_peers_free(mpi->peers);
    dcp_relay_fini(&mpi->relay);
    if (open && !finalized) /* the rest is where MPI may still read and write */
        return;
    free(mpi->sides);
    free(mpi->buffer);
    free(mpi);
}

static const struct dcp_comm_ops mpi_ops = {
    .allgather = dcp_relay_allgather,
    .bcast = dcp_relay_bcast,
    .gather = dcp_relay_gather,
    .least = dcp_relay_least,
    .peer_dead = mpi_peer_dead,
    .free = mpi_free,
};

/* A communicator of our own, so that no message of the program meets ours. */
static int duplicate(struct mpi *mpi, MPI_Comm from, struct dcp_error *err)
{
    struct side *first = &mpi->sides[0]; /* none is in use yet */
    uint64_t deadline = dcp_relay_now() + START_TIMEOUT_MS * DCP_RELAY_MS;
    enum dcp_relay_progress progress = DCP_RELAY_LOST;
    int rank = mpi->relay.at.rank;
    wake_up(mpi);
    if (is_good(first, MPI_Comm_idup(from, &mpi->comm, &first->head_out)))
        while ((progress = look_at(mpi, first, &first->head_out)) == DCP_RELAY_MORE &&
               dcp_relay_now() < deadline)
            link_wait(mpi, NULL, deadline);
    if (progress == DCP_RELAY_DONE) {
        MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
        return DCP_OK;
    }
    char why[200] = "not all ranks started in time";
    link_tell_loss(mpi, 0, why, sizeof why);
    dcp_error_set(err, DCP_E_COMM, "rank %d %s", rank, why);
    dcp_error_hint(err, "look at the output of rank %d; all ranks must be started again",
                   rank);
    mpi->relay.failure.code = DCP_E_COMM;
    return DCP_E_COMM;
}

static struct mpi *mpi_new(MPI_Comm from, int largest_fanout)
{
    struct mpi *mpi = calloc(1, sizeof *mpi);
    int rank, world_size;
    MPI_Comm_rank(from, &rank);
    MPI_Comm_size(from, &world_size);
    struct dcp_branch at = dcp_branch_of(rank, world_size, largest_fanout);
    struct side *sides = calloc((size_t)at.n_children + 1, sizeof *sides);
    if (!mpi || !sides || dcp_relay_init(&mpi->relay, &mpi_link, at, INT_MAX, NULL)) {
        free(sides);
        free(mpi);
        return NULL;
    }
    mpi->comm = MPI_COMM_NULL;
    mpi->n_slots = at.n_children + 1;
    mpi->sides = sides;
    for (int slot = 0; slot < mpi->n_slots; slot++) {
        struct side *side = &sides[slot];
        side->rank = dcp_branch_rank(&at, slot);
        side->head_out = side->body_out = side->head_in = side->body_in =
            MPI_REQUEST_NULL;
    }
    return mpi;
}

int dcp_mpi_open(struct dcp_comm *out_comm, const void *mpi_comm, int largest_fanout,
                 struct dcp_error *err)
{
    MPI_Comm from;
    int started = 0;
    *out_comm = (struct dcp_comm){ 0 };
    MPI_Initialized(&started);
    if (!started)
        return dcp_error_set(err, DCP_E_USAGE, "MPI is not initialised");
    memcpy(&from, mpi_comm, sizeof from);
    struct mpi *mpi = mpi_new(from, largest_fanout);
    struct dcp_peer me,
        *all = mpi ? calloc((size_t)mpi->relay.at.world_size, sizeof *all) : NULL;
    if (!all) {
        if (mpi)
            mpi_free(mpi);
        return dcp_error_memory(err, "an MPI communicator");
    }
    dcp_peer_identify(&me);
    int rc = duplicate(mpi, from, err);
    if (!rc)
        rc = dcp_relay_allgather(mpi, &me, sizeof me, all, START_TIMEOUT_MS, err);
    if (!rc) /* without memory for it the time-out is left */
        mpi->peers = dcp_peers_new(all, mpi->relay.at.world_size, mpi->relay.at.rank);
    free(all);
    if (rc) {
        mpi_free(mpi);
        return rc;
    }
    *out_comm = (struct dcp_comm){
        .ops = &mpi_ops,
        .self = mpi,
        .rank = mpi->relay.at.rank,
        .world_size = mpi->relay.at.world_size,
    };
    return DCP_OK;
}

int dcp_comm_mpi(struct dcp_comm *out_comm, const void *mpi_comm, struct dcp_error *err)
{
    return dcp_mpi_open(out_comm, mpi_comm, DCP_BRANCH_FANOUT, err);
}
