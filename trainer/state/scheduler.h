/* scheduler: the object "scheduler" of a checkpoint: the state dict of the class, with
 * its type, so that DeepSpeed and PyTorch go on from it. */
#ifndef TRAINER_STATE_SCHEDULER_H
#define TRAINER_STATE_SCHEDULER_H

#include "trainer/config/settings.h"
#include <dcp/tensor.h>

/* The object after `done` steps of the schedule. Caller frees; NULL: out of memory. */
char *scheduler_text(const struct settings *settings, int64_t done);
/* How many steps the schedule of a checkpoint has made: as it says, or as many as there
 * were updates. */
int64_t scheduler_done(const struct dcp_catalog *catalog, int64_t updates);

#endif
