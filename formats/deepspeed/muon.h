/* muon: how DeepSpeed lays out a group of weights that its Muon trains.
 *
 * The weights of the group stand by their shapes, the largest first, as the optimizer
 * sorts them; weights of one shape keep their order. At stage 3, where zero.Init has
 * partitioned the model before the optimizer sees it, nothing is sorted; files do not say
 * which it was.
 *
 * ZeRO 1 and 2 keep of every rank the momenta of all weights of which it has a part, each
 * whole and one behind the other, without paddings: ranks that share a weight both have
 * its momentum, and a rank without a weight has none. With the optimizer offloaded, under
 * BF16_Optimizer (bf16 at stage 1, gradients summed in fp32) and at stage 3 momenta are
 * cut as masters are.
 *
 * Source: runtime/zero/muon, stage_1_and_2.py (_get_flat_partition_unpadded,
 * _apply_muon_updates_cpu_offload), bf16_optimizer.py and engine.py of DeepSpeed 0.19.8;
 * tests/interop/test_muon.py holds it against that version. */
#ifndef DCP_FORMATS_DEEPSPEED_MUON_H
#define DCP_FORMATS_DEEPSPEED_MUON_H

#include "cut.h"
#include <jansson.h>

#define DCP_DS_MOMENTUM "momentum_buffer"

/* Whether the options of a group say that Muon trains it. */
bool dcp_ds_is_muon(const json_t *param_group);
/* Whether they say so, and momenta are whole at this stage with this ds_config, which may
 * be NULL. */
bool dcp_ds_muon_is_whole(const json_t *param_group, int stage, const json_t *config);
/* Puts n weights in the order of the optimizer. */
void dcp_ds_muon_sort(struct dcp_ds_param *params, size_t n);
/* Elements of whole momenta on a rank; the group was cut for stage 1 or 2. */
int64_t dcp_ds_muon_elems(const struct dcp_ds_group *group, int world_size, int rank);

#endif
