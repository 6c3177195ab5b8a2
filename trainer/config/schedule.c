/* schedule: formulas of DeepSpeed 0.19 (deepspeed/runtime/lr_schedules.py) and PyTorch
 * (torch/optim/lr_scheduler.py), operation by operation, so that rates are equal to the
 * last bit. */
#include "schedule.h"
#include <math.h>

#define PI 3.141592653589793
#define CYCLED_BETA2                                                  \
    0.99 /* what OneCycle makes of beta2, whatever the optimizer says \
          */

const char *const schedule_names[] = {
    [SCHEDULE_NONE] = "none",
    [SCHEDULE_WARMUP] = "WarmupLR",
    [SCHEDULE_WARMUP_DECAY] = "WarmupDecayLR",
    [SCHEDULE_WARMUP_COSINE] = "WarmupCosineLR",
    [SCHEDULE_ONE_CYCLE] = "OneCycle",
    [SCHEDULE_LR_RANGE_TEST] = "LRRangeTest",
    [SCHEDULE_STEP] = "StepLR",
    [SCHEDULE_COSINE_ANNEALING] = "CosineAnnealingLR",
    [SCHEDULE_CONSTANT] = "ConstantLR",
    [SCHEDULE_CONSTANT + 1] = NULL,
};

/* -- DeepSpeed: n is last_batch_iteration, -1 before the first call of step() -- */

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

static double range_test_lr(const struct settings_scheduler *s, int64_t n)
{
    double interval = (double)(n + 1) / (double)s->lr_range_test_step_size;
    if (s->lr_range_test_staircase)
        interval = floor(interval);
    return s->lr_range_test_min_lr * (1 + s->lr_range_test_step_rate * interval);
}

static double cycle_size(const struct settings_scheduler *s)
{
    return (double)s->cycle_first_step_size + (double)s->cycle_second_step_size;
}

/* The share of the way up, in stairs. */
static double stairs(const struct settings_scheduler *s, double at, double count)
{
    double first = (double)s->cycle_first_step_size, in_cycle = fmod(at, cycle_size(s));
    double position = in_cycle <= first ? in_cycle * count / first
                                        : (cycle_size(s) - in_cycle) * count /
                                              (double)s->cycle_second_step_size;
    return floor(position) / count;
}

/* How far the rate is up, 0 .. 1 .. 0. */
static double cycle_scale(const struct settings_scheduler *s, int64_t n)
{
    double at = (double)(n + 1), size = cycle_size(s);
    double cycle = floor(1 + at / size);
    double x = 1.0 + at / size - cycle;
    double ratio = (double)s->cycle_first_step_size / size;
    bool up = x <= ratio;
    int64_t count = up ? s->cycle_first_stair_count : s->cycle_second_stair_count;
    if (count > 0)
        return stairs(s, at, (double)count);
    return up ? x / ratio : (x - 1) / (ratio - 1);
}

/* 1 + rate × steps since the cycle, in units of decay_step_size; 1 where nothing decays.
 */
static double decay_factor(const struct settings_scheduler *s, double rate, int64_t n)
{
    if (!s->decay_step_size || fabs(rate) <= 0)
        return 1;
    double steps = (double)n - cycle_size(s) + 1;
    return 1 + rate * (steps / (double)s->decay_step_size);
}

static double one_cycle_lr(const struct settings_scheduler *s, int64_t n)
{
    if (n < 0)
        return s->cycle_min_lr;
    if ((double)n >= cycle_size(s))
        return s->cycle_min_lr / decay_factor(s, s->decay_lr_rate, n);
    double height = (s->cycle_max_lr - s->cycle_min_lr) * cycle_scale(s, n);
    return s->cycle_min_lr + height;
}

/* The momentum goes the other way; but it, too, begins at its least. */
static double one_cycle_momentum(const struct settings_scheduler *s, int64_t n)
{
    if (n < 0)
        return s->cycle_min_mom;
    if ((double)n >= cycle_size(s))
        return s->cycle_max_mom * decay_factor(s, s->decay_mom_rate, n);
    double height = (s->cycle_max_mom - s->cycle_min_mom) * cycle_scale(s, n);
    return s->cycle_max_mom - height;
}

/* -- PyTorch: epoch is last_epoch, 0 before the first call of step() -- */

/* The rate of an epoch above 0, of that of the epoch before. */
static double next_lr(const struct settings_scheduler *s, double base_lr, int64_t epoch,
                      double lr)
{
    if (s->type == SCHEDULE_STEP)
        return epoch % s->step_size ? lr : lr * s->gamma;
    if (s->type == SCHEDULE_CONSTANT)
        return epoch == s->total_iters ? lr * (1.0 / s->factor) : lr;
    double n = (double)epoch, end = (double)s->t_max;
    if ((epoch - 1 - s->t_max) % (2 * s->t_max) == 0) /* up again from eta_min */
        return lr + (base_lr - s->eta_min) * (1 - cos(PI / end)) / 2;
    return (1 + cos(PI * n / end)) / (1 + cos(PI * (n - 1) / end)) * (lr - s->eta_min) +
           s->eta_min;
}

static double chained_lr(const struct settings_scheduler *s, double base_lr, int64_t step,
                         struct schedule_place *place)
{
    struct schedule_place own = { 0 };
    if (!place)
        place = &own;
    if (place->step < 1 || place->step > step) {
        double factor = s->type == SCHEDULE_CONSTANT ? s->factor : 1;
        *place = (struct schedule_place){ .step = 1, .lr = base_lr * factor };
    }
    for (; place->step < step; place->step++)
        place->lr = next_lr(s, base_lr, place->step, place->lr);
    return place->lr;
}

bool schedule_is_torch(enum settings_schedule type)
{
    return type == SCHEDULE_STEP || type == SCHEDULE_COSINE_ANNEALING ||
           type == SCHEDULE_CONSTANT;
}

double schedule_lr(const struct settings_scheduler *scheduler, double base_lr,
                   int64_t step, struct schedule_place *place)
{
    int64_t n = step - 2;
    switch (scheduler->type) {
    case SCHEDULE_WARMUP:
    case SCHEDULE_WARMUP_DECAY:
        return warmup_lr(scheduler, base_lr, n);
    case SCHEDULE_WARMUP_COSINE:
        return cosine_lr(scheduler, base_lr, n);
    case SCHEDULE_ONE_CYCLE:
        return one_cycle_lr(scheduler, n);
    case SCHEDULE_LR_RANGE_TEST:
        return range_test_lr(scheduler, n);
    case SCHEDULE_STEP:
    case SCHEDULE_COSINE_ANNEALING:
    case SCHEDULE_CONSTANT:
        return chained_lr(scheduler, base_lr, step, place);
    case SCHEDULE_NONE:
        break;
    }
    return base_lr;
}

void schedule_betas(const struct settings_scheduler *scheduler, const double betas[2],
                    int64_t step, double out_betas[2])
{
    bool cycled = scheduler->type == SCHEDULE_ONE_CYCLE && scheduler->cycle_momentum;
    out_betas[0] = cycled ? one_cycle_momentum(scheduler, step - 2) : betas[0];
    out_betas[1] = cycled ? CYCLED_BETA2 : betas[1];
}
