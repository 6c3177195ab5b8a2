/* coll: the trainer's data plane between ranks. Sums run in a fixed order, the balanced
 * binary tree over ranks ((0+1)+(2+3))+…, so the same world gives the same bits whatever
 * the timing. A waiting rank sleeps. A dead or silent rank makes every other return
 * DCP_E_COMM with its number within the time-out. Thread rule: one coll, one thread. */
#ifndef TRAINER_COLL_H
#define TRAINER_COLL_H

#include <dcp/comm.h>
#include <stdint.h>

struct coll_ops {
    /* in: the parts of all ranks, one behind the other, counts[r] floats for rank r; out:
     * the sum over ranks of this rank's part, counts[rank] floats. out may be in + this
     * part. */
    int (*reduce_scatter)(void *self, const float *in, const int64_t *counts, float *out,
                          struct dcp_error *err);
    /* in: counts[rank] items; out: all ranks' items. in may be out + this part. */
    int (*all_gather)(void *self, const void *in, const int64_t *counts,
                      size_t item_bytes, void *out, struct dcp_error *err);
    /* Sums n doubles in place, the same bits on every rank. */
    int (*all_reduce)(void *self, double *values, int n, struct dcp_error *err);
    int (*bcast)(void *self, void *data, size_t size_bytes, int root,
                 struct dcp_error *err);
    void (*free)(void *self);
};

struct coll {
    const struct coll_ops *ops;
    void *self;
    int rank, world;
};

void coll_self(struct coll *out_coll);
/* Over a duplicate of an MPI communicator; `comm` (borrowed) is asked who is dead while
 * it waits, and for the name of the silent one after a time-out. Errors: COMM, MEMORY. */
int coll_mpi(struct coll *out_coll, const void *mpi_comm, struct dcp_comm *comm,
             struct dcp_error *err);
/* n ranks in one process, for tests. */
int coll_threads(struct coll *out_colls, int world, struct dcp_error *err);
void coll_free(struct coll *coll);

#endif
