/* Holes and overlaps: every element of every tensor is held exactly once, replicas apart.
 */
#include "base/mem.h"
#include "base/str.h"
#include "region.h"
#include <dcp/tensor.h>
#include <inttypes.h>

static int complain_meta(const struct dcp_tensor *tensor, struct dcp_error *err)
{
    return dcp_error_of_tensor(
        err, DCP_E_UNSUPPORTED, tensor->name,
        "tensor '%s' was saved on the meta device: there is no data of it",
        DCP_SHOWN(tensor->name));
}

static int complain(const struct dcp_tensor *tensor, const char *what, int64_t begin,
                    int64_t end, struct dcp_error *err)
{
    return dcp_error_of_tensor(err, DCP_E_CORRUPT, tensor->name,
                               "tensor '%s': elements %" PRId64 "..%" PRId64 " are %s",
                               DCP_SHOWN(tensor->name), begin, end - 1, what);
}

/* Regions of one tensor that lie `stride` bytes apart, inside of pieces or whatever holds
 * them; sorted by place. */
struct regions {
    const unsigned char *first;
    size_t stride, n;
};

static const struct dcp_region *region_at(const struct regions *regions, size_t i)
{
    return (const struct dcp_region *)(const void *)(regions->first +
                                                     i * regions->stride);
}

/* Sorted by first element, so one sweep sees both. */
static int check_intervals(const struct dcp_tensor *tensor, const struct regions *regions,
                           struct dcp_error *err)
{
    int64_t at = 0, begin = 0, end = 0;

    for (size_t i = 0; i < regions->n; i++) {
        int64_t last_begin = begin, last_end = end;
        dcp_region_interval(tensor, region_at(regions, i), &begin, &end);
        if (begin == end || (i > 0 && begin == last_begin && end == last_end))
            continue; /* empty, or a replica */
        if (begin > at)
            return complain(tensor, "in no piece", at, begin, err);
        if (begin < at)
            return complain(tensor, "in two pieces", begin, at < end ? at : end, err);
        at = end;
    }
    if (at < tensor->n_elems)
        return complain(tensor, "in no piece", at, tensor->n_elems, err);
    return DCP_OK;
}

struct box_list {
    struct dcp_box *boxes;
    size_t n, cap;
};

static int add_boxes(const struct dcp_tensor *tensor, const struct dcp_region *region,
                     struct box_list *list, struct dcp_error *err)
{
    struct dcp_box flat[DCP_MAX_FLAT_BOXES];
    int n = 1;

    if (dcp_region_elems(tensor, region) == 0)
        return DCP_OK;
    if (region->kind == DCP_FLAT)
        n = dcp_region_flat_boxes(tensor, region->begin, region->end, flat);
    else
        dcp_region_box(tensor, region, flat[0].offset, flat[0].size);
    struct dcp_box *boxes =
        dcp_mem_grow(list->boxes, &list->cap, list->n + (size_t)n, sizeof *boxes);
    if (!boxes)
        return dcp_error_memory(err, "the check of a catalog");
    list->boxes = boxes;
    for (int i = 0; i < n; i++)
        boxes[list->n++] = flat[i];
    return DCP_OK;
}

/* The box that holds a flattened element, and the end of its row there; -1: none does. */
static int holder(const struct dcp_tensor *tensor, const struct box_list *list,
                  int64_t elem, int64_t *out_row_end)
{
    int64_t stride[DCP_MAX_NDIM];

    dcp_region_strides(tensor->shape, tensor->ndim, stride);
    for (size_t b = 0; b < list->n; b++) {
        const struct dcp_box *box = &list->boxes[b];
        int64_t rest = elem, left = 0;
        bool inside = true;
        for (int d = 0; d < tensor->ndim && inside; d++) {
            int64_t in_box = rest / stride[d] - box->offset[d];
            rest %= stride[d];
            inside = in_box >= 0 && in_box < box->size[d];
            left = box->size[d] - in_box;
        }
        if (inside) {
            *out_row_end = elem + left;
            return (int)b;
        }
    }
    return -1;
}

static bool overlap(const struct dcp_tensor *tensor, const struct dcp_box *a,
                    const struct dcp_box *b, int64_t *out_elem)
{
    int64_t stride[DCP_MAX_NDIM];

    dcp_region_strides(tensor->shape, tensor->ndim, stride);
    *out_elem = 0;
    for (int d = 0; d < tensor->ndim; d++) {
        int64_t begin = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        int64_t a_end = a->offset[d] + a->size[d], b_end = b->offset[d] + b->size[d];
        if (begin >= (a_end < b_end ? a_end : b_end))
            return false;
        *out_elem += begin * stride[d];
    }
    return true;
}

