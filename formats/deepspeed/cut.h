/* cut: which elements of the trained parameters DeepSpeed keeps on which rank.
 *
 * The parameters of a group of the optimizer stand in its order. ZeRO-1 and 2 put them
 * one behind the other into one flat array, with a padding behind a parameter where the
 * configuration aligns them, pad its end to 2 x world_size and cut it evenly: boundaries
 * fall inside parameters, and the last ranks may have none. ZeRO-3 cuts every parameter
 * alone into ceil(n / world_size) elements a rank and puts the parts of a rank one behind
 * the other; a group is divided into sub-groups, each a flat array of its own.
 *
 * Source: runtime/zero/stage_1_and_2.py, stage3.py and utils/zero_to_fp32.py of DeepSpeed
 * 0.19.8; tests/interop/test_deepspeed.py holds it against files of that version. */
#ifndef DCP_FORMATS_DEEPSPEED_CUT_H
#define DCP_FORMATS_DEEPSPEED_CUT_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_DS_SUB_GROUP_SIZE                                 \
    1000000000 /* elements, where the configuration says none \
                */

struct dcp_ds_param {
    const char *name;
    int ndim;
    const int64_t *shape;
    int64_t n_elems;
    int64_t padding; /* elements behind it in a flat group, stages 1 and 2 */
    int64_t at;      /* set by dcp_ds_cut: its place in the group (stages 1 and 2), or in
                      * the partition of every rank (stage 3) */
};

/* A flat array of the optimizer. Its arrays belong to whoever made it. */
struct dcp_ds_group {
    struct dcp_ds_param *params;
    size_t n_params;
    size_t first;    /* parameters in the groups before */
    int param_group; /* of the optimizer */
    bool whole;      /* momenta are of whole weights, see muon.h */
    int64_t total;   /* set by dcp_ds_cut: elements before the end is padded (1 and 2) */
    int64_t part;    /* set by dcp_ds_cut: elements of a partition */
};

/* Elements begin .. end of a parameter, at element `at` of a partition. */
struct dcp_ds_part {
    int64_t begin, end, at;
};

/* Computes places and sizes. Errors: CORRUPT (an overflow). */
int dcp_ds_cut(struct dcp_ds_group *group, int stage, int world_size,
               struct dcp_error *err);
/* What a rank holds of a parameter of a group that was cut; false: nothing. */
bool dcp_ds_part_of(const struct dcp_ds_group *group, const struct dcp_ds_param *param,
                    int stage, int world_size, int rank, struct dcp_ds_part *out);
/* Elements of a rank's partition before the padding at its end (stages 1 and 2). */
int64_t dcp_ds_filled(const struct dcp_ds_group *group, int rank);

/* Where a parameter of the optimizer's order stands under round_robin_gradients: every
 * world_size-th from the first, then every world_size-th from the second… out[i] is the
 * place of parameter i; n numbers. */
void dcp_ds_round_robin(size_t n, int world_size, size_t *out);

#endif
