/* optim_ids: dealing weights out to groups. */
#include "optim_ids.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

enum { MAX_GROUPS = 4096, MAX_TRIES = 64 };

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

/* -- shapes -------------------------------------------------------------------------- */

/* Kinds of torch.optim and of bitsandbytes that have the shape of the weight. */
static const char *const own_kinds[] = {
    "exp_avg",    "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer",
    "square_avg", "grad_avg",   "acc_delta",      "sum",     "prev",
    "ax",         "variance",   "state1",
};

/* What a shape was told by, the better ones last. */
enum { BY_NONE, BY_ALL, BY_DIFFERENT, BY_FACTORS, BY_OWN };

static void set_shape(struct dcp_optim_shape *shape, int told_by, int ndim,
                      const int64_t *dims)
{
    *shape = (struct dcp_optim_shape){ .known = true, .ndim = ndim, .told_by = told_by };
    memcpy(shape->shape, dims, (size_t)ndim * sizeof *dims);
}

/* Variances of rows lack the last dimension, or have 1 there; those of columns have it.
 */
static void see_factor(struct dcp_optim_shape *shape, bool rows, bool in_place, int ndim,
                       const int64_t *dims)
{
    int n = ndim - in_place;

    if (shape->told_by != BY_FACTORS)
        *shape = (struct dcp_optim_shape){ .told_by = BY_FACTORS };
    if (!rows && ndim > 0)
        shape->last_dim = dims[ndim - 1];
    if (rows && n > 0 && n < DCP_MAX_NDIM) {
        shape->ndim = n + 1;
        memcpy(shape->shape, dims, (size_t)n * sizeof *dims);
    }
    shape->known = shape->ndim && shape->last_dim;
    if (shape->known)
        shape->shape[shape->ndim - 1] = shape->last_dim;
}

