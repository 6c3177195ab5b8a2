/* stage: the copy of a state that training may go on without. The digest of every piece
 * is taken from the caller's own memory on the way: what is saved is what was trained. */
#ifndef DCP_CORE_WRITE_STAGE_H
#define DCP_CORE_WRITE_STAGE_H

#include "base/pool.h"
#include <dcp/checkpoint.h>
#include <stdbool.h>

/* Staging memory that is kept from save to save: its pages are touched once. */
struct dcp_stage {
    void *memory;
    uint64_t size_bytes;
};

/* Copies the pieces of a catalog from the caller's memory (piece->data) to staging
 * memory, and lets piece->data point there; in_place: but for those that the host can
 * read where they are. crc[p] becomes the CRC-64/XZ of a copied piece p. Errors: MEMORY,
 * those of the device. */
int dcp_stage_fill(struct dcp_stage *stage, const struct dcp_device *device,
                   struct dcp_pool *pool, struct dcp_catalog *catalog, bool in_place,
                   uint64_t *crc, struct dcp_error *err);
/* Whether a piece is there. */
bool dcp_stage_holds(const struct dcp_stage *stage, const struct dcp_piece *piece);
void dcp_stage_fini(struct dcp_stage *stage, const struct dcp_device *device);

#endif
