/* saving: when the run is saved, and what becomes of a save that is under way. */
#ifndef TRAINER_RUN_SAVING_H
#define TRAINER_RUN_SAVING_H

#include "report.h"

struct saving {
    struct run *run; /* borrowed */
    struct dcp_saver *saver;
    int64_t in_flight; /* the step, -1: none */
    bool in_place;     /* it is written from where the state lies, and training waits */
    int64_t last;      /* the newest step that is complete, -1: none known */
    bool diverged;     /* the loss of the step run->at is at is not finite */
    bool learned;   /* weights were changed since the save before: the rate was not 0 */
    bool told;      /* that steps are not finite */
    double stall_s; /* of training, since it was last asked for */
    struct report report;
};

/* `last`: the step that was resumed, or -1. Errors: MEMORY. */
int saving_init(struct saving *out_saving, struct run *run, int64_t last,
                struct dcp_error *err);
void saving_fini(struct saving *saving);

/* All are collective. A save that fails is told, and the run goes on: they return an
 * error only when a rank is gone, or after checkpoint.fail_after failures in a row. */

/* Saves the step run->at is at. Waits for the save before it. */
int saving_start(struct saving *saving, struct dcp_error *err);
/* Moves a save in flight on. */
int saving_poll(struct saving *saving, struct dcp_error *err);
/* Saves the step run->at is at, unless that is done already, and waits: at the end of
 * the run, when a failure is one of the run. Errors: those of dcp_save. */
int saving_finish(struct saving *saving, struct dcp_error *err);
/* Seconds that saves held training since the last call. */
double saving_stall(struct saving *saving);

#endif
