#include "holdings.h"
#include "base/mem.h"
#include "core/catalog/pack.h"
#include "core/catalog/region.h"
#include "small.h"
#include <string.h>

int dcp_holdings_pack(const struct dcp_catalog *mine, const struct dcp_device *device,
                      struct dcp_buf *buf, struct dcp_error *err)
{
    unsigned char small[DCP_SMALL_BYTES];

    for (size_t p = 0; p < mine->n_pieces; p++) {
        const struct dcp_piece *piece = &mine->pieces[p];
        const struct dcp_tensor *tensor = &mine->tensors[piece->tensor];
        size_t n = (size_t)dcp_piece_bytes(mine, piece);
        const void *bytes = piece->data;
        dcp_pack_region(&piece->region, tensor->ndim, buf);
        if (!dcp_small_is_cut(tensor, &piece->region))
            continue;
        if (!dcp_device_reads(device, bytes)) {
            DCP_TRY(device->ops->to_host(device->self, small, bytes, n, err));
            bytes = small;
        }
        dcp_buf_add(buf, bytes, n);
    }
    return dcp_buf_check(buf, err);
}

int dcp_holding_next(struct dcp_cursor *in, const struct dcp_tensor *tensor, int rank,
                     int64_t dims[2][DCP_MAX_NDIM], struct dcp_holding *out,
                     struct dcp_error *err)
{
    *out = (struct dcp_holding){ .rank = rank };
    out->region = dcp_unpack_region(in, tensor->ndim, dims);
    if (!in->bad)
        DCP_TRY(dcp_region_check(tensor, &out->region, err));
    if (!in->bad && dcp_small_is_cut(tensor, &out->region))
        out->bytes = dcp_cursor_take(in, (size_t)dcp_region_elems(tensor, &out->region) *
                                             dcp_dtype_size(tensor->dtype));
    return in->bad ? dcp_error_set(err, DCP_E_CORRUPT,
                                   "what rank %d tells of its tensors is corrupt", rank)
                   : DCP_OK;
}

void dcp_holding_join(const struct dcp_tensor *tensor, const struct dcp_holding *part,
                      unsigned char *whole)
{
    size_t elem = dcp_dtype_size(tensor->dtype);
    struct dcp_region_walk walk;
    int64_t flat, at, n;

    dcp_region_walk_init(&walk, tensor, &part->region, 0);
    while (dcp_region_walk_next(&walk, INT64_MAX, &flat, &at, &n))
        memcpy(whole + (size_t)flat * elem, part->bytes + (size_t)at * elem,
               (size_t)n * elem);
}
