#include "bcast.h"
#include "agree.h"

int dcp_bcast_buf(struct dcp_comm *comm, struct dcp_buf *buf, int rc,
                  struct dcp_error *err)
{
    bool gives = comm->rank == 0;
    int64_t n = gives ? (int64_t)buf->size_bytes : DCP_AGREE_MOST;

    if (!gives && !rc)
        dcp_buf_add_fill(buf, 0, DCP_READY_BYTES);
    if (!rc)
        rc = dcp_buf_check(buf, err);
    rc = dcp_agree_least(comm, rc, &n, err);
    if (rc || comm->world_size == 1)
        return rc;
    if (n > DCP_READY_BYTES) {
        if (!gives)
            dcp_buf_add_fill(buf, 0, (size_t)n - DCP_READY_BYTES);
        rc = dcp_agree(comm, dcp_buf_check(buf, err), err);
    }
    if (rc)
        return rc;
    buf->size_bytes = (size_t)n;
    return n ? dcp_comm_bcast(comm, buf->data, (size_t)n, 0, err) : DCP_OK;
}
