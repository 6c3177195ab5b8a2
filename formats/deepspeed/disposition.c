/* disposition: masters are the weights, steps are in the groups. */
#include "disposition.h"
#include "base/mem.h"
#include "read.h"
#include <dcp/training.h>
#include <string.h>

/* A weight that has a master in the target: its own, or one that is made of it. That is
 * what has moments, or what else the optimizer keeps. */
static bool is_trained(const struct dcp_identity *src, const struct dcp_tensor *tensor)
{
    if (!dcp_dtype_is_float(tensor->dtype) || !tensor->n_elems)
        return false;
    return dcp_identity_is_trained(src, tensor->param);
}

/* Whether a tensor of the optimizer has the shape of its weight, or of its master:
 * whichever comes first. */
static bool has_weights_shape(const struct dcp_catalog *src,
                              const struct dcp_identity *of_src,
                              const struct dcp_tensor *tensor)
{
    int model = dcp_identity_find(of_src, DCP_ROLE_MODEL, tensor->param);
    int master = dcp_identity_find(of_src, DCP_ROLE_MASTER, tensor->param);
    int first = model < 0 || (master >= 0 && master < model) ? master : model;
    const struct dcp_tensor *weight = first < 0 ? NULL : &src->tensors[first];

    return weight && weight->ndim == tensor->ndim &&
           !memcmp(weight->shape, tensor->shape,
                   (size_t)tensor->ndim * sizeof *tensor->shape);
}

/* Whether something beside the tensors says how many updates there were. Files of
 * weights, which have no objects, do not: the count that is made for them would be 0. */
static bool counts_updates(const struct dcp_catalog *src)
{
    return src->step >= 0 || dcp_catalog_find_object(src, DCP_TRAINING_OPTIMIZER) >= 0 ||
           dcp_catalog_find_object(src, DCP_TRAINING_TRAINER) >= 0;
}

enum dcp_disposition dcp_ds_disposition(const struct dcp_catalog *src,
                                        const struct dcp_identity *of_src,
                                        bool partitioned, const struct dcp_tensor *tensor)
{
    const char *key;
    size_t n;

    if (tensor->role == DCP_ROLE_MODEL && partitioned && !tensor->tied_to &&
        is_trained(of_src, tensor))
        return DCP_DISPOSITION_DERIVED;
    if (tensor->role != DCP_ROLE_OPTIM)
        return DCP_DISPOSITION_STORED;
    dcp_ds_key(tensor, &key, &n);
    if (n == strlen("step") && !memcmp(key, "step", n))
        return counts_updates(src) ? DCP_DISPOSITION_DERIVED
                                   : DCP_DISPOSITION_UNSUPPORTED;
    return has_weights_shape(src, of_src, tensor) ? DCP_DISPOSITION_STORED
                                                  : DCP_DISPOSITION_UNSUPPORTED;
}
