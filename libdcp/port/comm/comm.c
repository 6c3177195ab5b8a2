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

#define NO_MEMORY SIZE_MAX /* what a rank says instead of its size */

/* Lowest rank whose size says so, or -1. */
static int rank_without_memory(const size_t *sizes, int world_size)
{
    for (int r = 0; r < world_size; r++)
        if (sizes[r] == NO_MEMORY)
            return r;
    return -1;
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

/* Parts of different sizes, to all or to rank 0. */
static int collect_parts(struct dcp_comm *comm, bool to_all, const void *in,
                         size_t size_bytes, void **out, size_t *out_sizes,
                         struct dcp_error *err)
{
    bool gets = to_all || comm->rank == 0;
    size_t n_parts = gets || !comm->ops->gather ? (size_t)comm->world_size : 0;

    *out = NULL;
    int rc = dcp_comm_allgather(comm, &size_bytes, sizeof size_bytes, out_sizes, err);
    if (rc)
        return rc;
    size_t largest = 0;
    for (int r = 0; r < comm->world_size; r++)
        if (out_sizes[r] > largest)
            largest = out_sizes[r];

    /* A rank without memory cannot take part in what follows: all must know before. */
    unsigned char *parts = alloc_parts(n_parts, largest);
    size_t said = parts ? size_bytes : NO_MEMORY;
    rc = dcp_comm_allgather(comm, &said, sizeof said, out_sizes, err);
    int poor = rc ? -1 : rank_without_memory(out_sizes, comm->world_size);
    if (poor >= 0) {
        rc = dcp_error_set(err, DCP_E_MEMORY,
                           "rank %d: out of memory for the answers of %d ranks", poor,
                           comm->world_size);
        if (err)
            err->rank = poor;
    }
    if (!rc && largest) {
        unsigned char *sent = parts + n_parts * largest;
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
