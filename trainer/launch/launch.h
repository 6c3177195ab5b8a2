/* launch: `--ranks N` on one machine. This process runs mpirun, and mpirun runs this
 * program again, once for each rank. Without mpirun, or in a build without MPI, a process
 * of its own takes mpirun's place.
 *
 * Each rank has a line to this process, a local socket. Through it the rank gets the
 * terminal (so what mpirun itself prints is never seen) and gives its end: the result and
 * the sentence. A line that closes without one is a rank that died. Signals go the other
 * way. */
#ifndef TRAINER_LAUNCH_LAUNCH_H
#define TRAINER_LAUNCH_LAUNCH_H

#include <dcp/error.h>
#include <stdbool.h>
#include <sys/types.h>

/* Runs the ranks and returns what they agreed on: DCP_OK, or a failure with the sentence
 * of the rank that has it, or COMM when ranks died. Passes the first signal on; nothing
 * of the job is left when it returns. Errors besides: IO, MEMORY. */
int launch_ranks(int n_ranks, struct dcp_error *err);

/* In a rank: the line to the process that launched it. fd is -1 when there is none. */
struct launch_line {
    int fd;
};
/* Connects, and makes stdout and stderr those of the launcher. Errors: COMM. */
int launch_line_open(int rank, struct launch_line *out_line, struct dcp_error *err);
/* Tells how it ended and closes the line. */
void launch_line_close(struct launch_line *line, int rc, const struct dcp_error *err);

/* For launch.c. In the process that takes mpirun's place: starts the ranks, each by argv,
 * and ends with the last of them. */
void launch_here(int n_ranks, char **argv);
bool launch_has_mpirun(void); /* in PATH */

/* Processes below one that have not ended; -1: nobody knows. */
int launch_count_children(pid_t parent);

/* What both ends say. */
#define LAUNCH_ENV "DCP_LAUNCH" /* name of the socket */
#define LAUNCH_SECRET "DCP_JOB_SECRET"
struct launch_hello {
    int rank;
};
struct launch_end {
    int rc;
    struct dcp_error err;
};

#endif
