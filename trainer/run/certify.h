/* certify: whether a run can be trained again from one of its steps, to the same bits. */
#ifndef TRAINER_RUN_CERTIFY_H
#define TRAINER_RUN_CERTIFY_H

#include "run.h"

/* Collective. Loads the step that --resume names and trains on to the newest one of the
 * run folder, or to --steps, at this world size; compares losses and norms with
 * metrics.jsonl, and every tensor with each saved step on the way. Prints what came of
 * it. Writes nothing. Errors: DIFFERS (names the first step and tensor), USAGE (no step
 * comes after it), those of resume_run and of training. */
int certify_run(struct run *run, struct dcp_error *err);

#endif
