/* The data plane over MPI, point to point, so that nothing depends on the algorithms of
 * an MPI library: the owner of a part receives what every rank gives to it. A rank that
 * waits looks for a while, then sleeps between looks, and asks now and then whether
 * somebody died. */
#include "coll.h"

#include "base/clock.h"
#include "base/mem.h"
#include "parts.h"
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* Items that a reduce-scatter receives at once, from all ranks together: 4 MiB. This and
 * two requests a rank is all the memory a coll holds. */
#define RECV_ITEMS (1 << 19)
/* One message at most; MPI counts in int. */
#define MESSAGE_BYTES ((size_t)64 << 20)

/* Looks before the first sleep: with more ranks than cores the processor is given away
 * each time, so that the rank that is waited for can run. */
#define LOOKS 40
#define SLEEP_MIN_US 20
#define SLEEP_MAX_US 200
#define CHECK_NS UINT64_C(20000000)  /* time between questions who died */
#define GRACE_NS UINT64_C(100000000) /* in which a dead rank's last messages arrive */

enum tag { TAG_REDUCE = 1, TAG_EXCHANGE, TAG_GATHER, TAG_VALUES };

struct mpi_coll {
    MPI_Comm comm;
    int rank, world_size;
    struct dcp_comm
        *watch; /* borrowed; knows ranks by their number in the first process group */
    int *world_rank;       /* that number, of each rank here */
    int64_t *recv;         /* RECV_ITEMS, when there are two ranks or more */
    const int64_t **parts; /* of each rank, for a sum */
    MPI_Request *requests;
    int *peers;         /* of each request */
    int n;              /* requests in flight */
    atomic_bool broken; /* a call failed, or another thread wants no more of them */
};

static int mpi_failed(struct mpi_coll *c, int code, const char *what,
                      struct dcp_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    c->broken = true;
    MPI_Error_string(code, text, &n);
    return dcp_error_set(err, DCP_E_COMM, "MPI failed in a %s: %s", what, text);
}

static int rank_failed(struct mpi_coll *c, int world_rank, struct dcp_error *err,
                       enum dcp_rank_state rank_state)
{
    c->broken = true;
    int rc = dcp_error_set(err, DCP_E_COMM, "rank %d %s", world_rank,
                           rank_state == DCP_RANK_DEAD ? "died" : "does not answer");
    if (err) {
        err->rank = world_rank;
        err->rank_state = rank_state;
    }
    return rc;
}

/* The rank of the first request that is not complete. */
static int silent_rank(struct mpi_coll *c)
{
    for (int i = 0; i < c->n; i++) {
        int flag = 0;
        if (c->requests[i] == MPI_REQUEST_NULL)
            continue;
        MPI_Request_get_status(c->requests[i], &flag, MPI_STATUS_IGNORE);
        if (!flag)
            return c->world_rank[c->peers[i]];
    }
    return c->world_rank[c->rank];
}

static int usable(struct mpi_coll *c, struct dcp_error *err)
{
    if (c->broken)
        return dcp_error_set(err, DCP_E_COMM, "an earlier collective failed");
    return DCP_OK;
}

/* Completes all requests in flight. */
static int wait_all(struct mpi_coll *c, const char *what, struct dcp_error *err)
{
    uint64_t begin_ns = 0, checked_ns = 0, death_ns = 0, sleep_us = SLEEP_MIN_US;
    int timeout_ms = c->watch->timeout_ms ? c->watch->timeout_ms : 60000;
    for (int looks = 0;; looks++) {
        int flag = 0;
        int code = MPI_Testall(c->n, c->requests, &flag, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS)
            return mpi_failed(c, code, what, err);
        if (flag)
            break;
        DCP_TRY(usable(c, err));
        if (looks < LOOKS) {
            sched_yield();
            continue;
        }
        dcp_clock_sleep_us(sleep_us);
        sleep_us = sleep_us * 2 < SLEEP_MAX_US ? sleep_us * 2 : SLEEP_MAX_US;
        uint64_t now_ns = dcp_clock_ns();
        if (!begin_ns)
            begin_ns = checked_ns = now_ns;
        if (now_ns - checked_ns < CHECK_NS)
            continue;
        checked_ns = now_ns;
        int dead = dcp_comm_peer_dead(c->watch);
        if (dead >= 0 && !death_ns)
            death_ns = now_ns;
        if (dead >= 0 && now_ns - death_ns > GRACE_NS)
            return rank_failed(c, dead, err, DCP_RANK_DEAD);
        if (now_ns - begin_ns > (uint64_t)timeout_ms * 1000000)
            return rank_failed(c, silent_rank(c), err, DCP_RANK_SILENT);
    }
    c->n = 0;
    return DCP_OK;
}

/* Both begin one message of at most MESSAGE_BYTES; an empty one is none. */
static int receive(struct mpi_coll *c, void *data, size_t size_bytes, int peer, int tag,
                   struct dcp_error *err)
{
    if (!size_bytes)
        return DCP_OK;
    c->peers[c->n] = peer;
    int code = MPI_Irecv(data, (int)size_bytes, MPI_BYTE, peer, tag, c->comm,
                         &c->requests[c->n++]);
    return code == MPI_SUCCESS ? DCP_OK : mpi_failed(c, code, "receive", err);
}

