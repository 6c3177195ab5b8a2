/* gather: each part is sent with its size before it, in the room of the largest. The
 * least number goes round first; that of the largest part is the smallest. */
#include "gather.h"
#include "agree.h"
#include "base/mem.h"
#include <string.h>

struct parts {
    unsigned char *bytes; /* `n` parts, and behind them the one that is sent */
    size_t n, each;
};

/* Room for parts of `largest` bytes. The same way on all ranks: who has none cannot take
 * part in what follows. */
static int make_room(struct dcp_comm *comm, struct parts *parts, size_t largest,
                     struct dcp_error *err)
{
    size_t world_size = (size_t)comm->world_size;

    parts->each = sizeof largest + largest;
    if (parts->each <= DCP_READY_BYTES / (world_size + 1))
        return DCP_OK;
    free(parts->bytes);
    parts->bytes = dcp_mem_calloc(parts->n + 1, parts->each);
    int rc = parts->bytes ? DCP_OK : dcp_error_memory(err, "the answers of all ranks");
    return dcp_agree(comm, rc, err);
}

/* Parts of one size, in rank order. */
static int collect(struct dcp_comm *comm, bool to_all, const struct parts *parts,
                   struct dcp_error *err)
{
    const unsigned char *sent = parts->bytes + parts->n * parts->each;

    if (to_all)
        return dcp_comm_allgather(comm, sent, parts->each, parts->bytes, err);
    return dcp_comm_gather(comm, sent, parts->each, parts->n ? parts->bytes : NULL, err);
}

/* Closes the gaps between the parts. */
static void join(const struct parts *parts, size_t *out_sizes)
{
    size_t used = 0, size;

    for (size_t r = 0; r < parts->n; r++) {
        const unsigned char *part = parts->bytes + r * parts->each;
        memcpy(&size, part, sizeof size);
        memmove(parts->bytes + used, part + sizeof size, size);
        out_sizes[r] = size;
        used += size;
    }
}

static int gather(struct dcp_comm *comm, bool to_all, const void *in, size_t size_bytes,
                  int rc, void **out, size_t *out_sizes, struct dcp_error *err)
{
    bool gets = to_all || comm->rank == 0;
    /* Where nothing gathers, who gets nothing needs room all the same. */
    bool needs = gets || !comm->ops->gather;
    struct parts parts = { .n = needs ? (size_t)comm->world_size : 0 };
    int64_t least = DCP_AGREE_MOST - (int64_t)size_bytes;

    *out = NULL;
    parts.bytes = dcp_mem_calloc(1, DCP_READY_BYTES);
    if (!rc && !parts.bytes)
        rc = dcp_error_memory(err, "the answers of all ranks");
    rc = dcp_agree_least(comm, rc, &least, err);
    if (!rc)
        rc = make_room(comm, &parts, (size_t)(DCP_AGREE_MOST - least), err);
    if (!rc) {
        unsigned char *sent = parts.bytes + parts.n * parts.each;
        memcpy(sent, &size_bytes, sizeof size_bytes);
        if (size_bytes)
            memcpy(sent + sizeof size_bytes, in, size_bytes);
        rc = collect(comm, to_all, &parts, err);
    }
    if (!rc && gets) {
        join(&parts, out_sizes);
        *out = parts.bytes;
        return DCP_OK;
    }
    free(parts.bytes);
    return rc;
}

int dcp_comm_allgatherv(struct dcp_comm *comm, const void *in, size_t size_bytes,
                        void **out, size_t *out_sizes, struct dcp_error *err)
{
    return gather(comm, true, in, size_bytes, DCP_OK, out, out_sizes, err);
}

int dcp_comm_gatherv(struct dcp_comm *comm, const void *in, size_t size_bytes, void **out,
                     size_t *out_sizes, struct dcp_error *err)
{
    return gather(comm, false, in, size_bytes, DCP_OK, out, out_sizes, err);
}

int dcp_gather_buf(struct dcp_comm *comm, bool to_all, const struct dcp_buf *buf, int rc,
                   struct dcp_gathered *out, struct dcp_error *err)
{
    *out = (struct dcp_gathered){ 0 };
    if (!rc)
        rc = dcp_buf_check(buf, err);
    if (!rc && (to_all || comm->rank == 0)) {
        out->sizes = dcp_mem_calloc((size_t)comm->world_size, sizeof *out->sizes);
        if (!out->sizes)
            rc = dcp_error_memory(err, "the answers of all ranks");
    }
    return gather(comm, to_all, buf->data, buf->size_bytes, rc, &out->all, out->sizes,
                  err);
}

void dcp_gathered_fini(struct dcp_gathered *gathered)
{
    free(gathered->all);
    free(gathered->sizes);
    *gathered = (struct dcp_gathered){ 0 };
}
