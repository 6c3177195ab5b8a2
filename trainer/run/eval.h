/* eval: the loss on the validation data, the same number at every world size. */
#ifndef TRAINER_RUN_EVAL_H
#define TRAINER_RUN_EVAL_H

#include "run.h"

/* Collective. The mean over the first `eval_batches` micro-batches in file order (0: all
 * there are); *out_batches (may be NULL) is their number. */
int eval_loss(struct run *run, double *out_loss, int64_t *out_batches,
              struct dcp_error *err);
/* Collective. --eval: loads, measures, prints. Errors: USAGE (no data.val), and those of
 * a load. */
int eval_run(struct run *run, struct dcp_error *err);

#endif
