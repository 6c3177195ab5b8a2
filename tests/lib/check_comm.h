/* check_comm: what every implementation of <dcp/comm.h> must do.
 *
 * cmocka's asserts belong to the main thread: a rank returns what is wrong instead, as
 * the number of a line, 0: nothing. */
#ifndef TESTS_LIB_CHECK_COMM_H
#define TESTS_LIB_CHECK_COMM_H

#include <dcp/comm.h>

#define CHECK_COMM_MAX_WORLD_SIZE 16

#define WANT(condition)      \
    do {                     \
        if (!(condition))    \
            return __LINE__; \
    } while (0)

/* Runs a rank on a thread for each comm, then frees the comms. Returns how many ranks had
 * something wrong, and tells which on stderr. */
int check_comm_run(struct dcp_comm *comms, int world_size, int timeout_ms,
                   int (*run)(struct dcp_comm *comm));

/* Values of many sizes through all functions. */
int check_comm_values(struct dcp_comm *comm);
/* This and every later call fails the same way. */
int check_comm_failure(struct dcp_comm *comm, int wanted, int rank_state,
                       const char *message);
/* Rank 3 stays away. */
int check_comm_silent(struct dcp_comm *comm);
/* Rank 1 makes another call than the others. */
int check_comm_other_size(struct dcp_comm *comm);
int check_comm_other_kind(struct dcp_comm *comm);
int check_comm_other_number(struct dcp_comm *comm);
int check_comm_other_root(struct dcp_comm *comm);
int check_comm_bad_arguments(struct dcp_comm *comm);

#endif
