/* optim_unordered: which weights the numbers of an optimizer stand for where the weights
 * have lost their order, as a safetensors file does, which sorts them by name. */
#ifndef DCP_FORMATS_COMMON_OPTIM_UNORDERED_H
#define DCP_FORMATS_COMMON_OPTIM_UNORDERED_H

#include "optim_ids.h"

/* What dcp_optim_ids_find said of the same arguments, without what it took from the
 * order: names that the groups have count, and shapes that one weight and one number
 * alone have. Where they do not tell every number, none is told. */
void dcp_optim_unordered(const struct dcp_catalog *catalog, const size_t *weights,
                         size_t n_weights, const struct dcp_optim_shape *shapes,
                         struct dcp_optim_ids *ids);

#endif
