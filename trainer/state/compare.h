/* compare: what of the configuration is not what it was when a checkpoint was saved. */
#ifndef TRAINER_STATE_COMPARE_H
#define TRAINER_STATE_COMPARE_H

#include "trainer/config/settings.h"
#include <dcp/tensor.h>

/* Tells every value of the optimizer, the schedule and the batch that was another one, in
 * a line each. What a checkpoint does not say is taken for unchanged. */
void state_compare(const struct dcp_catalog *catalog, const struct settings *settings,
                   const struct dcp_log *log);
/* The samples of a step that the checkpoint was trained with; 0: it does not say. */
int64_t state_saved_batch(const struct dcp_catalog *catalog);

#endif
