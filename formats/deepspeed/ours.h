/* ours: what this library says in every file that it writes, so that a file under another
 * file's name is found. DeepSpeed's own keys do not tell the rank, but by its slices
 * (slices.h), nor, in a file of the optimizer, the step of the training. DeepSpeed
 * ignores it. A dict, "libdcp", beside the others' keys:
 *
 *   mp_rank_…, zero_pp_rank_…, optimizer_state.pt
 *       {"version": 1, "step": as global_steps, "world": ranks, "rank": whose file}
 *   universal, stages 1 and 2: zero/<parameter>/fp32.pt, exp_avg.pt, …
 *       {"version": 1, "step": …, "world": …, "param": its name, "state": "fp32", …}
 *
 * At stage 3 the files of universal parameters are bare tensors, and step.pt a bare
 * number: they have no place for it. DeepSpeed hands the unknown keys of a model's file
 * to its caller, who may give them to its next save; so there the dict counts only where
 * it says the step and world size of the file itself. */
#ifndef DCP_FORMATS_DEEPSPEED_OURS_H
#define DCP_FORMATS_DEEPSPEED_OURS_H

#include "read.h"
#include "write.h"

#define DCP_DS_OURS "libdcp"

/* The dict for a file of a rank, or for one of a parameter; NULL: out of memory. */
json_t *dcp_ds_ours_of_rank(const struct dcp_ds_writer *writer, int rank);
json_t *dcp_ds_ours_of_param(const struct dcp_ds_writer *writer, const char *param,
                             const char *state);

/* Holds a file against its name, and against the model's file of rank 0. Without the dict
 * it is taken; of a model's and a parameter's file the catalog says that. Errors:
 * CORRUPT. */
int dcp_ds_check_model_file(struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                            int rank, struct dcp_error *err);
int dcp_ds_check_optim_file(struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                            int rank, struct dcp_error *err);
/* Says in the catalog what of an optimizer's file without the dict nothing proves: that
 * it is of its rank, where it has no notes of slices.h either, or those of the next rank
 * are the same. Errors: MEMORY. */
int dcp_ds_note_unnamed(struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                        int rank, bool noted, struct dcp_error *err);
int dcp_ds_check_param_file(struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                            const char *param, const char *state, struct dcp_error *err);

#endif
