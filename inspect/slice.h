/* slice: "name[0:4,:8]", read as NumPy does. */
#ifndef INSPECT_SLICE_H
#define INSPECT_SLICE_H

#include <dcp/tensor.h>

/* Elements first, first + step, … of one dimension. */
struct inspect_range {
    int64_t first, step, n;
    bool single; /* one index: the dimension vanishes from the answer */
};

struct inspect_slice {
    int ndim; /* that of the tensor */
    struct inspect_range ranges[DCP_MAX_NDIM];
};

/* Where the slice begins in "name[0:4]": the length of the name. A text that ends with
 * no ']' is all name. */
size_t inspect_slice_name(const char *text);

/* Reads "[0:4, -1, ..., ::2]" or "" (all) for a tensor of this shape. Steps are positive;
 * negative indices count from the end; ranges are cut to the tensor, indices must lie in
 * it. Errors: USAGE. */
int inspect_slice_parse(const char *text, int ndim, const int64_t *shape,
                        struct inspect_slice *out, struct dcp_error *err);

/* Elements in it, and the shape of the answer (its number of dimensions is returned). */
int64_t inspect_slice_elems(const struct inspect_slice *slice);
int inspect_slice_shape(const struct inspect_slice *slice, int64_t out[DCP_MAX_NDIM]);

#endif