static int post(struct mpi_coll *c, const void *data, size_t size_bytes, int peer,
                int tag, struct dcp_error *err)
{
    if (!size_bytes)
        return DCP_OK;
    c->peers[c->n] = peer;
    int code = MPI_Isend(data, (int)size_bytes, MPI_BYTE, peer, tag, c->comm,
                         &c->requests[c->n++]);
    return code == MPI_SUCCESS ? DCP_OK : mpi_failed(c, code, "send", err);
}

static int mpi_reduce_scatter(void *self, const int64_t *in, const int64_t *counts,
                              int64_t *out, struct dcp_error *err)
{
    struct mpi_coll *c = self;
    int rc = usable(c, err);
    int64_t items = RECV_ITEMS / (c->world_size > 1 ? c->world_size - 1 : 1);
    int64_t max = parts_largest(counts, c->world_size);
    const int64_t *own = in + parts_before(counts, c->rank);
    for (int64_t at = 0; !rc && at < max; at += items) {
        int64_t mine = coll_in_round(counts[c->rank], at, items);
        int64_t *slot = c->recv;
        for (int r = 0; !rc && r < c->world_size; r++) {
            c->parts[r] = r == c->rank ? own + at : slot;
            if (r == c->rank)
                continue;
            rc = receive(c, slot, (size_t)mine * sizeof *in, r, TAG_REDUCE, err);
            slot += mine;
        }
        const int64_t *part = in;
        for (int r = 0; !rc && r < c->world_size; r++) {
            int64_t theirs = coll_in_round(counts[r], at, items);
            if (r != c->rank)
                rc = post(c, part + at, (size_t)theirs * sizeof *in, r, TAG_REDUCE, err);
            part += counts[r];
        }
        if (!rc)
            rc = wait_all(c, "reduce-scatter", err);
        if (!rc)
            coll_sum(c->parts, c->world_size, mine, out + at);
    }
    return rc;
}

static int mpi_all_to_all(void *self, const void *in, const int64_t *counts,
                          int64_t begin, int64_t most, size_t item_bytes, void *out,
                          struct dcp_error *err)
{
    struct mpi_coll *c = self;
    int rc = usable(c, err);
    int64_t n = coll_in_round(counts[c->rank], begin, most);
    int64_t items = (int64_t)(MESSAGE_BYTES / item_bytes);
    int64_t max = coll_in_round(parts_largest(counts, c->world_size), begin, most);
    const char *own =
        (const char *)in + (size_t)(parts_before(counts, c->rank) + begin) * item_bytes;
    if (!rc && n)
        memcpy((char *)out + (size_t)(c->rank * n) * item_bytes, own,
               (size_t)n * item_bytes);
    for (int64_t at = 0; !rc && at < max; at += items) {
        size_t mine = (size_t)coll_in_round(n, at, items) * item_bytes;
        for (int r = 0; !rc && r < c->world_size; r++)
            if (r != c->rank)
                rc = receive(c, (char *)out + (size_t)(r * n + at) * item_bytes, mine, r,
                             TAG_EXCHANGE, err);
        const char *part = in;
        for (int r = 0; !rc && r < c->world_size; r++) {
            int64_t theirs = coll_in_round(counts[r], begin, most);
            if (r != c->rank)
                rc = post(c, part + (size_t)(begin + at) * item_bytes,
                          (size_t)coll_in_round(theirs, at, items) * item_bytes, r,
                          TAG_EXCHANGE, err);
            part += (size_t)counts[r] * item_bytes;
        }
        if (!rc)
            rc = wait_all(c, "all-to-all", err);
    }
    return rc;
}

static int mpi_all_gather(void *self, const void *in, const int64_t *counts,
                          size_t item_bytes, void *out, struct dcp_error *err)
{
    struct mpi_coll *c = self;
    int rc = usable(c, err);
    int64_t items = (int64_t)(MESSAGE_BYTES / item_bytes);
    int64_t max = parts_largest(counts, c->world_size);
    char *own = (char *)out + (size_t)parts_before(counts, c->rank) * item_bytes;
    if (!rc && in != own)
        memcpy(own, in, (size_t)counts[c->rank] * item_bytes);
    for (int64_t at = 0; !rc && at < max; at += items) {
        char *part = out;
        for (int r = 0; !rc && r < c->world_size; r++) {
            size_t size = (size_t)coll_in_round(counts[r], at, items) * item_bytes;
            if (r != c->rank)
                rc = receive(c, part + (size_t)at * item_bytes, size, r, TAG_GATHER, err);
            part += (size_t)counts[r] * item_bytes;
        }
        size_t size = (size_t)coll_in_round(counts[c->rank], at, items) * item_bytes;
        for (int r = 0; !rc && r < c->world_size; r++)
            if (r != c->rank)
                rc = post(c, own + (size_t)at * item_bytes, size, r, TAG_GATHER, err);
        if (!rc)
            rc = wait_all(c, "all-gather", err);
    }
    return rc;
}

