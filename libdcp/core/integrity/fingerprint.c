#include "fingerprint.h"
#include "base/hash.h"
#include "core/catalog/region.h"
#include "core/catalog/scatter.h"

/* A run of the tensor that lies scattered in memory is gathered in this much. */
#define GATHER_BYTES 16384

/* The runs rise, so one register takes them all, and zeros for what lies between. crc:
 * of all n elements, or NULL. */
static uint64_t sum_of_runs(const struct dcp_tensor *tensor,
                            const struct dcp_region *region, int64_t at, int64_t n,
                            const unsigned char *bytes, const uint64_t *crc)
{
    uint64_t elem = dcp_dtype_size(tensor->dtype), total = dcp_tensor_bytes(tensor);
    uint64_t reg = 0, end = 0; /* bytes of the tensor that are in it */
    struct dcp_region_walk walk;
    int64_t flat, run_at, run, left = n;

    dcp_region_walk_init(&walk, tensor, region, at);
    while (dcp_region_walk_next(&walk, left, &flat, &run_at, &run)) {
        uint64_t run_bytes = (uint64_t)run * elem;
        reg = dcp_hash_crc64_shift(reg, (uint64_t)flat * elem - end);
        reg = crc && run == n ? dcp_hash_crc64_to_raw(*crc, run_bytes)
                              : dcp_hash_crc64_raw(reg, bytes, run_bytes);
        end = (uint64_t)flat * elem + run_bytes;
        bytes += run_bytes;
        left -= run;
    }
    return dcp_hash_crc64_shift(reg, total - end);
}

uint64_t dcp_fingerprint_part(const struct dcp_tensor *tensor,
                              const struct dcp_region *region, int64_t at, int64_t n,
                              const void *data, uint64_t crc)
{
    return sum_of_runs(tensor, region, at, n, data, &crc);
}

uint64_t dcp_fingerprint_read(const struct dcp_tensor *tensor,
                              const struct dcp_region *region, int64_t at, int64_t n,
                              const void *data)
{
    return sum_of_runs(tensor, region, at, n, data, NULL);
}

/* A piece whose axes are permuted, as a box of rows along the tensor's last axis. */
struct rows {
    int64_t size[DCP_MAX_NDIM];   /* of the box; 1 along the row */
    int64_t stride[DCP_MAX_NDIM]; /* in the piece's memory */
    int64_t flat[DCP_MAX_NDIM];   /* in the flattened tensor */
    int64_t index[DCP_MAX_NDIM];  /* of the row */
    int64_t n, step;              /* elements of a row, and between them in memory */
    int64_t at, first;            /* first element of the row, in memory and tensor */
};

static void rows_init(struct rows *rows, const struct dcp_tensor *tensor,
                      const struct dcp_piece *piece)
{
    int64_t offset[DCP_MAX_NDIM];
    int inner = tensor->ndim - 1;

    *rows = (struct rows){ .n = 1 };
    dcp_region_box(tensor, &piece->region, offset, rows->size);
    dcp_region_strides(tensor->shape, tensor->ndim, rows->flat);
    for (int d = 0; d < tensor->ndim; d++) {
        rows->stride[d] = piece->stride[d];
        rows->first += offset[d] * rows->flat[d];
    }
    while (inner > 0 && tensor->shape[inner] == 1)
        inner--;
    if (inner < 0)
        return;
    rows->n = rows->size[inner];
    rows->step = rows->stride[inner];
    rows->size[inner] = 1;
}

static bool rows_next(struct rows *rows, int ndim)
{
    for (int d = ndim - 1; d >= 0; d--) {
        rows->at += rows->stride[d];
        rows->first += rows->flat[d];
        if (++rows->index[d] < rows->size[d])
            return true;
        rows->at -= rows->size[d] * rows->stride[d];
        rows->first -= rows->size[d] * rows->flat[d];
        rows->index[d] = 0;
    }
    return false;
}

uint64_t dcp_fingerprint_piece(const struct dcp_tensor *tensor,
                               const struct dcp_piece *piece, int64_t at, int64_t n,
                               const void *data, uint64_t crc)
{
    size_t elem = dcp_dtype_size(tensor->dtype);
    uint64_t total = dcp_tensor_bytes(tensor), part = 0;
    unsigned char run[GATHER_BYTES];
    struct rows rows;

    if (!piece->stride)
        return dcp_fingerprint_part(tensor, &piece->region, at, n, data, crc);
    rows_init(&rows, tensor, piece);
    do {
        int64_t from, to, most = GATHER_BYTES / (int64_t)elem;
        dcp_scatter_clip(rows.at, rows.step, rows.n, at, at + n, &from, &to);
        for (int64_t k; from < to; from += k) {
            k = to - from < most ? to - from : most;
            const unsigned char *first = (const unsigned char *)data +
                                         (size_t)(rows.at + from * rows.step - at) * elem;
            dcp_scatter(run, 1, first, rows.step, k, elem);
            uint64_t bytes = (uint64_t)k * elem;
            uint64_t after = total - ((uint64_t)(rows.first + from) * elem + bytes);
            part ^= dcp_hash_crc64_shift(dcp_hash_crc64_raw(0, run, bytes), after);
        }
    } while (rows_next(&rows, tensor->ndim));
    return part;
}

uint64_t dcp_fingerprint_whole(const struct dcp_tensor *tensor, uint64_t parts)
{
    return dcp_hash_crc64_from_raw(parts, dcp_tensor_bytes(tensor));
}

bool dcp_replica_differs(const struct dcp_catalog *catalog, size_t piece)
{
    const struct dcp_piece *p = &catalog->pieces[piece];

    return dcp_region_is_replica(catalog, piece) && p->has_crc && p[-1].has_crc &&
           !p->stride == !p[-1].stride && p->crc != p[-1].crc;
}
