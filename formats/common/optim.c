/* optim: steps, groups, and the object. */
#include "optim.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/pickle/py.h"
#include "training.h"
#include <string.h>

bool dcp_optim_may_have(const struct dcp_tensor *tensor)
{
    return tensor->role == DCP_ROLE_MODEL && !tensor->tied_to &&
           dcp_dtype_is_float(tensor->dtype);
}

size_t dcp_optim_weights(const struct dcp_catalog *catalog, size_t *out)
{
    size_t n = 0;

    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (dcp_optim_may_have(&catalog->tensors[t]))
            out[n++] = t;
    return n;
}

bool dcp_optim_number(enum dcp_dtype dtype, const unsigned char data[8], double *out)
{
    if (dtype == DCP_I64)
        *out = (double)(int64_t)dcp_le64(data);
    else if (dtype == DCP_I32)
        *out = (double)(int32_t)dcp_le32(data);
    else if (dcp_dtype_is_float(dtype) && dcp_dtype_size(dtype) <= sizeof *out)
        return !dcp_cast(dtype, DCP_F64, data, out, 1, NULL);
    else
        return false;
    return true;
}

int64_t dcp_optim_updates(double step)
{
    return step >= 0 && step < 9e15 ? (int64_t)step : -1;
}

void dcp_optim_count(struct dcp_optim_counts *counts, int64_t updates)
{
    if (updates < 0)
        return;
    if (!counts->any || updates < counts->least)
        counts->least = updates;
    if (!counts->any || updates > counts->most)
        counts->most = updates;
    counts->any = true;
}

/* -- groups -------------------------------------------------------------------------- */

/* Numbers become the params of weights. */
static json_t *names_of(const struct dcp_catalog *catalog, const json_t *params,
                        const struct dcp_optim_ids *ids, bool *out_named)
{
    json_t *names = json_array();

    for (size_t i = 0; names && i < json_array_size(params); i++) {
        const json_t *id = json_array_get(params, i);
        const char *name = json_string_value(id);
        if (!name && ids->found)
            name = catalog->tensors[ids->weight[json_integer_value(id)]].param;
        *out_named = *out_named && name;
        if (json_array_append_new(names, name ? json_string(name) : json_deep_copy(id))) {
            json_decref(names);
            names = NULL;
        }
    }
    return names;
}

json_t *dcp_optim_groups_of(const struct dcp_catalog *catalog, const json_t *groups,
                            const struct dcp_optim_ids *ids, bool *out_named)
{
    json_t *out = json_array();

    *out_named = json_array_size(groups) > 0;
    for (size_t g = 0; out && g < json_array_size(groups); g++) {
        json_t *group = json_object(), *from = json_array_get(groups, g), *value;
        const char *key;
        int failed = group == NULL;
        *out_named = *out_named && json_is_array(json_object_get(from, "params"));
        json_object_foreach(from, key, value)
        {
            bool params = !strcmp(key, "params"), betas = !strcmp(key, "betas");
            if (!failed)
                failed = json_object_set_new(
                    group, key,
                    params ? names_of(catalog, value, ids, out_named)
                           : json_deep_copy(betas ? dcp_py_untuple(value) : value));
        }
        if (json_array_append_new(out, group) || failed) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

const char *dcp_optim_type(const json_t *groups)
{
    const json_t *group = json_array_get(groups, 0),
                 *decoupled = json_object_get(group, "decoupled_weight_decay");

    if (!json_object_get(group, "betas") || !json_object_get(group, "amsgrad") ||
        !json_is_boolean(decoupled))
        return NULL;
    return json_is_true(decoupled) ? "AdamW" : "Adam";
}

/* Appended to `optimizer`; false: out of memory. */
static bool add_counts(json_t *optimizer, struct dcp_optim_counts counts)
{
    json_int_t least = (json_int_t)counts.least, most = (json_int_t)counts.most;

    if (!counts.any)
        return true;
    return least == most ? !json_object_set_new(optimizer, "step", json_integer(most))
                         : !json_object_set_new(optimizer, "steps",
                                                json_pack("[I, I]", least, most));
}

/* text: of one more member, or NULL. */
static int add(struct dcp_catalog *catalog, const char *member, const char *text,
               struct dcp_optim_counts counts, json_t *groups, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *optimizer = json_object();

    if (!optimizer ||
        (text && json_object_set_new(optimizer, member, json_string(text))) ||
        !add_counts(optimizer, counts) ||
        (groups && json_object_set(optimizer, "param_groups", groups)))
        return dcp_error_memory(err, "an optimizer");
    return dcp_training_add(catalog, DCP_TRAINING_OPTIMIZER, json_incref(optimizer), err);
}

int dcp_optim_add(struct dcp_catalog *catalog, const char *type,
                  struct dcp_optim_counts counts, json_t *groups, struct dcp_error *err)
{
    return add(catalog, "type", type, counts, groups, err);
}

int dcp_optim_add_of(struct dcp_catalog *catalog, const char *container,
                     struct dcp_optim_counts counts, json_t *groups,
                     struct dcp_error *err)
{
    return add(catalog, "container", container, counts, groups, err);
}
