/* map: boxes whose bytes lie in a file as they are, for callers that map them. */
#include "checkpoint.h"

#include "base/mem.h"
#include "base/str.h"
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

struct box {
    const struct dcp_tensor *of;
    const int64_t *offset, *size;
};

/* Row-major ones; returns how many elements there are. */
static int64_t set_strides(const int64_t *size, int ndim, int64_t *out)
{
    int64_t n = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        out[d] = n;
        n *= size[d];
    }
    return n;
}

/* Whether a piece has all of a box: then the box's first element, in elements behind the
 * first of the piece, and the strides. */
static bool holds(const struct box *box, const struct dcp_piece *piece,
                  int64_t *out_first, int64_t *strides)
{
    const struct dcp_region *region = &piece->region;
    bool is_box = region->kind == DCP_BOX;
    int ndim = box->of->ndim;
    int64_t last = 0;

    set_strides(is_box ? region->size : box->of->shape, ndim, strides);
    *out_first = 0;
    for (int d = 0; d < ndim; d++) {
        int64_t begin = is_box ? region->offset[d] : 0;
        int64_t end = is_box ? begin + region->size[d] : box->of->shape[d];
        if (box->offset[d] < begin || box->offset[d] + box->size[d] > end)
            return false;
        if (piece->stride)
            strides[d] = piece->stride[d];
        *out_first += (box->offset[d] - begin) * strides[d];
        last += (box->size[d] - 1) * strides[d];
    }
    last += *out_first;
    if (region->kind != DCP_FLAT)
        return true;
    bool within = *out_first >= region->begin && last < region->end;
    *out_first -= region->begin;
    return within;
}

/* Why what lies there is not what is read; NULL: it is. */
static const char *why_not(const struct dcp_flat_checkpoint *checkpoint,
                           const struct dcp_piece *piece)
{
    if (!piece)
        return "lies in several pieces";
    if (piece->codec != DCP_CODEC_NONE || piece->skip)
        return "is compressed";
    if (piece->swap_bytes > 1)
        return "has the highest byte of its numbers first";
    if (piece->file < 0)
        return "was made while its file was opened"; /* of a pickle */
    if (checkpoint->location.rebuilt)
        return "is reconstructed from parity";
    return NULL;
}

static int refuse(const struct dcp_flat_checkpoint *checkpoint,
                  const struct dcp_tensor *of, const char *why, struct dcp_error *err)
{
    dcp_error_of_tensor(err, DCP_E_UNSUPPORTED, of->name,
                        "tensor '%s' of '%s' cannot be mapped: it %s",
                        DCP_SHOWN(of->name), checkpoint->location.path, why);
    dcp_error_hint(err, "read it instead");
    return DCP_E_UNSUPPORTED;
}

static int map_box(const struct dcp_flat_checkpoint *checkpoint, const struct box *box,
                   struct dcp_flat_mapping *out, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = checkpoint->catalog;
    const struct dcp_tensor *of = box->of;
    const struct dcp_piece *found = NULL;
    int64_t first = 0, size = (int64_t)dcp_dtype_size(of->dtype);

    DCP_TRY(dcp_flat_check_box(checkpoint, of, box->offset, box->size, err));
    for (int d = 0; d < of->ndim; d++)
        if (!box->size[d])
            return dcp_error_of_tensor(err, DCP_E_USAGE, of->name,
                                       "an empty box of tensor '%s' cannot be mapped",
                                       DCP_SHOWN(of->name));
    for (size_t p = of->first_piece; p < of->first_piece + of->n_pieces && !found; p++)
        if (holds(box, &catalog->pieces[p], &first, out->strides))
            found = &catalog->pieces[p];
    const char *why = why_not(checkpoint, found);
    if (why)
        return refuse(checkpoint, of, why, err);
    out->offset = found->offset + (uint64_t)(first * size);
    for (int d = 0; d < of->ndim; d++)
        out->strides[d] *= size;
    int fd = -1;
    DCP_TRY(dcp_location_descriptor(&checkpoint->location, &catalog->files[found->file],
                                    &fd, err));
    out->fd = fd;
    DCP_TRY(dcp_flat_check_replaced(checkpoint, of, DCP_OK, err));
    return fd < 0 ? refuse(checkpoint, of, "lies in an archive or in a delta", err)
                  : DCP_OK;
}

int32_t dcp_flat_box_map(struct dcp_flat_checkpoint *checkpoint, uint64_t tensor,
                         const int64_t *offset, const int64_t *size,
                         struct dcp_flat_mapping *out, struct dcp_flat_error *err)
{
    struct dcp_flat_mapping told = { .fd = -1 };
    struct dcp_error why = { 0 };
    int rc;

    if (tensor >= checkpoint->catalog->n_tensors)
        rc = dcp_error_set(&why, DCP_E_USAGE, "there is no tensor %" PRIu64, tensor);
    else
        rc = map_box(checkpoint,
                     &(struct box){ &checkpoint->catalog->tensors[tensor], offset, size },
                     &told, &why);
    if (rc && told.fd >= 0) {
        close(told.fd);
        told.fd = -1;
    }
    dcp_flat_give(out, &told, sizeof told);
    return dcp_flat_fail(err, rc, &why);
}
