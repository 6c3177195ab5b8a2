/* stream: one checkpoint into another, in bounded memory: the copy engine feeds the
 * writer, and the fingerprints of what was written are held against those of the source.
 * Used by reshard, and by save for the consolidated export. */
#ifndef DCP_CORE_WRITE_STREAM_H
#define DCP_CORE_WRITE_STREAM_H

#include "base/pool.h"
#include "core/plan/plan.h"
#include "share.h"
#include "write.h"
#include <dcp/reshard.h>

struct dcp_stream_setup {
    const struct dcp_source *source; /* where src lies */
    const struct dcp_catalog *src;
    struct dcp_target *target; /* open, with its extents */
    const int *src_tensor;     /* see dcp_contents_new */
    const struct dcp_plan *plan;
    const struct dcp_store *store; /* to write to */
    const char *prefix;            /* before every file name there */
    int threads;                   /* >= 1 */
    uint64_t memory_bytes;
    bool verify;
    enum dcp_read_back read_back;
    int parity;    /* see dcp_reshard_options */
    bool in_order; /* one file after the other, each from front to back; with 1 thread */
    struct dcp_progress progress;
    struct dcp_error *reconstructed; /* NULL, or what was corrupt and read through its
                                      * parity; code 0: nothing */
    _Atomic uint64_t *overflows;     /* NULL, or by tensor of target: see read/copy.h */
    const struct dcp_clones *clones; /* of plan; NULL: nothing is shared */
    uint64_t *shared_bytes;          /* NULL, or what was: added up, of parts too */
};

/* Writes every file of the target and makes it durable. Errors: CORRUPT (the source is
 * corrupt; a fingerprint differs), IO, NO_SPACE, INTERRUPTED, MEMORY. */
int dcp_stream_run(const struct dcp_stream_setup *setup, struct dcp_error *err);
/* The same as one archive, the file `name`, of *out_bytes; no piece has a codec. */
int dcp_stream_pack(const struct dcp_stream_setup *setup, const char *name,
                    uint64_t *out_bytes, struct dcp_error *err);
/* Who writes the target's files: the ranks, and as many more as a layout with very many
 * files has given files to, so that not all are open at once. */
int dcp_stream_writers(const struct dcp_catalog *target);
/* Writes the files of one part and makes them durable; dead processes may have left some
 * of them. Appends to `told` what dcp_stream_join needs of it. A fingerprint can only be
 * proved once all parts are together; digests of blocks are, here. */
int dcp_stream_part(const struct dcp_stream_setup *setup, const struct dcp_shares *shares,
                    int part, struct dcp_buf *told, struct dcp_error *err);
/* Takes what n parts told, checks and proves what dcp_stream_run does, reads of the
 * source what every part left of a record that some part read, and writes what comes
 * last. Errors: also CORRUPT where what was told does not fit the target. */
int dcp_stream_join(const struct dcp_stream_setup *setup, const struct dcp_shares *shares,
                    struct dcp_cursor *told, int n, struct dcp_error *err);

#endif
