/* agree: how every collective ends. */
#include "base/mem.h"
#include <dcp/comm.h>
#include <string.h>

enum { USUAL_WORLD_SIZE = 8 };

int dcp_agree(struct dcp_comm *comm, int rc, struct dcp_error *err)
{
    struct dcp_error mine = { 0 };

    if (comm->world_size == 1)
        return rc;
    if (rc) {
        if (err)
            mine = *err;
        mine.code = rc;
        mine.rank = rc == DCP_E_COMM && mine.rank >= 0 ? mine.rank : comm->rank;
    }
    struct dcp_error usual[USUAL_WORLD_SIZE], failure = { 0 };
    DCP_CLEANUP_FREE struct dcp_error *more = NULL;
    struct dcp_error *all = usual;
    if (comm->world_size > USUAL_WORLD_SIZE)
        all = more = dcp_mem_calloc((size_t)comm->world_size, sizeof *all);
    if (!all) /* the others must still hear of it: they see this rank fall silent */
        return dcp_error_memory(err, "an agreement");
    int failed = dcp_comm_allgather(comm, &mine, sizeof mine, all, &failure);
    if (failed) {
        /* What this rank knew first says more than that others are gone. */
        if (!rc && err)
            *err = failure;
        return rc ? rc : failed;
    }
    int agreed = DCP_OK;
    for (int r = 0; r < comm->world_size && !agreed; r++) {
        agreed = all[r].code;
        if (agreed && err)
            *err = all[r];
    }
    return agreed;
}
