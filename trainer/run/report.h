/* report: what becomes of saves is counted, and told to the user's commands and to a
 * textfile (rank 0). */
#ifndef TRAINER_RUN_REPORT_H
#define TRAINER_RUN_REPORT_H

#include "hook.h"
#include "run.h"

struct report {
    const struct run *run; /* borrowed */
    struct hooks hooks;
    int64_t last;                                  /* the last complete step, -1: none */
    double last_time_s, stall_s;                   /* of it; stall_s below 0: unknown */
    uint64_t n_saves, n_failed, n_failed_in_a_row; /* the same on all ranks */
    bool warned; /* that the textfile cannot be written */
};

/* `last`: the step of the run folder that was resumed, or -1. */
void report_init(struct report *out_report, const struct run *run, int64_t last);
void report_saved(struct report *report, const struct dcp_save_result *result);
/* Errors: IO, when so many failed in a row as end the run (checkpoint.fail_after). */
int report_failed(struct report *report, int64_t step, const struct dcp_error *why,
                  struct dcp_error *err);
/* Cheap: what ended of the user's commands is looked after. */
void report_poll(struct report *report);
/* The end of the run: says how many saves failed, if any, and waits for the user's
 * commands, a time. Does nothing to a zeroed report. */
void report_fini(struct report *report);

#endif
