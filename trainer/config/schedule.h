/* schedule: the learning rate and the betas of a step, as DeepSpeed's classes (WarmupLR,
 * WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest) and PyTorch's (StepLR,
 * CosineAnnealingLR, ConstantLR) set them when they are stepped after every update.
 * Values are equal to theirs to the last bit, where log and cos are those of the C
 * library that Python runs on, too. */
#ifndef TRAINER_CONFIG_SCHEDULE_H
#define TRAINER_CONFIG_SCHEDULE_H

#include "settings.h"

/* "none", "WarmupLR", …, by enum settings_schedule; NULL is last. */
extern const char *const schedule_names[];

/* PyTorch's classes make a rate of the rate before. Here is one that was computed, so
 * that the next need not begin at step 1. It is of one scheduler; zero: none. */
struct schedule_place {
    int64_t step;
    double lr;
};

/* The learning rate of step `step` (from 1) of the schedule: the update after step - 1
 * others that were not skipped. `base_lr` is the optimizer's; place may be NULL. */
double schedule_lr(const struct settings_scheduler *scheduler, double base_lr,
                   int64_t step, struct schedule_place *place);
/* Adam's betas of that step: those given, unless OneCycle cycles them. */
void schedule_betas(const struct settings_scheduler *scheduler, const double betas[2],
                    int64_t step, double out_betas[2]);
/* Whether the type is one of PyTorch's. */
bool schedule_is_torch(enum settings_schedule type);

#endif
