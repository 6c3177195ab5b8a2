#include "plan.h"
#include "base/arena.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/order.h"
#include "core/catalog/region.h"
#include <inttypes.h>

/* Element index -> place in a piece's memory: an affine map, for every kind of region. */
struct affine {
    int64_t base, stride[DCP_MAX_NDIM];
};

/* The pieces of one tensor, replicas left out, as the planner searches them. */
struct side {
    size_t *piece; /* index in the catalog */
    int64_t *begin, *end;
    size_t n, cap;
    bool intervals; /* all are intervals of the flattened tensor, dense in memory */
};

static void side_fini(struct side *side)
{
    free(side->piece);
    free(side->begin);
    free(side->end);
}

static int side_reserve(struct side *side, size_t n, struct dcp_error *err)
{
    if (n <= side->cap)
        return DCP_OK;
    side_fini(side);
    *side = (struct side){ .cap = n };
    side->piece = dcp_mem_calloc(n, sizeof *side->piece);
    side->begin = dcp_mem_calloc(n, sizeof *side->begin);
    side->end = dcp_mem_calloc(n, sizeof *side->end);
    if (!side->piece || !side->begin || !side->end)
        return dcp_error_memory(err, "a plan");
    return DCP_OK;
}

static int side_fill(struct side *side, const struct dcp_catalog *catalog, int t,
                     bool dedupe, struct dcp_error *err)
{
    const struct dcp_tensor *tensor = &catalog->tensors[t];
    const struct dcp_piece *last = NULL;
    int rc = side_reserve(side, tensor->n_pieces, err);

    side->n = 0;
    side->intervals = true;
    for (size_t i = 0; i < tensor->n_pieces && !rc; i++) {
        size_t p = tensor->first_piece + i;
        const struct dcp_piece *piece = &catalog->pieces[p];
        if (dcp_region_elems(tensor, &piece->region) == 0)
            continue;
        if (dedupe && last && !dcp_region_order(tensor, &last->region, &piece->region))
            continue;
        last = piece;
        side->piece[side->n] = p;
        if (piece->stride ||
            !dcp_region_interval(tensor, &piece->region, &side->begin[side->n],
                                 &side->end[side->n]))
            side->intervals = false;
        side->n++;
    }
    return rc;
}

static struct dcp_copy *add_copy(struct dcp_plan *plan)
{
    struct dcp_copy *copies =
        dcp_mem_grow(plan->copies, &plan->cap, plan->n_copies + 1, sizeof *copies);

    if (!copies)
        return NULL;
    plan->copies = copies;
    copies[plan->n_copies] = (struct dcp_copy){ 0 };
    return &copies[plan->n_copies++];
}

static int fill_intervals(struct dcp_plan *plan, const struct side *src, size_t dst,
                          int64_t begin, int64_t end, int64_t *out_filled,
                          struct dcp_error *err)
{
    size_t lo = 0, hi = src->n;

    while (lo < hi) { /* the first source interval that ends behind begin */
        size_t mid = lo + (hi - lo) / 2;
        if (src->end[mid] <= begin)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (int64_t at = begin; lo < src->n && at < end && src->begin[lo] <= at; lo++) {
        int64_t to = src->end[lo] < end ? src->end[lo] : end;
        if (to <= at) /* sources that overlap: this one has nothing new */
            continue;
        struct dcp_copy *copy = add_copy(plan);
        if (!copy)
            return dcp_error_memory(err, "a plan");
        *copy = (struct dcp_copy){ .src = src->piece[lo],
                                   .dst = dst,
                                   .src_at = at - src->begin[lo],
                                   .dst_at = at - begin,
                                   .n = to - at };
        plan->n_runs++;
        *out_filled += to - at;
        at = to;
    }
    return DCP_OK;
}

static struct affine affine_of(const struct dcp_tensor *tensor,
                               const struct dcp_piece *piece)
{
    struct affine map = { 0 };
    int64_t begin, end, offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM];

