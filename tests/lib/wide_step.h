/* wide_step: a step of thousands of ranks, of which everything is real but the tensors'
 * bytes: shards have their sizes and are holes, tables and the manifest are what a save
 * writes. For programs that read no tensors. */
#ifndef TESTS_LIB_WIDE_STEP_H
#define TESTS_LIB_WIDE_STEP_H

#include <dcp/tensor.h>

struct wide_step {
    const char *layout; /* "flat", "dim0": rows, "columns"; "replicated" */
    int world_size, n_tensors;
    int64_t rows, columns; /* of each tensor, which is of BF16 */
};

/* What a rank has of each tensor; dims is its memory. */
struct dcp_region wide_step_region(const struct wide_step *step, int rank,
                                   int64_t dims[2][DCP_MAX_NDIM]);
/* "model.layers.7.mlp.up_proj.weight" and so on: a catalog without pieces. Freed with
 * dcp_catalog_free. */
struct dcp_catalog *wide_step_list(const struct wide_step *step);
/* Writes the step, which is not replicated, into a folder, which must be empty. */
void wide_step_write(const struct wide_step *step, const char *folder);

#endif
