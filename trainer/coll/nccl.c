/* The data plane over NCCL, on a stream of its own. Its reductions, whose order depends
 * on the world size and on its choice of algorithm, are of integers.
 *
 * NCCL's calls do not block, so that a rank can give up: while the host waits, for NCCL
 * or for the kernels, it looks whether somebody died, or whether a call that could go on
 * has not for the time-out. Then the communicator is aborted, and the control plane names
 * the rank that does not answer. */
#include "coll.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/part.h"
#include "parts.h"
#include "trainer/ops/cuda/cuda.h"
#include <nccl.h>
#include <sched.h>

#define N_SLOTS 16               /* calls that are remembered */
#define SPIN_NS UINT64_C(300000) /* before it sleeps between two looks */
#define SLEEP_US 50
#define PEERS_NS UINT64_C(20000000)   /* between two looks at the other ranks */
#define BLAME_NS UINT64_C(1000000000) /* in which a death is known, once NCCL failed */
#define MS UINT64_C(1000000)

/* The events of a call: its inputs are there; it is done. */
struct slot {
    cudaEvent_t ready, done;
    uint64_t ready_ns; /* when that was seen; 0: not yet */
};

struct nccl_coll {
    ncclComm_t comm;
    int rank, world_size;
    struct kernels kernels;
    struct ops_cuda *cuda;  /* their context */
    struct dcp_comm *watch; /* borrowed */
    cudaStream_t stream;
    struct slot slots[N_SLOTS];
    uint64_t n_calls, n_done; /* begun; seen to be done */
    double *values; /* of an all-reduce, on the GPU, and of all ranks on the host */
    double *host_values;
    int64_t values_cap; /* of a rank */
    bool broken;
    struct nccl_coll *next; /* of those that use the same kernels */
};

/* --- failures --- */

static int cuda_failed(cudaError_t why, const char *act, int line, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_IO, "the GPU cannot %s: CUDA says '%s' (%s:%d)", act,
                         cudaGetErrorString(why), __FILE__, line);
}
#define CUDA_FAILED(why, act, err) cuda_failed((why), (act), __LINE__, (err))

/* NCCL's threads and kernels end; the communicator is gone. */
static void give_up(struct nccl_coll *c)
{
    if (c->comm && !c->broken)
        ncclCommAbort(c->comm);
    c->comm = NULL;
    c->broken = true;
}

/* All of them at once: ending one waits for its stream, which may wait for another. */
static void give_up_all(struct nccl_coll *c)
{
    struct nccl_coll *first = c->cuda->watch_self;
    bool several = first && (first->next || first != c);
    if (several)
        ncclGroupStart();
    give_up(c); /* it may not be one of them yet */
    for (struct nccl_coll *each = first; each; each = each->next)
        give_up(each);
    if (several)
        ncclGroupEnd();
}

static int rank_failed(struct nccl_coll *c, int rank, enum dcp_rank_state rank_state,
                       struct dcp_error *err)
{
    give_up_all(c);
    dcp_error_set(err, DCP_E_COMM, "rank %d %s", rank,
                  rank_state == DCP_RANK_DEAD ? "died" : "does not answer");
    if (err) {
        err->rank = rank;
        err->rank_state = rank_state;
    }
    return DCP_E_COMM;
}

/* NCCL may see that a connection broke before the control plane knows who died. */
static int nccl_failed(struct nccl_coll *c, ncclResult_t why, const char *act,
                       struct dcp_error *err)
{
    uint64_t begin_ns = dcp_clock_ns();
    int dead = -1;
    while (dead < 0 && dcp_clock_ns() - begin_ns < BLAME_NS) {
        dead = dcp_comm_peer_dead(c->watch);
        if (dead < 0)
            dcp_clock_sleep_us(SLEEP_US);
    }
    if (dead >= 0)
        return rank_failed(c, dead, DCP_RANK_DEAD, err);
    dcp_error_set(err, DCP_E_COMM, "NCCL cannot %s: %s", act, ncclGetErrorString(why));
    dcp_error_hint(err, "NCCL_DEBUG=WARN in the environment makes NCCL say more");
    give_up_all(c);
    return DCP_E_COMM;
}

