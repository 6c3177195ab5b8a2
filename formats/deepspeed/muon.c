/* muon: groups that DeepSpeed's Muon trains. */
#include "muon.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

bool dcp_ds_is_muon(const json_t *param_group)
{
    return json_is_true(json_object_get(param_group, "use_muon"));
}

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && !strcmp(json_string_value(value), text);
}

static bool sums_in_fp32(const json_t *config)
{
    static const char *const names[] = { "fp32", "float32", "float", "torch.float32" };
    const json_t *dtype =
        json_object_get(json_object_get(config, "data_types"), "grad_accum_dtype");
    bool found = false;

    for (size_t i = 0; i < DCP_ARRAY_LEN(names); i++)
        found = found || is_text(dtype, names[i]);
    return found;
}

bool dcp_ds_muon_is_whole(const json_t *param_group, int stage, const json_t *config)
{
    const json_t *zero = json_object_get(config, "zero_optimization");
    const json_t *offload = json_object_get(zero, "offload_optimizer");
    const json_t *bf16 = json_object_get(config, "bf16");

    if (!dcp_ds_is_muon(param_group) || stage == 3 ||
        is_text(json_object_get(offload, "device"), "cpu") ||
        json_is_true(json_object_get(zero, "cpu_offload")))
        return false;
    if (!bf16)
        bf16 = json_object_get(config, "bfloat16");
    return stage != 1 || !json_is_true(json_object_get(bf16, "enabled")) ||
           !sums_in_fp32(config);
}

/* By shapes as Python compares tuples, the largest first; what is alike stays in order.
 */
static int by_shape(const void *x, const void *y)
{
    const struct dcp_ds_param *a = x, *b = y;

    for (int d = 0; d < a->ndim && d < b->ndim; d++)
        if (a->shape[d] != b->shape[d])
            return a->shape[d] > b->shape[d] ? -1 : 1;
    if (a->ndim != b->ndim)
        return a->ndim > b->ndim ? -1 : 1;
    return a->at < b->at ? -1 : 1;
}

void dcp_ds_muon_sort(struct dcp_ds_param *params, size_t n)
{
    for (size_t i = 0; i < n; i++)
        params[i].at = (int64_t)i;
    qsort(params, n, sizeof *params, by_shape);
}

int64_t dcp_ds_muon_elems(const struct dcp_ds_group *group, int world_size, int rank)
{
    struct dcp_ds_part part;
    int64_t n = 0;

    for (size_t p = 0; p < group->n_params; p++)
        if (dcp_ds_part_of(group, &group->params[p], 1, world_size, rank, &part))
            n += group->params[p].n_elems;
    return n;
}