    if (!piece->stride && dcp_region_interval(tensor, &piece->region, &begin, &end)) {
        dcp_region_strides(tensor->shape, tensor->ndim, map.stride);
        map.base = -begin;
        return map;
    }
    dcp_region_box(tensor, &piece->region, offset, size);
    if (piece->stride)
        for (int d = 0; d < tensor->ndim; d++)
            map.stride[d] = piece->stride[d];
    else
        dcp_region_strides(size, tensor->ndim, map.stride);
    for (int d = 0; d < tensor->ndim; d++)
        map.base -= offset[d] * map.stride[d];
    return map;
}

static int64_t affine_at(const struct affine *map, const int64_t *index, int ndim)
{
    int64_t at = map->base;

    for (int d = 0; d < ndim; d++)
        at += index[d] * map->stride[d];
    return at;
}

/* Runs come in the order of their place in the target: where its axes are permuted, so
 * are the loops. */
static void order_loops(struct dcp_copy_dim *dims, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && dims[k - 1].dst_stride < dims[k].dst_stride; k--) {
            struct dcp_copy_dim dim = dims[k];
            dims[k] = dims[k - 1];
            dims[k - 1] = dim;
        }
}

/* Loops over neighbours on both sides become one. */
static int merge_loops(struct dcp_copy_dim *dims, int n)
{
    int kept = 0;

    for (int i = 0; i < n; i++) {
        struct dcp_copy_dim dim = dims[i];
        if (kept > 0 && dims[kept - 1].src_stride == dim.n * dim.src_stride &&
            dims[kept - 1].dst_stride == dim.n * dim.dst_stride)
            dim.n *= dims[--kept].n;
        dims[kept++] = dim;
    }
    return kept;
}

/* Appends the copy of one box, its loops merged as far as both sides allow. */
static int add_box_copy(struct dcp_plan *plan, const struct dcp_tensor *tensor,
                        size_t src, const struct affine *src_map, size_t dst,
                        const struct affine *dst_map, const struct dcp_box *box,
                        struct dcp_error *err)
{
    struct dcp_copy_dim dims[DCP_MAX_NDIM];
    int n = 0;

    for (int d = 0; d < tensor->ndim; d++) {
        struct dcp_copy_dim dim = { box->size[d], src_map->stride[d],
                                    dst_map->stride[d] };
        if (dim.n != 1)
            dims[n++] = dim;
    }
    order_loops(dims, n);
    n = merge_loops(dims, n);
    struct dcp_copy *copy = add_copy(plan);
    if (!copy)
        return dcp_error_memory(err, "a plan");
    *copy = (struct dcp_copy){ .src = src,
                               .dst = dst,
                               .src_at = affine_at(src_map, box->offset, tensor->ndim),
                               .dst_at = affine_at(dst_map, box->offset, tensor->ndim),
                               .n = 1 };
    if (n > 0 && dims[n - 1].src_stride == 1 && dims[n - 1].dst_stride == 1)
        copy->n = dims[--n].n;
    copy->n_dims = n;
    if (n > 0) {
        copy->dims = dcp_arena_copy(plan->arena, dims, (size_t)n * sizeof *dims);
        if (!copy->dims)
            return dcp_error_memory(err, "a plan");
    }
    plan->n_runs += (uint64_t)dcp_copy_runs(copy);
    return DCP_OK;
}

static int boxes_of(const struct dcp_tensor *tensor, const struct dcp_piece *piece,
                    struct dcp_box out[DCP_MAX_FLAT_BOXES])
{
    if (piece->region.kind == DCP_FLAT)
        return dcp_region_flat_boxes(tensor, piece->region.begin, piece->region.end, out);
    dcp_region_box(tensor, &piece->region, out[0].offset, out[0].size);
    return 1;
}

