/* outcome: what a run that ended well comes to, as the document of --json. */
#ifndef TRAINER_RUN_OUTCOME_H
#define TRAINER_RUN_OUTCOME_H

#include "resume.h"
#include "run.h"

struct outcome {
    const struct run *run;
    const struct resume_result *resumed;
    int64_t saved_step; /* the newest that is complete, or -1 */
    double loss;        /* of the last step; NaN: none was made */
    double seconds;
};

/* Rank 0 prints it, with --json. Errors: MEMORY. */
int outcome_print(const struct outcome *outcome, struct dcp_error *err);

#endif
