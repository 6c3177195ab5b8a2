/* write: what the writing files of the format share. */
#ifndef DCP_FORMATS_TORCH_DIST_WRITE_H
#define DCP_FORMATS_TORCH_DIST_WRITE_H

#include "formats/state_dict/out.h"
#include "heads.h"
#include <dcp/format.h>

/* The state of a target. */
struct dcp_torch_dist_state {
    struct dcp_out out; /* keys, and items that are no tensors */
    struct dcp_torch_dist_heads heads;
};

/* The functions of dcp_format of these names. */
int dcp_torch_dist_open(struct dcp_target *target, struct dcp_error *err);
int dcp_torch_dist_assign(struct dcp_target *target, struct dcp_error *err);
int dcp_torch_dist_finalize(struct dcp_target *target, int rank, struct dcp_error *err);
int dcp_torch_dist_finish(struct dcp_target *target, struct dcp_error *err);
void dcp_torch_dist_close(struct dcp_target *target);

/* The tensor that a piece's archive holds: of the piece's shape. Borrows from both. */
void dcp_write_part(const struct dcp_catalog *catalog, const struct dcp_piece *piece,
                    struct dcp_tensor *out);
/* Writes Megatron's files, when the catalog carries them. Errors: MEMORY. */
int dcp_common_write(struct dcp_target *target, struct dcp_error *err);

#endif
