#include "fold.h"
#include "base/mem.h"

/* Of all ranks together, and of each. */
#define SLICE_BYTES ((size_t)1 << 20)
#define LEAST_BYTES 512

static void fold(enum dcp_fold how, unsigned char *to, const unsigned char *from,
                 size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (unsigned char)(how == DCP_FOLD_OR ? to[i] | from[i] : to[i] ^ from[i]);
}

int dcp_fold(struct dcp_comm *comm, enum dcp_fold how, void *bytes, size_t n,
             struct dcp_error *err)
{
    size_t world_size = (size_t)comm->world_size, each = SLICE_BYTES / world_size, m;
    bool needs_all = comm->rank == 0 || !comm->ops->gather;
    unsigned char *mine = bytes;

    if (world_size == 1)
        return DCP_OK;
    each = each < LEAST_BYTES ? LEAST_BYTES : each;
    each = each < n ? each : n;
    DCP_CLEANUP_FREE unsigned char *all =
        needs_all ? dcp_mem_calloc(world_size, each) : NULL;
    int rc = needs_all && !all ? dcp_error_memory(err, "what all ranks add up") : DCP_OK;
    rc = dcp_agree(comm, rc, err);
    for (size_t at = 0; at < n && !rc; at += m) {
        m = n - at < each ? n - at : each;
        rc = dcp_comm_gather(comm, mine + at, m, all, err);
        for (size_t r = 1; r < world_size && comm->rank == 0 && !rc; r++)
            fold(how, mine + at, all + r * m, m);
    }
    return rc ? rc : n ? dcp_comm_bcast(comm, bytes, n, 0, err) : DCP_OK;
}
