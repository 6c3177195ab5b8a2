/* optim_ids: which weight each number of an optimizer of torch stands for.
 *
 * An optimizer that was saved by itself knows its parameters by numbers: 0, 1, … in the
 * order of its groups and, within a group, of the model. Nothing in the file says which
 * they are, unless the groups have param_names: these count alone, where they are there,
 * and may all lack a beginning that the weights have, "module.", or have one more. Else a
 * number is given a weight only when one way of dealing the weights out, in their order,
 * fits the shapes; else none is. The optimizer may have fewer than there are: of frozen
 * weights, and of buffers that nobody knows for such, it has none. */
#ifndef DCP_FORMATS_COMMON_OPTIM_IDS_H
#define DCP_FORMATS_COMMON_OPTIM_IDS_H

#include <dcp/tensor.h>
#include <jansson.h>

/* The shape of a parameter, as its moments have it. Zero-initialise. */
struct dcp_optim_shape {
    bool known;
    int ndim;
    int64_t shape[DCP_MAX_NDIM];
    int told_by; /* private to dcp_optim_shape_see, as last_dim */
    int64_t last_dim;
};

/* Takes what one tensor of a state tells, under that key: kinds that are known to have
 * the weight's own shape; Adafactor's variances of rows and columns together; else what
 * all tensors with dimensions have in common. */
void dcp_optim_shape_see(struct dcp_optim_shape *shape, const char *key, int ndim,
                         const int64_t *dims);

/* Whether a weight can have it: any can, where it is not known. */
bool dcp_optim_shape_fits(const struct dcp_optim_shape *shape,
                          const struct dcp_tensor *weight);

struct dcp_optim_ids {
    size_t n;     /* numbers; 0 when they are not 0, 1, … */
    int *weight;  /* of each: the tensor's index, or -1 */
    int *group;   /* of each */
    bool found;   /* every number has a weight, */
    bool by_name; /* as the groups' names say */
    bool several; /* not found, as there may be several ways */
};
void dcp_optim_ids_fini(struct dcp_optim_ids *ids);

/* How many numbers the groups have: 0 when they are not 0, 1, … each once. groups:
 * [{"params": [0, 1, …], …}]. */
size_t dcp_optim_ids_count(const json_t *groups);
/* Finds the weights among the n_weights tensors of the catalog that `weights` lists.
 * shapes: one for each number. Errors: MEMORY. */
int dcp_optim_ids_find(const struct dcp_catalog *catalog, const size_t *weights,
                       size_t n_weights, const json_t *groups,
                       const struct dcp_optim_shape *shapes, struct dcp_optim_ids *out,
                       struct dcp_error *err);

#endif
