/* fill: a rank reads what it wants of a step into its own memory.
 *
 * Every byte is proved by one digest. As a rule that is the block's it lies in. Of a
 * large tensor that a rank wants whole the fingerprint is computed in any case, and says
 * the same: its blocks are not digested besides. Of tensors that the ranks read by runs
 * (see runs.h) it is the fingerprint, too. What is not proved so is read again by blocks,
 * which name what is corrupt. */
#ifndef DCP_CORE_READ_FILL_H
#define DCP_CORE_READ_FILL_H

#include "blocks.h"
#include "core/plan/plan.h"
#include "runs.h"
#include <dcp/device.h>

/* All borrowed; the catalogs are sorted. */
struct dcp_fill_setup {
    const struct dcp_source *source;
    const struct dcp_catalog *src, *dst;
    const int *from; /* the tensor of src behind each of dst; -1: none */
    const struct dcp_plan *plan;
    struct dcp_runs *runs; /* NULL: no tensor is read by them */
    const struct dcp_device *device;
    int threads; /* >= 1 */
    bool verify;
};

struct dcp_fill;

int dcp_fill_new(const struct dcp_fill_setup *setup, struct dcp_fill **out,
                 struct dcp_error *err);
void dcp_fill_free(struct dcp_fill *fill);
/* Reads what was not read yet. Errors: those of dcp_copy_piece, MEMORY. */
int dcp_fill_run(struct dcp_fill *fill, struct dcp_error *err);
/* What was read by runs, and was not proved, is to be read by blocks. */
void dcp_fill_again(struct dcp_fill *fill);
/* For dcp_prove: the proof of records, NULL without `verify`, and the n readers. */
const struct dcp_proof *dcp_fill_proof(const struct dcp_fill *fill);
struct dcp_blocks *const *dcp_fill_blocks(const struct dcp_fill *fill, int *out_n);
/* Bytes read from files so far. fill may be NULL. */
uint64_t dcp_fill_bytes(const struct dcp_fill *fill);

#endif
