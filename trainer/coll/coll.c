#include "coll.h"

#include "base/clock.h"
#include "parts.h"
#include <string.h>

/* A call has ended: `items` came from other ranks. */
static void count(struct coll *coll, double begin_s, int64_t items, size_t item_bytes)
{
    double seconds = dcp_clock_s() - begin_s;
    for (; coll; coll = coll->whole) {
        coll->seconds += seconds;
        coll->received_bytes += (uint64_t)items * item_bytes;
    }
}

int coll_all_to_all_begin(struct coll *coll, const void *in, const int64_t *counts,
                          int64_t begin, int64_t most, size_t item_bytes, void *out,
                          uint64_t *out_call, struct dcp_error *err)
{
    double begin_s = dcp_clock_s();
    int64_t each = coll_in_round(counts[coll->rank], begin, most);
    int rc =
        coll->ops->all_to_all(coll->self, in, counts, begin, most, item_bytes, out, err);
    *out_call = ++coll->n_calls;
    count(coll, begin_s, each * (coll->world_size - 1), item_bytes);
    return rc;
}

int coll_all_gather_begin(struct coll *coll, const void *in, const int64_t *counts,
                          size_t item_bytes, void *out, uint64_t *out_call,
                          struct dcp_error *err)
{
    double begin_s = dcp_clock_s();
    int64_t others = parts_before(counts, coll->world_size) - counts[coll->rank];
    int rc = coll->ops->all_gather(coll->self, in, counts, item_bytes, out, err);
    *out_call = ++coll->n_calls;
    count(coll, begin_s, others, item_bytes);
    return rc;
}

int coll_wait(struct coll *coll, uint64_t call, struct dcp_error *err)
{
    double begin_s = dcp_clock_s();
    int rc = coll->ops->wait ? coll->ops->wait(coll->self, call, err) : DCP_OK;
    count(coll, begin_s, 0, 0);
    return rc;
}

bool coll_overlaps(const struct coll *coll)
{
    return coll->ops->wait != NULL;
}

int coll_reduce_scatter(struct coll *coll, const int64_t *in, const int64_t *counts,
                        int64_t *out, struct dcp_error *err)
{
    double begin_s = dcp_clock_s();
    int64_t others = counts[coll->rank] * (coll->world_size - 1);
    int rc = coll->ops->reduce_scatter(coll->self, in, counts, out, err);
    coll->n_calls++;
    count(coll, begin_s, others, sizeof *in);
    return rc ? rc : coll_wait(coll, coll->n_calls, err);
}

int coll_all_to_all(struct coll *coll, const void *in, const int64_t *counts,
                    int64_t begin, int64_t most, size_t item_bytes, void *out,
                    struct dcp_error *err)
{
    uint64_t call;
    int rc =
        coll_all_to_all_begin(coll, in, counts, begin, most, item_bytes, out, &call, err);
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
    count(coll, begin_s, (int64_t)n * (coll->world_size - 1), sizeof *values);
    return rc;
}

int coll_split(struct coll *coll, int color, int key, struct coll *out_coll,
               struct dcp_error *err)
{
    *out_coll = (struct coll){ .ops = NULL };
    int rc = coll->ops->split(coll->self, color, key, out_coll, err);
    out_coll->whole = coll;
    return rc;
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

/* Block by block, so that the sum stays in the cache while parts are added to it; out may
 * be one of them. */
#define BLOCK 1024

void coll_sum(const int64_t *const *parts, int n_parts, int64_t n, int64_t *out)
{
    for (int64_t at = 0; at < n; at += BLOCK) {
        uint64_t sum[BLOCK] = { 0 };
        int size = n - at < BLOCK ? (int)(n - at) : BLOCK;
        for (int p = 0; p < n_parts; p++)
            for (int i = 0; i < size; i++)
                sum[i] += (uint64_t)parts[p][at + i];
        memcpy(out + at, sum, (size_t)size * sizeof *out);
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
