/* Ranks that are threads of one process.
 *
 * Every call is one round: each rank puts its bytes into its box, waits until all have,
 * and copies from the boxes. A rank has two boxes and uses them in turn: it can fill a
 * box again only two rounds later, and by then everybody has read it. */
#include "threads.h"

#include "base/mem.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum kind { ALLGATHER, BCAST, GATHER, LEAST };

struct box {
    enum kind kind;
    int root;
    size_t
        call_bytes; /* as in the call; a rank that is not the root sends none of them */
    bool no_memory;
    unsigned char *data;
    size_t cap;
};

struct member {
    struct shared *shared;
    int rank;
    uint64_t round; /* how many it has entered */
    bool gone;      /* killed, or its comm was freed */
    struct box boxes[2];
};

struct shared {
    pthread_mutex_t lock; /* guards all of this and the members */
    pthread_cond_t changed;
    int world_size, n_open;
    struct dcp_error failure; /* the first; from then on every call fails so */
    struct member members[];
};

static int name_rank(struct dcp_error *err, int rank, int rank_state)
{
    if (err && err->rank < 0) {
        err->rank = rank;
        err->rank_state = rank_state;
    }
    return DCP_E_COMM;
}

/* The comm is broken for good: everybody returns this. */
static void fail(struct shared *shared, int rank, int rank_state, const char *why)
{
    if (shared->failure.code)
        return;
    dcp_error_set(&shared->failure, DCP_E_COMM, "rank %d %s", rank, why);
    name_rank(&shared->failure, rank, rank_state);
    pthread_cond_broadcast(&shared->changed);
}

/* Lowest rank that has not entered this round, or -1; of those that are gone only with
 * `gone`. */
static int missing(const struct shared *shared, uint64_t round, bool gone)
{
    for (int r = 0; r < shared->world_size; r++) {
        const struct member *m = &shared->members[r];
        if (m->round < round && (m->gone || !gone))
            return r;
    }
    return -1;
}

static struct timespec deadline_of(int timeout_ms)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += timeout_ms / 1000;
    at.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (at.tv_nsec >= 1000000000L) {
        at.tv_nsec -= 1000000000L;
        at.tv_sec++;
    }
    return at;
}

/* Waits until all ranks have entered the round, or the comm has failed. */
static void wait_for_all(struct shared *shared, uint64_t round, int timeout_ms)
{
    struct timespec deadline = deadline_of(timeout_ms);
    while (!shared->failure.code && missing(shared, round, false) >= 0) {
        int gone = missing(shared, round, true);
        if (gone >= 0) {
            fail(shared, gone, DCP_RANK_DEAD, "is gone");
        } else if (pthread_cond_timedwait(&shared->changed, &shared->lock, &deadline) ==
                   ETIMEDOUT) {
            int silent = missing(shared, round, false);
            char why[80];
            snprintf(why, sizeof why, "did not answer within %.1f s", timeout_ms / 1e3);
            if (silent >= 0)
                fail(shared, silent, DCP_RANK_SILENT, why);
        }
    }
}

/* All ranks must be in the same call. */
static void check_round(struct shared *shared, const struct box *mine, unsigned turn)
{
    for (int r = 0; r < shared->world_size; r++) {
        const struct box *box = &shared->members[r].boxes[turn];
        if (box->kind != mine->kind || box->root != mine->root ||
            box->call_bytes != mine->call_bytes)
            fail(shared, r, DCP_RANK_UNKNOWN,
                 "called another collective, or one of another size");
    }
}

static void fill_box(struct box *box, const void *in, size_t size_bytes)
{
    box->no_memory = false;
    if (size_bytes > box->cap) {
        unsigned char *data = dcp_mem_grow(box->data, &box->cap, size_bytes, 1);
        box->no_memory = !data;
        box->data = data ? data : box->data;
    }
    if (size_bytes && !box->no_memory)
        memcpy(box->data, in, size_bytes);
}

/* Enters the next round. Called and returns with the lock held. DCP_OK: every box of this
 * turn is filled. */
static int enter_round(struct member *me, enum kind kind, const void *in, size_t in_bytes,
                       size_t call_bytes, int root, int timeout_ms, struct dcp_error *err)
{
    struct shared *shared = me->shared;
    unsigned turn = (unsigned)(me->round & 1);
    struct box *mine = &me->boxes[turn];
    if (!shared->failure.code && me->gone)
        fail(shared, me->rank, DCP_RANK_DEAD, "is gone");
    if (!shared->failure.code) {
        mine->kind = kind;
        mine->root = root;
        mine->call_bytes = call_bytes;
        fill_box(mine, in, in_bytes);
        me->round++;
        pthread_cond_broadcast(&shared->changed);
        wait_for_all(shared, me->round, timeout_ms);
    }
    if (!shared->failure.code)
        check_round(shared, mine, turn);
    if (shared->failure.code) {
        dcp_error_set(err, DCP_E_COMM, "%s", shared->failure.message);
        dcp_error_hint(err, "look at what rank %d was doing; the time-out is %.1f s",
                       shared->failure.rank, timeout_ms / 1e3);
        return name_rank(err, shared->failure.rank, shared->failure.rank_state);
    }
    for (int r = 0; r < shared->world_size; r++)
        if (shared->members[r].boxes[turn].no_memory) {
            dcp_error_set(err, DCP_E_MEMORY, "rank %d: out of memory for %zu bytes", r,
                          call_bytes);
            name_rank(err, r, DCP_RANK_UNKNOWN);
            return DCP_E_MEMORY;
        }
    return DCP_OK;
}

