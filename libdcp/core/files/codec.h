/* codec: how a block lies in its file. A block that a codec does not make smaller is
 * stored as it is, so a stored block is never larger than the raw one. */
#ifndef DCP_CORE_FILES_CODEC_H
#define DCP_CORE_FILES_CODEC_H

#include <dcp/tensor.h>

struct dcp_coder; /* contexts and scratch; one thread */

int dcp_coder_new(struct dcp_coder **out_coder, struct dcp_error *err);
void dcp_coder_free(struct dcp_coder *coder);

/* Codes n (at most DCP_BLOCK_BYTES) raw bytes of elements of elem_size. *out_stored
 * points to the stored bytes: raw itself, or scratch that lives until the next call.
 * Errors: none but MEMORY. */
int dcp_coder_encode(struct dcp_coder *coder, enum dcp_codec codec, size_t elem_size,
                     const void *raw, size_t n, const void **out_stored, size_t *out_n,
                     struct dcp_error *err);
/* Back to exactly n raw bytes. Errors: CORRUPT. */
int dcp_coder_decode(struct dcp_coder *coder, enum dcp_codec codec, size_t elem_size,
                     const void *stored, size_t stored_n, void *raw, size_t n,
                     struct dcp_error *err);

#endif
