/* slices: what DeepSpeed notes of a rank's partitions at stages 1 and 2, as it saves:
 * "param_slice_mappings", for each group {name: fragment_address(numel, start)} of the
 * parameters of which the rank has a part. It tells under whose name a file must be. */
#ifndef DCP_FORMATS_DEEPSPEED_SLICES_H
#define DCP_FORMATS_DEEPSPEED_SLICES_H

#include "read.h"

/* Holds what a rank's file notes against the groups, which were cut. Files of before
 * DeepSpeed noted it are taken, and those with round_robin_gradients, where the notes are
 * not true; *out_noted: this one says whose it is. Errors: CORRUPT (another rank's). */
int dcp_ds_slices_check(const struct dcp_ds_reader *reader,
                        const struct dcp_ds_file *file,
                        const struct dcp_pickle_node *optim, int rank, bool *out_noted,
                        struct dcp_error *err);
/* Whether the notes of a rank and the next one are the same, though they have elements:
 * both lie inside of one parameter in every group. */
bool dcp_ds_slices_repeat(const struct dcp_ds_reader *reader, int rank);

#endif
