#include "region.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

int dcp_region_check(const struct dcp_tensor *tensor, const struct dcp_region *region,
                     struct dcp_error *err)
{
    bool ok = true;

    if (region->kind == DCP_FLAT)
        ok = region->begin >= 0 && region->begin <= region->end &&
             region->end <= tensor->n_elems;
    else if (region->kind == DCP_BOX)
        for (int d = 0; d < tensor->ndim; d++)
            ok = ok && region->offset[d] >= 0 && region->size[d] >= 0 &&
                 region->size[d] <= tensor->shape[d] &&
                 region->offset[d] <= tensor->shape[d] - region->size[d];
    else
        ok = region->kind == DCP_WHOLE;
    if (ok)
        return DCP_OK;
    return dcp_error_of_tensor(err, DCP_E_CORRUPT, tensor->name,
                               "a piece of tensor '%s' reaches outside of it",
                               DCP_SHOWN(tensor->name));
}

int64_t dcp_region_elems(const struct dcp_tensor *tensor, const struct dcp_region *region)
{
    if (region->kind == DCP_FLAT)
        return region->end - region->begin;
    if (region->kind == DCP_WHOLE)
        return tensor->n_elems;
    int64_t n = 1;
    for (int d = 0; d < tensor->ndim; d++) {
        if (region->size[d] == 0)
            return 0;
        n *= region->size[d]; /* at most the tensor's, which is checked */
    }
    return n;
}

void dcp_region_strides(const int64_t *shape, int ndim, int64_t *out)
{
    int64_t stride = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        out[d] = stride;
        if (__builtin_mul_overflow(stride, shape[d] ? shape[d] : 1, &stride))
            stride = 1; /* zero elements: strides are never used */
    }
}

void dcp_region_box(const struct dcp_tensor *tensor, const struct dcp_region *region,
                    int64_t *out_offset, int64_t *out_size)
{
    for (int d = 0; d < tensor->ndim; d++) {
        out_offset[d] = region->kind == DCP_BOX ? region->offset[d] : 0;
        out_size[d] = region->kind == DCP_BOX ? region->size[d] : tensor->shape[d];
    }
}

bool dcp_region_interval(const struct dcp_tensor *tensor, const struct dcp_region *region,
                         int64_t *out_begin, int64_t *out_end)
{
    if (region->kind != DCP_BOX) {
        *out_begin = region->kind == DCP_FLAT ? region->begin : 0;
        *out_end = region->kind == DCP_FLAT ? region->end : tensor->n_elems;
        return true;
    }
    int64_t stride[DCP_MAX_NDIM], begin = 0;
    int d = 0;
    dcp_region_strides(tensor->shape, tensor->ndim, stride);
    for (int i = 0; i < tensor->ndim; i++)
        begin += region->offset[i] * stride[i];
    while (d < tensor->ndim && region->size[d] == 1)
        d++; /* leading dimensions of one row */
    for (int i = d + 1; i < tensor->ndim; i++)
        if (region->size[i] != tensor->shape[i] && dcp_region_elems(tensor, region))
            return false;
    *out_begin = begin;
    *out_end = begin + dcp_region_elems(tensor, region);
    return true;
}

static int64_t first_elem(const struct dcp_tensor *tensor,
                          const struct dcp_region *region)
{
    int64_t stride[DCP_MAX_NDIM], at = 0;

    if (region->kind != DCP_BOX)
        return region->kind == DCP_FLAT ? region->begin : 0;
    dcp_region_strides(tensor->shape, tensor->ndim, stride);
    for (int d = 0; d < tensor->ndim; d++)
        at += region->offset[d] * stride[d];
    return at;
}

int dcp_region_order(const struct dcp_tensor *tensor, const struct dcp_region *a,
                     const struct dcp_region *b)
{
    int64_t x = first_elem(tensor, a), y = first_elem(tensor, b);
    if (x != y)
        return x < y ? -1 : 1;
    x = dcp_region_elems(tensor, a);
    y = dcp_region_elems(tensor, b);
    if (x != y)
        return x < y ? -1 : 1;
    int64_t a_begin, a_end, b_begin, b_end;
    bool a_flat = dcp_region_interval(tensor, a, &a_begin, &a_end);
    bool b_flat = dcp_region_interval(tensor, b, &b_begin, &b_end);
    if (a_flat || b_flat)
        return a_flat == b_flat ? 0 : a_flat ? -1 : 1;
    for (int d = 0; d < tensor->ndim; d++)
        if (a->size[d] != b->size[d])
            return a->size[d] < b->size[d] ? -1 : 1;
    return 0;
}

