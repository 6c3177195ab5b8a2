/* train: the loop. */
#ifndef TRAINER_RUN_TRAIN_H
#define TRAINER_RUN_TRAIN_H

#include "run.h"

/* Collective. Trains to the last step, or until the user stops it: STOPPED, with all
 * saved. A rank that died: COMM, saying which step is complete. Errors: those of a load,
 * and of the last save. */
int train_run(struct run *run, struct dcp_error *err);

#endif
