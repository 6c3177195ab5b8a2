/* Ranks of an MPI job.
 *
 * Every call is one round over a star: each rank sends to rank 0, which answers all. Only
 * nonblocking calls are made, and between two looks at them a rank sleeps. Rank 0 waits
 * for three quarters of the time-out and then tells the others who is missing; they wait
 * for all of it, and when no answer came, rank 0 is the one to name.
 *
 * After a failure MPI is not called again: its requests may never complete, so the memory
 * they point to is left to it. A late message can meet no later call, because there is
 * none. It uses nothing hidden of libdcp, being a library of its own. */
#include <dcp/comm.h>

#include "peers.h"
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define START_TIMEOUT_MS 60000
#define N_TAGS 32768 /* MPI promises no more */

/* Waiting, in nanoseconds. */
#define MS UINT64_C(1000000)
#define QUICK_LOOKS 50 /* before the first sleep */
#define FIRST_SLEEP (MS / 20)
#define LONGEST_SLEEP (2 * MS)
#define WATCH_EVERY (50 * MS)
/* A dead rank's last message may still be on its way, and rank 0's verdict is the same
 * for all, so rank 0 waits a little for the first, and the others a little more for that.
 */
#define ROOT_GRACE (100 * MS)
#define LEAF_GRACE (500 * MS)
#define VERDICT_TIME (100 * MS) /* for sending it, when someone does not read */

enum kind { ALLGATHER, BCAST };

struct call {
    uint64_t round, kind, root, size_bytes;
};

/* What every message begins with. */
struct head {
    struct call call; /* both sides must be in the same */
    int64_t code;     /* DCP_OK: the bytes of the call follow */
    int64_t rank;     /* who failed */
    int64_t fate;     /* of that rank, DCP_RANK_… */
    char why[160];
};

struct mpi {
    MPI_Comm comm;
    int rank, world;
    uint64_t round;
    MPI_Request *sends, *receives; /* by rank; null when there is none */
    unsigned char *buffer;         /* of the messages of a round */
    size_t cap;
    struct head spare[2];    /* for a verdict, and for a rank without memory */
    struct dcp_peers *peers; /* NULL: not known */
    struct dcp_error failure;
};

/* --- time --- */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * MS + (uint64_t)now.tv_nsec;
}

struct wait {
    uint64_t begin, deadline, next_watch, sleep;
    int n_looks;
    uint64_t death; /* when a dead rank was noticed, 0: none was */
    int dead;
};

static struct wait wait_begin(uint64_t time_ns)
{
    uint64_t begin = now_ns();
    return (struct wait){ .begin = begin,
                          .deadline = begin + time_ns,
                          .next_watch = begin + WATCH_EVERY,
                          .sleep = FIRST_SLEEP,
                          .dead = -1 };
}

static void rest(struct wait *wait)
{
    if (wait->n_looks++ < QUICK_LOOKS) {
        sched_yield();
        return;
    }
    struct timespec time = { .tv_nsec = (long)wait->sleep };
    nanosleep(&time, NULL);
    wait->sleep += wait->sleep / 2;
    if (wait->sleep > LONGEST_SLEEP)
        wait->sleep = LONGEST_SLEEP;
}

/* --- failure --- */

static int fail(struct mpi *mpi, int rank, int fate, const char *why)
{
    if (!mpi->failure.code) {
        dcp_error_set(&mpi->failure, DCP_E_COMM, "rank %d %s", rank, why);
        dcp_error_hint(&mpi->failure,
                       "look at the output of rank %d; all ranks must be started again",
                       rank);
        mpi->failure.rank = rank;
        mpi->failure.rank_fate = fate;
    }
    return DCP_E_COMM;
}

static int report_failure(const struct mpi *mpi, struct dcp_error *err)
{
    if (err && !err->code)
        *err = mpi->failure;
    return mpi->failure.code;
}

static int fail_mpi(struct mpi *mpi, int rank, int mpi_code)
{
    char text[MPI_MAX_ERROR_STRING] = "", why[sizeof text + 32];
    int n;
    MPI_Error_string(mpi_code, text, &n);
    snprintf(why, sizeof why, "cannot be reached: %s", text);
    return fail(mpi, rank, DCP_RANK_UNKNOWN, why);
}

