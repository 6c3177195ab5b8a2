/* A single rank: every sum is its one part. */
#include "coll.h"

#include <string.h>

static int self_reduce_scatter(void *self, const int64_t *in, const int64_t *counts,
                               int64_t *out, struct dcp_error *err)
{
    (void)self;
    (void)err;
    if (in != out)
        memmove(out, in, (size_t)counts[0] * sizeof *out);
    return DCP_OK;
}

static int self_all_to_all(void *self, const void *in, const int64_t *counts,
                           int64_t begin, int64_t most, size_t item_bytes, void *out,
                           struct dcp_error *err)
{
    (void)self;
    (void)err;
    memcpy(out, (const char *)in + (size_t)begin * item_bytes,
           (size_t)coll_in_round(counts[0], begin, most) * item_bytes);
    return DCP_OK;
}

static int self_all_gather(void *self, const void *in, const int64_t *counts,
                           size_t item_bytes, void *out, struct dcp_error *err)
{
    (void)self;
    (void)err;
    if (in != out)
        memmove(out, in, (size_t)counts[0] * item_bytes);
    return DCP_OK;
}

static int self_all_reduce(void *self, double *values, int n, struct dcp_error *err)
{
    (void)self;
    (void)values;
    (void)n;
    (void)err;
    return DCP_OK;
}

static int self_split(void *self, int color, int key, struct coll *out_coll,
                      struct dcp_error *err)
{
    (void)self;
    (void)color;
    (void)key;
    (void)err;
    coll_self(out_coll);
    return DCP_OK;
}

static const struct coll_ops self_ops = {
    .reduce_scatter = self_reduce_scatter,
    .all_to_all = self_all_to_all,
    .all_gather = self_all_gather,
    .all_reduce = self_all_reduce,
    .split = self_split,
};

void coll_self(struct coll *out_coll)
{
    *out_coll = (struct coll){ .ops = &self_ops, .world_size = 1 };
}