static bool intersect(int ndim, const struct dcp_box *a, const struct dcp_box *b,
                      struct dcp_box *out)
{
    for (int d = 0; d < ndim; d++) {
        int64_t a_end = a->offset[d] + a->size[d], b_end = b->offset[d] + b->size[d];
        int64_t begin = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        if (begin >= end)
            return false;
        out->offset[d] = begin;
        out->size[d] = end - begin;
    }
    return true;
}

static int fill_boxes(struct dcp_plan *plan, const struct dcp_catalog *src,
                      const struct side *from, const struct dcp_catalog *dst, size_t to,
                      int64_t *out_filled, struct dcp_error *err)
{
    const struct dcp_piece *target = &dst->pieces[to];
    const struct dcp_tensor *tensor = &dst->tensors[target->tensor];
    struct dcp_box want[DCP_MAX_FLAT_BOXES], have[DCP_MAX_FLAT_BOXES], common;
    int n_want = boxes_of(tensor, target, want);
    struct affine dst_map = affine_of(tensor, target);

    for (size_t i = 0; i < from->n; i++) {
        const struct dcp_piece *piece = &src->pieces[from->piece[i]];
        struct affine src_map = affine_of(tensor, piece);
        int n_have = boxes_of(tensor, piece, have);
        for (int w = 0; w < n_want; w++) {
            for (int h = 0; h < n_have; h++) {
                if (!intersect(tensor->ndim, &want[w], &have[h], &common))
                    continue;
                DCP_TRY(add_box_copy(plan, tensor, from->piece[i], &src_map, to, &dst_map,
                                     &common, err));
                int64_t elems = 1;
                for (int d = 0; d < tensor->ndim; d++)
                    elems *= common.size[d];
                *out_filled += elems;
            }
        }
    }
    return DCP_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct dcp_copy *x = a, *y = b;

    if (x->dst_at != y->dst_at)
        return x->dst_at < y->dst_at ? -1 : 1;
    return x->src < y->src ? -1 : x->src > y->src;
}

/* Names the first element of the target piece that no copy fills. */
static int complain_hole(const struct dcp_plan *plan, size_t first_copy,
                         const struct dcp_catalog *src, const struct dcp_catalog *dst,
                         size_t to, struct dcp_error *err)
{
    const struct dcp_piece *piece = &dst->pieces[to];
    const struct dcp_tensor *tensor = &dst->tensors[piece->tensor];
    struct dcp_region_walk walk;
    int64_t flat = 0, at, n;
    bool found = false;

    dcp_region_walk_init(&walk, tensor, &piece->region, 0);
    while (!found && dcp_region_walk_next(&walk, 1, &flat, &at, &n)) {
        found = true;
        for (size_t c = first_copy; c < plan->n_copies && found; c++) {
            const struct dcp_copy *copy = &plan->copies[c];
            int64_t r = dcp_copy_seek(copy, at), s, d;
            if (r < dcp_copy_runs(copy)) {
                dcp_copy_run(copy, r, &s, &d);
                found = at < d;
            }
        }
    }
    return dcp_error_of_tensor(err, DCP_E_CORRUPT, tensor->name,
                               "tensor '%s': element %" PRId64 " is in no piece of %s",
                               DCP_SHOWN(tensor->name), flat,
                               src->format[0] ? "the checkpoint" : "the saved state");
}

static int plan_tensor(struct dcp_plan *plan, const struct dcp_catalog *src, int from,
                       struct side *side, const struct dcp_catalog *dst, int t,
                       struct dcp_error *err)
{
    const struct dcp_tensor *tensor = &dst->tensors[t];

