/* schedule: formulas of DeepSpeed 0.19 (deepspeed/runtime/lr_schedules.py), operation by
 * operation, so that rates are equal to the last bit. */
#include "schedule.h"
#include <math.h>

#define PI 3.141592653589793

/* DeepSpeed raises shorter warm-ups to two steps: their logarithm must not be zero. */
static int64_t warmup_steps(const struct settings_scheduler *s)
{
    return s->warmup_num_steps < 2 ? 2 : s->warmup_num_steps;
}

/* Progress of the warm-up, 0 .. 1, for n < warmup_steps. */
static double warmup_progress(const struct settings_scheduler *s, int64_t n)
{
    double steps = (double)warmup_steps(s);
    if (s->warmup_linear)
        return (double)n / steps;
    return 1.0 / log(steps) * log((double)n + 1.0);
}

static double warmup_lr(const struct settings_scheduler *s, double base_lr, int64_t n)
{
    double max_lr = s->warmup_max_lr < 0 ? base_lr : s->warmup_max_lr;
    if (n < 0) /* before the first call of step() */
        return s->warmup_min_lr;
    double gamma = 1.0;
    int64_t warmup = warmup_steps(s), total = s->total_num_steps;
    if (n < warmup) {
        gamma = warmup_progress(s, n);
    } else if (s->type == SCHEDULE_WARMUP_DECAY) {
        double span = fmax(1.0, (double)(total - warmup));
        gamma = fmax(0.0, (double)(total - n) / span);
    }
    return s->warmup_min_lr + (max_lr - s->warmup_min_lr) * gamma;
}

static double cosine_lr(const struct settings_scheduler *s, double base_lr, int64_t n)
{
    if (n < 0)
        return 0.0;
    int64_t warmup = warmup_steps(s);
    double ratio;
    if (n < warmup) {
        ratio = s->warmup_min_ratio + warmup_progress(s, n) * (1.0 - s->warmup_min_ratio);
    } else {
        double span = fmax(1.0, (double)(s->total_num_steps - warmup));
        double progress = fmin(1.0, (double)(n - warmup + 1) / span);
        double wave = (1.0 + cos(PI * progress)) / 2.0;
        ratio = fmax(0.0, s->cos_min_ratio + (1.0 - s->cos_min_ratio) * wave);
    }
    return base_lr * ratio;
}

double schedule_lr(const struct settings_scheduler *scheduler, double base_lr,
                   int64_t step)
{
    int64_t n = step - 2; /* last_batch_iteration when this step is made */
    switch (scheduler->type) {
    case SCHEDULE_WARMUP:
    case SCHEDULE_WARMUP_DECAY:
        return warmup_lr(scheduler, base_lr, n);
    case SCHEDULE_WARMUP_COSINE:
        return cosine_lr(scheduler, base_lr, n);
    case SCHEDULE_NONE:
        break;
    }
    return base_lr;
}

const char *schedule_name(enum settings_schedule type)
{
    static const char *const names[] = {
        [SCHEDULE_NONE] = "none",
        [SCHEDULE_WARMUP] = "WarmupLR",
        [SCHEDULE_WARMUP_DECAY] = "WarmupDecayLR",
        [SCHEDULE_WARMUP_COSINE] = "WarmupCosineLR",
    };
    return names[type];
}