static uint64_t timeout_ns(const struct nccl_coll *c)
{
    return (uint64_t)(c->watch->timeout_ms ? c->watch->timeout_ms : 60000) * MS;
}

/* Too long: whoever is there says so on the control plane, and it names the one that does
 * not. */
static int timed_out(struct nccl_coll *c, const char *act, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *all = dcp_mem_calloc((size_t)c->watch->world_size, 1);
    char here = 1;
    give_up_all(c);
    int rc = all ? dcp_comm_allgather(c->watch, &here, 1, all, err)
                 : dcp_error_memory(err, "an all-gather of status");
    if (rc)
        return rc;
    return dcp_error_set(err, DCP_E_COMM,
                         "NCCL could not %s within %d s, though all ranks respond", act,
                         (int)(timeout_ns(c) / (1000 * MS)));
}

/* --- waiting --- */

/* Whether the communicator is well. */
static int look(struct nccl_coll *c, const char *act, bool *out_busy,
                struct dcp_error *err)
{
    ncclResult_t why = ncclSuccess;
    *out_busy = false;
    if (c->broken)
        return dcp_error_set(err, DCP_E_COMM, "an earlier collective failed");
    ncclResult_t asked = ncclCommGetAsyncError(c->comm, &why);
    if (asked || (why && why != ncclInProgress))
        return nccl_failed(c, asked ? asked : why, act, err);
    *out_busy = why == ncclInProgress;
    return DCP_OK;
}

static int look_at_peers(struct nccl_coll *c, struct dcp_error *err)
{
    int dead = dcp_comm_peer_dead(c->watch);
    return dead < 0 ? DCP_OK : rank_failed(c, dead, DCP_RANK_DEAD, err);
}

/* After a call of NCCL, which may go on behind our back: mostly for some microseconds. */
static int settle(struct nccl_coll *c, ncclResult_t why, const char *act,
                  struct dcp_error *err)
{
    uint64_t begin_ns = dcp_clock_ns(), peers_ns = begin_ns;
    bool busy = why == ncclInProgress;
    if (why && !busy)
        return nccl_failed(c, why, act, err);
    while (busy) {
        int rc = look(c, act, &busy, err);
        uint64_t now_ns = dcp_clock_ns();
        if (!rc && busy && now_ns - peers_ns > PEERS_NS) {
            peers_ns = now_ns;
            rc = look_at_peers(c, err);
        }
        if (rc)
            return rc;
        if (busy && now_ns - begin_ns > timeout_ns(c))
            return timed_out(c, act, err);
        if (busy && now_ns - begin_ns < SPIN_NS)
            sched_yield();
        else if (busy)
            dcp_clock_sleep_us(SLEEP_US);
    }
    return DCP_OK;
}

/* The oldest call that is not done must get on once its inputs are there. */
static int watch_one(struct nccl_coll *c, struct dcp_error *err)
{
    bool busy;
    int rc = look(c, "exchange data", &busy, err);
    if (!rc)
        rc = look_at_peers(c, err);
    while (!rc && c->n_done < c->n_calls) {
        struct slot *slot = &c->slots[c->n_done % N_SLOTS];
        if (cudaEventQuery(slot->done) != cudaErrorNotReady) {
            c->n_done++;
            continue;
        }
        if (!slot->ready_ns && cudaEventQuery(slot->ready) == cudaSuccess)
            slot->ready_ns = dcp_clock_ns();
        if (slot->ready_ns && dcp_clock_ns() - slot->ready_ns > timeout_ns(c))
            return timed_out(c, "exchange data", err);
        break;
    }
    return rc;
}

/* What the host does while it waits for kernels. */
static int watch(void *self, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (struct nccl_coll *c = self; !rc && c; c = c->next)
        rc = watch_one(c, err);
    return rc;
}

/* --- calls --- */

/* Our stream goes on when the kernels called so far are done. The host does not run ahead
 * by more than N_SLOTS calls: CUDA takes some thousand launches, and then blocks where
 * nobody watches. */
