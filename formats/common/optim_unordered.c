/* optim_unordered: by names, or by shapes that there are once. */
#include "optim_unordered.h"
#include "base/mem.h"
#include <string.h>

enum { MAX_BY_SHAPE = 4096 }; /* each is compared with each */

/* The one weight of that shape, or -1. */
static int only_weight(const struct dcp_catalog *catalog, const size_t *weights,
                       size_t n_weights, const struct dcp_optim_shape *shape)
{
    int found = -1;

    for (size_t w = 0; w < n_weights; w++) {
        if (!dcp_optim_shape_fits(shape, &catalog->tensors[weights[w]]))
            continue;
        if (found >= 0)
            return -1;
        found = (int)weights[w];
    }
    return found;
}

/* A weight that two numbers fit ends it: most models have some, and soon. */
static bool find_by_shape(const struct dcp_catalog *catalog, const size_t *weights,
                          size_t n_weights, const struct dcp_optim_shape *shapes,
                          struct dcp_optim_ids *ids)
{
    if (ids->n > MAX_BY_SHAPE)
        return false;
    for (size_t i = 0; i < ids->n; i++) {
        ids->weight[i] =
            shapes[i].known ? only_weight(catalog, weights, n_weights, &shapes[i]) : -1;
        if (ids->weight[i] < 0)
            return false;
        for (size_t k = 0; k < i; k++)
            if (ids->weight[k] == ids->weight[i])
                return false;
    }
    return true;
}

int dcp_optim_say_order(struct dcp_catalog *catalog, const size_t *weights,
                        size_t n_weights, const struct dcp_optim_shape *shapes,
                        const struct dcp_optim_ids *ids, struct dcp_error *err)
{
    struct dcp_optim_ids alone = { .n = ids->n };

    if (!ids->found || ids->by_name)
        return DCP_OK;
    alone.weight = dcp_mem_calloc(ids->n, sizeof *alone.weight);
    if (!alone.weight)
        return dcp_error_memory(err, "an optimizer");
    if (!find_by_shape(catalog, weights, n_weights, shapes, &alone))
        catalog->assumed_order = DCP_OPTIM_IN_ORDER;
    dcp_optim_ids_fini(&alone);
    return DCP_OK;
}

void dcp_optim_unordered(const struct dcp_catalog *catalog, const size_t *weights,
                         size_t n_weights, const struct dcp_optim_shape *shapes,
                         struct dcp_optim_ids *ids)
{
    ids->found = (ids->found && ids->by_name) ||
                 (ids->n && find_by_shape(catalog, weights, n_weights, shapes, ids));
    for (size_t i = 0; i < ids->n && !ids->found; i++)
        ids->weight[i] = -1;
}
