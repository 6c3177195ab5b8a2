/* resolve_scheduler: what keys of a schedule mean together with others. */
#include "draft.h"
#include "schedule.h"

#include "base/mem.h"
#include <inttypes.h>
#include <math.h>

#define PARAMS "scheduler.params."

/* Parameters without a default. "auto" is the steps to train where a schedule ends. */
static int check_given(struct settings_draft *draft, struct dcp_error *err)
{
    struct settings_scheduler *s = &draft->out.scheduler;
    const struct {
        enum settings_schedule type;
        const char *path;
        int64_t *whole;
        const double *real;
    } rows[] = {
        { SCHEDULE_WARMUP_DECAY, PARAMS "total_num_steps", &s->total_num_steps, NULL },
        { SCHEDULE_WARMUP_COSINE, PARAMS "total_num_steps", &s->total_num_steps, NULL },
        { SCHEDULE_COSINE_ANNEALING, PARAMS "T_max", &s->t_max, NULL },
        { SCHEDULE_ONE_CYCLE, PARAMS "cycle_min_lr", NULL, &s->cycle_min_lr },
        { SCHEDULE_ONE_CYCLE, PARAMS "cycle_max_lr", NULL, &s->cycle_max_lr },
        { SCHEDULE_STEP, PARAMS "step_size", &s->step_size, NULL },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        if (rows[i].type != s->type ||
            (rows[i].whole ? *rows[i].whole > 0 : !isnan(*rows[i].real)))
            continue;
        bool end = rows[i].whole && s->type != SCHEDULE_STEP;
        if (end && settings_was_auto(draft, rows[i].path) && draft->out.steps > 0) {
            *rows[i].whole = draft->out.steps;
            continue;
        }
        dcp_error_set(err, DCP_E_USAGE, "%s: '%s' must be given for %s", draft->what,
                      rows[i].path, schedule_names[s->type]);
        if (end)
            dcp_error_hint(
                err, "give it, or say \"auto\" and how many steps to train (--steps)");
        return DCP_E_USAGE;
    }
    return DCP_OK;
}

static void resolve_warmup(struct settings_draft *draft)
{
    struct settings_scheduler *s = &draft->out.scheduler;
    double base_lr = draft->out.lr;
    int64_t steps = s->total_num_steps ? s->total_num_steps : draft->out.steps;
    if (settings_was_auto(draft, PARAMS "warmup_num_steps") && steps > 0)
        s->warmup_num_steps = steps / 20 < 1 ? 1 : steps / 20 > 1000 ? 1000 : steps / 20;
    if (s->warmup_max_lr < 0 && s->type == SCHEDULE_WARMUP_DECAY &&
        !settings_was_auto(draft, PARAMS "warmup_max_lr")) {
        s->warmup_max_lr = 0.001; /* its default, whatever the optimizer says */
        if (base_lr < 0.001 || base_lr > 0.001)
            dcp_log_write(draft->log, DCP_LOG_WARN,
                          "%s: WarmupDecayLR warms up to 0.001, not to "
                          "optimizer.params.lr %g: give scheduler.params.warmup_max_lr",
                          draft->what, base_lr);
    } else if (s->warmup_max_lr < 0 && draft->out.optimizer != OPTIM_MUON) {
        s->warmup_max_lr = base_lr; /* Muon has two; each group's is its own */
    }
    if (s->total_num_steps && s->total_num_steps < s->warmup_num_steps)
        dcp_log_write(draft->log, DCP_LOG_WARN,
                      "%s: total_num_steps %" PRId64
                      " is less than warmup_num_steps %" PRId64,
                      draft->what, s->total_num_steps, s->warmup_num_steps);
}

/* The second half is as the first, unless it is given. What DeepSpeed lets momentum grow
 * to is no decay any more. */
static void resolve_cycle(struct settings_draft *draft)
{
    struct settings_scheduler *s = &draft->out.scheduler;
    enum optim_type optimizer = draft->out.optimizer;
    /* As in DeepSpeed. */
    if (s->cycle_momentum && optimizer != OPTIM_ADAM && optimizer != OPTIM_LION &&
        optimizer != OPTIM_LAMB) {
        s->cycle_momentum = false;
        dcp_log_write(draft->log, DCP_LOG_WARN,
                      "%s: OneCycle cycles no momentum: the optimizer has no betas",
                      draft->what);
    }
    if (s->cycle_second_step_size < 0)
        s->cycle_second_step_size = s->cycle_first_step_size;
    if (s->cycle_second_stair_count < 0)
        s->cycle_second_stair_count = s->cycle_first_stair_count;
    double rate = s->decay_step_size ? s->decay_mom_rate / (double)s->decay_step_size : 0;
    if (!s->cycle_momentum || fabs(rate) <= 0 || s->cycle_max_mom <= 0)
        return;
    double steps = rate > 0 ? (1 / s->cycle_max_mom - 1) / rate : -1 / rate;
    dcp_log_write(draft->log, DCP_LOG_WARN,
                  "%s: with decay_mom_rate %g beta1 is no number from 0 to below 1 from "
                  "about step %.0f on",
                  draft->what, s->decay_mom_rate,
                  (double)s->cycle_first_step_size + (double)s->cycle_second_step_size +
                      steps);
}

int settings_resolve_scheduler(struct settings_draft *draft, struct dcp_error *err)
{
    struct settings_scheduler *s = &draft->out.scheduler;
    s->type = (enum settings_schedule)draft->schedule;
    s->warmup_linear = draft->warmup_type == 1;
    DCP_TRY(check_given(draft, err));
    if (s->type == SCHEDULE_WARMUP || s->type == SCHEDULE_WARMUP_DECAY ||
        s->type == SCHEDULE_WARMUP_COSINE)
        resolve_warmup(draft);
    if (s->type == SCHEDULE_ONE_CYCLE)
        resolve_cycle(draft);
    if (s->type == SCHEDULE_CONSTANT && s->factor <= 0 && s->total_iters)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%s: '" PARAMS "factor' is 0, by which ConstantLR divides "
                             "after total_iters steps",
                             draft->what);
    return DCP_OK;
}
