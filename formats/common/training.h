/* training: what a checkpoint knows of training beside its tensors, in the same words
 * whatever file it comes from. These objects, JSON texts, have a fixed meaning; formats
 * that know them read and write them, and keep other objects as they are:
 *
 *   trainer        {"step", "samples", "tokens", "skipped_steps", "seed"}: integers,
 *                  those that are known; step counts calls of the optimizer, skipped ones
 *                  too
 *   optimizer      {"type": "AdamW", "step": updates that were made, "param_groups":
 *                  [{"lr", "betas": [b1, b2], "eps", "weight_decay", …,
 *                    "params": [names of weights, in order]}]}
 *   scheduler      {"type": "WarmupLR" or absent, "last_batch_iteration", …}
 *   loss_scaler    {"type": "static" or "dynamic", "scale", …}
 *   model_config   config.json of Hugging Face
 *   deepspeed_config
 *
 * A tensor of an optimizer is known by its role and by `param`, the `param` of its
 * weight; a name is only how one file spells it. */
#ifndef DCP_FORMATS_COMMON_TRAINING_H
#define DCP_FORMATS_COMMON_TRAINING_H

#include <dcp/tensor.h>
#include <jansson.h>

#define DCP_TRAINING_TRAINER "trainer"
#define DCP_TRAINING_OPTIMIZER "optimizer"
#define DCP_TRAINING_SCHEDULER "scheduler"
#define DCP_TRAINING_LOSS_SCALER "loss_scaler"
#define DCP_TRAINING_MODEL_CONFIG "model_config"
#define DCP_TRAINING_DEEPSPEED_CONFIG "deepspeed_config"

/* An object, parsed; *out is NULL when it is not there or no JSON. Freed with
 * json_decref. Errors: CORRUPT, MEMORY. */
int dcp_training_read(const struct dcp_catalog *catalog, const char *name, json_t **out,
                      struct dcp_error *err);
/* Adds an object; takes `value` (NULL: out of memory). Errors: CORRUPT (a name twice),
 * MEMORY. */
int dcp_training_add(struct dcp_catalog *catalog, const char *name, json_t *value,
                     struct dcp_error *err);

/* The step of training that a value says: an integer from 0 on, else -1: none. */
int64_t dcp_training_step(const json_t *value);
/* Updates the optimizer has made: from `optimizer`, else from `trainer`, else the
 * catalog's step, else 0. Errors: CORRUPT, MEMORY. */
int dcp_training_updates(const struct dcp_catalog *catalog, int64_t *out,
                         struct dcp_error *err);
/* The groups of parameters, as in `optimizer`; an array to be freed with json_decref.
 * When there is no such object they are made from the tensors' group numbers, with the
 * hyper-parameters of deepspeed_config's optimizer or else the defaults of AdamW. Weights
 * that have optimizer tensors are in a group, and no others unless no weight has any.
 * Errors: CORRUPT, MEMORY. */
int dcp_training_groups(const struct dcp_catalog *catalog, json_t **out,
                        struct dcp_error *err);

#endif