static int begin_call(struct nccl_coll *c, struct dcp_error *err)
{
    struct slot *slot = &c->slots[c->n_calls % N_SLOTS];
    if (c->broken)
        return dcp_error_set(err, DCP_E_COMM, "an earlier collective failed");
    while (c->n_calls - c->n_done == N_SLOTS) {
        int rc = watch_one(c, err);
        if (rc)
            return rc;
        if (c->n_calls - c->n_done == N_SLOTS)
            dcp_clock_sleep_us(SLEEP_US);
    }
    slot->ready_ns = 0;
    cudaError_t why = cudaEventRecord(slot->ready, c->cuda->stream);
    if (!why)
        why = cudaStreamWaitEvent(c->stream, slot->ready, 0);
    return why ? CUDA_FAILED(why, "order a collective behind kernels", err) : DCP_OK;
}

static int end_call(struct nccl_coll *c, struct dcp_error *err)
{
    cudaError_t why = cudaEventRecord(c->slots[c->n_calls++ % N_SLOTS].done, c->stream);
    return why ? CUDA_FAILED(why, "record a collective", err) : DCP_OK;
}

static int nccl_wait(void *self, uint64_t call, struct dcp_error *err)
{
    struct nccl_coll *c = self;
    cudaError_t why =
        cudaStreamWaitEvent(c->cuda->stream, c->slots[(call - 1) % N_SLOTS].done, 0);
    return why ? CUDA_FAILED(why, "order kernels behind a collective", err) : DCP_OK;
}

/* Adds a call to a group that is open. */
static void add(ncclResult_t *why, ncclResult_t got)
{
    if (*why == ncclSuccess && got != ncclInProgress)
        *why = got;
}

/* Closes the group; the first failure in it. */
static ncclResult_t end_group(ncclResult_t why)
{
    ncclResult_t ended = ncclGroupEnd();
    return why ? why : ended;
}

static bool are_equal(const int64_t *counts, int n)
{
    int r = 1;
    while (r < n && counts[r] == counts[0])
        r++;
    return r >= n;
}

static int nccl_reduce_scatter(void *self, const int64_t *in, const int64_t *counts,
                               int64_t *out, struct dcp_error *err)
{
    struct nccl_coll *c = self;
    int rc = begin_call(c, err);
    if (rc)
        return rc;
    ncclResult_t why;
    if (are_equal(counts, c->world_size)) {
        why = ncclReduceScatter(in, out, (size_t)counts[0], ncclInt64, ncclSum, c->comm,
                                c->stream);
    } else { /* each part to its owner, all at once */
        why = ncclGroupStart();
        for (int r = 0; r < c->world_size; in += counts[r++])
            if (!why && counts[r])
                add(&why, ncclReduce(in, r == c->rank ? out : NULL, (size_t)counts[r],
                                     ncclInt64, ncclSum, r, c->comm, c->stream));
        why = end_group(why);
    }
    rc = settle(c, why, "reduce", err);
    return rc ? rc : end_call(c, err);
}

/* A rank gives its own part to itself, too. */
static int nccl_all_to_all(void *self, const void *in, const int64_t *counts,
                           int64_t begin, int64_t most, size_t item_bytes, void *out,
                           struct dcp_error *err)
{
    struct nccl_coll *c = self;
    int rc = begin_call(c, err);
    if (rc)
        return rc;
    size_t mine = (size_t)coll_in_round(counts[c->rank], begin, most) * item_bytes;
    const char *part = (const char *)in + (size_t)begin * item_bytes;
    char *from = out;
    ncclResult_t why = ncclGroupStart();
    for (int r = 0; r < c->world_size; r++) {
        size_t theirs = (size_t)coll_in_round(counts[r], begin, most) * item_bytes;
        if (!why && theirs)
            add(&why, ncclSend(part, theirs, ncclChar, r, c->comm, c->stream));
        if (!why && mine)
            add(&why, ncclRecv(from, mine, ncclChar, r, c->comm, c->stream));
        part += (size_t)counts[r] * item_bytes;
        from += mine;
    }
    why = end_group(why);
    rc = settle(c, why, "exchange", err);
    return rc ? rc : end_call(c, err);
}