static int fail_silent(struct mpi *mpi, int rank, const struct wait *wait)
{
    char why[80];
    snprintf(why, sizeof why, "did not answer within %.1f s",
             (double)(now_ns() - wait->begin) / 1e9);
    return fail(mpi, rank, DCP_RANK_SILENT, why);
}

static bool is_dead(const struct mpi *mpi, int rank)
{
    return mpi->peers && dcp_peers_is_dead(mpi->peers, rank);
}

/* Lowest rank that is known to be dead, or -1; of those whose request is open, when
 * requests are given. */
static int find_dead(struct mpi *mpi, const MPI_Request *requests)
{
    bool any = mpi->peers && dcp_peers_look(mpi->peers);
    for (int r = 0; any && r < mpi->world; r++)
        if (is_dead(mpi, r) && (!requests || requests[r] != MPI_REQUEST_NULL))
            return r;
    return -1;
}

/* Looks now and then whether someone that is waited for died. True: and its last message
 * has had the time to come. */
static bool has_died(struct mpi *mpi, struct wait *wait, const MPI_Request *requests,
                     uint64_t grace)
{
    uint64_t now = now_ns();
    if (now < wait->next_watch)
        return false;
    wait->next_watch = now + WATCH_EVERY;
    wait->dead = find_dead(mpi, requests);
    if (wait->dead < 0)
        wait->death = 0;
    else if (!wait->death)
        wait->death = now;
    return wait->death && now - wait->death >= grace;
}

/* --- requests --- */

/* Tests all; lowest rank whose request is open, -1: none, or failure of the comm. */
static int test_all(struct mpi *mpi, MPI_Request *requests)
{
    int open = -1;
    for (int r = mpi->world - 1; r >= 0; r--) {
        int done = 1;
        int rc = requests[r] == MPI_REQUEST_NULL
                     ? MPI_SUCCESS
                     : MPI_Test(&requests[r], &done, MPI_STATUS_IGNORE);
        if (rc != MPI_SUCCESS) {
            fail_mpi(mpi, r, rc);
            return -1;
        }
        if (!done)
            open = r;
    }
    return open;
}

/* Waits until all are complete; a rank whose request stays open is the one that failed.
 */
static int wait_all(struct mpi *mpi, MPI_Request *requests, struct wait *wait,
                    uint64_t grace)
{
    int open;
    while ((open = test_all(mpi, requests)) >= 0) {
        if (has_died(mpi, wait, requests, grace))
            return fail(mpi, wait->dead, DCP_RANK_DEAD, "is gone");
        if (now_ns() >= wait->deadline)
            return fail_silent(mpi, open, wait);
        rest(wait);
    }
    return mpi->failure.code;
}

static int start_send(struct mpi *mpi, int to, const void *data, size_t size)
{
    int tag = (int)(mpi->round % N_TAGS);
    int rc = MPI_Isend(data, (int)size, MPI_BYTE, to, tag, mpi->comm, &mpi->sends[to]);
    return rc == MPI_SUCCESS ? DCP_OK : fail_mpi(mpi, to, rc);
}

static int start_receive(struct mpi *mpi, int from, void *out, size_t size)
{
    int tag = (int)(mpi->round % N_TAGS);
    int rc =
        MPI_Irecv(out, (int)size, MPI_BYTE, from, tag, mpi->comm, &mpi->receives[from]);
    return rc == MPI_SUCCESS ? DCP_OK : fail_mpi(mpi, from, rc);
}

/* No request is open between two rounds, so the buffer may move. NULL: no memory. */
static unsigned char *get_buffer(struct mpi *mpi, size_t size)
{
    if (size > mpi->cap) {
        unsigned char *grown = realloc(mpi->buffer, size);
        if (!grown)
            return NULL;
        mpi->buffer = grown;
        mpi->cap = size;
    }
    return mpi->buffer;
}

/* --- one round --- */

/* Bytes of the call that a rank sends to rank 0, and that rank 0 answers. */
static size_t up_bytes(const struct call *call, int rank)
{
    bool sends = call->kind == ALLGATHER || call->root == (uint64_t)rank;
    return sends ? (size_t)call->size_bytes : 0;
}

static size_t down_bytes(const struct mpi *mpi, const struct call *call)
{
    return (size_t)call->size_bytes * (call->kind == ALLGATHER ? (size_t)mpi->world : 1);
}

