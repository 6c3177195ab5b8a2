/* training: what a training state is beside its tensors, as one record. In a checkpoint
 * it stands in objects, JSON texts, whose names and members have a fixed meaning whatever
 * file they come from:
 *
 *   model_config      config.json of Hugging Face
 *   trainer           {"step", "samples", "tokens", "skipped_steps", "seed"}: integers,
 *                     those that are known; step counts calls of the optimizer, skipped
 *                     ones too
 *   optimizer         {"type": "AdamW", "step": updates that were made, or "steps": [the
 *                     least, the most] where weights were updated some more often than
 *                     others, "param_groups": [{"lr", "initial_lr", "betas": [b1, b2],
 *                     "eps", "weight_decay", "bias_correction", …, "params": [names of
 *                     weights, in order]}], "container": where it stood in a file that
 *                     has several, "kinds": of each group, by member, what JSON does not
 *                     tell of it, "keeps": the kinds of state that it has, and "shared":
 *                     [kind, weight] of each tensor that stands there more than once, as
 *                     the Python package says and reads them}
 *   optimizer.KEY     the same of each, where there are several
 *   scheduler         {"type": "WarmupLR" or absent, "last_batch_iteration", …} as
 *                     DeepSpeed's classes have it; "last_epoch", … as PyTorch's have it
 *   loss_scaler       {"type": "static" or "dynamic", "scale", …}
 *   rng               {"algorithm", "seed"}
 *   data              {"cursor": samples, "digest": 16 hex digits, "seq_len"}
 *   deepspeed_config  the configuration
 *
 * Members that nobody here knows are kept: what is read and written again has them, and
 * an object in which nothing was changed keeps its very text. */
#ifndef DCP_TRAINING_H
#define DCP_TRAINING_H

#include <dcp/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCP_TRAINING_MODEL_CONFIG "model_config"
#define DCP_TRAINING_TRAINER "trainer"
#define DCP_TRAINING_OPTIMIZER "optimizer"
#define DCP_TRAINING_SCHEDULER "scheduler"
#define DCP_TRAINING_LOSS_SCALER "loss_scaler"
#define DCP_TRAINING_RNG "rng"
#define DCP_TRAINING_DATA "data"
#define DCP_TRAINING_DEEPSPEED_CONFIG "deepspeed_config"

/* An integer that is not known; of other members NAN, NULL and, for a truth, -1 is. */
#define DCP_TRAINING_UNKNOWN INT64_MIN

/* A group of parameters, and how the optimizer treats them. A weight that is in no group
 * is frozen. */
struct dcp_training_group {
    double lr, initial_lr; /* of the next update, as in PyTorch; of the configuration */
    double betas[2];
    double eps, weight_decay;
    int bias_correction;
    const char *const *params; /* the param of each weight; NULL: it has a number alone */
    size_t n_params;
};

struct dcp_training {
    int64_t step, samples, tokens, skipped_steps, seed; /* of the trainer */
    const char *optimizer;
    int64_t updates; /* that the optimizer made of every weight */
    const struct dcp_training_group *groups;
    size_t n_groups;
    const char *scheduler;
    int64_t last_batch_iteration; /* of DeepSpeed's classes: -1 before the first update */
    const char *loss_scaler;
    double loss_scale;
    const char *rng; /* the algorithm */
    int64_t rng_seed;
    int64_t cursor; /* samples that the data gave */
    const char *data_digest;
    int64_t seq_len;
    const char *model_config, *deepspeed_config; /* JSON texts */
    struct dcp_training_kept *kept;              /* private */
};

/* All unknown; fini frees what the library put there. */
DCP_PUBLIC void dcp_training_init(struct dcp_training *training);
DCP_PUBLIC void dcp_training_fini(struct dcp_training *training);
/* From the objects of a catalog; what is missing, or of another type than it should be,
 * is unknown. Strings and groups belong to the record. Errors: CORRUPT (no JSON), MEMORY.
 */
DCP_PUBLIC int dcp_training_parse(const struct dcp_catalog *catalog,
                                  struct dcp_training *out_training,
                                  struct dcp_error *err);
/* Refuses what training cannot go on from: members of trainer and data that are there,
 * and not what they should be; weights that were updated some more often than others.
 * Errors: CORRUPT, MISMATCH. */
DCP_PUBLIC int dcp_training_check(const struct dcp_training *training,
                                  struct dcp_error *err);
/* The objects of all that is known, in the order above; they belong to the record until
 * fini. Errors: CORRUPT (a configuration that is no JSON), MEMORY. */
DCP_PUBLIC int dcp_training_format(struct dcp_training *training,
                                   const struct dcp_object **out_objects, size_t *out_n,
                                   struct dcp_error *err);
/* The same, into a catalog. Errors: also CORRUPT (a name twice). */
DCP_PUBLIC int dcp_training_store(struct dcp_training *training,
                                  struct dcp_catalog *catalog, struct dcp_error *err);
/* Whether training goes on from an object of that name, which no configuration tells. */
DCP_PUBLIC bool dcp_training_is_state(const char *name);

#ifdef __cplusplus
}
#endif
#endif
