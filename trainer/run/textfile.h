/* textfile: how saves go, for the textfile collector of Prometheus's node exporter. */
#ifndef TRAINER_RUN_TEXTFILE_H
#define TRAINER_RUN_TEXTFILE_H

#include <dcp/error.h>
#include <stdint.h>

struct textfile {
    const char *run;                               /* the run folder, by its real path */
    int64_t step;                                  /* the last complete one, -1: none */
    double step_time_s;                            /* when it was complete, since 1970 */
    uint64_t n_saves, n_failed, n_failed_in_a_row; /* by this process */
    double stall_s; /* of the last save that is complete; below 0: none */
};

/* Replaces the file in one step, with where `dcp-inspect verify --subset` is, too, if it
 * remembers that. Errors: IO, NO_SPACE, MEMORY. */
int textfile_write(const char *path, const struct textfile *facts, struct dcp_error *err);

#endif
