/* batch: the samples of a step that a checkpoint was trained with. */
#ifndef TRAINER_RUN_BATCH_H
#define TRAINER_RUN_BATCH_H

#include "run.h"

/* Where the configuration leaves the batch to the number of ranks, the checkpoint's own
 * is kept, and that is said: what is trained does not change with the ranks. Not
 * collective, the same on all ranks. Errors: MEMORY. */
int batch_keep(struct run *run, const struct dcp_catalog *catalog, int world_size,
               struct dcp_error *err);

#endif
