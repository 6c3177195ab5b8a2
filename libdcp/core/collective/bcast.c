#include "bcast.h"
#include "agree.h"

/* Room that every rank has before it knows how much comes. */
enum { READY_BYTES = 4096 };

int dcp_bcast_buf(struct dcp_comm *comm, struct dcp_buf *buf, int rc,
                  struct dcp_error *err)
{
    bool gives = comm->rank == 0;
    int64_t n = gives ? (int64_t)buf->size_bytes : DCP_AGREE_MOST;

    if (!gives && !rc)
        dcp_buf_add_fill(buf, 0, READY_BYTES);
    if (!rc)
        rc = dcp_buf_check(buf, err);
    rc = dcp_agree_least(comm, rc, &n, err);
    if (rc || comm->world_size == 1)
        return rc;
    if (n > READY_BYTES) {
        if (!gives)
            dcp_buf_add_fill(buf, 0, (size_t)n - READY_BYTES);
        rc = dcp_agree(comm, dcp_buf_check(buf, err), err);
    }
    if (rc)
        return rc;
    buf->size_bytes = (size_t)n;
    return n ? dcp_comm_bcast(comm, buf->data, (size_t)n, 0, err) : DCP_OK;
}
