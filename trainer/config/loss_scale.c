#include "loss_scale.h"

bool loss_scale_is_dynamic(const struct loss_scale_rule *rule)
{
    return rule->scales && rule->static_to <= 0;
}

void loss_scale_begin(const struct loss_scale_rule *rule, struct loss_scale *out_scale)
{
    *out_scale = (struct loss_scale){
        .scale = loss_scale_is_dynamic(rule) ? rule->initial
                 : rule->scales              ? rule->static_to
                                             : 1,
        .last_overflow = -1,
        .tolerance = rule->tolerance,
    };
}

bool loss_scale_update(const struct loss_scale_rule *rule, bool overflow,
                       struct loss_scale *s)
{
    int64_t stable = s->iter - s->last_overflow - 1;
    bool least = s->scale <= rule->least, halves = s->tolerance <= 1;
    if (!loss_scale_is_dynamic(rule))
        return true;
    if (overflow) {
        s->last_overflow = s->iter;
        if (!halves)
            s->tolerance--;
        else if (!least)
            s->scale = s->scale / 2 > rule->least ? s->scale / 2 : rule->least;
    } else {
        bool grows = stable > 0 && stable % rule->window == 0;
        if (rule->refills || grows)
            s->tolerance = rule->tolerance;
        if (grows)
            s->scale *= 2;
    }
    s->iter++;
    return !(overflow && halves && least);
}