/* The dimension in which the fewest boxes lie side by side: that of the smallest sum of
 * sizes, each as a part of the shape. */
static int sweep_dim(const struct dcp_tensor *tensor, const struct box_list *list)
{
    double least = 0;
    int best = 0;

    for (int d = 0; d < tensor->ndim; d++) {
        double sum = 0;
        for (size_t b = 0; b < list->n; b++)
            sum += (double)list->boxes[b].size[d];
        sum /= (double)tensor->shape[d];
        if (d == 0 || sum < least) {
            least = sum;
            best = d;
        }
    }
    return best;
}

static int by_offset(const void *a, const void *b, void *arg)
{
    int64_t x = ((const struct dcp_box *)a)->offset[*(const int *)arg];
    int64_t y = ((const struct dcp_box *)b)->offset[*(const int *)arg];

    return x < y ? -1 : x > y;
}

/* The first element that lies in two boxes, INT64_MAX: none does. Sorts the list. */
static int64_t find_overlap(const struct dcp_tensor *tensor, struct box_list *list)
{
    struct dcp_box *boxes = list->boxes;
    int64_t twice = INT64_MAX, elem;
    int d = sweep_dim(tensor, list);
    bool in_order = true;

    for (size_t i = 1; i < list->n && in_order; i++)
        in_order = boxes[i - 1].offset[d] <= boxes[i].offset[d];
    if (!in_order)
        qsort_r(boxes, list->n, sizeof *boxes, by_offset, &d);
    for (size_t i = 0; i < list->n; i++) {
        int64_t end = boxes[i].offset[d] + boxes[i].size[d];
        for (size_t j = i + 1; j < list->n && boxes[j].offset[d] < end; j++)
            if (overlap(tensor, &boxes[i], &boxes[j], &elem) && elem < twice)
                twice = elem;
    }
    return twice;
}

static int check_boxes(const struct dcp_tensor *tensor, const struct regions *regions,
                       struct dcp_error *err)
{
    struct box_list list = { 0 };
    int64_t volume = 0, twice, elem = 0, row_end;
    int rc = DCP_OK;

    for (size_t i = 0; i < regions->n && !rc; i++) {
        const struct dcp_region *region = region_at(regions, i);
        if (i > 0 && !dcp_region_order(tensor, region_at(regions, i - 1), region))
            continue;
        rc = add_boxes(tensor, region, &list, err);
        volume += dcp_region_elems(tensor, region);
    }
    twice = rc ? INT64_MAX : find_overlap(tensor, &list);
    if (!rc && twice < INT64_MAX)
        rc = complain(tensor, "in two pieces", twice, twice + 1, err);
    if (!rc && volume != tensor->n_elems) {
        for (elem = 0; holder(tensor, &list, elem, &row_end) >= 0;)
            elem = row_end;
        rc = complain(tensor, "in no piece", elem, elem + 1, err);
    }
    free(list.boxes);
    return rc;
}

int dcp_regions_check(const struct dcp_tensor *tensor, const struct dcp_region *first,
                      size_t stride_bytes, size_t n, struct dcp_error *err)
{
    const struct regions regions = { (const unsigned char *)first, stride_bytes, n };
    bool intervals = true;
    int64_t begin, end;

    for (size_t i = 0; i < n && intervals; i++)
        intervals = dcp_region_interval(tensor, region_at(&regions, i), &begin, &end);
    return intervals ? check_intervals(tensor, &regions, err)
                     : check_boxes(tensor, &regions, err);
}

int dcp_catalog_check(const struct dcp_catalog *catalog, struct dcp_error *err)
{
    const struct dcp_tensor *meta = NULL;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        const struct dcp_piece *pieces =
            tensor->n_pieces ? &catalog->pieces[tensor->first_piece] : NULL;
        if (tensor->quantized) /* that its blocks lie in the file is all that is known */
            continue;
        if (tensor->is_meta && tensor->n_elems)
            meta = meta ? meta : tensor;
        else
            DCP_TRY(dcp_regions_check(tensor, pieces ? &pieces->region : NULL,
                                      sizeof *pieces, tensor->n_pieces, err));
    }
    return meta ? complain_meta(meta, err) : DCP_OK;
}