/* Where a rank's message stands in rank 0's buffer. */
static size_t slot_of(const struct call *call, int rank)
{
    size_t heads = (size_t)rank * sizeof(struct head);
    if (call->kind == ALLGATHER)
        return heads + (size_t)rank * (size_t)call->size_bytes;
    return heads + ((uint64_t)rank > call->root ? (size_t)call->size_bytes : 0);
}

/* Every message is a head, then maybe bytes. Alignment is not the buffer's duty. */
static struct head read_head(const unsigned char *message)
{
    struct head head;
    memcpy(&head, message, sizeof head);
    head.why[sizeof head.why - 1] = '\0';
    return head;
}

static struct head refusal(const struct call *call, int code, int rank, const char *why)
{
    struct head head = { .call = *call, .code = code, .rank = rank };
    snprintf(head.why, sizeof head.why, "%s", why);
    return head;
}

/* What a head with a code says. Without memory somewhere the round is over but all are in
 * step: the comm can be used again. */
static int obey(struct mpi *mpi, const struct head *head, struct dcp_error *err)
{
    int rank = (int)head->rank;
    if (head->code != DCP_E_MEMORY) {
        fail(mpi, rank, (int)head->fate, head->why);
        return report_failure(mpi, err);
    }
    dcp_error_set(err, DCP_E_MEMORY, "rank %d %s", rank, head->why);
    if (err)
        err->rank = rank;
    return DCP_E_MEMORY;
}

