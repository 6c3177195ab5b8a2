/* cut: the arithmetic of partitions. */
#include "cut.h"
#include "base/mem.h"

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

int dcp_ds_cut(struct dcp_ds_group *group, int stage, int world, struct dcp_error *err)
{
    int64_t at = 0, whole;
    bool ok = true;

    for (size_t i = 0; i < group->n_params && ok; i++) {
        struct dcp_ds_param *param = &group->params[i];
        param->at = at;
        if (stage == 3)
            ok = dcp_add_i64(at, ceil_div(param->n_elems, world), &at);
        else
            ok = dcp_add_i64(at, param->n_elems, &at) &&
                 dcp_add_i64(at, param->padding, &at);
    }
    /* No partition ends behind what 64 bits count, in bytes of the widest element. */
    ok = ok && at <= INT64_MAX / 32;
    group->total = ok ? at : 0;
    group->part =
        stage == 3 ? group->total : 2 * ceil_div(group->total, 2 * (int64_t)world);
    ok = ok && dcp_mul_i64(group->part, world, &whole) && whole <= INT64_MAX / 16;
    return ok ? DCP_OK
              : dcp_error_set(err, DCP_E_CORRUPT,
                              "a group of parameters has over 2^58 elements");
}

bool dcp_ds_part_of(const struct dcp_ds_group *group, const struct dcp_ds_param *param,
                    int stage, int world, int rank, struct dcp_ds_part *out)
{
    if (stage == 3) {
        int64_t part = ceil_div(param->n_elems, world);
        out->begin = rank * part;
        out->end =
            out->begin + part < param->n_elems ? out->begin + part : param->n_elems;
        out->at = param->at;
        return out->begin < out->end;
    }
    int64_t begin = rank * group->part, end = begin + group->part;
    out->begin = begin > param->at ? begin - param->at : 0;
    out->end = end < param->at + param->n_elems ? end - param->at : param->n_elems;
    out->at = param->at + out->begin - begin;
    return out->begin < out->end;
}

int64_t dcp_ds_filled(const struct dcp_ds_group *group, int rank)
{
    int64_t left = group->total - rank * group->part;

    return left < 0 ? 0 : left < group->part ? left : group->part;
}

void dcp_ds_round_robin(size_t n, int world, size_t *out)
{
    size_t at = 0;

    for (size_t first = 0; first < (size_t)world && first < n; first++)
        for (size_t i = first; i < n; i += (size_t)world)
            out[i] = at++;
}