bool dcp_region_is_replica(const struct dcp_catalog *catalog, size_t piece)
{
    const struct dcp_piece *p = &catalog->pieces[piece];

    return piece > 0 && p[-1].tensor == p->tensor &&
           !dcp_region_order(&catalog->tensors[p->tensor], &p[-1].region, &p->region);
}

/* Peels dimensions from the inside: a partial row at each end and whole rows between,
 * then the same one dimension further out on the range of whole rows. */
int dcp_region_flat_boxes(const struct dcp_tensor *tensor, int64_t begin, int64_t end,
                          struct dcp_box out[DCP_MAX_FLAT_BOXES])
{
    int64_t stride[DCP_MAX_NDIM];
    int n = 0;

    if (begin >= end)
        return 0;
    dcp_region_strides(tensor->shape, tensor->ndim, stride);
    if (tensor->ndim == 0) {
        out[0] = (struct dcp_box){ 0 };
        return 1;
    }
    while (begin < end) {
        /* The widest box that begins here: the outermost dimension whose boundary we are
         * on. */
        int d = tensor->ndim - 1;
        while (d > 0 && begin % stride[d - 1] == 0 && end - begin >= stride[d - 1])
            d--;
        int64_t rest = begin, to_edge, count;
        struct dcp_box *box = &out[n++];
        for (int i = 0; i < tensor->ndim; i++) {
            box->offset[i] = rest / stride[i];
            rest %= stride[i];
            box->size[i] = i <= d ? 1 : tensor->shape[i];
        }
        to_edge = d == 0 ? INT64_MAX : tensor->shape[d] - box->offset[d];
        count = (end - begin) / stride[d];
        box->size[d] = count < to_edge ? count : to_edge;
        begin += box->size[d] * stride[d];
    }
    return n;
}

void dcp_region_walk_init(struct dcp_region_walk *walk, const struct dcp_tensor *tensor,
                          const struct dcp_region *region, int64_t at)
{
    int64_t begin, end;

    *walk = (struct dcp_region_walk){ .at = at, .ndim = tensor->ndim };
    walk->elems = dcp_region_elems(tensor, region);
    walk->interval = dcp_region_interval(tensor, region, &begin, &end);
    if (walk->interval) {
        walk->flat = begin + at;
        return;
    }
    dcp_region_strides(tensor->shape, tensor->ndim, walk->stride);
    dcp_region_box(tensor, region, walk->offset, walk->size);
    walk->row_dim = tensor->ndim - 1;
    walk->row = walk->size[walk->row_dim];
    while (walk->row_dim > 0 && walk->size[walk->row_dim] == tensor->shape[walk->row_dim])
        walk->row *= walk->size[--walk->row_dim];
}

bool dcp_region_walk_next(struct dcp_region_walk *walk, int64_t max, int64_t *out_flat,
                          int64_t *out_at, int64_t *out_n)
{
    int64_t n = walk->elems - walk->at;

    if (n <= 0 || max <= 0)
        return false;
    *out_at = walk->at;
    if (walk->interval) {
        *out_flat = walk->flat;
        n = n < max ? n : max;
        walk->flat += n;
    } else {
        int64_t row = walk->at / walk->row, in_row = walk->at % walk->row, flat = 0;
        for (int d = walk->row_dim - 1; d >= 0; d--) {
            flat += (walk->offset[d] + row % walk->size[d]) * walk->stride[d];
            row /= walk->size[d];
        }
        for (int d = walk->row_dim; d < walk->ndim; d++)
            flat += walk->offset[d] * walk->stride[d];
        *out_flat = flat + in_row;
        n = walk->row - in_row < max ? walk->row - in_row : max;
    }
    walk->at += n;
    *out_n = n;
    return true;
}
