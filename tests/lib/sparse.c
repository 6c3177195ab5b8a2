/* sparse: the four operations of a store that reading needs. */
#include "lib/sparse.h"
#include <string.h>

static int sparse_stat(void *self, const char *name, bool *out_is_dir,
                       uint64_t *out_size_bytes, struct dcp_error *err)
{
    (void)name;
    (void)err;
    *out_is_dir = false;
    *out_size_bytes = ((struct sparse *)self)->size_bytes;
    return DCP_OK;
}

static int sparse_open(void *self, const char *name, struct dcp_store_file **out,
                       struct dcp_error *err)
{
    (void)name;
    (void)err;
    *out = self;
    return DCP_OK;
}

static int sparse_read(void *self, struct dcp_store_file *file, uint64_t offset,
                       void *out, size_t size_bytes, struct dcp_error *err)
{
    const struct sparse *sparse = self;

    (void)file;
    (void)err;
    memset(out, 0, size_bytes);
    for (size_t i = 0; i < sparse->target.literals.n; i++) {
        const struct dcp_literal *l = &sparse->target.literals.items[i];
        for (size_t k = 0; k < l->size_bytes; k++)
            if (l->offset + k >= offset && l->offset + k < offset + size_bytes)
                ((unsigned char *)out)[l->offset + k - offset] =
                    ((const unsigned char *)l->data)[k];
    }
    return DCP_OK;
}

static int sparse_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    (void)self;
    (void)file;
    (void)err;
    return DCP_OK;
}

static const struct dcp_store_ops ops = {
    .stat = sparse_stat,
    .open = sparse_open,
    .read_at = sparse_read,
    .close = sparse_close,
};

struct dcp_store sparse_store(struct sparse *sparse)
{
    return (struct dcp_store){ .ops = &ops, .self = sparse, .root = "" };
}
