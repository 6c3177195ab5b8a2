/* Deals as they are told, and as a rank takes its part. */
#include "deals.h"
#include "base/mem.h"
#include "core/catalog/pack.h"
#include "core/catalog/region.h"

void dcp_deals_pack(const struct dcp_catalog *catalog, struct dcp_buf *buf)
{
    int last = 0;

    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        dcp_buf_add_varint(buf, (uint64_t)(piece->tensor - last));
        dcp_buf_add_varint(buf, (uint64_t)piece->rank);
        dcp_pack_region(&piece->region, catalog->tensors[piece->tensor].ndim, buf);
        last = piece->tensor;
    }
}

/* One deal after the other, by tensor. */
struct deal {
    size_t tensor; /* behind the last: all */
    int rank;
    struct dcp_region region;
    int64_t dims[2][DCP_MAX_NDIM];
};

static int next_deal(struct dcp_cursor *in, const struct dcp_catalog *catalog,
                     struct deal *deal, struct dcp_error *err)
{
    if (!in->bad && !dcp_cursor_left(in)) {
        deal->tensor = SIZE_MAX;
        return DCP_OK;
    }
    uint64_t further = dcp_cursor_varint(in), rank = dcp_cursor_varint(in);
    if (in->bad || further >= catalog->n_tensors - deal->tensor ||
        rank >= (uint64_t)catalog->world_size)
        return dcp_error_set(err, DCP_E_CORRUPT, "what rank 0 deals is corrupt");
    deal->tensor += (size_t)further;
    deal->rank = (int)rank;
    const struct dcp_tensor *tensor = &catalog->tensors[deal->tensor];
    deal->region = dcp_unpack_region(in, tensor->ndim, deal->dims);
    if (in->bad)
        return dcp_error_set(err, DCP_E_CORRUPT, "what rank 0 deals is corrupt");
    return dcp_region_check(tensor, &deal->region, err);
}

/* Regions of a state that are not equal overlap only where one was cut from the other. */
static bool overlap(const struct dcp_tensor *tensor, const struct dcp_region *a,
                    const struct dcp_region *b)
{
    int64_t a_begin, a_end, b_begin, b_end;

    if (dcp_region_interval(tensor, a, &a_begin, &a_end) &&
        dcp_region_interval(tensor, b, &b_begin, &b_end))
        return a_begin < b_end && b_begin < a_end;
    if (a->kind == DCP_FLAT || b->kind == DCP_FLAT)
        return false; /* a flat range is no part of a box that is none */
    int64_t a_at[DCP_MAX_NDIM], a_n[DCP_MAX_NDIM], b_at[DCP_MAX_NDIM], b_n[DCP_MAX_NDIM];
    bool both = true;
    dcp_region_box(tensor, a, a_at, a_n);
    dcp_region_box(tensor, b, b_at, b_n);
    for (int d = 0; d < tensor->ndim; d++)
        both = both && a_at[d] < b_at[d] + b_n[d] && b_at[d] < a_at[d] + a_n[d];
    return both;
}

/* Where in the caller's memory a piece lies that is what it gave, or rows of it. */
static void *find_data(const struct dcp_tensor *tensor, const struct dcp_piece *local,
                       const struct dcp_region *region)
{
    int64_t begin, end, my_begin, my_end;
    size_t skip = 0;

    if (dcp_region_interval(tensor, region, &begin, &end) &&
        dcp_region_interval(tensor, &local->region, &my_begin, &my_end)) {
        skip = (size_t)(begin - my_begin);
    } else if (region->kind == DCP_BOX && local->region.kind == DCP_BOX) {
        int64_t stride[DCP_MAX_NDIM];
        dcp_region_strides(local->region.size, tensor->ndim, stride);
        skip = (size_t)((region->offset[0] - local->region.offset[0]) * stride[0]);
    }
    return (unsigned char *)local->data + skip * dcp_dtype_size(tensor->dtype);
}

static int take(struct dcp_catalog *out, const struct dcp_piece *local,
                const struct dcp_region *region, bool is_held, int rank,
                struct dcp_error *err)
{
    struct dcp_piece piece = {
        .tensor = local->tensor, .rank = rank, .region = *region, .file = -1
    };

    if (is_held)
        piece.data = find_data(&out->tensors[piece.tensor], local, region);
    return dcp_catalog_add_piece(out, &piece, err);
}

int dcp_deals_take(struct dcp_cursor *in, const struct dcp_piece *held, int rank,
                   struct dcp_catalog *out, struct dcp_error *err)
{
    struct deal deal = { 0 };

    if (!out->n_tensors)
        return DCP_OK;
    DCP_TRY(next_deal(in, out, &deal, err));
    for (size_t t = 0; t < out->n_tensors; t++) {
        const struct dcp_piece *local = &held[t];
        const struct dcp_tensor *tensor = &out->tensors[t];
        int64_t n_held = dcp_region_elems(tensor, &local->region);
        bool dealt = false;
        while (deal.tensor == t) {
            int64_t n = dcp_region_elems(tensor, &deal.region);
            dealt |= n_held && overlap(tensor, &local->region, &deal.region);
            if (deal.rank == rank)
                DCP_TRY(take(out, local, &deal.region, n <= n_held, rank, err));
            DCP_TRY(next_deal(in, out, &deal, err));
        }
        if (n_held && !dealt)
            DCP_TRY(take(out, local, &local->region, true, rank, err));
    }
    return DCP_OK;
}
