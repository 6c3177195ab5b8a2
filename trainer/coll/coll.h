/* coll: the trainer's data plane between ranks. What it sums are integers (ops/exact.h),
 * or doubles in a fixed order, so that the timing never shows in the bits.
 * A waiting rank sleeps. A dead or silent rank makes every other return DCP_E_COMM with
 * its number within the time-out. Thread rule: one coll, one thread.
 *
 * Arrays of all but all_reduce lie in the memory of the kernels (ops/ops.h)
 * and take their turn among them. A coll that can work beside the kernels is told so by
 * _begin and _wait; with others _begin does it all. */
#ifndef TRAINER_COLL_COLL_H
#define TRAINER_COLL_COLL_H

#include <dcp/comm.h>
#include <stdbool.h>
#include <stdint.h>

struct kernels;

struct coll;

/* Items of a part that fall in the round of up to `most` that begins at item `begin`. */
static inline int64_t coll_in_round(int64_t count, int64_t begin, int64_t most)
{
    int64_t left = count - begin;
    return left < 0 ? 0 : left < most ? left : most;
}

struct coll_ops {
    /* Both may return before it is done: the arrays are the coll's until `wait`.
     *
     * in: the parts of all ranks, one behind the other, counts[r] integers for rank r;
     * out: the sum over ranks of this rank's part, counts[rank] integers, wrapped around.
     * out may be in + this part. */
    int (*reduce_scatter)(void *self, const int64_t *in, const int64_t *counts,
                          int64_t *out, struct dcp_error *err);
    /* in: items for all ranks, one rank's behind the other, counts[r] for rank r, of
     * which this call moves coll_in_round(counts[r], begin, most); out: as many of this
     * rank's from each rank, one behind the other. */
    int (*all_to_all)(void *self, const void *in, const int64_t *counts, int64_t begin,
                      int64_t most, size_t item_bytes, void *out, struct dcp_error *err);
    /* in: counts[rank] items; out: all ranks' items. in may be out + this part. */
    int (*all_gather)(void *self, const void *in, const int64_t *counts,
                      size_t item_bytes, void *out, struct dcp_error *err);
    /* Optional (NULL: each call is done when it returns): kernels called from now on find
     * the call-th of all but the splits done, counted from 1. */
    int (*wait)(void *self, uint64_t call, struct dcp_error *err);
    /* Sums n doubles of the host in place, the same bits on every rank. */
    int (*all_reduce)(void *self, double *values, int n, struct dcp_error *err);
    /* Ranks with the same color become a process group of their own, ordered by key, then
     * by rank. Fills ops, self, rank and world size of *out_coll. */
    int (*split)(void *self, int color, int key, struct coll *out_coll,
                 struct dcp_error *err);
    /* Optional: this rank failed, and says no more. What others, its own kernels or
     * another thread of it wait for ends; that thread is done when it returns. */
    void (*abort)(void *self);
    void (*free)(void *self);
};

struct coll {
    const struct coll_ops *ops;
    void *self;
    int rank, world_size;
    uint64_t n_calls; /* so far, splits not counted */
    /* So far, of this one and of those that were split from it. Seconds: spent in calls,
     * waiting included. Bytes: what other ranks gave this one, their parts of a sum
     * counted one by one. */
    double seconds;
    uint64_t received_bytes;
    struct coll
        *whole; /* which this one was split from, and which outlives it; or NULL */
};

/* The calls of the table, each collective: every rank makes the same ones in the same
 * order. A single rank only copies. After a failure the coll can only be freed. */
int coll_reduce_scatter(struct coll *coll, const int64_t *in, const int64_t *counts,
                        int64_t *out, struct dcp_error *err);
int coll_all_to_all(struct coll *coll, const void *in, const int64_t *counts,
                    int64_t begin, int64_t most, size_t item_bytes, void *out,
                    struct dcp_error *err);
int coll_all_gather(struct coll *coll, const void *in, const int64_t *counts,
                    size_t item_bytes, void *out, struct dcp_error *err);
int coll_all_reduce(struct coll *coll, double *values, int n, struct dcp_error *err);
/* The same in two acts, with kernels between them; *out_call is what to wait for. Calls
 * are done in their order: one may take what the one before it makes. */
int coll_all_to_all_begin(struct coll *coll, const void *in, const int64_t *counts,
                          int64_t begin, int64_t most, size_t item_bytes, void *out,
                          uint64_t *out_call, struct dcp_error *err);
int coll_all_gather_begin(struct coll *coll, const void *in, const int64_t *counts,
                          size_t item_bytes, void *out, uint64_t *out_call,
                          struct dcp_error *err);
int coll_wait(struct coll *coll, uint64_t call, struct dcp_error *err);
/* Whether it works beside the kernels. */
bool coll_overlaps(const struct coll *coll);
/* After a failure, before anything that the coll may still move is freed; it can only be
 * freed then. */
void coll_abort(struct coll *coll);
/* Caller owns, coll_free. */
int coll_split(struct coll *coll, int color, int key, struct coll *out_coll,
               struct dcp_error *err);

void coll_self(struct coll *out_coll);
/* Over a duplicate of an MPI communicator; `comm` (borrowed) is asked who is dead while
 * it waits, and for the name of the silent one after a time-out. Errors: COMM, MEMORY. */
int coll_mpi(struct coll *out_coll, const void *mpi_comm, struct dcp_comm *comm,
             struct dcp_error *err);
/* Over the control plane (borrowed): any data, but slowly; groups only of all ranks.
 * Errors: MEMORY. */
int coll_control(struct coll *out_coll, struct dcp_comm *comm, struct dcp_error *err);
/* For kernels whose memory the host cannot read, over a coll that needs the host's: what
 * it moves goes through staging. Takes *coll. Errors: MEMORY. */
int coll_staged(struct coll *coll, const struct kernels *kernels, struct dcp_error *err);
/* Over a coll of the host's memory: its calls are made on a thread, so that they go on
 * beside the kernels; another thread than this one makes the calls of `coll`, and asks
 * what that asks. Takes *coll. Errors: MEMORY. */
int coll_beside(struct coll *coll, struct dcp_error *err);
/* Over NCCL, one GPU a rank: the one that is CUDA's current of this thread. `kernels` are
 * of ops_cuda() and, as `comm`, borrowed; comm finds the ranks, and names the one that
 * died or is silent. Only with DCP_HAS_NCCL. Errors: COMM, UNSUPPORTED, MEMORY. */
int coll_nccl(struct coll *out_coll, const struct kernels *kernels, struct dcp_comm *comm,
              struct dcp_error *err);
/* n ranks in one process, for tests. */
int coll_threads(struct coll *out_colls, int world_size, struct dcp_error *err);
void coll_free(struct coll *coll);

/* Sums n doubles of each of n_parts in the balanced binary tree ((0+1)+(2+3))+…: parts
 * one behind the other; they are overwritten and the sum is the first. */
void coll_tree_sum_f64(double *parts, int n_parts, int n);
/* The same for integers, which no order changes, in place of the sum's n. */
void coll_sum(const int64_t *const *parts, int n_parts, int64_t n, int64_t *out);

#endif
