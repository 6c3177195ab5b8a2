#include "optimizer.h"

#include "base/json.h"
#include "base/mem.h"
#include "trainer/config/schedule.h"
#include <math.h>

const char *optimizer_name(const struct settings *settings)
{
    static const char *const names[OPTIM_N_TYPES] = { [OPTIM_SGD] = "SGD",
                                                      [OPTIM_MOMENTUM] = "SGD",
                                                      [OPTIM_LION] = "Lion",
                                                      [OPTIM_ADAGRAD] = "Adagrad",
                                                      [OPTIM_LAMB] = "Lamb",
                                                      [OPTIM_MUON] = "Muon",
                                                      [OPTIM_ADAFACTOR] = "Adafactor" };
    if (settings->optimizer != OPTIM_ADAM)
        return names[settings->optimizer];
    return settings->decoupled_decay ? "AdamW" : "Adam";
}

int optimizer_n_groups(const struct settings *settings)
{
    return settings->optimizer == OPTIM_MUON ? 3 : 2;
}

/* Muon beside Adam: whether a group is one of matrices. */
static bool is_muon(const struct settings *s, int group)
{
    return s->optimizer == OPTIM_MUON && group == 0;
}

double optimizer_lr(const struct settings *s, int group)
{
    return s->optimizer == OPTIM_MUON && group > 0 ? s->adam_lr : s->lr;
}

/* The options that classes share; what a class has not is unknown. */
static void set_options(const struct settings *s, int64_t scheduled, int group,
                        struct dcp_training_group *out)
{
    const double betas[] = { s->beta1, s->beta2 };
    bool muon = is_muon(s, group), decay = group + 1 < optimizer_n_groups(s);
    bool adam = s->optimizer == OPTIM_ADAM || s->optimizer == OPTIM_LAMB ||
                (s->optimizer == OPTIM_MUON && !muon);
    double lr = optimizer_lr(s, group);
    *out = (struct dcp_training_group){
        .lr = schedule_lr(&s->scheduler, lr, scheduled + 1, NULL),
        .initial_lr = lr,
        .betas = { NAN, NAN },
        .eps = muon                                    ? s->newton_schulz.eps
               : adam || s->optimizer == OPTIM_ADAGRAD ? s->eps
                                                       : NAN,
        .weight_decay = decay || s->decay_all ? s->weight_decay : 0.0,
        .bias_correction = adam ? s->bias_correction : -1,
    };
    if (adam || s->optimizer == OPTIM_LION)
        schedule_betas(&s->scheduler, betas, scheduled + 1, out->betas);
}

bool optimizer_groups(struct dcp_arena *arena, const struct model *model,
                      const struct settings *settings, int64_t scheduled,
                      struct dcp_training_group out_groups[SHARD_N_GROUPS])
{
    int n;
    const struct model_param *params = model_params(model, &n);
    for (int g = 0; g < optimizer_n_groups(settings); g++) {
        struct dcp_training_group *group = &out_groups[g];
        const char **names = dcp_arena_alloc(arena, (size_t)n, sizeof *names);
        if (!names)
            return false;
        set_options(settings, scheduled, g, group);
        group->params = names;
        for (int p = 0; p < n; p++)
            if (shard_group_of(model, settings->optimizer, p) == g)
                names[group->n_params++] = params[p].name;
    }
    return true;
}

/* A group of torch.optim.Muon, with the mark that DeepSpeed's has. */
static json_t *muon_options(const struct settings *s)
{
    const struct newton_schulz *ns = &s->newton_schulz;
    return json_pack("{s:f, s:b, s:[f,f,f], s:i, s:s, s:b, s:b}", "momentum", s->momentum,
                     "nesterov", s->nesterov, "ns_coefficients", ns->coefficients[0],
                     ns->coefficients[1], ns->coefficients[2], "ns_steps", ns->steps,
                     "adjust_lr_fn", s->match_rms ? "match_rms_adamw" : "original",
                     "use_addmm", false, "use_muon", true);
}

/* And the switches of transformers' class that torch's has not, where they are off. */
static json_t *adafactor_options(const struct settings *s)
{
    json_t *eps = isnan(s->eps) ? json_null() : json_real(s->eps);
    json_t *own = json_pack("{s:f, s:[o,f], s:f, s:n, s:b}", "beta2_decay",
                            s->beta2_decay, "eps", eps, s->eps_scale, "d",
                            s->clip_threshold, "foreach", "maximize", false);
    if (own && !s->scale_parameter)
        json_object_set_new(own, "scale_parameter", json_false());
    if (own && !s->relative_step)
        json_object_set_new(own, "relative_step", json_false());
    return own;
}

/* Of torch.optim.SGD and Adagrad, and DeepSpeed's FusedLamb, all that their steps ask
 * for. */
static json_t *own_options(const struct settings *s, int group)
{
    if (s->optimizer == OPTIM_MUON)
        return is_muon(s, group) ? muon_options(s)
                                 : json_pack("{s:b}", "use_muon", false);
    if (s->optimizer == OPTIM_SGD || s->optimizer == OPTIM_MOMENTUM)
        return json_pack("{s:f, s:f, s:b, s:b, s:n, s:b, s:n}", "momentum", s->momentum,
                         "dampening", s->dampening, "nesterov", s->nesterov, "maximize",
                         false, "foreach", "differentiable", false, "fused");
    if (s->optimizer == OPTIM_ADAGRAD)
        return json_pack("{s:f, s:f, s:b, s:n, s:b, s:n}", "lr_decay", s->lr_decay,
                         "initial_accumulator_value", 0.0, "maximize", false, "foreach",
                         "differentiable", false, "fused");
    if (s->optimizer == OPTIM_LAMB)
        return json_pack("{s:f, s:f, s:f}", "max_grad_norm", 0.0, "max_coeff",
                         s->max_coeff, "min_coeff", s->min_coeff);
    return s->optimizer == OPTIM_ADAFACTOR ? adafactor_options(s) : json_object();
}

/* Before the list of parameters, which comes last, as elsewhere. */
static bool add_options(json_t *group, json_t *own)
{
    json_t *params = json_incref(json_object_get(group, "params"));
    bool ok = !json_object_del(group, "params") && !json_object_update(group, own);
    return !json_object_set_new(group, "params", params) && ok;
}

int optimizer_text(const struct dcp_object *object, const struct settings *settings,
                   char **out_text, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *whole = NULL;
    json_t *group;
    size_t g;
    bool ok = true;
    DCP_TRY(dcp_json_parse(object->data, object->size_bytes, object->name, &whole, err));
    json_array_foreach(json_object_get(whole, "param_groups"), g, group)
    {
        DCP_CLEANUP_JSON json_t *own = own_options(settings, (int)g);
        ok = ok && own && add_options(group, own);
    }
    *out_text = ok ? dcp_json_text(whole, 0) : NULL;
    return *out_text ? DCP_OK : dcp_error_memory(err, object->name);
}