void dcp_optim_shape_see(struct dcp_optim_shape *shape, const char *key, int ndim,
                         const int64_t *dims)
{
    bool in_place = !strcmp(key, "row_var") || !strcmp(key, "col_var"),
         rows = !strcmp(key, "row_var") || dcp_str_ends(key, "_row"), own = false;

    for (size_t i = 0; i < DCP_ARRAY_LEN(own_kinds); i++)
        own = own || !strcmp(key, own_kinds[i]);
    if (!strcmp(key, "step") || shape->told_by == BY_OWN)
        return;
    if (own)
        set_shape(shape, BY_OWN, ndim, dims);
    else if (in_place || rows || dcp_str_ends(key, "_col"))
        see_factor(shape, rows, in_place, ndim, dims);
    else if (shape->told_by == BY_NONE && ndim)
        set_shape(shape, BY_ALL, ndim, dims);
    else if (shape->told_by == BY_ALL && ndim &&
             (ndim != shape->ndim ||
              memcmp(dims, shape->shape, (size_t)ndim * sizeof *dims) != 0))
        *shape = (struct dcp_optim_shape){ .told_by = BY_DIFFERENT };
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

/* -- names --------------------------------------------------------------------------- */

struct names {
    const struct dcp_catalog *catalog;
    const json_t *groups;
    const struct dcp_optim_shape *shapes;
    struct dcp_optim_ids *ids;
    struct dcp_map weights; /* tensors by param, and by that of one that is tied to it */
    size_t *seen;           /* of each tensor: the last try that led to it */
    size_t n_tries;
    char *text; /* with room for the longest name with a beginning more */
};

/* All names have `cut` at their beginnings, and lead to weights with `add` in its place.
 */
struct beginning {
    const char *add, *cut;
    size_t n_add, n_cut;
};

static const char *name_of(const json_t *groups, size_t group, size_t i)
{
    return json_string_value(
        json_array_get(json_object_get(json_array_get(groups, group), "param_names"), i));
}

/* There is one: the groups were counted. */
static const char *first_name(const json_t *groups)
{
    size_t g = 0;

    while (!json_array_size(params_of(groups, g)))
        g++;
    return name_of(groups, g, 0);
}

static bool leads(struct names *s, const struct beginning *b)
{
    s->n_tries++;
    memcpy(s->text, b->add, b->n_add);
    for (size_t g = 0; g < json_array_size(s->groups); g++)
        for (size_t i = 0; i < json_array_size(params_of(s->groups, g)); i++) {
            const char *name = name_of(s->groups, g, i);
            size_t id = id_of(s->groups, g, i), n = strlen(name);
            if (strncmp(name, b->cut, b->n_cut) != 0)
                return false;
            memcpy(s->text + b->n_add, name + b->n_cut, n - b->n_cut + 1);
            int64_t at = dcp_map_find(&s->weights, s->text, b->n_add + n - b->n_cut);
            if (at < 0 || s->seen[at] == s->n_tries ||
                !dcp_optim_shape_fits(&s->shapes[id], &s->catalog->tensors[at]))
                return false;
            s->seen[at] = s->n_tries;
            s->ids->weight[id] = (int)at;
        }
    return true;
}

/* The one other beginning that leads all names to weights, from what the first name
 * allows: "w" may be "module.w", or the other way round. */
static bool find_beginning(struct names *s, const char *first)
{
    size_t n = strlen(first), n_found = 0;
    struct beginning found = { 0 };

    for (size_t t = 0; t < s->catalog->n_tensors && s->n_tries < MAX_TRIES; t++) {
        const char *param = s->catalog->tensors[t].param;
        size_t len = strlen(param);
        const struct beginning b = { param, "", len - n, 0 };
        if (len < n + 2 || param[len - n - 1] != '.' ||
            strcmp(param + (len - n), first) ||
            dcp_map_find(&s->weights, param, len) < 0 || !leads(s, &b))
            continue;
        found = b;
        n_found++;
    }
    for (const char *dot = first; (dot = strchr(dot, '.')); dot++) {
        const struct beginning b = { "", first, 0, (size_t)(dot - first) + 1 };
        if (s->n_tries >= MAX_TRIES || !leads(s, &b))
            continue;
        found = b;
        n_found++;
    }
    return n_found == 1 && s->n_tries < MAX_TRIES && leads(s, &found);
}

/* Names of weights; those of ones that are tied to them are as good. */
static bool list_names(struct names *s, const size_t *weights, size_t n_weights)
{
    const struct dcp_catalog *catalog = s->catalog;
    bool ok = true;

    for (size_t w = 0; w < n_weights && ok; w++) {
        const char *param = catalog->tensors[weights[w]].param;
        if (dcp_map_find(&s->weights, param, strlen(param)) < 0)
            ok = dcp_map_set(&s->weights, param, strlen(param), (int64_t)weights[w]);
    }
    for (size_t t = 0; t < catalog->n_tensors && ok; t++) {
        const struct dcp_tensor *tied = &catalog->tensors[t];
        int kept = tied->tied_to ? dcp_catalog_find(catalog, tied->tied_to) : -1;
        const char *param = kept < 0 ? "" : catalog->tensors[kept].param;
        if (dcp_map_find(&s->weights, param, strlen(param)) == kept && kept >= 0 &&
            dcp_map_find(&s->weights, tied->param, strlen(tied->param)) < 0)
            ok = dcp_map_set(&s->weights, tied->param, strlen(tied->param), kept);
    }
    return ok;
}

/* Newer optimizers keep the names beside the numbers. */
static int find_by_name(struct names *s, const size_t *weights, size_t n_weights,
                        struct dcp_error *err)
{
    static const struct beginning none = { "", "", 0, 0 };
    size_t longest = 0;
    bool all = true;

    for (size_t g = 0; g < json_array_size(s->groups); g++)
        for (size_t i = 0; i < json_array_size(params_of(s->groups, g)) && all; i++) {
            const char *name = name_of(s->groups, g, i);
            size_t n = name ? strlen(name) : 0;
            all = name != NULL;
            longest = n > longest ? n : longest;
        }
    if (!all || !s->ids->n)
        return DCP_OK;
    size_t n_add = 0;
    for (size_t w = 0; w < n_weights; w++) {
        size_t n = strlen(s->catalog->tensors[weights[w]].param);
        n_add = n > n_add ? n : n_add;
    }
    s->seen = dcp_mem_calloc(s->catalog->n_tensors, sizeof *s->seen);
    s->text = malloc(longest + n_add + 1);
    bool ok = s->seen && s->text && list_names(s, weights, n_weights);
    if (ok)
        s->ids->by_name = leads(s, &none) || find_beginning(s, first_name(s->groups));
    free(s->seen);
    free(s->text);
    dcp_map_fini(&s->weights);
    return ok ? DCP_OK : dcp_error_memory(err, "an optimizer");
}

/* -- order --------------------------------------------------------------------------- */

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
        ids->several = n_fit > 1;
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
 * the same from the beginning as from the end, and no two groups have one weight. */
static bool find_places(const struct dcp_catalog *catalog, const size_t *weights,
                        size_t n_weights, const json_t *groups,
                        const struct dcp_optim_shape *shapes, struct dcp_optim_ids *ids)
{
    DCP_CLEANUP_FREE int *last = dcp_mem_calloc(ids->n, sizeof *last);
    DCP_CLEANUP_FREE bool *taken = dcp_mem_calloc(catalog->n_tensors, sizeof *taken);

    for (size_t g = 0; g < json_array_size(groups); g++)
        if (!last || !taken ||
            !embed(catalog, weights, n_weights, groups, g, false, shapes, ids->weight) ||
            !embed(catalog, weights, n_weights, groups, g, true, shapes, last))
            return false;
    for (size_t i = 0; i < ids->n; i++) {
        ids->several = ids->several || ids->weight[i] != last[i] || taken[last[i]];
        if (ids->several)
            return false;
        taken[last[i]] = true;
    }
    return true;
}

static bool has_names(const json_t *groups)
{
    bool any = false;

    for (size_t g = 0; g < json_array_size(groups); g++)
        any = any || json_object_get(json_array_get(groups, g), "param_names");
    return any;
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
    if (has_names(groups)) {
        struct names names = { catalog, groups, shapes, .ids = out };
        DCP_TRY(find_by_name(&names, weights, n_weights, err));
    }
    out->found = out->by_name ||
                 (n && !has_names(groups) &&
                  ((n == n_weights &&
                    deal_out(catalog, weights, n_weights, groups, shapes, next, out)) ||
                   find_places(catalog, weights, n_weights, groups, shapes, out)));
    for (size_t i = 0; i < n && !out->found; i++)
        out->weight[i] = -1;
    return DCP_OK;
}
