/* universal: DeepSpeed's universal checkpoint: a folder for each parameter, with a file
 * for its master and each of its moments, whole; beside them the model's files and what
 * the optimizer knows beside its tensors.
 *
 *   latest_universal                          names the tag
 *   <tag>/mp_rank_00_model_states.pt          or that of each rank, at ZeRO stage 3
 *   <tag>/zero/optimizer_state.pt
 *   <tag>/zero/<parameter>/fp32.pt, exp_avg.pt, exp_avg_sq.pt, step.pt
 *
 * Stages 1 and 2 have dicts with the tensor as "param" in these files, stage 3 has flat
 * tensors and keeps the step in optimizer_state.pt. Source: checkpoint/ds_to_universal.py
 * and universal_checkpoint.py of DeepSpeed 0.19.8. */
#ifndef DCP_FORMATS_DEEPSPEED_UNIVERSAL_H
#define DCP_FORMATS_DEEPSPEED_UNIVERSAL_H

#include "read.h"
#include <dcp/format.h>

extern const struct dcp_format dcp_format_universal;

#define DCP_UNIVERSAL_LATEST "latest_universal"

/* Reads what lies in zero/; the model's file was read. */
int dcp_universal_read(struct dcp_ds_reader *reader, struct dcp_error *err);

/* dcp_format.assign. */
int dcp_universal_assign(struct dcp_target *target, struct dcp_error *err);

#endif
