/* Ranks of an MPI job: messages of star.h, by nonblocking calls alone. Between two looks
 * at them a rank sleeps.
 *
 * After a failure MPI is not called again, but for the verdict of rank 0: its requests
 * may never complete, so what they point to is memory of the link, and is left to MPI. A
 * late message can meet no later call, because there is none. It uses nothing hidden of
 * libdcp, being a library of its own. */
#include <dcp/comm.h>

#include "peers.h"
#include "star.h"
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
#define FIRST_SLEEP (DCP_STAR_MS / 20)
#define LONGEST_SLEEP (2 * DCP_STAR_MS)
#define WATCH_EVERY (50 * DCP_STAR_MS)
/* A dead rank's last message may still be on its way, and rank 0's verdict is the same
 * for all, so rank 0 waits a little for the first, and the others a little more for that.
 */
#define ROOT_GRACE (100 * DCP_STAR_MS)
#define LEAF_GRACE (500 * DCP_STAR_MS)

/* What goes to and comes from one rank. */
struct side {
    MPI_Request head_out, body_out, head_in, body_in; /* null when there is none */
    bool sends, has_body; /* these were started, in the present message */
    bool lost;            /* what was to be sent before it was not */
    unsigned char *body;  /* where it is received */
    int error;            /* of MPI */
    unsigned char head[DCP_STAR_HEAD_BYTES];
};

struct mpi {
    struct dcp_star star; /* first */
    MPI_Comm comm;
    struct side *sides;      /* by rank */
    struct dcp_peers *peers; /* NULL: not known */
    unsigned char *buffer;   /* bodies: what is sent, then what is received */
    size_t cap, send_bytes, received_bytes;
    unsigned char heads[2][DCP_STAR_HEAD_BYTES]; /* of a round, and of the verdict */
    unsigned char *head;
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
    for (int r = 0; any && r < mpi->star.world_size; r++)
        if (is_dead(mpi, r))
            return r;
    return -1;
}

