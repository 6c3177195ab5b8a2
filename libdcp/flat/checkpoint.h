/* checkpoint: one that is open for reading, and the readers that its threads take. */
#ifndef DCP_FLAT_CHECKPOINT_H
#define DCP_FLAT_CHECKPOINT_H

#include "abi.h"
#include "identity.h"
#include "tables.h"
#include <dcp/reshard.h>
#include <pthread.h>

struct dcp_flat_checkpoint {
    struct dcp_location location;
    struct dcp_flat_identity identity; /* of what was indexed */
    struct dcp_flat_identity *files;   /* of each file in a folder of another program,
                                        * which may be saved into again; else NULL */
    struct dcp_catalog *catalog;
    struct dcp_flat_tables *tables; /* what dcp_flat_tensors_list gives; NULL: not yet */
    bool verify;
    int threads;
    uint64_t size_bytes;
    pthread_mutex_t lock;     /* of what follows, and of tables */
    struct dcp_reader *first; /* reads nothing itself; others are its clones */
    struct dcp_reader *idle[DCP_FLAT_MAX_THREADS];
    int n_idle;
    char corruption[640];
    /* The checksum of a record is of all that was read of it: where there are records,
     * one act reads at a time. */
    pthread_mutex_t records;
};

/* The place that a path is; step -1: of a run folder the newest complete one. Caller
 * owns. */
int dcp_flat_open_location(const char *path, int64_t step, const char *base,
                           struct dcp_location *out, struct dcp_error *err);

/* Whether a box lies in a tensor that has numbers. Errors: USAGE, UNSUPPORTED. */
int dcp_flat_check_box(const struct dcp_flat_checkpoint *checkpoint,
                       const struct dcp_tensor *of, const int64_t *offset,
                       const int64_t *size, struct dcp_error *err);

/* What an act came to that read files of a tensor (NULL: of any): NOT_FOUND where they
 * were replaced since they were indexed, which is why whatever else went wrong; else rc.
 */
int dcp_flat_check_replaced(const struct dcp_flat_checkpoint *checkpoint,
                            const struct dcp_tensor *of, int rc, struct dcp_error *err);

/* Readers for the threads of one act, which is alone where records are checked. */
struct dcp_flat_readers {
    struct dcp_flat_checkpoint *checkpoint;
    struct dcp_reader *items[DCP_FLAT_MAX_THREADS];
    int n;
};
/* n: 1 to DCP_FLAT_MAX_THREADS. Errors: MEMORY, those of planning. */
int dcp_flat_readers_take(struct dcp_flat_checkpoint *checkpoint, int n,
                          struct dcp_flat_readers *out, struct dcp_error *err);
/* Gives them back, after a failure too, with what the act came to: reads what is left of
 * the records that were touched when rc is 0. Returns what is wrong with what was read;
 * its sentence names the checkpoint and the next act. */
int dcp_flat_readers_give(struct dcp_flat_readers *readers, int rc,
                          struct dcp_error *err);

#endif
