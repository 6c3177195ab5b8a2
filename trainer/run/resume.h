/* resume: where training goes on: the newest complete step of the run (auto; to train,
 * the newest that did not diverge, if there is one), a step that was named, or the
 * beginning. Any world size and stage takes up what any other saved. */
#ifndef TRAINER_RUN_RESUME_H
#define TRAINER_RUN_RESUME_H

#include "run.h"

struct resume_result {
    bool resumed;
    int64_t step;
    int64_t saved;        /* the step of the run folder that is the state, -1: none */
    uint64_t fingerprint; /* of the checkpoint's state, 0: unknown */
    int world_size;       /* that saved it */
    uint64_t size_bytes;  /* of its tensors */
    double read_s;
};

/* Collective. Fills the state and run->at as --resume says, and tells; without a step to
 * resume from, from model.init or with initial values. Opens the run folder, which holds
 * one run, in one line: steps that come after what was resumed are superseded. With
 * weights_only the optimizer is left alone, and a step or path must be there. Errors:
 * NOT_FOUND, EXISTS (steps of an earlier run with "never", of another one with a path),
 * MISMATCH, CORRUPT, COMM, IO, MEMORY. */
int resume_run(struct run *run, bool weights_only, struct resume_result *out_result,
               struct dcp_error *err);

/* Collective. The same from a step that must be there, to train it again: the folder
 * stays as it is. Errors: also NOT_FOUND (no such step). */
int resume_again(struct run *run, struct resume_result *out_result,
                 struct dcp_error *err);

/* What resume_run would begin with. */
struct resume_look {
    bool found;     /* else a new run begins */
    int64_t step;   /* -1: a checkpoint that is no step, or none */
    char what[600]; /* "run/step-00000020", "model.safetensors", or "" */
};

/* Collective. Looks for it, at its signature where that must be trusted, and at its
 * model's sizes as resume_run does, fills no tensor and makes nothing; the weights of
 * model.init count as what is begun with. Errors: those of resume_run, but for data that
 * are corrupt. */
int resume_look(struct run *run, struct resume_look *out_look, struct dcp_error *err);

#endif
