/* heads: the archives of tensors up to their bytes (torch/item.h), each made once for
 * all tensors of a dtype and shape. */
#ifndef DCP_FORMATS_TORCH_DIST_HEADS_H
#define DCP_FORMATS_TORCH_DIST_HEADS_H

#include "base/arena.h"
#include "base/map.h"
#include "formats/torch/item.h"

struct dcp_torch_dist_head {
    const unsigned char *data;
    size_t n;            /* the tensor's first byte stands here */
    uint64_t item_bytes; /* of the whole archive */
};

/* Set the arena, which keeps the heads, and zero the rest; dcp_heads_fini. */
struct dcp_torch_dist_heads {
    struct dcp_arena *arena;
    struct dcp_map numbers;
    struct dcp_torch_dist_head *heads;
    size_t n, cap;
};
void dcp_heads_fini(struct dcp_torch_dist_heads *heads);
/* *out is valid until the next call. Errors: MEMORY. */
int dcp_heads_get(struct dcp_torch_dist_heads *heads, enum dcp_torch_style style,
                  const struct dcp_tensor *tensor, const struct dcp_torch_dist_head **out,
                  struct dcp_error *err);

#endif
