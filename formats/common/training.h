/* training: for formats, what <dcp/training.h> describes as JSON: its objects with all
 * that stands in them, any other object, and groups of parameters that no object tells.
 *
 * A tensor of an optimizer is known by its role and by `param`, the `param` of its
 * weight; a name is only how one file spells it. */
#ifndef DCP_FORMATS_COMMON_TRAINING_H
#define DCP_FORMATS_COMMON_TRAINING_H

#include <dcp/training.h>
#include <jansson.h>

/* An object, parsed; *out is NULL when it is not there or no JSON. Freed with
 * json_decref. Errors: CORRUPT, MEMORY. */
int dcp_training_read(const struct dcp_catalog *catalog, const char *name, json_t **out,
                      struct dcp_error *err);
/* An object that is JSON, or a pickle without tensors, as formats/pickle/py.h spells it;
 * NULL: it is neither. */
int dcp_training_value(const struct dcp_object *object, json_t **out,
                       struct dcp_error *err);
/* Adds an object; takes `value` (NULL: out of memory). Errors: CORRUPT (a name twice),
 * MEMORY. */
int dcp_training_add(struct dcp_catalog *catalog, const char *name, json_t *value,
                     struct dcp_error *err);

/* The step of training that a value says: an integer from 0 on, else -1: none. */
int64_t dcp_training_step(const json_t *value);
/* Updates the optimizer has made, the most of any weight: from `optimizer`, else from
 * `trainer`, else the catalog's step, else 0. Errors: CORRUPT, MEMORY. */
int dcp_training_updates(const struct dcp_catalog *catalog, int64_t *out,
                         struct dcp_error *err);
/* The most that `optimizer` says of any weight; -1: nothing. */
int64_t dcp_training_most_updates(const json_t *optimizer);
/* Whether weights were updated some more often than others. Errors: CORRUPT, MEMORY. */
int dcp_training_counts_differ(const struct dcp_catalog *catalog, bool *out,
                               struct dcp_error *err);
/* Refuses that, for a file that has one count for all. Errors: MISMATCH, CORRUPT, MEMORY.
 */
int dcp_training_one_count(const struct dcp_catalog *catalog, const char *what,
                           struct dcp_error *err);
/* The groups of parameters, as in `optimizer`; an array to be freed with json_decref.
 * Of several optimizers, "optimizer.KEY" each, all groups, one optimizer after another.
 * Or of objects that are one option each, "P.param_groups.0.lr", as PyTorch's planner
 * names them. When there is no such object they are made from the tensors' group numbers,
 * with the hyper-parameters of deepspeed_config's optimizer or else the defaults of
 * AdamW. Weights that have optimizer tensors are in a group, and no others unless no
 * weight has any. Errors: CORRUPT, MEMORY. */
int dcp_training_groups(const struct dcp_catalog *catalog, json_t **out,
                        struct dcp_error *err);

/* The group in "3.lr", and what follows it; -1: it is no such. Belongs to the text. */
int64_t dcp_training_group(const char *text, const char **out_option);
/* Whether an object is one option of a group, "P.param_groups.0.lr". */
bool dcp_training_is_option(const char *name);

#endif
