/* The keys of "scheduler": the parameters of DeepSpeed's and PyTorch's classes. */
#include "draft.h"
#include "schedule.h"

#include <math.h>

#define AT(member) .at = offsetof(struct settings_draft, out.scheduler.member)
#define BIT(type) 1u << SCHEDULE_##type
#define REAL(key, where, schedules, default)                                             \
    {                                                                                    \
        .name = key, .kind = KEY_REAL, .only = schedules, .fallback = default, AT(where) \
    }
#define WHOLE(key, where, schedules, least, default)                    \
    {                                                                   \
        .name = key, .kind = KEY_LONG, .only = schedules, .min = least, \
        .fallback = default, AT(where)                                  \
    }
#define FLAG(key, where, schedules, default)                                             \
    {                                                                                    \
        .name = key, .kind = KEY_FLAG, .only = schedules, .fallback = default, AT(where) \
    }
/* Positions; -1 is the beginning. */
#define POSITION(key)                                                                  \
    {                                                                                  \
        .name = key, .kind = KEY_LONG, .min = -1, .fallback = -1, .use = KEY_REJECTED, \
        .why = "the schedule follows the step of the checkpoint"                       \
    }

#define LR (BIT(WARMUP) | BIT(WARMUP_DECAY))
#define TOTAL (BIT(WARMUP_DECAY) | BIT(WARMUP_COSINE))
#define COSINE (BIT(WARMUP_COSINE))
#define CYCLE (BIT(ONE_CYCLE))
#define RANGE (BIT(LR_RANGE_TEST))
#define ANNEALING (BIT(COSINE_ANNEALING))

static const char *const warmups[] = { "log", "linear", NULL };

/* What must be given has a default that is none: NaN, or 0 of what is 1 or more. */
static const struct settings_key scheduler_params[] = {
    REAL("warmup_min_lr", warmup_min_lr, LR, 0),
    REAL("warmup_max_lr", warmup_max_lr, LR, -1),
    WHOLE("warmup_num_steps", warmup_num_steps, LR | COSINE, 1, 1000),
    { .name = "warmup_type",
      .kind = KEY_CHOICE,
      .only = LR | COSINE,
      .choices = warmups,
      .at = offsetof(struct settings_draft, warmup_type) },
    WHOLE("total_num_steps", total_num_steps, TOTAL, 1, 0),
    REAL("warmup_min_ratio", warmup_min_ratio, COSINE, 0),
    REAL("cos_min_ratio", cos_min_ratio, COSINE, 1e-4),
    REAL("cycle_min_lr", cycle_min_lr, CYCLE, NAN),
    REAL("cycle_max_lr", cycle_max_lr, CYCLE, NAN),
    REAL("decay_lr_rate", decay_lr_rate, CYCLE, 0),
    WHOLE("cycle_first_step_size", cycle_first_step_size, CYCLE, 1, 2000),
    WHOLE("cycle_second_step_size", cycle_second_step_size, CYCLE, 0, -1),
    WHOLE("cycle_first_stair_count", cycle_first_stair_count, CYCLE, 0, 0),
    WHOLE("cycle_second_stair_count", cycle_second_stair_count, CYCLE, 0, -1),
    WHOLE("decay_step_size", decay_step_size, CYCLE, 0, 0),
    FLAG("cycle_momentum", cycle_momentum, CYCLE, 1),
    { .name = "cycle_min_mom",
      .kind = KEY_REAL,
      .only = CYCLE,
      .max = 1 - 0x1p-53,
      .fallback = 0.8,
      AT(cycle_min_mom) },
    { .name = "cycle_max_mom",
      .kind = KEY_REAL,
      .only = CYCLE,
      .max = 1 - 0x1p-53,
      .fallback = 0.9,
      AT(cycle_max_mom) },
    { .name = "decay_mom_rate",
      .kind = KEY_REAL,
      .only = CYCLE,
      .min = -1,
      AT(decay_mom_rate) },
    REAL("lr_range_test_min_lr", lr_range_test_min_lr, RANGE, 1e-3),
    WHOLE("lr_range_test_step_size", lr_range_test_step_size, RANGE, 1, 2000),
    REAL("lr_range_test_step_rate", lr_range_test_step_rate, RANGE, 1),
    FLAG("lr_range_test_staircase", lr_range_test_staircase, RANGE, 0),
    WHOLE("step_size", step_size, BIT(STEP), 1, 0),
    REAL("gamma", gamma, BIT(STEP), 0.1),
    WHOLE("T_max", t_max, ANNEALING, 1, 0),
    REAL("eta_min", eta_min, ANNEALING, 0),
    { .name = "factor",
      .kind = KEY_REAL,
      .only = BIT(CONSTANT),
      .max = 1,
      .fallback = 1.0 / 3,
      AT(factor) },
    WHOLE("total_iters", total_iters, BIT(CONSTANT), 0, 5),
    POSITION("last_batch_iteration"),
    POSITION("last_epoch"),
    { 0 },
};

const struct settings_key settings_scheduler_keys[] = {
    { .name = "type",
      .kind = KEY_CHOICE,
      .at = offsetof(struct settings_draft, schedule),
      .choices = schedule_names,
      .why = "there is no such schedule here" },
    { .name = "params", .kind = KEY_SECTION, .keys = scheduler_params },
    { 0 },
};
