/* optim_ids: dealing weights out to groups. */
#include "optim_ids.h"
#include "base/mem.h"
#include <string.h>

enum { MAX_GROUPS = 4096 };

static json_t *params_of(const json_t *groups, size_t group)
{
    return json_object_get(json_array_get(groups, group), "params");
}

void dcp_optim_ids_fini(struct dcp_optim_ids *ids)
{
    free(ids->weight);
    free(ids->group);
    *ids = (struct dcp_optim_ids){ 0 };
}

size_t dcp_optim_ids_count(const json_t *groups)
{
    size_t n = 0;

    if (json_array_size(groups) > MAX_GROUPS)
        return 0;
    for (size_t g = 0; g < json_array_size(groups); g++)
        n += json_array_size(params_of(groups, g));
    bool *seen = dcp_mem_calloc(n, sizeof *seen);
    bool ok = seen != NULL;
    for (size_t g = 0; ok && g < json_array_size(groups); g++)
        for (size_t i = 0; ok && i < json_array_size(params_of(groups, g)); i++) {
            const json_t *id = json_array_get(params_of(groups, g), i);
            json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
            ok = number >= 0 && (uint64_t)number < n && !seen[number];
            if (ok)
                seen[number] = true;
        }
    free(seen);
    return ok ? n : 0;
}

/* The i-th number of a group; the groups were counted. */
static size_t id_of(const json_t *groups, size_t group, size_t i)
{
    return (size_t)json_integer_value(json_array_get(params_of(groups, group), i));
}

bool dcp_optim_shape_fits(const struct dcp_optim_shape *shape,
                          const struct dcp_tensor *weight)
{
    if (!shape->known)
        return true;
    if (weight->ndim != shape->ndim)
        return false;
    for (int d = 0; d < shape->ndim; d++)
        if (weight->shape[d] != shape->shape[d])
            return false;
    return true;
}

/* The weight of that param, or -1; *at is where to look first, for names come in order.
 */
static int find_weight(const struct dcp_catalog *catalog, const size_t *weights,
                       size_t n_weights, const char *param, size_t *at)
{
    for (size_t i = 0; i < n_weights; i++, *at = (*at + 1) % n_weights)
        if (!strcmp(catalog->tensors[weights[*at]].param, param))
            return (int)weights[*at];
    return -1;
}

/* Newer optimizers keep the names beside the numbers. */
static bool find_by_name(const struct dcp_catalog *catalog, const size_t *weights,
                         size_t n_weights, const json_t *groups,
                         const struct dcp_optim_shape *shapes, struct dcp_optim_ids *ids)
{
    size_t from = 0;

    for (size_t g = 0; g < json_array_size(groups); g++) {
        json_t *names = json_object_get(json_array_get(groups, g), "param_names");
        for (size_t i = 0; i < json_array_size(params_of(groups, g)); i++) {
            const char *name = json_string_value(json_array_get(names, i));
            int at = name ? find_weight(catalog, weights, n_weights, name, &from) : -1;
            size_t id = id_of(groups, g, i);
            if (at < 0 || !dcp_optim_shape_fits(&shapes[id], &catalog->tensors[at]))
                return false;
            ids->weight[id] = at;
        }
    }
    return true;
}

/* Each weight goes to the one group whose next number it fits. */
static bool deal_out(const struct dcp_catalog *catalog, const size_t *weights,
                     size_t n_weights, const json_t *groups,
                     const struct dcp_optim_shape *shapes, size_t *next,
                     struct dcp_optim_ids *ids)
{
    for (size_t w = 0; w < n_weights; w++) {
        size_t n_fit = 0, id = 0, group = 0;
        for (size_t g = 0; g < json_array_size(groups); g++) {
            if (next[g] >= json_array_size(params_of(groups, g)) ||
                !dcp_optim_shape_fits(&shapes[id_of(groups, g, next[g])],
                                      &catalog->tensors[weights[w]]))
                continue;
            n_fit++;
            group = g;
            id = id_of(groups, g, next[g]);
        }
        if (n_fit != 1)
            return false;
        ids->weight[id] = (int)weights[w];
        next[group]++;
    }
    return true;
}

/* The numbers of a group among the weights, in order: each takes the first weight behind
 * the one before, or from the end the last one. False: there is no such place. */
static bool embed(const struct dcp_catalog *catalog, const size_t *weights,
                  size_t n_weights, const json_t *groups, size_t group, bool from_end,
                  const struct dcp_optim_shape *shapes, int *out)
{
    size_t n = json_array_size(params_of(groups, group)), done = 0;

    for (size_t w = 0; w < n_weights && done < n; w++) {
        size_t at = weights[from_end ? n_weights - 1 - w : w];
        size_t id = id_of(groups, group, from_end ? n - 1 - done : done);
        if (dcp_optim_shape_fits(&shapes[id], &catalog->tensors[at])) {
            out[id] = (int)at;
            done++;
        }
    }
    return done == n;
}

/* An optimizer need not have all weights. The numbers have one place only when they get
 * the same from the beginning as from the end, and no two groups have one weight. Names
 * that did not lead to weights speak against any. */
static bool find_places(const struct dcp_catalog *catalog, const size_t *weights,
                        size_t n_weights, const json_t *groups,
                        const struct dcp_optim_shape *shapes, struct dcp_optim_ids *ids)
{
    DCP_CLEANUP_FREE int *last = dcp_mem_calloc(ids->n, sizeof *last);
    DCP_CLEANUP_FREE bool *taken = dcp_mem_calloc(catalog->n_tensors, sizeof *taken);

    for (size_t g = 0; g < json_array_size(groups); g++)
        if (!last || !taken ||
            json_object_get(json_array_get(groups, g), "param_names") ||
            !embed(catalog, weights, n_weights, groups, g, false, shapes, ids->weight) ||
            !embed(catalog, weights, n_weights, groups, g, true, shapes, last))
            return false;
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->weight[i] != last[i] || taken[last[i]])
            return false;
        taken[last[i]] = true;
    }
    return true;
}

int dcp_optim_ids_find(const struct dcp_catalog *catalog, const size_t *weights,
                       size_t n_weights, const json_t *groups,
                       const struct dcp_optim_shape *shapes, struct dcp_optim_ids *out,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE size_t *next = dcp_mem_calloc(json_array_size(groups), sizeof *next);
    size_t n = dcp_optim_ids_count(groups);

    *out = (struct dcp_optim_ids){ .n = n };
    out->weight = dcp_mem_calloc(n, sizeof *out->weight);
    out->group = dcp_mem_calloc(n, sizeof *out->group);
    if (!next || !out->weight || !out->group)
        return dcp_error_memory(err, "an optimizer");
    for (size_t g = 0; n && g < json_array_size(groups); g++)
        for (size_t i = 0; i < json_array_size(params_of(groups, g)); i++)
            out->group[id_of(groups, g, i)] = (int)g;
    out->found = n && (find_by_name(catalog, weights, n_weights, groups, shapes, out) ||
                       (n == n_weights && deal_out(catalog, weights, n_weights, groups,
                                                   shapes, next, out)) ||
                       find_places(catalog, weights, n_weights, groups, shapes, out));
    for (size_t i = 0; i < n && !out->found; i++)
        out->weight[i] = -1;
    return DCP_OK;
}