/* Looks now and then. Who is told has had the time to send a last message. */
static int link_find_gone(void *self, bool now)
{
    struct mpi *mpi = self;
    uint64_t at = dcp_star_now(), grace = mpi->star.rank ? LEAF_GRACE : ROOT_GRACE;
    (void)now;
    if (at >= mpi->next_watch) {
        mpi->next_watch = at + WATCH_EVERY;
        mpi->dead = mpi_peer_dead(mpi);
        if (mpi->dead < 0)
            mpi->death = 0;
        else if (!mpi->death)
            mpi->death = at;
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
    (void)skip, (void)deadline;
    if (mpi->n_looks++ < QUICK_LOOKS) {
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

static enum dcp_star_progress look_at(struct mpi *mpi, int rank, MPI_Request *request)
{
    struct side *side = &mpi->sides[rank];
    int done = 1;
    if (side->error || (*request != MPI_REQUEST_NULL &&
                        !is_good(side, MPI_Test(request, &done, MPI_STATUS_IGNORE))))
        return DCP_STAR_LOST;
    if (done)
        return DCP_STAR_DONE;
    bool gone = link_find_gone(mpi, false) >= 0 && is_dead(mpi, rank);
    return gone ? DCP_STAR_LOST : DCP_STAR_MORE;
}

/* No request is open between two rounds, so the buffer may move. */
static bool link_reserve(void *self, size_t send_bytes, size_t receive_bytes)
{
    struct mpi *mpi = self;
    size_t size = send_bytes + receive_bytes;
    if (size > mpi->cap) {
        unsigned char *grown = realloc(mpi->buffer, size);
        if (!grown)
            return false;
        mpi->buffer = grown;
        mpi->cap = size;
    }
    mpi->send_bytes = send_bytes;
    return true;
}

static void link_begin_send(void *self, const unsigned char head[DCP_STAR_HEAD_BYTES],
                            const void *body, size_t size_bytes)
{
    struct mpi *mpi = self;
    mpi->head = mpi->heads[0];
    for (int r = 0; r < mpi->star.world_size; r++) {
        struct side *side = &mpi->sides[r];
        side->lost = is_sending(side);
        side->sends = false;
        if (side->lost)
            mpi->head = mpi->heads[1];
    }
    memcpy(mpi->head, head, DCP_STAR_HEAD_BYTES);
    if (size_bytes)
        memcpy(mpi->buffer, body, size_bytes);
    wake_up(mpi);
}

static bool start_send(struct mpi *mpi, int to, size_t size)
{
    struct side *side = &mpi->sides[to];
    side->sends = true;
    return is_good(side, MPI_Isend(mpi->head, DCP_STAR_HEAD_BYTES, MPI_BYTE, to, TAG,
                                   mpi->comm, &side->head_out)) &&
           (!size || is_good(side, MPI_Isend(mpi->buffer, (int)size, MPI_BYTE, to, TAG,
                                             mpi->comm, &side->body_out)));
}

static enum dcp_star_progress link_send(void *self, int rank, size_t size_bytes)
{
    struct mpi *mpi = self;
    struct side *side = &mpi->sides[rank];
    if (side->lost || (!side->sends && !start_send(mpi, rank, size_bytes)))
        return DCP_STAR_LOST;
    enum dcp_star_progress head = look_at(mpi, rank, &side->head_out);
    return head == DCP_STAR_DONE ? look_at(mpi, rank, &side->body_out) : head;
}

static void link_begin_receive(void *self)
{
    struct mpi *mpi = self;
    int end = mpi->star.rank ? 1 : mpi->star.world_size;
    for (int r = mpi->star.rank ? 0 : 1; r < end; r++) {
        struct side *side = &mpi->sides[r];
        side->has_body = false;
        is_good(side, MPI_Irecv(side->head, DCP_STAR_HEAD_BYTES, MPI_BYTE, r, TAG,
                                mpi->comm, &side->head_in));
    }
    mpi->received_bytes = 0;
    mpi->next_watch = dcp_star_now() + WATCH_EVERY;
    mpi->death = 0;
    wake_up(mpi);
}

static enum dcp_star_progress link_receive_head(void *self, int rank,
                                                const unsigned char **out_head)
{
    struct mpi *mpi = self;
    *out_head = mpi->sides[rank].head;
    return look_at(mpi, rank, &mpi->sides[rank].head_in);
}

static enum dcp_star_progress link_receive_body(void *self, int rank, void *out,
                                                size_t size_bytes)
{
    struct mpi *mpi = self;
    struct side *side = &mpi->sides[rank];
    if (!size_bytes)
        return DCP_STAR_DONE;
    if (!side->has_body) {
        side->has_body = true;
        side->body = mpi->buffer + mpi->send_bytes + mpi->received_bytes;
        mpi->received_bytes += size_bytes;
        if (!is_good(side, MPI_Irecv(side->body, (int)size_bytes, MPI_BYTE, rank, TAG,
                                     mpi->comm, &side->body_in)))
            return DCP_STAR_LOST;
    }
    enum dcp_star_progress progress = look_at(mpi, rank, &side->body_in);
    if (progress == DCP_STAR_DONE)
        memcpy(out, side->body, size_bytes);
    return progress;
}

static bool link_tell_loss(void *self, int rank, char *out, size_t size)
{
    const struct mpi *mpi = self;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    if (!mpi->sides[rank].error)
        return false;
    MPI_Error_string(mpi->sides[rank].error, text, &n);
    snprintf(out, size, "cannot be reached: %s", text);
    return true;
}

static const struct dcp_star_link mpi_link = {
    .reserve = link_reserve,
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
    for (int r = 0; mpi->sides && r < mpi->star.world_size; r++)
        open = open || is_open(&mpi->sides[r]);
    if (!mpi->star.failure.code && mpi->comm != MPI_COMM_NULL && !open && !finalized)
        MPI_Comm_free(&mpi->comm);
    dcp_peers_free(mpi->peers);
    dcp_star_fini(&mpi->star);
    if (open && !finalized) /* the rest is where MPI may still read and write */
        return;
    free(mpi->sides);
    free(mpi->buffer);
    free(mpi);
}

static const struct dcp_comm_ops mpi_ops = {
    .allgather = dcp_star_allgather,
    .bcast = dcp_star_bcast,
    .gather = dcp_star_gather,
    .least = dcp_star_least,
    .peer_dead = mpi_peer_dead,
    .free = mpi_free,
};

/* A communicator of our own, so that no message of the program meets ours. */
static int duplicate(struct mpi *mpi, MPI_Comm from, struct dcp_error *err)
{
    struct side *mine = &mpi->sides[mpi->star.rank];
    uint64_t deadline = dcp_star_now() + START_TIMEOUT_MS * DCP_STAR_MS;
    enum dcp_star_progress progress = DCP_STAR_LOST;
    wake_up(mpi);
    if (is_good(mine, MPI_Comm_idup(from, &mpi->comm, &mine->head_out)))
        while ((progress = look_at(mpi, mpi->star.rank, &mine->head_out)) ==
                   DCP_STAR_MORE &&
               dcp_star_now() < deadline)
            link_wait(mpi, NULL, deadline);
    if (progress == DCP_STAR_DONE) {
        MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
        return DCP_OK;
    }
    char why[200] = "not all ranks started in time";
    link_tell_loss(mpi, mpi->star.rank, why, sizeof why);
    dcp_error_set(err, DCP_E_COMM, "rank %d %s", mpi->star.rank, why);
    dcp_error_hint(err, "look at the output of rank %d; all ranks must be started again",
                   mpi->star.rank);
    mpi->star.failure.code = DCP_E_COMM;
    return DCP_E_COMM;
}

static struct mpi *mpi_new(MPI_Comm from)
{
    struct mpi *mpi = calloc(1, sizeof *mpi);
    int rank, world_size;
    MPI_Comm_rank(from, &rank);
    MPI_Comm_size(from, &world_size);
    struct side *sides = calloc((size_t)world_size, sizeof *sides);
    if (!mpi || !sides ||
        dcp_star_init(&mpi->star, &mpi_link, rank, world_size, INT_MAX, NULL)) {
        free(sides);
        free(mpi);
        return NULL;
    }
    mpi->comm = MPI_COMM_NULL;
    mpi->sides = sides;
    for (int r = 0; r < world_size; r++)
        sides[r].head_out = sides[r].body_out = sides[r].head_in = sides[r].body_in =
            MPI_REQUEST_NULL;
    return mpi;
}

int dcp_comm_mpi(struct dcp_comm *out_comm, const void *mpi_comm, struct dcp_error *err)
{
    MPI_Comm from;
    int started = 0;
    *out_comm = (struct dcp_comm){ 0 };
    MPI_Initialized(&started);
    if (!started)
        return dcp_error_set(err, DCP_E_USAGE, "MPI is not initialised");
    memcpy(&from, mpi_comm, sizeof from);
    struct mpi *mpi = mpi_new(from);
    struct dcp_peer me,
        *all = mpi ? calloc((size_t)mpi->star.world_size, sizeof *all) : NULL;
    if (!all) {
        if (mpi)
            mpi_free(mpi);
        return dcp_error_memory(err, "an MPI communicator");
    }
    dcp_peer_identify(&me);
    int rc = duplicate(mpi, from, err);
    if (!rc)
        rc = dcp_star_allgather(mpi, &me, sizeof me, all, START_TIMEOUT_MS, err);
    if (!rc) /* without memory for it the time-out is left */
        mpi->peers = dcp_peers_new(all, mpi->star.world_size, mpi->star.rank);
    free(all);
    if (rc) {
        mpi_free(mpi);
        return rc;
    }
    *out_comm = (struct dcp_comm){
        .ops = &mpi_ops,
        .self = mpi,
        .rank = mpi->star.rank,
        .world_size = mpi->star.world_size,
    };
    return DCP_OK;
}
