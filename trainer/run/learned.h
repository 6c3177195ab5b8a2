/* learned: whether a checkpoint has what an optimizer learned. */
#ifndef DCP_TRAINER_RUN_LEARNED_H
#define DCP_TRAINER_RUN_LEARNED_H

#include "run.h"

/* Training does not go on from a step that lost its optimizer state (checkpoint.
 * keep_optimizer): with moments of zero it would be another run. `name` is for the
 * message. Collective. Errors: MISMATCH, naming the newest step of the folder that has
 * it; IO, COMM, MEMORY. */
int learned_check(const struct run *run, const char *name,
                  const struct dcp_catalog *catalog, struct dcp_error *err);

#endif