static int nccl_all_gather(void *self, const void *in, const int64_t *counts,
                           size_t item_bytes, void *out, struct dcp_error *err)
{
    struct nccl_coll *c = self;
    int rc = begin_call(c, err);
    if (rc)
        return rc;
    ncclResult_t why;
    if (are_equal(counts, c->world_size)) {
        why = ncclAllGather(in, out, (size_t)counts[0] * item_bytes, ncclChar, c->comm,
                            c->stream);
    } else { /* each part from its owner, all at once */
        char *part = out;
        why = ncclGroupStart();
        for (int r = 0; r < c->world_size; r++) {
            size_t size_bytes = (size_t)counts[r] * item_bytes;
            if (!why && size_bytes)
                add(&why, ncclBroadcast(r == c->rank ? in : part, part, size_bytes,
                                        ncclChar, r, c->comm, c->stream));
            part += size_bytes;
        }
        why = end_group(why);
    }
    rc = settle(c, why, "gather", err);
    return rc ? rc : end_call(c, err);
}

static int grow_values(struct nccl_coll *c, int n, struct dcp_error *err)
{
    size_t size_bytes = (size_t)n * (size_t)(c->world_size + 1) * sizeof *c->values;
    if (n <= c->values_cap)
        return DCP_OK;
    const struct ops *ops = c->kernels.ops;
    ops->free(c->kernels.ctx, c->values);
    free(c->host_values);
    c->values_cap = 0;
    c->values = NULL;
    c->host_values = dcp_mem_calloc(1, size_bytes);
    if (!c->host_values)
        return dcp_error_memory(err, "an all-reduce");
    int rc = ops->alloc(c->kernels.ctx, size_bytes, "numbers of all ranks",
                        (void **)&c->values, err);
    if (!rc)
        c->values_cap = n;
    return rc;
}

/* All ranks get the numbers of all, and add them in the tree. */
static int nccl_all_reduce(void *self, double *values, int n, struct dcp_error *err)
{
    struct nccl_coll *c = self;
    const struct ops *ops = c->kernels.ops;
    size_t size_bytes = (size_t)n * sizeof *values;
    int rc = grow_values(c, n, err);
    if (rc)
        return rc;
    double *own = c->values + (size_t)c->world_size * (size_t)n;
    rc = ops->put(c->kernels.ctx, own, values, size_bytes, err);
    if (!rc)
        rc = begin_call(c, err);
    if (!rc)
        rc = settle(
            c, ncclAllGather(own, c->values, (size_t)n, ncclDouble, c->comm, c->stream),
            "share numbers", err);
    if (!rc)
        rc = end_call(c, err);
    if (!rc)
        rc = nccl_wait(c, c->n_calls, err);
    if (!rc)
        rc = ops->get(c->kernels.ctx, c->host_values, c->values,
                      size_bytes * (size_t)c->world_size, err);
    if (rc)
        return rc;
    coll_tree_sum_f64(c->host_values, c->world_size, n);
    for (int i = 0; i < n; i++)
        values[i] = c->host_values[i];
    return DCP_OK;
}

/* --- beginning and end --- */

static void link_coll(struct nccl_coll *c)
{
    c->next = c->cuda->watch_self;
    c->cuda->watch_self = c;
    c->cuda->watch = watch;
}

static void unlink_coll(struct nccl_coll *c)
{
    struct nccl_coll *first = c->cuda->watch_self, **at = &first;
    while (*at && *at != c)
        at = &(*at)->next;
    if (*at)
        *at = c->next;
    c->cuda->watch_self = first;
    if (!first)
        c->cuda->watch = NULL;
}

static void nccl_abort(void *self)
{
    give_up_all(self);
}

