/* loss_scale: what losses are multiplied with so that small gradients do not vanish in
 * fp16: DeepSpeed's rule (0.19, deepspeed/runtime/fp16/loss_scaler.py), operation by
 * operation. */
#ifndef TRAINER_CONFIG_LOSS_SCALE_H
#define TRAINER_CONFIG_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

/* How it is set: the section "fp16". */
struct loss_scale_rule {
    bool scales;       /* false: the scale is 1 */
    double static_to;  /* 0: dynamic */
    double initial;    /* dynamic ones begin with it */
    int64_t window;    /* steps without an overflow after which it doubles */
    int64_t tolerance; /* overflows up to the one that halves it: "hysteresis" */
    bool refills;      /* with any step without one: "consecutive_hysteresis" */
    double least;
};

/* Where it is. */
struct loss_scale {
    double scale;
    int64_t iter, last_overflow; /* steps so far; the last one that overflowed, or -1 */
    int64_t tolerance;           /* that is left */
};

void loss_scale_begin(const struct loss_scale_rule *rule, struct loss_scale *out_scale);
bool loss_scale_is_dynamic(const struct loss_scale_rule *rule);
/* After a step. False: it overflowed with the least scale there is. */
bool loss_scale_update(const struct loss_scale_rule *rule, bool overflow,
                       struct loss_scale *scale);

#endif
