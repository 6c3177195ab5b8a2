#include "bcast.h"

int dcp_bcast_buf(struct dcp_comm *comm, struct dcp_buf *buf, int rc,
                  struct dcp_error *err)
{
    uint64_t n = buf->size_bytes;

    if (!rc)
        rc = dcp_buf_check(buf, err);
    rc = dcp_agree(comm, rc, err);
    if (rc || comm->world_size == 1)
        return rc;
    rc = dcp_comm_bcast(comm, &n, sizeof n, 0, err);
    if (!rc && comm->rank != 0) {
        dcp_buf_add_fill(buf, 0, (size_t)n);
        rc = dcp_buf_check(buf, err);
    }
    rc = dcp_agree(comm, rc, err);
    if (!rc && n)
        rc = dcp_comm_bcast(comm, buf->data, (size_t)n, 0, err);
    return rc;
}
