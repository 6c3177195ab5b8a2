#include "naive.h"
#include "acts.h"
#include "must.h"
#include <string.h>

int naive_shape(uint64_t *seed, int64_t most, int64_t out[DCP_MAX_NDIM])
{
    int ndim = (int)acts_pick(seed, DCP_MAX_NDIM + 1);
    int64_t n = 1;

    for (int d = 0; d < ndim; d++) {
        int64_t room = most / n < 9 ? most / n : 9;
        out[d] = 1 + acts_pick(seed, room > 0 ? room : 1);
        n *= out[d];
    }
    for (int d = ndim - 1; d > 0; d--) { /* large dimensions anywhere, not only first */
        int e = (int)acts_pick(seed, d + 1);
        int64_t swap = out[d];
        out[d] = out[e];
        out[e] = swap;
    }
    if (ndim > 0 && acts_pick(seed, 12) == 0)
        out[acts_pick(seed, ndim)] = 0;
    return ndim;
}

int naive_tensor(struct dcp_catalog *catalog, enum dcp_dtype dtype, int ndim,
                 const int64_t *shape)
{
    char name[32];
    int index;

    snprintf(name, sizeof name, "tensor.%zu", catalog->n_tensors);
    must(!dcp_catalog_add_tensor(
        catalog,
        &(struct dcp_tensor){
            .name = name, .dtype = dtype, .ndim = ndim, .shape = shape },
        &index, NULL));
    return index;
}

struct dcp_region naive_region(uint64_t *seed, const struct dcp_tensor *tensor,
                               int64_t dims[2][DCP_MAX_NDIM])
{
    int64_t a = acts_pick(seed, tensor->n_elems + 1);
    int64_t b = acts_pick(seed, tensor->n_elems + 1);

    switch (acts_pick(seed, 8)) {
    case 0:
        return (struct dcp_region){ .kind = DCP_WHOLE };
    case 1:
    case 2:
    case 3:
        return (struct dcp_region){ .kind = DCP_FLAT,
                                    .begin = a < b ? a : b,
                                    .end = a < b ? b : a };
    }
    for (int d = 0; d < tensor->ndim; d++) {
        bool all = acts_pick(seed, 2);
        dims[0][d] = all ? 0 : acts_pick(seed, tensor->shape[d] + 1);
        dims[1][d] =
            all ? tensor->shape[d] : acts_pick(seed, tensor->shape[d] - dims[0][d] + 1);
    }
    return (struct dcp_region){ .kind = DCP_BOX, .offset = dims[0], .size = dims[1] };
}

/* The coordinates of a flattened element. */
static void coordinates(const struct dcp_tensor *tensor, int64_t elem, int64_t *out)
{
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        out[d] = elem % tensor->shape[d];
        elem /= tensor->shape[d];
    }
}

static bool holds(const struct dcp_tensor *tensor, const struct dcp_region *region,
                  int64_t elem)
{
    int64_t at[DCP_MAX_NDIM];
    bool inside = true;

    if (region->kind == DCP_WHOLE)
        return true;
    if (region->kind == DCP_FLAT)
        return elem >= region->begin && elem < region->end;
    coordinates(tensor, elem, at);
    for (int d = 0; d < tensor->ndim; d++)
        inside = inside && at[d] >= region->offset[d] &&
                 at[d] < region->offset[d] + region->size[d];
    return inside;
}

int64_t naive_elems(const struct dcp_tensor *tensor, const struct dcp_region *region,
                    int64_t *out)
{
    int64_t n = 0;

    for (int64_t elem = 0; elem < tensor->n_elems; elem++)
        if (holds(tensor, region, elem))
            out[n++] = elem;
    return n;
}

int64_t naive_place(const struct dcp_tensor *tensor, const struct dcp_piece *piece,
                    int64_t elem, int64_t k)
{
    int64_t at[DCP_MAX_NDIM], place = 0;

    if (!piece->stride)
        return k;
    coordinates(tensor, elem, at);
    for (int d = 0; d < tensor->ndim; d++)
        place += (at[d] - (piece->region.kind == DCP_BOX ? piece->region.offset[d] : 0)) *
                 piece->stride[d];
    return place;
}

/* --- cutting --- */

struct cutter {
    uint64_t *seed;
    struct dcp_catalog *catalog;
    int tensor, world_size;
    bool replicas;
};

