/* dcp_write: what the writing files of the format share. */
#ifndef DCP_FORMATS_DCP_WRITE_H
#define DCP_FORMATS_DCP_WRITE_H

#include <dcp/format.h>

/* The tensor that a piece's archive holds: of the piece's shape. Borrows from both. */
void dcp_write_part(const struct dcp_catalog *catalog, const struct dcp_piece *piece,
                    struct dcp_tensor *out);
/* Appends the file .metadata, when all else is written. Errors: MEMORY, MISMATCH. */
int dcp_write_meta(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                   struct dcp_literals *literals, struct dcp_error *err);

#endif
