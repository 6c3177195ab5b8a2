/* step: one step of training. */
#ifndef TRAINER_RUN_STEP_H
#define TRAINER_RUN_STEP_H

#include "metrics.h"
#include "run.h"
#include "trainer/config/schedule.h"

struct step {
    struct run *run; /* borrowed */
    struct schedule_place rate, adam_rate;
    int n_skipped; /* steps without an update, in a row */
    /* What ranks tell each other: the losses of their micro-batches, and whether to stop.
     */
    double *own, *told;
    int64_t *n_told; /* by each rank */
    bool stop;       /* some rank was told to */
};

/* Once the batch is known, which a resume may tell. Not collective. Errors: MEMORY. */
int step_init(struct step *out_step, struct run *run, struct dcp_error *err);
void step_fini(struct step *step);

/* The step after the one that run->at is at, which it moves on. Fills loss, norm, rate
 * and, where it is due, the fingerprint of the weights of *m. Collective. Errors: COMM,
 * CORRUPT (training has diverged), MEMORY. */
int step_train(struct step *step, struct metrics_step *m, struct dcp_error *err);

/* Collective. The tensors of the state, or of the weights alone, with their fingerprints,
 * which neither the ranks nor the stage change. Caller owns *out_catalog. */
int step_fingerprints(struct run *run, bool weights_only,
                      struct dcp_catalog **out_catalog, struct dcp_error *err);

#endif
