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

#define DCP_OPTIM_IN_ORDER "the optimizer counts the weights in the model's order"
/* Where the numbers' weights were told by the order alone, which nothing proves: sets
 * catalog->assumed_order. Arguments are those of the two, ids what they found. Errors:
 * MEMORY. */
int dcp_optim_say_order(struct dcp_catalog *catalog, const size_t *weights,
                        size_t n_weights, const struct dcp_optim_shape *shapes,
                        const struct dcp_optim_ids *ids, struct dcp_error *err);

#endif
