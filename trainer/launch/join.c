#include "join.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include <stdlib.h>
#include <string.h>

/* Ranks see a death at different times. One that has seen it stays that long, so that the
 * others see that death and not its own leaving. */
#define LEAVE_US 800000

/* Of MPI jobs. */
static const struct join_starter mpi_starters[] = {
    { .rank = "OMPI_COMM_WORLD_RANK", .world_size = "OMPI_COMM_WORLD_SIZE" },
    { .rank = "PMI_RANK", .world_size = "PMI_SIZE" },
    { .rank = "PMIX_RANK", .world_size = "SLURM_STEP_NUM_TASKS" },
};
/* Of others. */
static const struct join_starter tcp_starters[] = {
    { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE" },
    { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
      "SLURM_STEP_TASKS_PER_NODE" },
};

static int64_t number(const char *name)
{
    int64_t v = -1;
    const char *text = name ? getenv(name) : NULL;
    return text && dcp_str_parse_i64(text, &v) ? v : -1;
}

static const struct join_starter *find_mpi(void)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(mpi_starters); i++)
        if (number(mpi_starters[i].rank) >= 0)
            return &mpi_starters[i];
    return NULL;
}

/* Of a single rank nobody needs to be found. */
static const struct join_starter *find_tcp(void)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(tcp_starters); i++)
        if (number(tcp_starters[i].rank) >= 0 && number(tcp_starters[i].world_size) > 1)
            return &tcp_starters[i];
    return NULL;
}

/* It may itself have been started by srun or mpirun, whose variables all its processes
 * have alike. */
static bool is_torchrun(void)
{
    return getenv("TORCHELASTIC_RUN_ID") && number("LOCAL_RANK") >= 0 && find_tcp();
}

static int no_mpi(struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "this dcp-train was built without MPI, but MPI started its ranks");
    dcp_error_hint(err, "start it with --ranks, torchrun or srun, or build it with MPI");
    return DCP_E_UNSUPPORTED;
}

int join_kind(int64_t n_ranks, enum join_kind *out_kind, struct dcp_error *err)
{
    const struct join_starter *mpi = is_torchrun() ? NULL : find_mpi();
    *out_kind = mpi           ? JOIN_MPI
                : find_tcp()  ? JOIN_TCP
                : n_ranks > 1 ? JOIN_LAUNCH
                              : JOIN_ALONE;
    bool needs_mpi = mpi && number(mpi->world_size) > 1;
    return needs_mpi && !DCP_HAS_MPI ? no_mpi(err) : DCP_OK;
}

static int check_ranks(const struct join *join, int64_t n_ranks, struct dcp_error *err)
{
    if (!n_ranks || n_ranks == join->world_size)
        return DCP_OK;
    return dcp_error_set(err, DCP_E_USAGE, "--ranks is %lld, but %d ranks were started",
                         (long long)n_ranks, join->world_size);
}

static int open_mpi(struct join *join, const struct join_starter *starter,
                    struct dcp_error *err)
{
    int rc = DCP_OK;
#if DCP_HAS_MPI
    rc = join_mpi_open(join, err);
#endif
    int64_t tasks = number(starter->world_size);
    if (!rc && tasks > 1 && join->world_size == 1) {
        dcp_error_set(err, DCP_E_UNSUPPORTED,
                      "%lld ranks were started, but the MPI library of this program does "
                      "not see the others",
                      (long long)tasks);
        dcp_error_hint(err, "start it with the mpirun of the Open MPI it is linked with");
        return DCP_E_UNSUPPORTED;
    }
    return rc;
}

/* Only over TCP the secret is needed to find the others; elsewhere they hear of a mistake
 * in it. */
int join_open(enum join_kind kind, int64_t n_ranks, const char *secret_file,
              struct join *out_join, struct dcp_error *err)
{
    const struct join_starter *starter = kind == JOIN_MPI   ? find_mpi()
                                         : kind == JOIN_TCP ? find_tcp()
                                                            : NULL;
    DCP_CLEANUP_FREE char *secret = NULL;
    struct dcp_error why = { 0 };
    int rc = DCP_OK;
    *out_join = (struct join){ .world_size = 1, .local_world_size = 1, .line.fd = -1 };
    dcp_comm_self(&out_join->comm);
    coll_self(&out_join->coll);
    int of_secret = join_secret(secret_file, kind == JOIN_TCP, &secret, &why);
    if (starter)
        rc = launch_line_open((int)number(starter->rank), &out_join->line, err);
    if (!rc && kind == JOIN_MPI)
        rc = open_mpi(out_join, starter, err);
    if (!rc && of_secret && err)
        *err = why;
    if (!rc)
        rc = dcp_agree(&out_join->comm, of_secret, err);
    if (!rc && kind == JOIN_TCP)
        rc = join_tcp_open(out_join, starter, secret, err);
    if (!rc && starter)
        rc = dcp_agree(&out_join->comm, check_ranks(out_join, n_ranks, err), err);
    return rc;
}

void join_close(struct join *join, int rc, const struct dcp_error *err)
{
    /* A failure that was not agreed on names no rank: the others still wait for this one,
     * and must see it go. */
    bool alone = rc && rc != DCP_E_STOPPED && err->rank < 0;
    bool broken = join->world_size > 1 && (rc == DCP_E_COMM || alone);
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
