/* tree: values of DeepSpeed's pickles, as JSON that torch_out writes. */
#include "base/json.h"
#include "base/mem.h"
#include "formats/pickle/py.h"
#include "read.h"
#include "write.h"
#include <string.h>

#define SCALERS "deepspeed.runtime.fp16.loss_scaler"

const struct dcp_torch_class dcp_ds_classes[] = {
    { SCALERS ".LossScaler", SCALERS, "LossScaler", true },
    { SCALERS ".DynamicLossScaler", SCALERS, "DynamicLossScaler", true },
    { "deepspeed.runtime.zero.config.ZeroStageEnum", "deepspeed.runtime.zero.config",
      "ZeroStageEnum", false },
    { "deepspeed.utils.tensor_fragment.fragment_address",
      "deepspeed.utils.tensor_fragment", "fragment_address", true },
    { "deepspeed.checkpoint.universal_checkpoint.SubparamShape",
      "deepspeed.checkpoint.universal_checkpoint", "SubparamShape", true },
    { "argparse.Namespace", "argparse", "Namespace", true },
    { 0 },
};

json_t *dcp_ds_size(int ndim, const int64_t *shape)
{
    json_t *sizes = json_array();

    for (int d = 0; d < ndim; d++)
        if (json_array_append_new(sizes, json_integer((json_int_t)shape[d]))) {
            json_decref(sizes);
            return NULL;
        }
    return dcp_py_object("torch.Size", "args",
                         json_pack("[o]", dcp_py_new(DCP_PY_TUPLE, sizes)));
}

json_t *dcp_ds_add_nameless(json_t *dict, json_t *pairs)
{
    DCP_CLEANUP_JSON json_t *more = pairs;
    json_t *all = json_array(), *value;
    bool failed = !dict || !all;
    const char *key;

    json_object_foreach(dict, key, value)
    {
        failed = failed || json_array_append_new(all, json_pack("[s,O]", key, value));
    }
    failed = failed || json_array_extend(all, more);
    json_decref(dict);
    if (!failed)
        return dcp_py_new(DCP_PY_DICT, all);
    json_decref(all);
    return NULL;
}

json_t *dcp_ds_stage_value(int stage)
{
    return dcp_py_object("deepspeed.runtime.zero.config.ZeroStageEnum", "args",
                         json_pack("[i]", stage));
}

/* -- loss scaler ------------------------------------------------------------------- */

/* The attributes of a dynamic scaler in their order, and what they begin with. */
static json_t *dynamic_defaults(void)
{
    return json_pack("{s:f, s:b, s:i, s:i, s:f, s:i, s:i, s:i, s:i, s:b, s:b, s:{s:s}}",
                     "cur_scale", 65536.0, "dynamic", 1, "cur_iter", 0,
                     "last_overflow_iter", -1, "scale_factor", 2.0, "scale_window", 1000,
                     "min_scale", 1, "delayed_shift", 1, "cur_hysteresis", 1,
                     "consecutive_hysteresis", 0, "raise_error_at_min_scale", 1, "dtype",
                     DCP_PY_GLOBAL, "torch.float16");
}

bool dcp_ds_scaler_unknown(const struct dcp_ds_writer *w)
{
    return !w->loss_scaler && w->weights_dtype == DCP_F16;
}

static bool is_dynamic(const struct dcp_ds_writer *w)
{
    const char *type = json_string_value(json_object_get(w->loss_scaler, "type"));

    return type ? !strcmp(type, "dynamic") : dcp_ds_scaler_unknown(w);
}

json_t *dcp_ds_loss_scaler(const struct dcp_ds_writer *w)
{
    const json_t *scaler = w->loss_scaler;
    bool dynamic = is_dynamic(w);
    json_t *state = dynamic ? dynamic_defaults()
                            : json_pack("{s:f, s:b}", "cur_scale", 1.0, "dynamic", 0);
    json_t *scale = json_object_get(scaler, "scale"), *value;
    const char *key;
    int failed = state == NULL;

    if (!failed && dcp_ds_scaler_unknown(w))
        failed =
            json_object_set_new(state, "delayed_shift",
                                json_integer(DCP_DS_HYSTERESIS)) ||
            json_object_set_new(state, "cur_hysteresis", json_integer(DCP_DS_HYSTERESIS));
    if (!failed && json_is_number(scale))
        failed = json_object_set(state, "cur_scale", scale);
    json_object_foreach((json_t *)(uintptr_t)scaler, key, value)
    {
        if (!failed && strcmp(key, "type") && strcmp(key, "scale"))
            failed = json_object_set(state, key, value);
    }
    if (failed) {
        json_decref(state);
        return NULL;
    }
    return dcp_py_object(dynamic ? SCALERS ".DynamicLossScaler" : SCALERS ".LossScaler",
                         "state", state);
}

/* -- the optimizer ----------------------------------------------------------------- */

