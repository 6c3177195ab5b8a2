/* plan: --dry-run: what a training would do, without doing it. */
#ifndef TRAINER_RUN_PLAN_H
#define TRAINER_RUN_PLAN_H

#include "run.h"

/* Prints it. The run is open for RUN_PLAN; nothing is written. Errors: IO, MEMORY. */
int plan_print(struct run *run, struct dcp_error *err);

#endif