static bool same_call(const struct call *a, const struct call *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Any rank but 0. */
static int leaf_round(struct mpi *mpi, const struct call *call, const void *in, void *out,
                      uint64_t time_ns, struct dcp_error *err)
{
    static const char no_memory[] = "has no memory for a message";
    size_t n_in = up_bytes(call, mpi->rank), n_out = down_bytes(mpi, call);
    unsigned char *up = get_buffer(mpi, n_in + n_out + 2 * sizeof(struct head));
    unsigned char *down = up + sizeof(struct head) + n_in;
    struct head head = { .call = *call };
    if (!up) { /* say so; the answer to that is a head alone */
        up = (unsigned char *)&mpi->spare[0];
        down = (unsigned char *)&mpi->spare[1];
        head = refusal(call, DCP_E_MEMORY, mpi->rank, no_memory);
        n_in = n_out = 0;
    }
    memcpy(up, &head, sizeof head);
    if (n_in)
        memcpy(up + sizeof head, in, n_in);
    if (start_receive(mpi, 0, down, sizeof head + n_out) ||
        start_send(mpi, 0, up, sizeof head + n_in))
        return report_failure(mpi, err);

    struct wait wait = wait_begin(time_ns);
    while (test_all(mpi, mpi->receives) >= 0) {
        test_all(mpi, mpi->sends);
        if (has_died(mpi, &wait, NULL, LEAF_GRACE)) {
            fail(mpi, wait.dead, DCP_RANK_DEAD, "is gone");
        } else if (now_ns() >= wait.deadline) {
            fail_silent(mpi, 0, &wait);
        } else {
            rest(&wait);
        }
        if (mpi->failure.code)
            return report_failure(mpi, err);
    }
    if (mpi->failure.code)
        return report_failure(mpi, err);
    head = read_head(down);
    if (head.code && head.code != DCP_E_MEMORY)
        return obey(mpi, &head, err);
    if (!head.code && !same_call(&head.call, call))
        fail(mpi, 0, DCP_RANK_UNKNOWN, "is in another call, or in one of another size");
    if (mpi->failure.code || wait_all(mpi, mpi->sends, &wait, LEAF_GRACE))
        return report_failure(mpi, err);
    if (head.code)
        return obey(mpi, &head, err);
    if (n_out)
        memcpy(out, down + sizeof head, n_out);
    return DCP_OK;
}

/* Rank 0 tells the others, as far as they listen, why the comm failed. */
static int send_verdict(struct mpi *mpi, const struct call *call, struct dcp_error *err)
{
    int rank = mpi->failure.rank;
    int n =
        snprintf(NULL, 0, "rank %d ", rank); /* which the others put before it again */
    mpi->spare[0] = refusal(call, DCP_E_COMM, rank, mpi->failure.message + n);
    mpi->spare[0].fate = mpi->failure.rank_fate;
    for (int r = 1; r < mpi->world; r++)
        if (mpi->sends[r] == MPI_REQUEST_NULL && !is_dead(mpi, r))
            start_send(mpi, r, &mpi->spare[0], sizeof mpi->spare[0]);
    struct wait wait = wait_begin(VERDICT_TIME);
    while (test_all(mpi, mpi->sends) >= 0 && now_ns() < wait.deadline)
        rest(&wait);
    return report_failure(mpi, err);
}

/* Rank 0: receives the messages of all others into their slots. */
static int gather(struct mpi *mpi, const struct call *call, unsigned char *slots,
                  struct wait *wait)
{
    for (int r = 1; r < mpi->world; r++)
        if (start_receive(mpi, r, slots + slot_of(call, r),
                          sizeof(struct head) + up_bytes(call, r)))
            return mpi->failure.code;
    if (wait_all(mpi, mpi->receives, wait, ROOT_GRACE))
        return mpi->failure.code;
    for (int r = 1; r < mpi->world; r++) {
        struct head head = read_head(slots + slot_of(call, r));
        if (!same_call(&head.call, call))
            return fail(mpi, r, DCP_RANK_UNKNOWN,
                        "is in another call, or in one of another size");
    }
    return DCP_OK;
}

static int root_round(struct mpi *mpi, const struct call *call, const void *in, void *out,
                      uint64_t time_ns, struct dcp_error *err)
{
    size_t slots_bytes = slot_of(call, mpi->world), n_out = down_bytes(mpi, call);
    unsigned char *slots = get_buffer(mpi, slots_bytes + sizeof(struct head) + n_out);
    unsigned char *down = slots + slots_bytes;
    struct wait wait = wait_begin(time_ns / 4 * 3);
    if (!slots)
        fail(mpi, 0, DCP_RANK_UNKNOWN, "has no memory for the messages");
    if (!slots || gather(mpi, call, slots, &wait))
        return send_verdict(mpi, call, err);

    struct head answer = { .call = *call };
    for (int r = mpi->world - 1; r > 0; r--) {
        struct head head = read_head(slots + slot_of(call, r));
        if (head.code)
            answer = refusal(call, DCP_E_MEMORY, r, head.why);
    }
    unsigned char *body = down + sizeof answer;
    memcpy(down, &answer, sizeof answer);
    for (int r = 0; r < mpi->world && !answer.code; r++) {
        size_t n = up_bytes(call, r);
        const void *from = r ? slots + slot_of(call, r) + sizeof answer : in;
        if (n)
            memcpy(body, from, n);
        body += n;
    }
    size_t size = sizeof answer + (answer.code ? 0 : n_out);
    wait = wait_begin(time_ns);
    for (int r = 1; r < mpi->world; r++)
        if (start_send(mpi, r, down, size))
            return send_verdict(mpi, call, err);
    if (wait_all(mpi, mpi->sends, &wait, ROOT_GRACE))
        return send_verdict(mpi, call, err);
    if (answer.code)
        return obey(mpi, &answer, err);
    if (n_out)
        memcpy(out, down + sizeof answer, n_out);
    return DCP_OK;
}

static int run_round(struct mpi *mpi, enum kind kind, const void *in, size_t size_bytes,
                     int root, void *out, int timeout_ms, struct dcp_error *err)
{
    struct call call = { .round = mpi->round + 1,
                         .kind = kind,
                         .root = (uint64_t)root,
                         .size_bytes = size_bytes };
    if (mpi->failure.code)
        return report_failure(mpi, err);
    if (root < 0 || root >= mpi->world)
        return dcp_error_set(err, DCP_E_USAGE, "there is no rank %d among %d", root,
                             mpi->world);
    size_t limit = INT_MAX - sizeof(struct head); /* of what MPI counts */
    if (size_bytes > limit / (kind == ALLGATHER ? (size_t)mpi->world : 1))
        return dcp_error_set(err, DCP_E_USAGE,
                             "%zu bytes are too many for a message between %d ranks",
                             size_bytes, mpi->world);
    mpi->round++;
    uint64_t time_ns = (uint64_t)timeout_ms * MS;
    return mpi->rank == 0 ? root_round(mpi, &call, in, out, time_ns, err)
                          : leaf_round(mpi, &call, in, out, time_ns, err);
}

static int mpi_allgather(void *self, const void *in, size_t size_bytes, void *out,
                         int timeout_ms, struct dcp_error *err)
{
    return run_round(self, ALLGATHER, in, size_bytes, 0, out, timeout_ms, err);
}

static int mpi_bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                     struct dcp_error *err)
{
    return run_round(self, BCAST, data, size_bytes, root, data, timeout_ms, err);
}

