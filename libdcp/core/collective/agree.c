/* agree: how every collective ends. The number of the lowest rank that failed goes round;
 * a sentence only where one did. */
#include "agree.h"

/* What a rank tells of its failure: whose it is, where that was found out before. */
static struct dcp_error telling(int rank, int rc, const struct dcp_error *err)
{
    struct dcp_error told = { 0 };

    if (err)
        told = *err;
    if (!told.code || told.rank < 0)
        told.rank = rank;
    told.code = rc;
    return told;
}

int dcp_agree_vote(const struct dcp_comm *comm, int rc)
{
    return rc ? comm->rank : comm->world_size;
}

/* The ranks did not hear each other. What this one knew before says more than that others
 * are gone. */
static int not_heard(int rc, int lost, const struct dcp_error *why, struct dcp_error *err)
{
    if (rc && lost == DCP_E_COMM)
        return rc;
    if (err)
        *err = *why;
    return lost;
}

int dcp_agree_on(struct dcp_comm *comm, int64_t least, int rc, struct dcp_error *err)
{
    struct dcp_error told = { 0 }, why = { 0 };
    int first = (int)least;

    if (first == comm->world_size)
        return DCP_OK;
    if (comm->world_size == 1)
        return rc;
    if (first == comm->rank)
        told = telling(first, rc, err);
    int lost = dcp_comm_bcast(comm, &told, sizeof told, first, &why);
    if (lost)
        return not_heard(rc, lost, &why, err);
    if (err)
        *err = told;
    return told.code;
}

int dcp_agree_least(struct dcp_comm *comm, int rc, int64_t *number, struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    int64_t least = 0, mine = dcp_agree_vote(comm, rc);

    if (comm->world_size == 1)
        return rc;
    int lost = dcp_comm_least(comm, rc ? mine : mine + *number, &least, &why);
    if (lost)
        return not_heard(rc, lost, &why, err);
    if (least < comm->world_size)
        return dcp_agree_on(comm, least, rc, err);
    *number = least - comm->world_size;
    return DCP_OK;
}

int dcp_agree(struct dcp_comm *comm, int rc, struct dcp_error *err)
{
    int64_t none = 0;
    return dcp_agree_least(comm, rc, &none, err);
}
