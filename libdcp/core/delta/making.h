/* making: a folder coded as a delta against another one, and read back. */
#ifndef DCP_CORE_DELTA_MAKING_H
#define DCP_CORE_DELTA_MAKING_H

#include "folder.h"
#include "listing.h"
#include "output.h"
#include "pass.h"
#include <dcp/delta.h>
#include <dcp/format.h>

struct dcp_delta_making {
    /* Of the caller, borrowed: */
    struct dcp_source base, source; /* folders */
    struct dcp_delta_output output; /* where the delta is made; without store: nowhere */
    int threads;                    /* 0: 2 */
    struct dcp_progress progress;
    struct dcp_delta_result *result;
    /* Whether a file that was read, of the base or of the source, is what it should be;
     * NULL: nobody asks. */
    int (*prove)(void *self, bool of_base, const char *name, uint64_t crc,
                 struct dcp_error *err);
    void *self;
    struct dcp_delta_folder is; /* base_path and chain; the rest is filled */
    /* Private: */
    struct dcp_delta_listing listing;
    struct dcp_delta_passes passes;
    struct dcp_delta_coder **coders;
    unsigned char *bases, *coded;
};

/* Looks what there is, and chooses what is coded. Errors: UNSUPPORTED (a name that no
 * file of a delta can have), MISMATCH (nothing in common), IO, MEMORY. */
int dcp_delta_making_init(struct dcp_delta_making *making, struct dcp_error *err);
/* Writes all files of the delta, delta.json last. */
int dcp_delta_making_run(struct dcp_delta_making *making, struct dcp_error *err);
/* Reads what the delta in a folder of a store of deltas gives: it must be what it was
 * made of. */
int dcp_delta_making_prove(struct dcp_delta_making *making, const struct dcp_source *made,
                           struct dcp_error *err);
void dcp_delta_making_fini(struct dcp_delta_making *making);

#endif