static void nccl_free(void *self)
{
    struct nccl_coll *c = self;
    struct dcp_error none = { 0 };
    if (c->comm && !c->broken) {
        cudaStreamSynchronize(c->stream);
        if (!settle(c, ncclCommFinalize(c->comm), "end", &none))
            ncclCommDestroy(c->comm);
    }
    unlink_coll(c);
    c->kernels.ops->free(c->kernels.ctx, c->values);
    for (int i = 0; i < N_SLOTS; i++) {
        if (c->slots[i].ready)
            cudaEventDestroy(c->slots[i].ready);
        if (c->slots[i].done)
            cudaEventDestroy(c->slots[i].done);
    }
    if (c->stream)
        cudaStreamDestroy(c->stream);
    free(c->host_values);
    free(c);
}

static int open_coll(const struct kernels *kernels, struct dcp_comm *comm,
                     struct nccl_coll **out, struct dcp_error *err)
{
    struct nccl_coll *c = dcp_mem_calloc(1, sizeof *c);
    *out = c;
    if (!c)
        return dcp_error_memory(err, "collectives");
    c->kernels = *kernels;
    c->cuda = kernels->ctx;
    c->watch = comm;
    cudaError_t why = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    for (int i = 0; !why && i < N_SLOTS; i++) {
        why = cudaEventCreateWithFlags(&c->slots[i].ready, cudaEventDisableTiming);
        if (!why)
            why = cudaEventCreateWithFlags(&c->slots[i].done, cudaEventDisableTiming);
    }
    return why ? CUDA_FAILED(why, "make room for collectives", err) : DCP_OK;
}

static int nccl_split(void *self, int color, int key, struct coll *out_coll,
                      struct dcp_error *err);

static const struct coll_ops nccl_ops = {
    .reduce_scatter = nccl_reduce_scatter,
    .all_to_all = nccl_all_to_all,
    .all_gather = nccl_all_gather,
    .wait = nccl_wait,
    .all_reduce = nccl_all_reduce,
    .split = nccl_split,
    .abort = nccl_abort,
    .free = nccl_free,
};

/* What it knows of itself once its communicator is made. */
static int finish(struct nccl_coll *c, int rc, struct coll *out_coll,
                  struct dcp_error *err)
{
    if (!rc) {
        ncclResult_t why = ncclCommUserRank(c->comm, &c->rank);
        if (!why)
            why = ncclCommCount(c->comm, &c->world_size);
        rc = settle(c, why, "exchange addresses", err);
    }
    if (rc) {
        if (c)
            give_up(c);
        if (c)
            nccl_free(c);
        return rc;
    }
    link_coll(c);
    *out_coll = (struct coll){
        .ops = &nccl_ops, .self = c, .rank = c->rank, .world_size = c->world_size
    };
    return DCP_OK;
}

static int nccl_split(void *self, int color, int key, struct coll *out_coll,
                      struct dcp_error *err)
{
    struct nccl_coll *whole = self, *c = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (whole->broken)
        return dcp_error_set(err, DCP_E_COMM, "an earlier collective failed");
    int rc = open_coll(&whole->kernels, whole->watch, &c, err);
    if (!rc)
        rc = settle(whole, ncclCommSplit(whole->comm, color, key, &c->comm, &config),
                    "split the ranks", err);
    if (!rc)
        rc = settle(c, ncclInProgress, "split the ranks", err);
    return finish(c, rc, out_coll, err);
}

int coll_nccl(struct coll *out_coll, const struct kernels *kernels, struct dcp_comm *comm,
              struct dcp_error *err)
{
    struct nccl_coll *c = NULL;
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    int rc = open_coll(kernels, comm, &c, err);
    if (!rc && comm->rank == 0) {
        ncclResult_t why = ncclGetUniqueId(&id);
        rc = why ? nccl_failed(c, why, "begin", err) : DCP_OK;
    }
    rc = dcp_agree(comm, rc, err);
    if (!rc)
        rc = dcp_comm_bcast(comm, &id, sizeof id, 0, err);
    if (!rc)
        rc = settle(
            c,
            ncclCommInitRankConfig(&c->comm, comm->world_size, id, comm->rank, &config),
            "rendezvous with the other ranks", err);
    return finish(c, rc, out_coll, err);
}
