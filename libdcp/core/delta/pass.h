/* pass: a file read from its first byte to its last, in blocks of a delta, by several
 * threads, and its CRC-64/XZ. */
#ifndef DCP_CORE_DELTA_PASS_H
#define DCP_CORE_DELTA_PASS_H

#include "base/pool.h"
#include "block.h"
#include <dcp/log.h>
#include <dcp/store.h>

#define DCP_DELTA_WINDOW 8 /* blocks at once for each worker */

/* What passes over many files share. */
struct dcp_delta_passes {
    struct dcp_pool *pool; /* NULL: the caller alone */
    int workers;
    size_t window;          /* blocks that are worked on at once */
    unsigned char *buffers; /* a block for each worker */
    uint64_t *crcs;         /* of the blocks of a window */
    struct dcp_progress progress;
    uint64_t done_bytes, total_bytes;
};
/* threads 0: 2. Release with fini, after a failure too. Errors: MEMORY. */
int dcp_delta_passes_init(struct dcp_delta_passes *passes, int threads,
                          struct dcp_error *err);
void dcp_delta_passes_fini(struct dcp_delta_passes *passes);

/* What is done with the blocks. */
struct dcp_delta_use {
    void *self;
    /* Of n bytes, block `block` of the file, on worker `worker`, in no order; slot: its
     * place in the window. May be NULL. */
    int (*each)(void *self, int worker, size_t slot, size_t block,
                const unsigned char *bytes, size_t n, struct dcp_error *err);
    /* After the n blocks of a window, in the order of the file. May be NULL. */
    int (*window)(void *self, size_t n, struct dcp_error *err);
};
/* Errors: those of reading and of what is done; INTERRUPTED. */
int dcp_delta_pass(struct dcp_delta_passes *passes, const struct dcp_store *store,
                   struct dcp_store_file *file, uint64_t size_bytes,
                   const struct dcp_delta_use *use, uint64_t *out_crc,
                   struct dcp_error *err);

#endif