static int mpi_all_reduce(void *self, double *values, int n, struct dcp_error *err)
{
    struct mpi_coll *c = self;
    size_t size_bytes = (size_t)n * sizeof *values;
    DCP_CLEANUP_FREE double *parts = dcp_mem_calloc((size_t)c->world_size, size_bytes);
    if (!parts)
        return dcp_error_memory(err, "an all-reduce");
    int rc = usable(c, err);
    for (int r = 0; !rc && r < c->world_size; r++)
        if (r != c->rank)
            rc =
                receive(c, parts + (size_t)r * (size_t)n, size_bytes, r, TAG_VALUES, err);
    for (int r = 0; !rc && r < c->world_size; r++)
        if (r != c->rank)
            rc = post(c, values, size_bytes, r, TAG_VALUES, err);
    if (!rc)
        rc = wait_all(c, "all-reduce", err);
    if (rc) {
        parts = NULL; /* MPI may still write to it: lost until the process ends */
        return rc;
    }
    memcpy(parts + (size_t)c->rank * (size_t)n, values, size_bytes);
    coll_tree_sum_f64(parts, c->world_size, n);
    memcpy(values, parts, size_bytes);
    return DCP_OK;
}

static void mpi_abort(void *self)
{
    struct mpi_coll *c = self;
    c->broken = true;
}

static void mpi_free(void *self)
{
    struct mpi_coll *c = self;
    if (!c)
        return;
    if (c->broken)
        return; /* MPI still knows its buffers: lost until the process ends */
    if (c->comm != MPI_COMM_NULL)
        MPI_Comm_free(&c->comm);
    free(c->world_rank);
    free(c->recv);
    free(c->parts);
    free(c->requests);
    free(c->peers);
    free(c);
}

/* Takes `comm`. */
static int coll_over(MPI_Comm comm, struct dcp_comm *watch, struct coll *out_coll,
                     struct dcp_error *err);

static int mpi_split(void *self, int color, int key, struct coll *out_coll,
                     struct dcp_error *err)
{
    struct mpi_coll *c = self;
    MPI_Comm comm = MPI_COMM_NULL;
    int rc = usable(c, err);
    if (rc)
        return rc;
    int code = MPI_Comm_split(c->comm, color, key, &comm);
    if (code != MPI_SUCCESS)
        return mpi_failed(c, code, "split", err);
    return coll_over(comm, c->watch, out_coll, err);
}

static const struct coll_ops mpi_ops = {
    .reduce_scatter = mpi_reduce_scatter,
    .all_to_all = mpi_all_to_all,
    .all_gather = mpi_all_gather,
    .all_reduce = mpi_all_reduce,
    .split = mpi_split,
    .abort = mpi_abort,
    .free = mpi_free,
};

static int coll_over(MPI_Comm comm, struct dcp_comm *watch, struct coll *out_coll,
                     struct dcp_error *err)
{
    struct mpi_coll *c = dcp_mem_calloc(1, sizeof *c);
    if (!c) {
        MPI_Comm_free(&comm);
        return dcp_error_memory(err, "collectives");
    }
    *c = (struct mpi_coll){ .comm = comm, .watch = watch };
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &c->rank);
    MPI_Comm_size(comm, &c->world_size);
    size_t n = (size_t)c->world_size;
    c->world_rank = dcp_mem_calloc(n, sizeof *c->world_rank);
    c->parts = dcp_mem_calloc(n, sizeof *c->parts);
    c->requests = dcp_mem_calloc(2 * n, sizeof *c->requests);
    c->peers = dcp_mem_calloc(2 * n, sizeof *c->peers);
    c->recv = n > 1 ? dcp_mem_calloc(RECV_ITEMS, sizeof *c->recv) : NULL;
    int rc = DCP_OK;
    if (!c->world_rank || !c->parts || !c->requests || !c->peers || (n > 1 && !c->recv))
        rc = dcp_error_memory(err, "collectives");
    if (!rc) {
        int code =
            MPI_Allgather(&watch->rank, 1, MPI_INT, c->world_rank, 1, MPI_INT, comm);
        if (code != MPI_SUCCESS)
            rc = mpi_failed(c, code, "start", err);
    }
    if (rc) {
        mpi_free(c);
        return rc;
    }
    *out_coll = (struct coll){
        .ops = &mpi_ops, .self = c, .rank = c->rank, .world_size = c->world_size
    };
    return DCP_OK;
}

int coll_mpi(struct coll *out_coll, const void *mpi_comm, struct dcp_comm *comm,
             struct dcp_error *err)
{
    MPI_Comm copy = MPI_COMM_NULL;
    int code = MPI_Comm_dup(*(const MPI_Comm *)mpi_comm, &copy);
    if (code != MPI_SUCCESS)
        return dcp_error_set(err, DCP_E_COMM, "MPI cannot duplicate the communicator");
    return coll_over(copy, comm, out_coll, err);
}
