/* heads: by style, dtype and shape. */
#include "heads.h"
#include "base/map.h"
#include "base/mem.h"
#include <string.h>

void dcp_heads_fini(struct dcp_torch_dist_heads *heads)
{
    dcp_map_fini(&heads->numbers);
    free(heads->heads);
    *heads = (struct dcp_torch_dist_heads){ 0 };
}

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the items of a checkpoint");
}

static int make(struct dcp_torch_dist_heads *heads, enum dcp_torch_style style,
                const struct dcp_tensor *tensor, const void *key, size_t key_n,
                struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    struct dcp_torch_dist_head head;

    DCP_TRY(dcp_torch_item_head(style, tensor, &buf, &head.item_bytes, err));
    head.n = buf.size_bytes;
    head.data = dcp_arena_copy(heads->arena, buf.data, buf.size_bytes);
    const void *kept = dcp_arena_copy(heads->arena, key, key_n);
    struct dcp_torch_dist_head *grown =
        dcp_mem_grow(heads->heads, &heads->cap, heads->n + 1, sizeof *grown);
    if (grown)
        heads->heads = grown;
    if (!grown || !head.data || !kept ||
        !dcp_map_set(&heads->numbers, kept, key_n, (int64_t)heads->n))
        return no_memory(err);
    grown[heads->n++] = head;
    return DCP_OK;
}

int dcp_heads_get(struct dcp_torch_dist_heads *heads, enum dcp_torch_style style,
                  const struct dcp_tensor *tensor, const struct dcp_torch_dist_head **out,
                  struct dcp_error *err)
{
    int64_t key[3 + DCP_MAX_NDIM] = { style, tensor->dtype, tensor->ndim };
    size_t key_n = (3 + (size_t)tensor->ndim) * sizeof *key;

    if (tensor->ndim)
        memcpy(key + 3, tensor->shape, (size_t)tensor->ndim * sizeof *key);
    int64_t found = dcp_map_find(&heads->numbers, (const char *)key, key_n);
    int rc = found < 0 ? make(heads, style, tensor, key, key_n, err) : DCP_OK;
    *out = rc ? NULL : &heads->heads[found < 0 ? (int64_t)heads->n - 1 : found];
    return rc;
}
