/* format_pieces: moving elements, in the plainest way there is. */
#include "lib/format_pieces.h"
#include <string.h>

bool format_has_parts(const struct dcp_catalog *catalog, const struct dcp_tensor *tensor)
{
    const struct dcp_piece *piece = &catalog->pieces[tensor->first_piece];

    return tensor->n_pieces > 1 ||
           (tensor->n_pieces == 1 && (piece->region.kind != DCP_WHOLE || piece->stride));
}

void format_move_elements(const struct dcp_tensor *tensor, const struct dcp_piece *piece,
                          unsigned char *extent, unsigned char *dense, bool to_extent)
{
    bool box = piece->region.kind == DCP_BOX;
    const int64_t *size = box ? piece->region.size : tensor->shape;
    int64_t at[DCP_MAX_NDIM] = { 0 }, stride[DCP_MAX_NDIM], n = 1;
    size_t item = dcp_dtype_size(tensor->dtype);

    if (piece->region.kind == DCP_FLAT) {
        dense += (size_t)piece->region.begin * item;
        n = piece->region.end - piece->region.begin;
        memcpy(to_extent ? extent : dense, to_extent ? dense : extent, (size_t)n * item);
        return;
    }
    for (int d = tensor->ndim; d-- > 0; n *= size[d])
        stride[d] = piece->stride ? piece->stride[d] : n;
    for (int64_t e = 0; e < n; e++) {
        int64_t in_extent = 0, in_tensor = 0, step = 1;
        for (int d = tensor->ndim; d-- > 0; step *= tensor->shape[d]) {
            in_extent += at[d] * stride[d];
            in_tensor += (at[d] + (box ? piece->region.offset[d] : 0)) * step;
        }
        unsigned char *p = extent + (size_t)in_extent * item;
        unsigned char *q = dense + (size_t)in_tensor * item;
        memcpy(to_extent ? p : q, to_extent ? q : p, item);
        for (int d = tensor->ndim; d-- > 0;) {
            if (++at[d] < size[d])
                break;
            at[d] = 0;
        }
    }
}
