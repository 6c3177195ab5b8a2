#include "literals.h"
#include "base/mem.h"

enum { ZEROS = 1 << 16 };

static const unsigned char zeros[ZEROS];

int dcp_literals_take(struct dcp_target *target, int file, uint64_t offset,
                      const struct dcp_buf *buf, struct dcp_error *err)
{
    DCP_TRY(dcp_buf_check(buf, err));
    if (!buf->size_bytes)
        return DCP_OK;
    return dcp_target_literal_copy(target, file, offset, buf->data, buf->size_bytes, err);
}

int dcp_literals_zeros(struct dcp_target *target, int file, uint64_t offset, uint64_t n,
                       struct dcp_error *err)
{
    for (uint64_t at = 0; at < n; at += ZEROS)
        DCP_TRY(dcp_target_literal(target, file, offset + at, zeros,
                                   n - at < ZEROS ? (size_t)(n - at) : ZEROS, err));
    return DCP_OK;
}
