/* region: boxes and flat ranges of a tensor, and where their elements lie in memory.
 *
 * A region that is one interval of the flattened tensor (a flat range, the whole tensor,
 * rows of dimension 0) is treated as that interval; only boxes that are not are walked
 * row by row. Pure. */
#ifndef DCP_CORE_CATALOG_REGION_H
#define DCP_CORE_CATALOG_REGION_H

#include <dcp/tensor.h>

/* Inside its tensor. Errors: CORRUPT. */
int dcp_region_check(const struct dcp_tensor *tensor, const struct dcp_region *region,
                     struct dcp_error *err);
int64_t dcp_region_elems(const struct dcp_tensor *tensor,
                         const struct dcp_region *region);
/* Order by place: first element in row-major order, then size. 0: the same region. */
int dcp_region_order(const struct dcp_tensor *tensor, const struct dcp_region *a,
                     const struct dcp_region *b);
/* Whether the piece before this one, in a sorted catalog, is the same part of the same
 * tensor. */
bool dcp_region_is_replica(const struct dcp_catalog *catalog, size_t piece);
/* Every element of a tensor is in just one of n regions that are sorted by place and lie
 * stride_bytes apart; equal ones count once. Errors: CORRUPT, naming the first element
 * that is in none or in two; MEMORY. */
int dcp_regions_check(const struct dcp_tensor *tensor, const struct dcp_region *first,
                      size_t stride_bytes, size_t n, struct dcp_error *err);
/* True when the region is the flat interval *out_begin .. *out_end. */
bool dcp_region_interval(const struct dcp_tensor *tensor, const struct dcp_region *region,
                         int64_t *out_begin, int64_t *out_end);
/* Row-major strides of a shape, in elements. */
void dcp_region_strides(const int64_t *shape, int ndim, int64_t *out);
/* The region as a box (whole or box only). */
void dcp_region_box(const struct dcp_tensor *tensor, const struct dcp_region *region,
                    int64_t *out_offset, int64_t *out_size);

#define DCP_MAX_FLAT_BOXES (2 * DCP_MAX_NDIM)
struct dcp_box {
    int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM];
};
/* Cuts a flat range into boxes, at most 2·ndim − 1, in row-major order. Returns how many.
 */
int dcp_region_flat_boxes(const struct dcp_tensor *tensor, int64_t begin, int64_t end,
                          struct dcp_box out[DCP_MAX_FLAT_BOXES]);

/* Walks the contiguous runs of a region: elements at .. at + n of the region's own
 * row-major memory lie at flat .. flat + n of the tensor. Begins at element `at`. */
struct dcp_region_walk {
    bool interval;
    int64_t flat, at, elems; /* next run */
    int ndim;
    int64_t stride[DCP_MAX_NDIM], offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM];
    int64_t row; /* elements of a contiguous row */
    int row_dim; /* dimensions >= this are inside a row */
};
void dcp_region_walk_init(struct dcp_region_walk *walk, const struct dcp_tensor *tensor,
                          const struct dcp_region *region, int64_t at);
/* The next run, at most max elements; false at the end. */
bool dcp_region_walk_next(struct dcp_region_walk *walk, int64_t max, int64_t *out_flat,
                          int64_t *out_at, int64_t *out_n);

#endif
