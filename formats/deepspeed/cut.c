/* cut: the arithmetic of partitions. */
#include "cut.h"
#include "base/mem.h"
#include "base/part.h"

int dcp_ds_cut(struct dcp_ds_group *group, int stage, int world_size,
               struct dcp_error *err)
{
    int64_t at = 0, whole;
    bool ok = true;

    for (size_t i = 0; i < group->n_params && ok; i++) {
        struct dcp_ds_param *param = &group->params[i];
        param->at = at;
        if (stage == 3)
            ok = dcp_add_i64(at, dcp_part_ceil(param->n_elems, world_size), &at);
        else
            ok = dcp_add_i64(at, param->n_elems, &at) &&
                 dcp_add_i64(at, param->padding, &at);
    }
    /* No partition ends behind what 64 bits count, in bytes of the widest element. */
    ok = ok && at <= INT64_MAX / 32;
    group->total = ok ? at : 0;
    group->part = stage == 3 ? group->total : dcp_part_zero(group->total, world_size);
    ok = ok && dcp_mul_i64(group->part, world_size, &whole) && whole <= INT64_MAX / 16;
    return ok ? DCP_OK
              : dcp_error_set(err, DCP_E_CORRUPT,
                              "a group of parameters has over 2^58 elements");
}

bool dcp_ds_part_of(const struct dcp_ds_group *group, const struct dcp_ds_param *param,
                    int stage, int world_size, int rank, struct dcp_ds_part *out)
{
    int64_t at = stage == 3 ? 0 : param->at;
    int64_t size = stage == 3 ? dcp_part_ceil(param->n_elems, world_size) : group->part;
    struct dcp_part part = dcp_part_of(size, rank, at, param->n_elems);

    out->begin = part.begin;
    out->end = part.end;
    out->at = stage == 3 ? param->at : param->at + part.begin - rank * size;
    return out->begin < out->end;
}

int64_t dcp_ds_filled(const struct dcp_ds_group *group, int rank)
{
    struct dcp_part part = dcp_part_of(group->part, rank, 0, group->total);

    return part.end - part.begin;
}

void dcp_ds_round_robin(size_t n, int world_size, size_t *out)
{
    size_t at = 0;

    for (size_t first = 0; first < (size_t)world_size && first < n; first++)
        for (size_t i = first; i < n; i += (size_t)world_size)
            out[i] = at++;
}
