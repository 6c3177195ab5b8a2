/* split: the codec of that name. A block's numbers are taken apart into planes, and each
 * plane is coded alone, as a trial says. The layout is that of docs/FORMAT.md, 4. */
#ifndef DCP_CORE_FILES_SPLIT_H
#define DCP_CORE_FILES_SPLIT_H

#include "base/planes.h"
#include <dcp/error.h>
#include <zstd.h>

/* A context that codes literals, and looks for no matches; NULL: no memory. */
ZSTD_CCtx *dcp_split_encoder_new(void);

/* n bytes, whole numbers of width, to fewer. encoder is of dcp_split_encoder_new; scratch
 * and out have DCP_BLOCK_BYTES each. *out_n is 0 when nothing is gained. Errors: none but
 * MEMORY. */
int dcp_split_encode(ZSTD_CCtx *encoder, size_t width, const unsigned char *raw, size_t n,
                     unsigned char *scratch, unsigned char *out, size_t *out_n,
                     struct dcp_error *err);
/* And back to exactly n bytes; planes is scratch of n bytes. Errors: CORRUPT. */
int dcp_split_decode(ZSTD_DCtx *decoder, size_t width, const unsigned char *stored,
                     size_t stored_n, unsigned char *planes, unsigned char *raw, size_t n,
                     struct dcp_error *err);

#endif
