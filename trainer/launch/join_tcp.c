/* A rank that torchrun or srun started: its number, and where rank 0 is, are in the
 * environment. */
#include "join.h"

#include <stdio.h>
#include <stdlib.h>

static const char *text(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static int64_t number(const char *name, int64_t otherwise)
{
    const char *value = name ? text(name) : NULL;
    char *end = NULL;
    long long v = value ? strtoll(value, &end, 10) : -1;
    bool whole = end && end != value && (!*end || *end == '('); /* Slurm: "4(x2)" */
    return whole && v >= 0 && v <= INT32_MAX ? v : otherwise;
}

/* What the ranks of one start share, and no others. */
static void name_job(char *out, size_t cap)
{
    const char *run = text("TORCHELASTIC_RUN_ID"), *slurm = text("SLURM_JOB_ID");
    const char *launch = text(LAUNCH_ENV);
    if (launch)
        snprintf(out, cap, "%s", launch);
    else if (run)
        snprintf(out, cap, "torch %s, start %s", run,
                 text("TORCHELASTIC_RESTART_COUNT") ? text("TORCHELASTIC_RESTART_COUNT")
                                                    : "0");
    else if (slurm)
        snprintf(out, cap, "slurm %s.%s", slurm,
                 text("SLURM_STEP_ID") ? text("SLURM_STEP_ID") : "0");
    else
        out[0] = '\0';
}

int join_tcp_open(struct join *join, const struct join_starter *starter,
                  const char *secret, struct dcp_error *err)
{
    char job[256];
    struct dcp_comm_tcp_options options = {
        .rank = (int)number(starter->rank, -1),
        .world_size = (int)number(starter->world_size, 0),
        .host = text("MASTER_ADDR"),
        .port = (int)number("MASTER_PORT", 0),
        .job = job,
        .secret = secret,
    };
    name_job(job, sizeof job);
    if (!options.host || !options.port) {
        dcp_error_set(err, DCP_E_USAGE,
                      "%s says that this is one of %d ranks, but MASTER_ADDR and "
                      "MASTER_PORT do not say where rank 0 is",
                      starter->world_size, options.world_size);
        dcp_error_hint(err, "start it with torchrun, mpirun or 'dcp-train --ranks N', or "
                            "set both on all ranks");
        return DCP_E_USAGE;
    }
    int rc = dcp_comm_tcp(&join->comm, &options, err);
    if (rc)
        return rc;
    join->tcp = true;
    join->open_door = !secret;
    join->rank = options.rank;
    join->world_size = options.world_size;
    join->local_rank = (int)number(starter->local_rank, options.rank);
    join->local_world_size = (int)number(starter->local_world_size, options.world_size);
    return coll_control(&join->coll, &join->comm, err);
}
