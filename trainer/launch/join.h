/* join: how this process becomes a rank: alone, as one of those that mpirun, srun or
 * torchrun started, or not at all: it starts them. */
#ifndef TRAINER_LAUNCH_JOIN_H
#define TRAINER_LAUNCH_JOIN_H

#include "launch.h"
#include "trainer/coll/coll.h"
#include <dcp/comm.h>
#include <stdbool.h>

enum join_kind {
    JOIN_ALONE, /* a single rank, without MPI */
    JOIN_MPI,   /* one of the ranks of an MPI job */
    JOIN_TCP,   /* one of those that find each other by MASTER_ADDR and MASTER_PORT */
    JOIN_LAUNCH /* start the ranks: launch_ranks */
};

/* From the environment and --ranks (0: not given). Errors: UNSUPPORTED (several ranks of
 * an MPI job, in a build without MPI). */
int join_kind(int64_t n_ranks, enum join_kind *out_kind, struct dcp_error *err);

struct join {
    int rank, world_size;
    int local_rank, local_world_size; /* among the ranks on this machine */
    bool mpi, tcp;
    bool mpi_threads; /* MPI may be called by several threads of a rank */
    bool open_door;   /* the start over TCP was without a secret */
    struct dcp_comm comm;
    struct coll coll;
    struct launch_line line;
};

/* Collective. n_ranks as in join_kind; secret_file: of the job, or NULL; what is wrong
 * with it is an error of every kind. *out_join is to be closed after a failure, too.
 * Errors: COMM, USAGE, MEMORY; those of the file. */
int join_open(enum join_kind kind, int64_t n_ranks, const char *secret_file,
              struct join *out_join, struct dcp_error *err);
/* rc and err: how the rank ended, for the launcher. After a failure that the ranks did
 * not agree on MPI is left as it is: others may be gone, or wait for this one. */
void join_close(struct join *join, int rc, const struct dcp_error *err);

/* For join.c. What starters tell each process: names in the environment. */
struct join_starter {
    const char *rank, *world_size, *local_rank, *local_world_size;
};
int join_tcp_open(struct join *join, const struct join_starter *starter,
                  const char *secret, struct dcp_error *err);
/* The secret of a job, from a file, or (file NULL, and it is needed) from DCP_JOB_SECRET
 * or the file that DCP_JOB_SECRET_FILE names; *out is NULL when there is none. Takes it
 * out of the environment, so that no program started from here gets it. Caller frees.
 * Errors: USAGE (shorter than any secret is, or no text), those of the file. */
int join_secret(const char *file, bool needed, char **out, struct dcp_error *err);
/* MPI's part. */
int join_mpi_open(struct join *join, struct dcp_error *err);
void join_mpi_close(struct join *join);

#endif
