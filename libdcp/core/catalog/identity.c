/* identity: the tensors of a catalog by role and param. */
#include "base/mem.h"
#include <dcp/tensor.h>
#include <string.h>

struct dcp_identity {
    const struct dcp_catalog *catalog;
    size_t *order; /* tensors by role, param, index */
};

static int compare(const struct dcp_tensor *tensor, enum dcp_role role, const char *param)
{
    if (tensor->role != role)
        return tensor->role < role ? -1 : 1;
    return param ? strcmp(tensor->param, param) : 0;
}

static int in_order(const void *p, const void *q, void *arg)
{
    const struct dcp_catalog *catalog = arg;
    size_t a = *(const size_t *)p, b = *(const size_t *)q;
    int order = compare(&catalog->tensors[a], catalog->tensors[b].role,
                        catalog->tensors[b].param);

    return order ? order : a < b ? -1 : a > b;
}

int dcp_identity_new(const struct dcp_catalog *catalog,
                     struct dcp_identity **out_identity, struct dcp_error *err)
{
    struct dcp_identity *identity = calloc(1, sizeof *identity);

    *out_identity = NULL;
    if (identity)
        identity->order = dcp_mem_calloc(catalog->n_tensors, sizeof *identity->order);
    if (!identity || !identity->order) {
        dcp_identity_free(identity);
        return dcp_error_memory(err, "a catalog's parameters");
    }
    identity->catalog = catalog;
    for (size_t t = 0; t < catalog->n_tensors; t++)
        identity->order[t] = t;
    qsort_r(identity->order, catalog->n_tensors, sizeof *identity->order, in_order,
            (void *)(uintptr_t)catalog);
    *out_identity = identity;
    return DCP_OK;
}

void dcp_identity_free(struct dcp_identity *identity)
{
    if (!identity)
        return;
    free(identity->order);
    free(identity);
}

int dcp_identity_find(const struct dcp_identity *identity, enum dcp_role role,
                      const char *param)
{
    const struct dcp_catalog *catalog = identity->catalog;
    size_t lo = 0, hi = catalog->n_tensors;

    while (lo < hi) { /* the first that does not come before */
        size_t mid = lo + (hi - lo) / 2;
        if (compare(&catalog->tensors[identity->order[mid]], role, param) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == catalog->n_tensors ||
        compare(&catalog->tensors[identity->order[lo]], role, param) != 0)
        return -1;
    return (int)identity->order[lo];
}

bool dcp_identity_is_trained(const struct dcp_identity *identity, const char *param)
{
    static const enum dcp_role kept[] = { DCP_ROLE_EXP_AVG, DCP_ROLE_MASTER,
                                          DCP_ROLE_OPTIM };
    bool any = false;

    for (size_t r = 0; r < DCP_ARRAY_LEN(kept); r++) {
        if (dcp_identity_find(identity, kept[r], param) >= 0)
            return true;
        any = any || dcp_identity_find(identity, kept[r], NULL) >= 0;
    }
    return !any;
}
