/* agree: how every collective ends. Codes go round; a sentence only where one failed. */
#include "base/mem.h"
#include <dcp/comm.h>
#include <string.h>

enum { USUAL_WORLD_SIZE = 256 };

/* The lowest rank that failed, or -1. */
static int lowest_failed(const int32_t *codes, int world_size)
{
    for (int r = 0; r < world_size; r++)
        if (codes[r])
            return r;
    return -1;
}

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
    int32_t usual[USUAL_WORLD_SIZE], *codes = usual, mine = rc;
    struct dcp_error told = { 0 }, failure = { 0 };
    DCP_CLEANUP_FREE int32_t *more = NULL;
    int first = -1;

    if (comm->world_size == 1)
        return rc;
    if (comm->world_size > USUAL_WORLD_SIZE)
        codes = more = dcp_mem_calloc((size_t)comm->world_size, sizeof *codes);
    if (!codes) /* the others must still hear of it: they see this rank fall silent */
        return dcp_error_memory(err, "an agreement");
    int failed = dcp_comm_allgather(comm, &mine, sizeof mine, codes, &failure);
    if (!failed)
        first = lowest_failed(codes, comm->world_size);
    if (!failed && first < 0)
        return DCP_OK;
    if (first == comm->rank)
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
