#include "literals.h"

enum { ZEROS = 1 << 16 };

static const unsigned char zeros[ZEROS];

int dcp_literals_take(struct dcp_target *target, int file, uint64_t offset,
                      const struct dcp_buf *buf, struct dcp_error *err)
{
    int rc = dcp_buf_check(buf, err);

    if (rc || !buf->size_bytes)
        return rc;
    return dcp_target_literal_copy(target, file, offset, buf->data, buf->size_bytes, err);
}

int dcp_literals_zeros(struct dcp_target *target, int file, uint64_t offset, uint64_t n,
                       struct dcp_error *err)
{
    int rc = DCP_OK;

    for (uint64_t at = 0; at < n && !rc; at += ZEROS)
        rc = dcp_target_literal(target, file, offset + at, zeros,
                                n - at < ZEROS ? (size_t)(n - at) : ZEROS, err);
    return rc;
}
