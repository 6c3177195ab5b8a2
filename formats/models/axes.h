/* axes: pieces of tensors that a file holds in another order of their axes than the
 * catalog (names.h says which). */
#ifndef DCP_FORMATS_MODELS_AXES_H
#define DCP_FORMATS_MODELS_AXES_H

#include "names.h"
#include <dcp/tensor.h>

/* A matrix of the file, or a part of one. Rows and columns are the file's: for a
 * transposed tensor those of the catalog exchanged. A vector has one column. */
struct dcp_axes_extent {
    int file, rank;
    uint64_t offset; /* of its first element */
    int64_t first_row, first_column;
    int64_t n_rows, n_columns;
    int64_t row_stride, column_stride; /* in elements */
};

/* Adds the pieces of a tensor of one or two dimensions that lie in the extent, which the
 * caller has found to be inside the tensor and the file. `heads` is how many heads the
 * rows of the whole tensor have; with DCP_AXES_Q_ROWS and _K_ROWS they divide into heads
 * of an even number of rows, and the extent holds whole heads. For a target, pieces fill
 * their extents without gaps: a row each where rows are interleaved. Errors: MEMORY,
 * those of dcp_catalog_add_piece. */
int dcp_axes_add(struct dcp_catalog *catalog, int tensor,
                 const struct dcp_axes_extent *extent, enum dcp_names_axes axes,
                 int64_t heads, bool is_target, struct dcp_error *err);

/* The same for a whole tensor that lies dense at an offset, of any number of dimensions.
 */
int dcp_axes_add_whole(struct dcp_catalog *catalog, int tensor, int file, uint64_t offset,
                       enum dcp_names_axes axes, int64_t heads, bool is_target,
                       struct dcp_error *err);

/* The same for elements begin .. end of a matrix or vector in the file's order, which lie
 * dense at an offset: for a transposed one the rest of a row, whole rows, the beginning
 * of one. */
int dcp_axes_add_range(struct dcp_catalog *catalog, int tensor, int file, int rank,
                       uint64_t offset, enum dcp_names_axes axes, int64_t begin,
                       int64_t end, bool is_target, struct dcp_error *err);

/* Whether the rows of a shape divide so. */
bool dcp_axes_heads_ok(enum dcp_names_axes axes, int64_t n_rows, int64_t heads);

#endif
