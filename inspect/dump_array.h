/* dump_array: the elements of a slice, or its corners when there are many. */
#ifndef INSPECT_DUMP_ARRAY_H
#define INSPECT_DUMP_ARRAY_H

#include "checkpoint.h"
#include "slice.h"

/* What of each dimension is shown: all, or `edge` at both ends. */
struct inspect_array {
    const struct dcp_tensor *tensor;
    struct inspect_slice slice;
    int64_t shown[DCP_MAX_NDIM]; /* of each dimension of the tensor */
    int64_t edge;                /* 0: nothing is left out */
    unsigned char *data;         /* the elements shown, row-major */
};

/* Reads the slice of a tensor with the checkpoint's reader; a slice of more than `most`
 * elements (0: any number) only at its edges. Caller frees with inspect_array_fini.
 * Errors: those of inspect_read, MEMORY. */
int inspect_array_read(const struct inspect_checkpoint *checkpoint, int tensor,
                       const struct inspect_slice *slice, int64_t most,
                       struct inspect_array *out, struct dcp_error *err);
void inspect_array_fini(struct inspect_array *array);

/* Prints it as NumPy does: nested brackets, columns aligned, "..." for what is left out.
 * digits: see inspect_value_format. Errors: MEMORY. */
int inspect_array_print(const struct dcp_main *m, const struct inspect_array *array,
                        int digits, struct dcp_error *err);

/* Nested lists of an array without an edge; NULL: out of memory. */
json_t *inspect_array_json(const struct inspect_array *array);

#endif
