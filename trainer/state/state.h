/* state: what a checkpoint of the trainer holds. Tensors: the weights in model order,
 * then the optimizer's masters and states, the first ones (exp_avg) before the second
 * (exp_avg_sq), each in model order; every rank lists all and gives its own part.
 * Objects, which do not depend on the world size: those of <dcp/training.h>,
 * deepspeed_config without what differs between machines, and dcp_lineage. */
#ifndef TRAINER_STATE_STATE_H
#define TRAINER_STATE_STATE_H

#include "trainer/config/settings.h"
#include "trainer/shard/shard.h"
#include <dcp/checkpoint.h>

/* Where training is. */
struct state_progress {
    int64_t step, samples, tokens; /* samples is the data cursor */
    int64_t skipped_steps;         /* without an update: gradients that were not finite */
    int64_t updates;               /* that the optimizer's moments have seen */
    int64_t scheduled;             /* steps of the learning rate's schedule */
    struct loss_scale loss_scale;
    uint64_t data_digest;
    struct dcp_lineage lineage; /* of the next step that is saved */
};

struct state {
    struct dcp_state dcp; /* borrows from the rest and from the shard */
    struct dcp_arena *arena;
    size_t cap_locals;
    const struct shard *shard; /* borrowed, as what follows */
    const struct model_param *params;
};

/* For a save. The shard is borrowed: what it holds when the save starts is saved. Caller
 * owns, state_fini. Errors: MEMORY. */
int state_init(struct state *out_state, const struct shard *shard,
               const struct model *model, int world_size, const struct settings *settings,
               const struct state_progress *progress, struct dcp_error *err);
void state_fini(struct state *state);

/* For state.c: the objects alone. */
int state_objects(struct state *state, const struct model *model,
                  const struct settings *settings, const struct state_progress *progress,
                  struct dcp_error *err);

/* For a load, from what a catalog holds. */
struct state_want {
    bool moments; /* in the catalog, and wanted */
    bool master;  /* fp32 values come from the masters, else from the weights */
    bool weights; /* 16-bit weights come from the catalog, else from the masters */
};
/* moments: the optimizer's, if the catalog has them. Errors: MISMATCH (a weight that is
 * not there), MEMORY. */
int state_init_load(struct state *out_state, const struct shard *shard,
                    const struct model *model, const struct dcp_catalog *catalog,
                    bool moments, struct state_want *out_want, struct dcp_error *err);

/* The objects of a checkpoint; what is missing keeps its value in *progress. `out_seed`
 * and out_seq_len are left alone likewise. Errors: CORRUPT. */
int state_read_progress(const struct dcp_catalog *catalog,
                        struct state_progress *progress, uint64_t *out_seed,
                        int *out_seq_len, struct dcp_error *err);
/* Compares the model of a checkpoint with the one configured. Errors: MISMATCH, naming
 * both. */
int state_check_model(const struct dcp_catalog *catalog,
                      const struct model_config *config, struct dcp_error *err);

#endif
