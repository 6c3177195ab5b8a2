#include "join.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include <stdlib.h>
#include <string.h>

/* Ranks see a death at different times. One that has seen it stays that long, so that the
 * others see that death and not its own leaving. */
#define LEAVE_US 800000

/* What starters of MPI jobs tell each process. */
static const struct starter {
    const char *rank, *world;
} starters[] = {
    { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
    { "PMI_RANK", "PMI_SIZE" },
    { "PMIX_RANK", "SLURM_STEP_NUM_TASKS" },
};

static int64_t number(const char *name)
{
    int64_t v = -1;
    const char *text = name ? getenv(name) : NULL;
    return text && dcp_str_parse_i64(text, &v) ? v : -1;
}

static const struct starter *find_starter(void)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(starters); i++)
        if (number(starters[i].rank) >= 0)
            return &starters[i];
    return NULL;
}

static int no_mpi(struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "this dcp-train was built without MPI: it can "
                  "only train with one rank");
    dcp_error_hint(err, "install libopenmpi-dev and build again");
    return DCP_E_UNSUPPORTED;
}

/* Started by torchrun or srun, but not as an MPI job. */
static int check_other_starters(struct dcp_error *err)
{
    int64_t world = number("WORLD_SIZE");
    if (number("RANK") >= 0 && world > 1) {
        dcp_error_set(err, DCP_E_UNSUPPORTED,
                      "RANK and WORLD_SIZE say that this is one of %lld ranks, but there "
                      "is no MPI job to find the others through",
                      (long long)world);
        dcp_error_hint(err, "start it with 'dcp-train --ranks N', mpirun or srun "
                            "--mpi=pmix instead of torchrun");
        return DCP_E_UNSUPPORTED;
    }
    world = number("SLURM_STEP_NUM_TASKS");
    if (number("SLURM_PROCID") >= 0 && world > 1) {
        dcp_error_set(err, DCP_E_UNSUPPORTED,
                      "srun started %lld tasks, but not as an MPI job", (long long)world);
        dcp_error_hint(err, "start them with 'srun --mpi=pmix'");
        return DCP_E_UNSUPPORTED;
    }
    return DCP_OK;
}

int join_kind(int64_t n_ranks, enum join_kind *out_kind, struct dcp_error *err)
{
    const struct starter *starter = find_starter();
    if (starter) {
        *out_kind = JOIN_MPI;
        return DCP_HAS_MPI || number(starter->world) <= 1 ? DCP_OK : no_mpi(err);
    }
    *out_kind = n_ranks > 1 ? JOIN_LAUNCH : JOIN_ALONE;
    if (n_ranks > 1)
        return DCP_HAS_MPI ? DCP_OK : no_mpi(err);
    return check_other_starters(err);
}

static int open_mpi(struct join *join, int64_t n_ranks, struct dcp_error *err)
{
    const struct starter *starter = find_starter();
    int rc = launch_line_open((int)number(starter->rank), &join->line, err);
#if DCP_HAS_MPI
    if (!rc)
        rc = join_mpi_open(join, err);
#endif
    if (!rc && n_ranks && n_ranks != join->world)
        return dcp_error_set(err, DCP_E_USAGE,
                             "--ranks says %lld, but %d ranks were started",
                             (long long)n_ranks, join->world);
    int64_t tasks = number(starter->world);
    if (!rc && tasks > 1 && join->world == 1) {
        dcp_error_set(err, DCP_E_UNSUPPORTED,
                      "%lld ranks were started, but the MPI library of this program does "
                      "not see the others",
                      (long long)tasks);
        dcp_error_hint(err, "start it with the mpirun of the Open MPI it is linked with");
        return DCP_E_UNSUPPORTED;
    }
    return rc;
}

int join_open(enum join_kind kind, int64_t n_ranks, struct join *out_join,
              struct dcp_error *err)
{
    *out_join = (struct join){ .world = 1, .local_world = 1, .line.fd = -1 };
    dcp_comm_self(&out_join->comm);
    coll_self(&out_join->coll);
    int rc = kind == JOIN_MPI ? open_mpi(out_join, n_ranks, err) : DCP_OK;
    if (rc)
        join_close(out_join, rc, err);
    return rc;
}

void join_close(struct join *join, int rc, const struct dcp_error *err)
{
    /* A failure that was not agreed on names no rank: the others still wait for this one,
     * and must see it go. */
    bool alone = rc && rc != DCP_E_STOPPED && err->rank < 0;
    bool broken = join->world > 1 && (rc == DCP_E_COMM || alone);
    if (broken && !alone)
        dcp_clock_sleep_us(LEAVE_US);
    launch_line_close(&join->line, rc, err);
    if (!broken)
        coll_free(&join->coll);
    dcp_comm_free(&join->comm);
#if DCP_HAS_MPI
    if (join->mpi && !broken)
        join_mpi_close(join);
#endif
}