static int mpi_peer_dead(void *self)
{
    return find_dead(self, NULL);
}

/* --- the life of a comm --- */

static bool is_any_open(const struct mpi *mpi)
{
    for (int r = 0; r < mpi->world; r++)
        if (mpi->sends[r] != MPI_REQUEST_NULL || mpi->receives[r] != MPI_REQUEST_NULL)
            return true;
    return false;
}

static void mpi_free(void *self)
{
    struct mpi *mpi = self;
    int finalized = 0;
    MPI_Finalized(&finalized);
    dcp_peers_free(mpi->peers);
    bool open = is_any_open(mpi);
    if (!mpi->failure.code && mpi->comm != MPI_COMM_NULL && !finalized)
        MPI_Comm_free(&mpi->comm);
    free(mpi->sends);
    free(mpi->receives);
    if (open && !finalized) /* the rest is where MPI may still read and write */
        return;
    free(mpi->buffer);
    free(mpi);
}

static const struct dcp_comm_ops mpi_ops = {
    .allgather = mpi_allgather,
    .bcast = mpi_bcast,
    .peer_dead = mpi_peer_dead,
    .free = mpi_free,
};

/* A communicator of our own, so that no message of the program meets ours. */
static int duplicate(struct mpi *mpi, MPI_Comm from)
{
    MPI_Request *request = &mpi->sends[0];
    int rc = MPI_Comm_idup(from, &mpi->comm, request);
    if (rc != MPI_SUCCESS)
        return fail_mpi(mpi, mpi->rank, rc);
    struct wait wait = wait_begin(START_TIMEOUT_MS * MS);
    while (test_all(mpi, mpi->sends) >= 0) {
        if (now_ns() >= wait.deadline) {
            fail(mpi, mpi->rank, DCP_RANK_UNKNOWN,
                 "waited in vain for all ranks to start");
            mpi->failure.rank = -1;
        }
        if (mpi->failure.code)
            break;
        rest(&wait);
    }
    if (!mpi->failure.code)
        MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    return mpi->failure.code;
}

static struct mpi *mpi_new(MPI_Comm from)
{
    struct mpi *mpi = calloc(1, sizeof *mpi);
    if (!mpi)
        return NULL;
    mpi->comm = MPI_COMM_NULL;
    MPI_Comm_rank(from, &mpi->rank);
    MPI_Comm_size(from, &mpi->world);
    size_t n = (size_t)mpi->world;
    mpi->sends = calloc(n, sizeof *mpi->sends);
    mpi->receives = calloc(n, sizeof *mpi->receives);
    if (!mpi->sends || !mpi->receives) {
        free(mpi->sends);
        free(mpi->receives);
        free(mpi);
        return NULL;
    }
    for (size_t r = 0; r < n; r++)
        mpi->sends[r] = mpi->receives[r] = MPI_REQUEST_NULL;
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
    struct dcp_peer *all = mpi ? calloc((size_t)mpi->world, sizeof *all) : NULL;
    if (!all) {
        if (mpi)
            mpi_free(mpi);
        return dcp_error_memory(err, "a comm of MPI");
    }
    struct dcp_peer me;
    dcp_peer_identify(&me);
    int rc = duplicate(mpi, from);
    if (rc)
        report_failure(mpi, err);
    else
        rc = mpi_allgather(mpi, &me, sizeof me, all, START_TIMEOUT_MS, err);
    if (!rc) /* without memory for it the time-out is left */
        mpi->peers = dcp_peers_new(all, mpi->world, mpi->rank);
    free(all);
    if (rc) {
        mpi_free(mpi);
        return rc;
    }
    *out_comm = (struct dcp_comm){
        .ops = &mpi_ops,
        .self = mpi,
        .rank = mpi->rank,
        .world = mpi->world,
    };
    return DCP_OK;
}
