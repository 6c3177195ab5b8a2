/* grid: which ranks hold a tensor, told without naming each piece. Where a sharding is
 * regular the pieces of a tensor are the cells of a grid; a rank that loads a part of the
 * tensor finds from it the shards that hold the part, and reads no others. Pure. */
#ifndef DCP_GRID_H
#define DCP_GRID_H

#include <dcp/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DCP_GRID_MOST_RANKS = 64, /* that are listed, where no rule gives them */
    DCP_GRID_MOST_CELLS = 1 << 24
};

struct dcp_grid {
    bool flat; /* cells are ranges of the flattened tensor, in one dimension */
    /* Sizes of cells in each dimension: of the first, and of all that follow but the
     * last, which ends with the tensor. */
    int64_t lead[DCP_MAX_NDIM], size[DCP_MAX_NDIM];
    /* Ranks of the cells, row-major; or NULL: that of cell c is
     * first + c[0] * stride[0] + c[1] * stride[1] … */
    const int *ranks;
    int first, stride[DCP_MAX_NDIM];
};

/* How many dimensions a grid has. */
DCP_PUBLIC int dcp_grid_ndim(const struct dcp_tensor *tensor,
                             const struct dcp_grid *grid);
/* How many cells there are in each dimension, and in all; 0: there can be none, or
 * too many. */
DCP_PUBLIC int64_t dcp_grid_cells(const struct dcp_tensor *tensor,
                                  const struct dcp_grid *grid,
                                  int64_t out_cells[DCP_MAX_NDIM]);
/* The grid of n regions that are sorted by place, with the ranks that hold them, each
 * stride_bytes behind the one before; in memory of the catalog. NULL: they are none.
 * Errors: MEMORY. */
DCP_PUBLIC int dcp_grid_find(struct dcp_catalog *catalog, const struct dcp_tensor *tensor,
                             const struct dcp_region *region, const int *rank,
                             size_t stride_bytes, size_t n, const struct dcp_grid **out,
                             struct dcp_error *err);
/* Whether a grid that was read can be one of the tensor in that world size; n_ranks of
 * them are listed. */
DCP_PUBLIC bool dcp_grid_ok(const struct dcp_tensor *tensor, const struct dcp_grid *grid,
                            size_t n_ranks, int world_size);
/* A copy in the catalog, of a grid that is ok, or that of the tensor before, where it is
 * equal. NULL: no memory. */
DCP_PUBLIC const struct dcp_grid *dcp_grid_copy(struct dcp_catalog *catalog,
                                                const struct dcp_tensor *tensor,
                                                const struct dcp_grid *grid);
/* Marks the ranks that hold some of the region, or may. */
DCP_PUBLIC void dcp_grid_mark(const struct dcp_tensor *tensor,
                              const struct dcp_grid *grid,
                              const struct dcp_region *region, bool *ranks);

#ifdef __cplusplus
}
#endif
#endif