    if (from < 0 && tensor->n_pieces && tensor->n_elems)
        return dcp_error_of_tensor(err, DCP_E_MISMATCH, tensor->name,
                                   "tensor '%s' is not in the checkpoint",
                                   DCP_SHOWN(tensor->name));
    int rc = from < 0 ? DCP_OK : side_fill(side, src, from, true, err);
    for (size_t i = 0; i < tensor->n_pieces && !rc; i++) {
        size_t p = tensor->first_piece + i, first_copy = plan->n_copies;
        const struct dcp_piece *piece = &dst->pieces[p];
        int64_t begin, end, elems = dcp_region_elems(tensor, &piece->region), filled = 0;
        plan->first[p] = plan->n_copies;
        if (elems == 0)
            continue;
        if (side->intervals && !piece->stride &&
            dcp_region_interval(tensor, &piece->region, &begin, &end)) {
            rc = fill_intervals(plan, side, p, begin, end, &filled, err);
        } else {
            rc = fill_boxes(plan, src, side, dst, p, &filled, err);
            if (plan->n_copies > first_copy)
                qsort(plan->copies + first_copy, plan->n_copies - first_copy,
                      sizeof *plan->copies, by_place);
        }
        if (!rc && filled != elems)
            rc = complain_hole(plan, first_copy, src, dst, p, err);
    }
    return rc;
}

static bool same_shape(const struct dcp_tensor *a, const struct dcp_tensor *b)
{
    bool same = a->ndim == b->ndim;

    for (int d = 0; d < a->ndim && same; d++)
        same = a->shape[d] == b->shape[d];
    return same;
}

int dcp_plan_new(const struct dcp_catalog *src, const struct dcp_catalog *dst,
                 const int *src_tensor, struct dcp_plan **out_plan, struct dcp_error *err)
{
    struct dcp_plan *plan = calloc(1, sizeof *plan);
    struct side side = { 0 };
    int rc = DCP_OK;

    *out_plan = NULL;
    if (plan) {
        plan->arena = dcp_arena_new();
        plan->first = dcp_mem_calloc(dst->n_pieces + 1, sizeof *plan->first);
    }
    if (!plan || !plan->arena || !plan->first) {
        dcp_plan_free(plan);
        return dcp_error_memory(err, "a plan");
    }
    int from = -1;
    for (size_t t = 0; t < dst->n_tensors && !rc; t++) {
        const struct dcp_tensor *tensor = &dst->tensors[t];
        from =
            src_tensor ? src_tensor[t] : dcp_catalog_find_after(src, tensor->name, from);
        if (from >= 0 && !same_shape(tensor, &src->tensors[from])) {
            rc = dcp_error_of_tensor(err, DCP_E_MISMATCH, tensor->name,
                                     "tensor '%s' has another shape in the checkpoint",
                                     DCP_SHOWN(tensor->name));
        } else {
            rc = plan_tensor(plan, src, from, &side, dst, (int)t, err);
        }
    }
    side_fini(&side);
    if (rc) {
        dcp_plan_free(plan);
        return rc;
    }
    plan->first[dst->n_pieces] = plan->n_copies;
    *out_plan = plan;
    return DCP_OK;
}

void dcp_plan_free(struct dcp_plan *plan)
{
    if (!plan)
        return;
    free(plan->copies);
    free(plan->first);
    dcp_arena_free(plan->arena);
    free(plan);
}

int64_t dcp_copy_runs(const struct dcp_copy *copy)
{
    int64_t n = 1;

    for (int d = 0; d < copy->n_dims; d++)
        n *= copy->dims[d].n;
    return n;
}

void dcp_copy_run(const struct dcp_copy *copy, int64_t r, int64_t *out_src,
                  int64_t *out_dst)
{
    int64_t src = copy->src_at, dst = copy->dst_at;

    for (int d = copy->n_dims - 1; d >= 0; d--) {
        const struct dcp_copy_dim *dim = &copy->dims[d];
        src += r % dim->n * dim->src_stride;
        dst += r % dim->n * dim->dst_stride;
        r /= dim->n;
    }
    *out_src = src;
    *out_dst = dst;
}

int64_t dcp_copy_seek(const struct dcp_copy *copy, int64_t at)
{
    int64_t lo = 0, hi = dcp_copy_runs(copy), src, dst;

    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        dcp_copy_run(copy, mid, &src, &dst);
        if (dst + copy->n <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}
