/* estimate: --estimate: the memory of a rank, at every ZeRO stage and some world sizes,
 * with and without activation checkpointing; of any model, without making it. */
#ifndef TRAINER_RUN_ESTIMATE_H
#define TRAINER_RUN_ESTIMATE_H

#include "run.h"

/* Prints it. A world size that the configuration cannot have is told as such; when none
 * is left that is the error. Errors: those of run_read_settings, USAGE (--worlds),
 * MEMORY. */
int estimate_print(struct dcp_main *main, const struct run_options *options,
                   struct dcp_error *err);

#endif
