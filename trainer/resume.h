/* resume: where training goes on: the newest whole step of the run, a step that was
 * named, or the beginning. Any world size and stage takes up what any other saved. */
#ifndef TRAINER_RESUME_H
#define TRAINER_RESUME_H

#include "run.h"

enum resume_kind { RESUME_AUTO, RESUME_NEVER, RESUME_STEP, RESUME_PATH };

/* --resume, read: "auto", "never", a number, or else a path. NULL is auto. */
enum resume_kind resume_parse(const char *text, int64_t *out_step);

struct resume_result {
    bool resumed;
    int64_t step;
    int world;           /* that saved it */
    uint64_t size_bytes; /* of its tensors */
    double read_s;
};

/* Collective. Fills the state and run->at as --resume says, and tells; without a step to
 * resume from, from model.init or with initial values. Opens the run folder. With
 * weights_only the optimizer is left alone, and a step or path must be there. Errors:
 * NOT_FOUND, EXISTS ("never", but there are steps), MISMATCH, CORRUPT, COMM, IO,
 * MEMORY. */
int resume_run(struct run *run, bool weights_only, struct resume_result *out_result,
               struct dcp_error *err);

#endif
