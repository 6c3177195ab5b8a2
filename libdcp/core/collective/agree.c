/* agree: how every collective ends. The number of the lowest rank that failed goes round;
 * a sentence only where one did. */
#include <dcp/comm.h>

/* What a rank tells of its own failure. */
static struct dcp_error telling(int rank, int rc, const struct dcp_error *err)
{
    struct dcp_error told = { 0 };

    if (err)
        told = *err;
    told.code = rc;
    told.rank = rc == DCP_E_COMM && told.rank >= 0 ? told.rank : rank;
    return told;
}

int dcp_agree(struct dcp_comm *comm, int rc, struct dcp_error *err)
{
    struct dcp_error told = { 0 }, failure = { 0 };
    int64_t least = 0;

    if (comm->world_size == 1)
        return rc;
    int failed =
        dcp_comm_least(comm, rc ? comm->rank : comm->world_size, &least, &failure);
    int first = (int)least;
    if (!failed && first == comm->world_size)
        return DCP_OK;
    if (!failed && first == comm->rank)
        told = telling(first, rc, err);
    if (!failed)
        failed = dcp_comm_bcast(comm, &told, sizeof told, first, &failure);
    /* What this rank knew first says more than that others are gone. */
    if (rc && failed == DCP_E_COMM)
        return rc;
    if (failed) {
        if (err)
            *err = failure;
        return failed;
    }
    if (err)
        *err = told;
    return told.code;
}
