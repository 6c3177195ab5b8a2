/* fate: masters are the weights, steps are in the groups. */
#include "fate.h"
#include "base/mem.h"
#include "read.h"
#include <stdio.h>
#include <string.h>

/* A tensor of the optimizer by its role and weight; first by the name it usually has. */
static bool has(const struct dcp_catalog *catalog, enum dcp_role role, const char *param)
{
    char name[512];
    int n = snprintf(name, sizeof name, "optimizer.%s.%s", dcp_role_name(role), param);
    int at = n < (int)sizeof name ? dcp_catalog_find(catalog, name) : -1;

    if (at >= 0 && catalog->tensors[at].role == role &&
        !strcmp(catalog->tensors[at].param, param))
        return true;
    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (catalog->tensors[t].role == role && !strcmp(catalog->tensors[t].param, param))
            return true;
    return false;
}

static bool has_any(const struct dcp_catalog *catalog, enum dcp_role role)
{
    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (catalog->tensors[t].role == role)
            return true;
    return false;
}

/* A weight that has a master in the target: its own, or one that is made of it. That is
 * what has moments; where the optimizer has none, what else it keeps tells. */
static bool is_trained(const struct dcp_catalog *src, const struct dcp_tensor *tensor)
{
    static const enum dcp_role roles[] = { DCP_ROLE_EXP_AVG, DCP_ROLE_MASTER,
                                           DCP_ROLE_OPTIM };

    if (!dcp_dtype_is_float(tensor->dtype) || !tensor->n_elems)
        return false;
    if (has(src, DCP_ROLE_MASTER, tensor->param))
        return true;
    for (size_t r = 0; r < DCP_ARRAY_LEN(roles); r++)
        if (has_any(src, roles[r]))
            return has(src, roles[r], tensor->param);
    return true;
}

/* The shape of the weight that a tensor of the optimizer belongs to, or of its master. */
static const struct dcp_tensor *weight_of(const struct dcp_catalog *src,
                                          const struct dcp_tensor *tensor)
{
    for (size_t t = 0; t < src->n_tensors; t++)
        if ((src->tensors[t].role == DCP_ROLE_MODEL ||
             src->tensors[t].role == DCP_ROLE_MASTER) &&
            !strcmp(src->tensors[t].param, tensor->param))
            return &src->tensors[t];
    return NULL;
}

enum dcp_fate dcp_ds_fate(const struct dcp_catalog *src, bool partitioned,
                          const struct dcp_tensor *tensor)
{
    const char *key;
    size_t n;

    if (tensor->role == DCP_ROLE_MODEL && partitioned && !tensor->tied_to &&
        is_trained(src, tensor))
        return DCP_FATE_IMPLIED;
    if (tensor->role != DCP_ROLE_OPTIM)
        return DCP_FATE_HELD;
    dcp_ds_key(tensor, &key, &n);
    if (n == strlen("step") && !memcmp(key, "step", n))
        return DCP_FATE_IMPLIED;
    const struct dcp_tensor *weight = weight_of(src, tensor);
    bool fits = weight && weight->ndim == tensor->ndim &&
                !memcmp(weight->shape, tensor->shape,
                        (size_t)tensor->ndim * sizeof *tensor->shape);
    return fits ? DCP_FATE_HELD : DCP_FATE_REFUSED;
}
