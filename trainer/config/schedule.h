/* schedule: the learning rate of a step, as DeepSpeed's WarmupLR, WarmupDecayLR,
 * WarmupCosineLR. */
#ifndef TRAINER_CONFIG_SCHEDULE_H
#define TRAINER_CONFIG_SCHEDULE_H

#include "settings.h"

/* The learning rate of the optimizer step that makes step `step` (from 1) when every step
 * before was applied: last_batch_iteration = step - 2. `base_lr` is the optimizer's. */
double schedule_lr(const struct settings_scheduler *scheduler, double base_lr,
                   int64_t step);
/* "WarmupLR", …; "none". */
const char *schedule_name(enum settings_schedule type);

#endif
