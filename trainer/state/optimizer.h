/* optimizer: what a checkpoint says of the optimizer beside its tensors, in the words of
 * torch.optim and DeepSpeed. */
#ifndef TRAINER_STATE_OPTIMIZER_H
#define TRAINER_STATE_OPTIMIZER_H

#include "base/arena.h"
#include "trainer/config/settings.h"
#include "trainer/shard/shard.h"
#include <dcp/training.h>

/* "AdamW": the class. */
const char *optimizer_name(const struct settings *settings);

/* How many groups of parameters it has, those of shard_group_of; and the rate of one in
 * the configuration. */
int optimizer_n_groups(const struct settings *settings);
double optimizer_lr(const struct settings *settings, int group);
/* All of them; names are in the arena. lr and betas are those of the next update after
 * `scheduled` steps of the schedule: torch and DeepSpeed step the schedule before they
 * save, and go on with what they find here. False: out of memory. */
bool optimizer_groups(struct dcp_arena *arena, const struct model *model,
                      const struct settings *settings, int64_t scheduled,
                      struct dcp_training_group out_groups[SHARD_N_GROUPS]);

/* The text of the object with the options that are this optimizer's alone; caller frees.
 * Errors: MEMORY. */
int optimizer_text(const struct dcp_object *object, const struct settings *settings,
                   char **out_text, struct dcp_error *err);

#endif