/* Where the source's groups had different steps, each keeps its own. */
static int64_t step_of(const struct dcp_ds_writer *w, int param_group)
{
    const json_t *steps = json_object_get(w->note, "steps");
    int64_t most = -1;

    for (size_t i = 0; i < json_array_size(steps); i++)
        if (json_integer_value(json_array_get(steps, i)) > most)
            most = json_integer_value(json_array_get(steps, i));
    if (json_array_size(steps) != json_array_size(w->param_groups) || most != w->updates)
        return w->updates;
    return json_integer_value(json_array_get(steps, (size_t)param_group));
}

json_t *dcp_ds_step(const struct dcp_ds_writer *w, struct dcp_torch_out *out,
                    int param_group)
{
    const char *form = json_string_value(json_object_get(w->note, "step"));
    int dtype = form && strcmp(form, "int") ? dcp_dtype_parse(form) : -1;
    int64_t step = step_of(w, param_group);
    double real = (double)step;

    if (dtype < 0 || !dcp_dtype_is_float((enum dcp_dtype)dtype))
        return json_integer((json_int_t)step);
    void *data = dcp_catalog_alloc(w->catalog, 1, sizeof real);
    if (!data || dcp_cast(DCP_F64, (enum dcp_dtype)dtype, &real, data, 1, NULL))
        return NULL;
    size_t storage = dcp_torch_out_storage(out, (enum dcp_dtype)dtype, 1, data);
    return dcp_torch_out_view(out, storage, 0, NULL);
}

/* Numbers first .. first + n. */
static json_t *numbers(size_t first, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(list, json_integer((json_int_t)(first + i)))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* A group's options: betas are a tuple in Python, and the fused and CPU optimizers of
 * DeepSpeed want to be told what torch's take for granted. */
static int set_options(const struct dcp_ds_writer *w, json_t *group)
{
    json_t *betas = json_object_get(group, "betas");
    int failed = 0;

    if (json_is_array(betas))
        failed = json_object_set_new(group, "betas",
                                     dcp_py_new(DCP_PY_TUPLE, json_incref(betas)));
    if (!failed && betas && !w->note && !json_object_get(group, "bias_correction"))
        failed = json_object_set_new(group, "bias_correction", json_true());
    return failed;
}

json_t *dcp_ds_group_values(const struct dcp_ds_writer *w)
{
    json_t *groups = json_array();
    size_t first = 0;

    for (size_t g = 0; g < json_array_size(w->param_groups); g++) {
        json_t *group = json_copy(json_array_get(w->param_groups, g));
        size_t n = 0;
        for (size_t i = 0; i < w->n_groups; i++)
            n += w->groups[i].param_group == (int)g;
        json_object_del(group, "params");
        if (!group || set_options(w, group) ||
            json_object_set_new(group, "params", numbers(first, n)) ||
            json_array_append_new(groups, group)) {
            json_decref(groups);
            return NULL;
        }
        first += n;
    }
    return groups;
}

json_t *dcp_ds_scalar_value(const struct dcp_ds_writer *w, const char *key)
{
    json_t *kept = json_object_get(json_object_get(w->note, "optim_states"), key);

    if (!strcmp(key, "dynamic_loss_scale"))
        return json_boolean(is_dynamic(w));
    if (kept)
        return json_incref(kept);
    if (!strcmp(key, "overflow"))
        return json_false();
    json_t *clip = json_object_get(w->config, "gradient_clipping");
    return json_is_number(clip) ? json_incref(clip) : json_real(0.0);
}

int dcp_ds_set_rest(const struct dcp_ds_writer *w, struct dcp_torch_out *out,
                    json_t *optim)
{
    /* What training without ZeRO keeps here, and what stage 3 does not. */
    static const char *const not_kept[] = { "clip_grad",         "cur_scale",
                                            "cur_iter",          "last_overflow_iter",
                                            "scale_factor",      "scale_window",
                                            "dynamic_loss_scale" };
    json_t *rest = json_object_get(w->note, "optim_states"), *value;
    const char *key;
    int failed = 0;

    json_object_foreach(rest, key, value)
    {
        bool skip = json_object_get(optim, key) != NULL;
        for (size_t i = 0; i < DCP_ARRAY_LEN(not_kept); i++)
            skip = skip || !strcmp(key, not_kept[i]);
        if (!skip)
            failed |= json_object_set_new(optim, key,
                                          dcp_torch_out_value(out, w->catalog, value));
    }
    return failed;
}

json_t *dcp_ds_config_value(const struct dcp_ds_writer *w)
{
    json_t *path = json_object_get(w->note, "config"), *zero;
    json_t *config =
        w->config ? json_copy(w->config) : json_incref(path ? path : json_null());

    if (!config || !w->config)
        return config;
    zero = json_object_get(config, "zero_optimization");
    zero = zero ? json_copy(zero) : json_object();
    if (json_object_set_new(zero, "stage", json_integer(w->stage)) ||
        json_object_set(config, "zero_optimization", zero)) {
        json_decref(config);
        config = NULL;
    }
    json_decref(zero);
    return config;
}
