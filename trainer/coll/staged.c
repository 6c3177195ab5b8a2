/* Over another coll: parts go to the host, a round of all ranks' at a time, and back. A
 * round is small, so that there is little memory to pin, and uneven parts end early. */
#include "coll.h"

#include "base/mem.h"
#include "parts.h"
#include "trainer/ops/ops.h"

#define STAGING_BYTES ((int64_t)8 << 20) /* of all ranks in a round */

struct staged {
    struct coll below; /* owned */
    struct kernels kernels;
    char *staging, *landing; /* the second one for what all give to this rank */
    int64_t *counts;         /* of a round */
};

/* The round of up to `most` items from item `at` of every part on; false when there are
 * none any more. *out_own: where this rank's part lies in the round. */
static bool next_round(struct staged *s, const int64_t *counts, int64_t at, int64_t most,
                       int64_t *out_own)
{
    int64_t total = 0;
    for (int r = 0; r < s->below.world_size; r++) {
        if (r == s->below.rank)
            *out_own = total;
        s->counts[r] = coll_in_round(counts[r], at, most);
        total += s->counts[r];
    }
    return total > 0;
}

/* Moves the round's items of all parts between `whole` and the staging. */
static int move_parts(struct staged *s, char *whole, const int64_t *counts, int64_t at,
                      size_t item_bytes, bool to_staging, struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops;
    char *staging = s->staging;
    int rc = DCP_OK;
    for (int r = 0; !rc && r < s->below.world_size; r++) {
        char *part = whole + (size_t)at * item_bytes;
        size_t size_bytes = (size_t)s->counts[r] * item_bytes;
        if (size_bytes && to_staging)
            rc = ops->get(s->kernels.ctx, staging, part, size_bytes, err);
        else if (size_bytes)
            rc = ops->put(s->kernels.ctx, part, staging, size_bytes, err);
        staging += size_bytes;
        whole += (size_t)counts[r] * item_bytes;
    }
    return rc;
}

static int staged_reduce_scatter(void *self, const int64_t *in, const int64_t *counts,
                                 int64_t *out, struct dcp_error *err)
{
    struct staged *s = self;
    int64_t most = STAGING_BYTES / (int64_t)sizeof *in / s->below.world_size, own = 0;
    int rc = DCP_OK;
    for (int64_t at = 0; !rc && next_round(s, counts, at, most, &own); at += most) {
        int64_t *sum = (int64_t *)(void *)s->staging + own;
        uint64_t size_bytes = (uint64_t)s->counts[s->below.rank] * sizeof *sum;
        rc = move_parts(s, (char *)(uintptr_t)in, counts, at, sizeof *in, true, err);
        if (!rc)
            rc = coll_reduce_scatter(&s->below, (int64_t *)(void *)s->staging, s->counts,
                                     sum, err);
        if (!rc)
            rc = s->kernels.ops->put(s->kernels.ctx, out + at, sum, size_bytes, err);
    }
    return rc;
}

static int staged_all_to_all(void *self, const void *in, const int64_t *counts,
                             int64_t begin, int64_t most, size_t item_bytes, void *out,
                             struct dcp_error *err)
{
    struct staged *s = self;
    int world_size = s->below.world_size, rc = DCP_OK;
    int64_t n = coll_in_round(counts[s->below.rank], begin, most), own = 0;
    int64_t items = STAGING_BYTES / (int64_t)item_bytes / world_size, end = begin + most;
    for (int64_t at = begin; !rc && at < end; at += items) {
        if (!next_round(s, counts, at, end - at < items ? end - at : items, &own))
            break;
        size_t size_bytes = (size_t)s->counts[s->below.rank] * item_bytes;
        rc = move_parts(s, (char *)(uintptr_t)in, counts, at, item_bytes, true, err);
        if (!rc)
            rc = coll_all_to_all(&s->below, s->staging, s->counts, 0, items, item_bytes,
                                 s->landing, err);
        for (int r = 0; !rc && size_bytes && r < world_size; r++)
            rc = s->kernels.ops->put(
                s->kernels.ctx, (char *)out + (size_t)(r * n + at - begin) * item_bytes,
                s->landing + (size_t)r * size_bytes, size_bytes, err);
    }
    return rc;
}

static int staged_all_gather(void *self, const void *in, const int64_t *counts,
                             size_t item_bytes, void *out, struct dcp_error *err)
{
    struct staged *s = self;
    int64_t most = STAGING_BYTES / (int64_t)item_bytes / s->below.world_size, own = 0;
    int rc = DCP_OK;
    for (int64_t at = 0; !rc && next_round(s, counts, at, most, &own); at += most) {
        char *mine = s->staging + (size_t)own * item_bytes;
        uint64_t size_bytes = (uint64_t)s->counts[s->below.rank] * item_bytes;
        rc = s->kernels.ops->get(s->kernels.ctx, mine,
                                 (const char *)in + (size_t)at * item_bytes, size_bytes,
                                 err);
        if (!rc)
            rc = coll_all_gather(&s->below, mine, s->counts, item_bytes, s->staging, err);
        if (!rc)
            rc = move_parts(s, out, counts, at, item_bytes, false, err);
    }
    return rc;
}

static int staged_all_reduce(void *self, double *values, int n, struct dcp_error *err)
{
    struct staged *s = self;
    return coll_all_reduce(&s->below, values, n, err);
}

static void staged_free(void *self)
{
    struct staged *s = self;
    coll_free(&s->below);
    free(s->staging);
    free(s->landing);
    free(s->counts);
    free(s);
}

static int staged_split(void *self, int color, int key, struct coll *out_coll,
                        struct dcp_error *err)
{
    struct staged *s = self;
    int rc = coll_split(&s->below, color, key, out_coll, err);
    return rc ? rc : coll_staged(out_coll, &s->kernels, err);
}

static const struct coll_ops staged_ops = {
    .reduce_scatter = staged_reduce_scatter,
    .all_to_all = staged_all_to_all,
    .all_gather = staged_all_gather,
    .all_reduce = staged_all_reduce,
    .split = staged_split,
    .free = staged_free,
};

int coll_staged(struct coll *coll, const struct kernels *kernels, struct dcp_error *err)
{
    struct staged *s = dcp_mem_calloc(1, sizeof *s);
    if (s) {
        s->kernels = *kernels;
        s->staging = dcp_mem_aligned(64, (size_t)STAGING_BYTES);
        s->landing = dcp_mem_aligned(64, (size_t)STAGING_BYTES);
        s->counts = dcp_mem_calloc((size_t)coll->world_size, sizeof *s->counts);
    }
    if (!s || !s->staging || !s->landing || !s->counts) {
        if (s)
            staged_free(s);
        return dcp_error_memory(err, "the staging of collectives");
    }
    s->below = *coll;
    s->below.whole = NULL; /* what it does is counted above it */
    *coll = (struct coll){ .ops = &staged_ops,
                           .self = s,
                           .rank = s->below.rank,
                           .world_size = s->below.world_size };
    return DCP_OK;
}
