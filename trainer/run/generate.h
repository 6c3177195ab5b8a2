/* generate: goes on with a text by the weights of a checkpoint. */
#ifndef TRAINER_RUN_GENERATE_H
#define TRAINER_RUN_GENERATE_H

#include "run.h"

/* Prints the text as far as it is given, then token by token what follows, to stdout.
 * In a single rank. Errors: USAGE (no token in the text), and those of a load. */
int generate_run(struct run *run, struct dcp_error *err);

#endif
