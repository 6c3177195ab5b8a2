#include <dcp/comm.h>

#include "base/mem.h"
#include <stdbool.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 60000

static int timeout_of(const struct dcp_comm *comm)
{
    return comm->timeout_ms > 0 ? comm->timeout_ms : DEFAULT_TIMEOUT_MS;
}

void dcp_comm_free(struct dcp_comm *comm)
{
    if (comm && comm->ops && comm->ops->free)
        comm->ops->free(comm->self);
    if (comm)
        *comm = (struct dcp_comm){ 0 };
}

int dcp_comm_peer_dead(struct dcp_comm *comm)
{
    return comm->ops->peer_dead ? comm->ops->peer_dead(comm->self) : -1;
}

int dcp_comm_allgather(struct dcp_comm *comm, const void *in, size_t size_bytes,
                       void *out, struct dcp_error *err)
{
    return comm->ops->allgather(comm->self, in, size_bytes, out, timeout_of(comm), err);
}

int dcp_comm_gather(struct dcp_comm *comm, const void *in, size_t size_bytes, void *out,
                    struct dcp_error *err)
{
    if (!comm->ops->gather)
        return dcp_comm_allgather(comm, in, size_bytes, out, err);
    return comm->ops->gather(comm->self, in, size_bytes, out, timeout_of(comm), err);
}

int dcp_comm_bcast(struct dcp_comm *comm, void *data, size_t size_bytes, int root,
                   struct dcp_error *err)
{
    return comm->ops->bcast(comm->self, data, size_bytes, root, timeout_of(comm), err);
}

enum { USUAL_WORLD_SIZE = 256 };

/* Where there is nothing better. Who has no memory for it is seen to fall silent. */
static int least_of_all(struct dcp_comm *comm, int64_t mine, int64_t *out,
                        struct dcp_error *err)
{
    int64_t usual[USUAL_WORLD_SIZE], *all = usual;
    DCP_CLEANUP_FREE int64_t *more = NULL;

    if (comm->world_size > USUAL_WORLD_SIZE)
        all = more = dcp_mem_calloc((size_t)comm->world_size, sizeof *all);
    if (!all)
        return dcp_error_memory(err, "an agreement");
    int rc = dcp_comm_allgather(comm, &mine, sizeof mine, all, err);
    *out = mine;
    for (int r = 0; r < comm->world_size && !rc; r++)
        *out = all[r] < *out ? all[r] : *out;
    return rc;
}

int dcp_comm_least(struct dcp_comm *comm, int64_t mine, int64_t *out,
                   struct dcp_error *err)
{
    *out = mine;
    if (comm->world_size == 1)
        return DCP_OK;
    if (!comm->ops->least)
        return least_of_all(comm, mine, out, err);
    return comm->ops->least(comm->self, mine, out, timeout_of(comm), err);
}
