/* deepspeed_names: a walk over the weights that keeps all ways there are so far: how many
 * parameters of each group have been dealt out. Usually there is one. */
#include "deepspeed_names.h"
#include "base/mem.h"
#include <string.h>

enum { MAX_WAYS = 64, MAX_WEIGHTS = 1 << 20 };

struct deal {
    const struct dcp_ds_shape *weights, *numbers;
    const struct dcp_ds_numbers *groups;
    size_t n, n_groups;
    size_t *ways, *next; /* MAX_WAYS times n_groups counts */
    uint32_t *taken;     /* of each weight and way: the group it went to, and the way
                          * before, as way * n_groups + group */
    bool *twice;         /* of each way: there are two ways to it */
};

static bool fits(const struct dcp_ds_shape *a, const struct dcp_ds_shape *b)
{
    return a->ndim < 0 || b->ndim < 0 ||
           (a->ndim == b->ndim &&
            !memcmp(a->sizes, b->sizes, (size_t)a->ndim * sizeof *a->sizes));
}

/* Gives weight w to a group in way number `way`; *n_next ways follow. False: too many. */
static bool extend(struct deal *d, size_t w, size_t way, size_t group, bool *twice_next,
                   size_t *n_next)
{
    size_t *counts = d->next + *n_next * d->n_groups, i;

    memcpy(counts, d->ways + way * d->n_groups, d->n_groups * sizeof *counts);
    counts[group]++;
    for (i = 0; i < *n_next; i++)
        if (!memcmp(d->next + i * d->n_groups, counts, d->n_groups * sizeof *counts)) {
            twice_next[i] = true;
            return true;
        }
    twice_next[i] = d->twice[way];
    d->taken[w * MAX_WAYS + i] = (uint32_t)(way * d->n_groups + group);
    (*n_next)++;
    return *n_next < MAX_WAYS;
}

/* All weights, one by one. Returns the number of ways, 0 or 1 at the end; 2: too many. */
static size_t walk(struct deal *d)
{
    bool twice_next[MAX_WAYS];
    size_t n_ways = 1;

    for (size_t w = 0; w < d->n && n_ways; w++) {
        size_t n_next = 0;
        for (size_t way = 0; way < n_ways; way++)
            for (size_t g = 0; g < d->n_groups; g++) {
                size_t dealt = d->ways[way * d->n_groups + g];
                const struct dcp_ds_numbers *group = &d->groups[g];
                if (dealt < group->n &&
                    fits(&d->weights[w], &d->numbers[group->first + dealt]) &&
                    !extend(d, w, way, g, twice_next, &n_next))
                    return 2;
            }
        size_t *ways = d->ways;
        d->ways = d->next;
        d->next = ways;
        memcpy(d->twice, twice_next, n_next * sizeof *twice_next);
        n_ways = n_next;
    }
    return n_ways && !d->twice[0] ? n_ways : n_ways ? 2 : 0;
}

/* Follows the one way back. */
static void trace(const struct deal *d, size_t *out)
{
    size_t way = 0;

    for (size_t g = 0; g < d->n_groups; g++)
        d->next[g] = d->groups[g].first + d->groups[g].n;
    for (size_t w = d->n; w-- > 0;) {
        uint32_t taken = d->taken[w * MAX_WAYS + way];
        out[--d->next[taken % d->n_groups]] = w;
        way = taken / d->n_groups;
    }
}

int dcp_ds_deal(const struct dcp_ds_shape *weights, size_t n,
                const struct dcp_ds_shape *numbers, const struct dcp_ds_numbers *groups,
                size_t n_groups, size_t *out, bool *out_found, struct dcp_error *err)
{
    struct deal d = { .weights = weights,
                      .numbers = numbers,
                      .groups = groups,
                      .n = n,
                      .n_groups = n_groups };
    DCP_CLEANUP_FREE size_t *counts = NULL;
    DCP_CLEANUP_FREE uint32_t *taken = NULL;
    bool twice[MAX_WAYS] = { false };

    *out_found = false;
    if (!n_groups || n_groups > MAX_WAYS || n > MAX_WEIGHTS)
        return DCP_OK;
    counts = dcp_mem_calloc(2 * MAX_WAYS, n_groups * sizeof *counts);
    taken = dcp_mem_calloc(n, MAX_WAYS * sizeof *taken);
    if (!counts || !taken)
        return dcp_error_memory(err, "the names of parameters");
    d.ways = counts;
    d.next = counts + MAX_WAYS * n_groups;
    d.taken = taken;
    d.twice = twice;
    *out_found = walk(&d) == 1;
    if (*out_found)
        trace(&d, out);
    return DCP_OK;
}