/* The bytes of all ranks, for this one or, in a gather, for rank 0. */
static int collect(struct member *me, enum kind kind, const void *in, size_t size_bytes,
                   void *out, int timeout_ms, struct dcp_error *err)
{
    struct shared *shared = me->shared;
    bool gets = kind == ALLGATHER || me->rank == 0;
    pthread_mutex_lock(&shared->lock);
    unsigned turn = (unsigned)(me->round & 1);
    int rc = enter_round(me, kind, in, size_bytes, size_bytes, 0, timeout_ms, err);
    for (int r = 0; !rc && gets && size_bytes && r < shared->world_size; r++)
        memcpy((unsigned char *)out + (size_t)r * size_bytes,
               shared->members[r].boxes[turn].data, size_bytes);
    pthread_mutex_unlock(&shared->lock);
    return rc;
}

static int threads_allgather(void *self, const void *in, size_t size_bytes, void *out,
                             int timeout_ms, struct dcp_error *err)
{
    return collect(self, ALLGATHER, in, size_bytes, out, timeout_ms, err);
}

static int threads_gather(void *self, const void *in, size_t size_bytes, void *out,
                          int timeout_ms, struct dcp_error *err)
{
    return collect(self, GATHER, in, size_bytes, out, timeout_ms, err);
}

static int threads_least(void *self, int64_t mine, int64_t *out, int timeout_ms,
                         struct dcp_error *err)
{
    struct member *me = self;
    struct shared *shared = me->shared;
    pthread_mutex_lock(&shared->lock);
    unsigned turn = (unsigned)(me->round & 1);
    int rc = enter_round(me, LEAST, &mine, sizeof mine, sizeof mine, 0, timeout_ms, err);
    *out = mine;
    for (int r = 0; !rc && r < shared->world_size; r++) {
        int64_t one;
        memcpy(&one, shared->members[r].boxes[turn].data, sizeof one);
        *out = one < *out ? one : *out;
    }
    pthread_mutex_unlock(&shared->lock);
    return rc;
}

static int threads_bcast(void *self, void *data, size_t size_bytes, int root,
                         int timeout_ms, struct dcp_error *err)
{
    struct member *me = self;
    struct shared *shared = me->shared;
    if (root < 0 || root >= shared->world_size)
        return dcp_error_set(err, DCP_E_USAGE, "there is no rank %d among %d", root,
                             shared->world_size);
    pthread_mutex_lock(&shared->lock);
    unsigned turn = (unsigned)(me->round & 1);
    bool sends = me->rank == root;
    int rc = enter_round(me, BCAST, data, sends ? size_bytes : 0, size_bytes, root,
                         timeout_ms, err);
    if (!rc && !sends && size_bytes)
        memcpy(data, shared->members[root].boxes[turn].data, size_bytes);
    pthread_mutex_unlock(&shared->lock);
    return rc;
}

static int threads_peer_dead(void *self)
{
    const struct member *me = self;
    struct shared *shared = me->shared;
    pthread_mutex_lock(&shared->lock);
    int dead = -1;
    for (int r = 0; r < shared->world_size && dead < 0; r++)
        if (shared->members[r].gone)
            dead = r;
    pthread_mutex_unlock(&shared->lock);
    return dead;
}

static void shared_free(struct shared *shared)
{
    for (int r = 0; r < shared->world_size; r++)
        for (int turn = 0; turn < 2; turn++)
            free(shared->members[r].boxes[turn].data);
    pthread_cond_destroy(&shared->changed);
    pthread_mutex_destroy(&shared->lock);
    free(shared);
}

static void leave(struct member *me)
{
    me->gone = true;
    pthread_cond_broadcast(&me->shared->changed);
}

static void threads_free(void *self)
{
    struct member *me = self;
    struct shared *shared = me->shared;
    pthread_mutex_lock(&shared->lock);
    leave(me);
    bool last = --shared->n_open == 0;
    pthread_mutex_unlock(&shared->lock);
    if (last)
        shared_free(shared);
}

static const struct dcp_comm_ops threads_ops = {
    .allgather = threads_allgather,
    .bcast = threads_bcast,
    .gather = threads_gather,
    .least = threads_least,
    .peer_dead = threads_peer_dead,
    .free = threads_free,
};

int dcp_comm_threads(struct dcp_comm *out_comms, int world_size, struct dcp_error *err)
{
    if (world_size < 1)
        return dcp_error_set(err, DCP_E_USAGE, "a world size of %d is invalid",
                             world_size);
    struct shared *shared =
        calloc(1, sizeof *shared + (size_t)world_size * sizeof shared->members[0]);
    if (!shared)
        return dcp_error_memory(err, "a communicator of threads");
    shared->world_size = shared->n_open = world_size;
    pthread_mutex_init(&shared->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&shared->changed, &attr);
    pthread_condattr_destroy(&attr);
    for (int r = 0; r < world_size; r++) {
        shared->members[r].shared = shared;
        shared->members[r].rank = r;
        out_comms[r] = (struct dcp_comm){
            .ops = &threads_ops,
            .self = &shared->members[r],
            .rank = r,
            .world_size = world_size,
        };
    }
    return DCP_OK;
}

void dcp_comm_threads_kill(struct dcp_comm *comm)
{
    struct member *me = comm->self;
    pthread_mutex_lock(&me->shared->lock);
    leave(me);
    pthread_mutex_unlock(&me->shared->lock);
}
