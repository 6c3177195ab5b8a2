/* npy: the header of a NumPy array file, read and written.
 *
 * "\x93NUMPY", two bytes of version, the length of the text (16 bits in version 1, 32 in
 * 2 and 3), and the text: a Python dict with the keys descr, fortran_order and shape,
 * blanks, and a newline. The array follows. Source: NEP 1 and numpy/lib/_format_impl.py.
 */
#ifndef DCP_FORMATS_NUMPY_NPY_H
#define DCP_FORMATS_NUMPY_NPY_H

#include "base/buf.h"
#include <dcp/format.h>
#include <dcp/tensor.h>

extern const struct dcp_format dcp_format_npy;

#define DCP_NPY_MAGIC "\x93NUMPY"
#define DCP_NPY_MAGIC_BYTES 6
#define DCP_NPY_MAX_TEXT_BYTES 10000 /* numpy reads no longer one */
#define DCP_NPY_MAX_HEAD_BYTES (12 + DCP_NPY_MAX_TEXT_BYTES)

struct dcp_npy {
    enum dcp_dtype dtype;
    int swap_bytes; /* of a big-endian array; see struct dcp_piece */
    int ndim;
    int64_t shape[DCP_MAX_NDIM];
    int64_t stride[DCP_MAX_NDIM]; /* in elements */
    bool dense;                   /* row-major: stride says no more */
    uint64_t begin;               /* of the array, in the file */
    uint64_t size_bytes;          /* of the array */
};

/* Reads the header of a file that is file_bytes long; n bytes of it, or the first
 * DCP_NPY_MAX_HEAD_BYTES, are in data. The array must end where the file ends. `shown`
 * names the file in messages. Errors: CORRUPT, UNSUPPORTED (a dtype, a version). */
int dcp_npy_parse(const void *data, size_t n, uint64_t file_bytes, const char *shown,
                  struct dcp_npy *out, struct dcp_error *err);

/* The header that numpy.save writes for a tensor. Errors: MISMATCH (a dtype NumPy has
 * not; `what` names the target), MEMORY. */
int dcp_npy_write(const struct dcp_tensor *tensor, const char *what, struct dcp_buf *out,
                  struct dcp_error *err);

/* The dtype of a code without the order of its bytes, n characters: "f4". False: it is
 * none that tensors have. */
bool dcp_npy_dtype(const char *code, size_t n, enum dcp_dtype *out);
/* The code of a dtype, or NULL: NumPy has no such. */
const char *dcp_npy_code(enum dcp_dtype dtype);

#endif
