/* naive: regions element by element, and random ones: the oracle of everything that is
 * clever about them. */
#ifndef TESTS_LIB_NAIVE_H
#define TESTS_LIB_NAIVE_H

#include <dcp/tensor.h>

/* A random shape of 0 .. 8 dimensions with at most `most` elements, some with none.
 * Returns the number of dimensions. */
int naive_shape(uint64_t *seed, int64_t most, int64_t out[DCP_MAX_NDIM]);
/* Adds an F32 tensor (dtype and shape as given) named by its number. */
int naive_tensor(struct dcp_catalog *catalog, enum dcp_dtype dtype, int ndim,
                 const int64_t *shape);

/* A random region inside a tensor; memory of offset and size is the caller's: dims. */
struct dcp_region naive_region(uint64_t *seed, const struct dcp_tensor *tensor,
                               int64_t dims[2][DCP_MAX_NDIM]);

/* The flattened index of every element of a region, in the order of its memory. Returns
 * how many; out has room for all elements of the tensor. */
int64_t naive_elems(const struct dcp_tensor *tensor, const struct dcp_region *region,
                    int64_t *out);
/* Where the k-th of these lies in the piece's memory, with or without strides. */
int64_t naive_place(const struct dcp_tensor *tensor, const struct dcp_piece *piece,
                    int64_t elem, int64_t k);

enum naive_cut { NAIVE_FLAT, NAIVE_BOXES, NAIVE_MIXED, NAIVE_N_CUTS };
/* Cuts a tensor at random into pieces that hold each element once. Ranks are 0 .. world
 * size - 1; with replicas some pieces stand there twice. Not sorted afterwards. */
void naive_cut(uint64_t *seed, struct dcp_catalog *catalog, int tensor,
               enum naive_cut cut, int world_size, bool replicas);
/* Random strides for a piece of these dimensions: its elements in an unusual order, with
 * gaps. Returns the elements its memory spans. */
int64_t naive_strides(uint64_t *seed, int ndim, const int64_t *size,
                      int64_t out[DCP_MAX_NDIM]);
/* Strides that fill the memory without gaps, the axes in a random order. */
void naive_permute(uint64_t *seed, int ndim, const int64_t *size,
                   int64_t out[DCP_MAX_NDIM]);

#endif