static void add(const struct cutter *c, struct dcp_region region)
{
    struct dcp_piece piece = { .tensor = c->tensor, .region = region, .file = -1 };
    int copies = c->replicas && acts_pick(c->seed, 4) == 0 ? 2 : 1;

    for (int i = 0; i < copies; i++) {
        piece.rank = (int)acts_pick(c->seed, c->world_size);
        must(!dcp_catalog_add_piece(c->catalog, &piece, NULL));
    }
}

static void cut_flat(const struct cutter *c, int64_t begin, int64_t end)
{
    while (begin < end) {
        int64_t n = 1 + acts_pick(c->seed, end - begin);
        if (acts_pick(c->seed, 2))
            n = (n + 3) / 4;
        add(c, (struct dcp_region){ .kind = DCP_FLAT, .begin = begin, .end = begin + n });
        begin += n;
    }
}

/* Halves a box somewhere, again and again. */
static void cut_box(const struct cutter *c, int ndim, const int64_t *offset,
                    const int64_t *size, int depth)
{
    int64_t first[2][DCP_MAX_NDIM], second[2][DCP_MAX_NDIM];
    int d = ndim ? (int)acts_pick(c->seed, ndim) : 0;

    if (!ndim || size[d] < 2 || depth == 0 || acts_pick(c->seed, 5) == 0) {
        add(c, (struct dcp_region){ .kind = DCP_BOX, .offset = offset, .size = size });
        return;
    }
    int64_t at = 1 + acts_pick(c->seed, size[d] - 1);
    for (int i = 0; i < ndim; i++) {
        first[0][i] = second[0][i] = offset[i];
        first[1][i] = second[1][i] = size[i];
    }
    first[1][d] = at;
    second[0][d] += at;
    second[1][d] -= at;
    cut_box(c, ndim, first[0], first[1], depth - 1);
    cut_box(c, ndim, second[0], second[1], depth - 1);
}

static void cut_mixed(const struct cutter *c, const int64_t *shape, int ndim)
{
    int64_t offset[DCP_MAX_NDIM] = { 0 }, size[DCP_MAX_NDIM], row = 1;

    for (int d = 0; d < ndim; d++) {
        size[d] = shape[d];
        row *= d ? shape[d] : 1;
    }
    for (int64_t at = 0; at < shape[0]; at += size[0]) {
        size[0] = 1 + acts_pick(c->seed, shape[0] - at);
        offset[0] = at;
        if (acts_pick(c->seed, 2))
            cut_flat(c, at * row, (at + size[0]) * row);
        else
            cut_box(c, ndim, offset, size, 3);
    }
}

void naive_cut(uint64_t *seed, struct dcp_catalog *catalog, int tensor,
               enum naive_cut cut, int world_size, bool replicas)
{
    const struct cutter c = { seed, catalog, tensor, world_size, replicas };
    const struct dcp_tensor t = catalog->tensors[tensor];
    static const int64_t zero[DCP_MAX_NDIM];

    if (t.n_elems == 0)
        add(&c, (struct dcp_region){ .kind = DCP_WHOLE });
    else if (cut == NAIVE_FLAT)
        cut_flat(&c, 0, t.n_elems);
    else if (cut == NAIVE_BOXES || t.ndim == 0)
        cut_box(&c, t.ndim, zero, t.shape, 5);
    else
        cut_mixed(&c, t.shape, t.ndim);
}

int64_t naive_strides(uint64_t *seed, int ndim, const int64_t *size,
                      int64_t out[DCP_MAX_NDIM])
{
    int order[DCP_MAX_NDIM];
    int64_t stride = 1 + acts_pick(seed, 2), last = 0;

    for (int i = 0; i < ndim; i++) {
        int j = (int)acts_pick(seed, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < ndim; i++) {
        out[order[i]] = stride;
        last += stride * (size[order[i]] > 0 ? size[order[i]] - 1 : 0);
        stride *= (size[order[i]] > 0 ? size[order[i]] : 1) + acts_pick(seed, 2);
    }
    return last + 1;
}

void naive_permute(uint64_t *seed, int ndim, const int64_t *size,
                   int64_t out[DCP_MAX_NDIM])
{
    int order[DCP_MAX_NDIM];
    int64_t stride = 1;

    for (int i = 0; i < ndim; i++) {
        int j = (int)acts_pick(seed, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < ndim; i++) {
        out[order[i]] = stride;
        stride *= size[order[i]] > 0 ? size[order[i]] : 1;
    }
}
