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

/* `n` parts and one more for sending, each `each` bytes long; NULL: none, or their size
 * overflows. */
static unsigned char *alloc_parts(size_t n, size_t each)
{
    return dcp_mem_calloc(n + 1, each);
}

/* Parts of one size, in rank order. */
static int collect(struct dcp_comm *comm, bool to_all, const void *in, size_t size_bytes,
                   void *out, struct dcp_error *err)
{
    if (to_all || !comm->ops->gather)
        return dcp_comm_allgather(comm, in, size_bytes, out, err);
    return comm->ops->gather(comm->self, in, size_bytes, out, timeout_of(comm), err);
}

/* A rank without memory cannot take part in what follows: all must know before. */
static int agree_on_memory(struct dcp_comm *comm, bool has, struct dcp_error *err)
{
    int64_t poor = 0;
    int rc = dcp_comm_least(comm, has ? comm->world_size : comm->rank, &poor, err);

    if (rc || poor == comm->world_size)
        return rc;
    rc = dcp_error_set(err, DCP_E_MEMORY,
                       "rank %d: out of memory for the answers of %d ranks", (int)poor,
                       comm->world_size);
    if (err)
        err->rank = (int)poor;
    return rc;
}

/* Parts of different sizes, to all or to rank 0. */
static int collect_parts(struct dcp_comm *comm, bool to_all, const void *in,
                         size_t size_bytes, void **out, size_t *out_sizes,
                         struct dcp_error *err)
{
    bool gets = to_all || comm->rank == 0;
    /* Where nothing gathers, who gets nothing needs room all the same. */
    size_t n_parts = gets || !comm->ops->gather ? (size_t)comm->world_size : 0;
    int64_t least = 0;

    *out = NULL;
    int rc = dcp_comm_least(comm, -(int64_t)size_bytes, &least, err);
    if (rc)
        return rc;
    size_t largest = (size_t)-least;
    size_t each = largest > sizeof largest ? largest : sizeof largest;
    unsigned char *parts = alloc_parts(n_parts, each);
    rc = agree_on_memory(comm, parts, err);
    if (!rc)
        rc = collect(comm, to_all, &size_bytes, sizeof size_bytes, n_parts ? parts : NULL,
                     err);
    if (!rc && gets)
        memcpy(out_sizes, parts, n_parts * sizeof *out_sizes);
    if (!rc && largest) {
        unsigned char *sent = parts + n_parts * each;
        if (size_bytes)
            memcpy(sent, in, size_bytes);
        rc = collect(comm, to_all, sent, largest, n_parts ? parts : NULL, err);
    }
    if (rc || !gets) {
        free(parts);
        return rc;
    }
    size_t used = 0; /* close the gaps between the parts */
    for (int r = 0; r < comm->world_size; r++) {
        memmove(parts + used, parts + (size_t)r * largest, out_sizes[r]);
        used += out_sizes[r];
    }
    *out = parts;
    return DCP_OK;
}

int dcp_comm_allgatherv(struct dcp_comm *comm, const void *in, size_t size_bytes,
                        void **out, size_t *out_sizes, struct dcp_error *err)
{
    return collect_parts(comm, true, in, size_bytes, out, out_sizes, err);
}

int dcp_comm_gatherv(struct dcp_comm *comm, const void *in, size_t size_bytes, void **out,
                     size_t *out_sizes, struct dcp_error *err)
{
    return collect_parts(comm, false, in, size_bytes, out, out_sizes, err);
}
