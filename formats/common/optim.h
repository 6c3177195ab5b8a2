/* optim: an optimizer of PyTorch, in whatever file it stands:
 *
 *   {"state": {number or name: {"exp_avg": tensor, "step": tensor or number, …}},
 *    "param_groups": [{"lr", "betas", …, "params": [numbers or names]}]}
 *
 * A format walks its own states and knows what a tensor is there. Which weights the
 * numbers stand for is optim_ids.h; here is what else they have in common, and the object
 * "optimizer" of training.h that all of it becomes. */
#ifndef DCP_FORMATS_COMMON_OPTIM_H
#define DCP_FORMATS_COMMON_OPTIM_H

#include "optim_ids.h"

/* Whether an optimizer may have states of a tensor: a weight that can be trained. */
bool dcp_optim_may_have(const struct dcp_tensor *tensor);
/* All of those, in the catalog's order; out has room for every tensor. How many. */
size_t dcp_optim_weights(const struct dcp_catalog *catalog, size_t *out);

/* The one number in a tensor of that dtype, of at most 8 bytes; false when the dtype has
 * no such numbers. */
bool dcp_optim_number(enum dcp_dtype dtype, const unsigned char data[8], double *out);
/* Updates that a step tells: -1 when it can be none. */
int64_t dcp_optim_updates(double step);

/* Of all weights; {0}: none has told. */
struct dcp_optim_counts {
    bool any;
    int64_t least, most;
};

/* Takes the updates of one more weight; -1: unknown. */
void dcp_optim_count(struct dcp_optim_counts *counts, int64_t updates);

/* param_groups in the words of training.h, named where `ids` knows the weights, and
 * whether every parameter has a name. NULL: out of memory. */
json_t *dcp_optim_groups_of(const struct dcp_catalog *catalog, const json_t *groups,
                            const struct dcp_optim_ids *ids, bool *out_named);
/* "AdamW" or "Adam" when the groups tell, else NULL. Static. */
const char *dcp_optim_type(const json_t *groups);
/* Adds the object. NULL and counts of none: unknown, and left out; groups are borrowed,
 * in the words of training.h. Errors: MEMORY. */
int dcp_optim_add(struct dcp_catalog *catalog, const char *type,
                  struct dcp_optim_counts counts, json_t *groups, struct dcp_error *err);
/* The same of one of several optimizers, which stands in that container: "trainer.opt".
 */
int dcp_optim_add_of(struct dcp_catalog *catalog, const char *container,
                     struct dcp_optim_counts counts, json_t *groups,
                     struct dcp_error *err);

#endif
