/* models: which weights the numbers of an optimizer stand for where a file may have
 * several models. Each is a dict of tensors, whose order is that of its weights; in which
 * order an optimizer has the models, nothing tells. */
#include "base/mem.h"
#include "formats/common/optim_unordered.h"
#include "formats/pickle/py.h"
#include "torch_save.h"
#include <string.h>

enum { MAX_MODELS = 6 }; /* whose orders are all tried */

/* -- which dict a tensor stands in --------------------------------------------------- */

struct walk {
    const struct dcp_catalog *catalog;
    size_t *model; /* of each tensor; 0: none */
    size_t n;
};

/* of: the model that all of it is of, as what is in an object of some class; 0: none. */
static void walk(struct walk *w, const json_t *value, size_t of)
{
    struct dcp_py_parts parts = dcp_py_parts(value);

    if (!of && parts.kind == DCP_PY_MEMBERS && dcp_py_tag(value))
        of = ++w->n;
    size_t own = of ? of : ++w->n;
    while (dcp_py_next(&parts)) {
        const char *name = dcp_py_tensor(parts.value);
        int at = name ? dcp_catalog_find(w->catalog, name) : -1;
        if (at >= 0 && !w->model[at])
            w->model[at] = own;
        if (!name)
            walk(w, parts.value, of);
    }
}

size_t *dcp_torch_models(const struct dcp_catalog *catalog, const json_t *tree)
{
    size_t *model = dcp_mem_calloc(catalog->n_tensors, sizeof *model);
    struct walk w = { .catalog = catalog, .model = model };

    if (model)
        walk(&w, tree, 0);
    return model;
}

/* -- all orders ---------------------------------------------------------------------- */

/* The models of the weights, the least first: how many, or over MAX_MODELS. */
static size_t list_models(const size_t *model, const size_t *weights, size_t n,
                          size_t list[MAX_MODELS])
{
    size_t n_models = 0;

    for (size_t w = 0; w < n; w++) {
        size_t m = 0, one = model[weights[w]];
        while (m < n_models && list[m] < one)
            m++;
        if (m < n_models && list[m] == one)
            continue;
        if (n_models == MAX_MODELS)
            return MAX_MODELS + 1;
        memmove(list + m + 1, list + m, (n_models++ - m) * sizeof *list);
        list[m] = one;
    }
    return n_models;
}

/* The next order of numbers; false: that was the last. */
static bool next_order(size_t *list, size_t n)
{
    size_t i = n, k = n;

    while (i > 1 && list[i - 2] >= list[i - 1])
        i--;
    if (i < 2)
        return false;
    while (list[k - 1] <= list[i - 2])
        k--;
    size_t at = list[i - 2];
    list[i - 2] = list[k - 1];
    list[k - 1] = at;
    for (k = n; i < k; i++, k--) {
        at = list[i - 1];
        list[i - 1] = list[k - 1];
        list[k - 1] = at;
    }
    return true;
}

static void put_in_order(const size_t *model, const size_t *weights, size_t n,
                         const size_t *list, size_t n_models, size_t *out)
{
    for (size_t m = 0, done = 0; m < n_models; m++)
        for (size_t w = 0; w < n; w++)
            if (model[weights[w]] == list[m])
                out[done++] = weights[w];
}

/* What another order of the models finds speaks against the first, unless it is alike. */
static void join(struct dcp_optim_ids *ids, struct dcp_optim_ids *other)
{
    bool differ = ids->found && other->found &&
                  memcmp(ids->weight, other->weight, ids->n * sizeof *ids->weight) != 0;
    bool several = ids->several || other->several || differ;

    if (!ids->found && other->found) {
        struct dcp_optim_ids kept = *ids;
        *ids = *other;
        *other = kept;
    }
    ids->several = several;
    ids->found = ids->found && !several;
}

int dcp_torch_optim_ids(const struct dcp_catalog *catalog, const size_t *model,
                        const size_t *weights, size_t n, const json_t *groups,
                        const struct dcp_optim_shape *shapes, struct dcp_optim_ids *out,
                        struct dcp_error *err)
{
    DCP_CLEANUP_FREE size_t *ordered = dcp_mem_calloc(n, sizeof *ordered);
    size_t list[MAX_MODELS], n_models = list_models(model, weights, n, list);

    DCP_TRY(dcp_optim_ids_find(catalog, weights, n, groups, shapes, out, err));
    if (!ordered)
        return dcp_error_memory(err, "an optimizer");
    if (out->by_name || n_models < 2 || !out->n)
        return DCP_OK;
    if (n_models > MAX_MODELS) {
        dcp_optim_unordered(catalog, weights, n, shapes, out);
        return DCP_OK;
    }
    do {
        struct dcp_optim_ids other;
        put_in_order(model, weights, n, list, n_models, ordered);
        int rc = dcp_optim_ids_find(catalog, ordered, n, groups, shapes, &other, err);
        if (!rc)
            join(out, &other);
        dcp_optim_ids_fini(&other);
        DCP_TRY(rc);
    } while (!out->several && next_order(list, n_models));
    for (size_t i = 0; i < out->n && !out->found; i++)
        out->weight[i] = -1;
    return DCP_OK;
}
