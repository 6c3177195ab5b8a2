/* write: what the writing files of the format share. */
#ifndef DCP_FORMATS_TORCH_DIST_WRITE_H
#define DCP_FORMATS_TORCH_DIST_WRITE_H

#include <dcp/format.h>

int dcp_dcp_layout(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                   struct dcp_literals *literals, struct dcp_error *err);
int dcp_dcp_seal(struct dcp_catalog *catalog, int rank,
                 const struct dcp_target_options *options, struct dcp_literals *literals,
                 struct dcp_error *err);

/* The tensor that a piece's archive holds: of the piece's shape. Borrows from both. */
void dcp_write_part(const struct dcp_catalog *catalog, const struct dcp_piece *piece,
                    struct dcp_tensor *out);
/* Appends the file .metadata, when all else is written. Errors: MEMORY, MISMATCH. */
int dcp_write_meta(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                   struct dcp_literals *literals, struct dcp_error *err);

/* Writes Megatron's files, when the catalog carries them. Errors: MEMORY. */
int dcp_common_write(struct dcp_catalog *catalog, struct dcp_literals *literals,
                     struct dcp_error *err);

#endif
