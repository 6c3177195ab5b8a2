/* item: the archive that torch.save writes into a stream: one tensor, or one object
 * without tensors. Distributed checkpoints are made of these. Which records there are
 * depends on the version of torch; everything else is as in its files. Sources: files of
 * PyTorch 1.13, 2.6 and 2.14. */
#ifndef DCP_FORMATS_TORCH_ITEM_H
#define DCP_FORMATS_TORCH_ITEM_H

#include "base/buf.h"
#include <dcp/tensor.h>
#include <jansson.h>

/* By the records beside data.pkl, data/0 and version. */
enum dcp_torch_style {
    DCP_TORCH_STYLE_NEW,  /* .format_version, .storage_alignment, byteorder, and the id */
    DCP_TORCH_STYLE_2_6,  /* byteorder, and .data/serialization_id */
    DCP_TORCH_STYLE_1_13, /* none */
    DCP_TORCH_N_STYLES
};

/* The archive of a tensor (of its dtype, ndim, shape; dense) up to its first byte: that
 * stands at out->size_bytes, a multiple of 64. *out_size_bytes: of the whole archive.
 * Errors: MEMORY. */
int dcp_torch_item_head(enum dcp_torch_style style, const struct dcp_tensor *tensor,
                        struct dcp_buf *out, uint64_t *out_size_bytes,
                        struct dcp_error *err);
/* What follows its last byte. crc32: of its bytes. Errors: MEMORY. */
int dcp_torch_item_tail(enum dcp_torch_style style, const struct dcp_tensor *tensor,
                        uint32_t crc32, struct dcp_buf *out, struct dcp_error *err);
/* The whole archive of a tensor whose bytes are in memory. */
int dcp_torch_item_tensor(enum dcp_torch_style style, const struct dcp_tensor *tensor,
                          const void *data, struct dcp_buf *out, struct dcp_error *err);
/* The whole archive of an object: JSON as pickle/py.h describes it, in which nothing
 * refers to tensors. Errors: CORRUPT, MISMATCH (too deep), MEMORY. */
int dcp_torch_item_object(enum dcp_torch_style style, json_t *value, struct dcp_buf *out,
                          struct dcp_error *err);

#endif
