#include "coll.h"

#include "base/clock.h"
#include <string.h>

int coll_reduce_scatter_begin(struct coll *coll, const float *in, const int64_t *counts,
                              float *out, uint64_t *out_call, struct dcp_error *err)
{
    double begin_s = dcp_clock_s();
    int rc = coll->ops->reduce_scatter(coll->self, in, counts, out, err);
    *out_call = ++coll->n_calls;
    coll->seconds += dcp_clock_s() - begin_s;
    return rc;
}

int coll_all_gather_begin(struct coll *coll, const void *in, const int64_t *counts,
                          size_t item_bytes, void *out, uint64_t *out_call,
                          struct dcp_error *err)
{
    double begin_s = dcp_clock_s();
    int rc = coll->ops->all_gather(coll->self, in, counts, item_bytes, out, err);
    *out_call = ++coll->n_calls;
    coll->seconds += dcp_clock_s() - begin_s;
    return rc;
}

int coll_wait(struct coll *coll, uint64_t call, struct dcp_error *err)
{
    return coll->ops->wait ? coll->ops->wait(coll->self, call, err) : DCP_OK;
}

bool coll_overlaps(const struct coll *coll)
{
    return coll->ops->wait != NULL;
}

int coll_reduce_scatter(struct coll *coll, const float *in, const int64_t *counts,
                        float *out, struct dcp_error *err)
{
    uint64_t call;
    int rc = coll_reduce_scatter_begin(coll, in, counts, out, &call, err);
    return rc ? rc : coll_wait(coll, call, err);
}

int coll_all_gather(struct coll *coll, const void *in, const int64_t *counts,
                    size_t item_bytes, void *out, struct dcp_error *err)
{
    uint64_t call;
    int rc = coll_all_gather_begin(coll, in, counts, item_bytes, out, &call, err);
    return rc ? rc : coll_wait(coll, call, err);
}

int coll_all_reduce(struct coll *coll, double *values, int n, struct dcp_error *err)
{
    double begin_s = dcp_clock_s();
    int rc = coll->ops->all_reduce(coll->self, values, n, err);
    coll->n_calls++;
    coll->seconds += dcp_clock_s() - begin_s;
    return rc;
}

int coll_split(struct coll *coll, int color, int key, struct coll *out_coll,
               struct dcp_error *err)
{
    *out_coll = (struct coll){ .ops = NULL };
    return coll->ops->split(coll->self, color, key, out_coll, err);
}

void coll_abort(struct coll *coll)
{
    if (coll->ops && coll->ops->abort)
        coll->ops->abort(coll->self);
}

void coll_free(struct coll *coll)
{
    if (coll->ops && coll->ops->free)
        coll->ops->free(coll->self);
    *coll = (struct coll){ .ops = NULL };
}

/* Parts are summed block by block, so that every level of the tree stays in the
 * first-level cache: 16 levels are 65,536 parts. */
#define BLOCK 256

/* The largest power of two below n. */
static int left_half(int n)
{
    int half = 1;
    while (half * 2 < n)
        half *= 2;
    return half;
}

static void sum_block(const float *const *parts, int n_parts, int64_t at, int n,
                      float *out)
{
    if (n_parts == 1) {
        memcpy(out, parts[0] + at, (size_t)n * sizeof *out);
        return;
    }
    if (n_parts == 2) {
        const float *a = parts[0] + at, *b = parts[1] + at;
        for (int i = 0; i < n; i++)
            out[i] = a[i] + b[i];
        return;
    }
    float right[BLOCK];
    int half = left_half(n_parts);
    sum_block(parts, half, at, n, out);
    sum_block(parts + half, n_parts - half, at, n, right);
    for (int i = 0; i < n; i++)
        out[i] += right[i];
}

void coll_tree_sum(const float *const *parts, int n_parts, int64_t n, float *out)
{
    for (int64_t at = 0; at < n; at += BLOCK) {
        float block[BLOCK];
        int size = n - at < BLOCK ? (int)(n - at) : BLOCK;
        sum_block(parts, n_parts, at, size, block);
        memcpy(out + at, block, (size_t)size * sizeof *out);
    }
}

void coll_tree_sum_f64(double *parts, int n_parts, int n)
{
    for (int step = 1; step < n_parts; step *= 2)
        for (int i = 0; i + step < n_parts; i += 2 * step)
            for (int j = 0; j < n; j++)
                parts[(size_t)i * (size_t)n + (size_t)j] +=
                    parts[(size_t)(i + step) * (size_t)n + (size_t)j];
}
