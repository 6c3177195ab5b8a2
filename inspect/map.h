/* map: tensors as rows of cells, each cell held by a rank. */
#ifndef INSPECT_MAP_H
#define INSPECT_MAP_H

#include "checkpoint.h"

#define INSPECT_CELLS_MOST 128
#define INSPECT_CELL_NOBODY (-1)
#define INSPECT_CELL_SEVERAL (-2)

/* One tensor, or several of one parameter that lie alike. */
struct inspect_map_row {
    const struct dcp_tensor *tensor;
    uint64_t size_bytes;     /* of all of them */
    bool roles[DCP_N_ROLES]; /* who shares the row */
};

struct inspect_map_rank {
    uint64_t size_bytes; /* of what it holds, not coded */
    size_t n_pieces;
};

/* Rows for the tensors selected. With `each` every tensor has its own. *out is freed with
 * free. Errors: MEMORY. */
int inspect_map_rows(const struct dcp_catalog *catalog, const size_t *tensors, size_t n,
                     bool each, struct inspect_map_row **out, size_t *out_n,
                     struct dcp_error *err);

/* What each rank holds of the tensors selected: *out has *out_world_size items, freed
 * with free. Errors: MEMORY. */
int inspect_map_ranks(const struct dcp_catalog *catalog, const size_t *tensors, size_t n,
                      struct inspect_map_rank **out, int *out_world_size,
                      struct dcp_error *err);

/* Paints n cells over a tensor: the rank that holds most of each, or INSPECT_CELL_….
 * Returns the dimension that runs along the cells, or -1 when it is the flattened
 * tensor. */
int inspect_map_paint(const struct dcp_catalog *catalog, const struct dcp_tensor *tensor,
                      int n, int cells[INSPECT_CELLS_MOST]);

#endif
