/* axes: boxes with strides for transposed matrices and interleaved rows. */
#include "axes.h"
#include "base/mem.h"

/* A box of rows and columns of the file, whose place in the tensor is another. */
struct box {
    int64_t row, column; /* in the tensor, in the file's axes */
    int64_t n_rows, n_columns;
    int64_t at; /* of its first element, from the extent's */
    int64_t row_stride;
};

/* Whether strides say no more than that the box is row-major and dense. */
static bool is_dense(const int64_t *size, const int64_t *stride, int ndim)
{
    int64_t expected = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        if (size[d] != 1 && stride[d] != expected)
            return false;
        expected *= size[d];
    }
    return true;
}

static int add_box(struct dcp_catalog *catalog, int index,
                   const struct dcp_axes_extent *extent, const struct box *box,
                   bool transposed, struct dcp_error *err)
{
    const struct dcp_tensor *tensor = &catalog->tensors[index];
    int r = transposed, c = !transposed; /* the dimension that the file's rows are */
    int64_t offset[2], size[2], stride[2], last = 0;
    size_t elem = dcp_dtype_size(tensor->dtype);

    offset[r] = box->row;
    size[r] = box->n_rows;
    stride[r] = box->row_stride;
    offset[c] = box->column;
    size[c] = box->n_columns;
    stride[c] = extent->column_stride;
    for (int d = 0; d < tensor->ndim; d++)
        last += (size[d] - 1) * stride[d];
    const struct dcp_piece piece = {
        .tensor = index,
        .rank = extent->rank,
        .file = extent->file,
        .region = { .kind = DCP_BOX, .offset = offset, .size = size },
        .offset = extent->offset + (uint64_t)box->at * elem,
        .stored_size = (uint64_t)(last + 1) * elem,
        .stride = is_dense(size, stride, tensor->ndim) ? NULL : stride,
    };
    return dcp_catalog_add_piece(catalog, &piece, err);
}

/* Row 2j + a of a head in the file is row a × half + j of it in the tensor. */
static int add_heads(struct dcp_catalog *catalog, int index,
                     const struct dcp_axes_extent *extent, int64_t heads, bool is_target,
                     struct dcp_error *err)
{
    int64_t of_head = catalog->tensors[index].shape[0] / heads, half = of_head / 2;
    int64_t step = is_target ? 1 : half; /* rows of a box */

    for (int64_t h = 0; h < extent->n_rows / of_head; h++)
        for (int64_t row = 0; row < of_head; row += step) {
            int64_t a = row / half, j = row % half;
            const struct box box = {
                .row = extent->first_row + h * of_head + row,
                .column = extent->first_column,
                .n_rows = step,
                .n_columns = extent->n_columns,
                .at = (h * of_head + 2 * j + a) * extent->row_stride,
                .row_stride = 2 * extent->row_stride,
            };
            DCP_TRY(add_box(catalog, index, extent, &box, false, err));
        }
    return DCP_OK;
}

int dcp_axes_add(struct dcp_catalog *catalog, int tensor,
                 const struct dcp_axes_extent *extent, enum dcp_names_axes axes,
                 int64_t heads, bool is_target, struct dcp_error *err)
{
    const struct box box = {
        extent->first_row, extent->first_column, extent->n_rows, extent->n_columns, 0,
        extent->row_stride
    };

    if (!extent->n_rows || !extent->n_columns)
        return dcp_catalog_add_piece(catalog,
                                     &(struct dcp_piece){ .tensor = tensor,
                                                          .rank = extent->rank,
                                                          .file = extent->file,
                                                          .offset = extent->offset },
                                     err);
    if (axes == DCP_AXES_Q_ROWS || axes == DCP_AXES_K_ROWS)
        return add_heads(catalog, tensor, extent, heads, is_target, err);
    return add_box(catalog, tensor, extent, &box, axes == DCP_AXES_TRANSPOSED, err);
}

int dcp_axes_add_whole(struct dcp_catalog *catalog, int tensor, int file, uint64_t offset,
                       enum dcp_names_axes axes, int64_t heads, bool is_target,
                       struct dcp_error *err)
{
    const struct dcp_tensor *t = &catalog->tensors[tensor];
    const struct dcp_piece piece = { .tensor = tensor,
                                     .file = file,
                                     .offset = offset,
                                     .stored_size = dcp_tensor_bytes(t) };

    if (axes == DCP_AXES_SAME || !t->n_elems)
        return dcp_catalog_add_piece(catalog, &piece, err);
    bool transposed = axes == DCP_AXES_TRANSPOSED;
    int64_t columns = t->ndim == 2 ? t->shape[!transposed] : 1;
    const struct dcp_axes_extent extent = { .file = file,
                                            .offset = offset,
                                            .n_rows = t->shape[transposed],
                                            .n_columns = columns,
                                            .row_stride = columns,
                                            .column_stride = 1 };
    return dcp_axes_add(catalog, tensor, &extent, axes, heads, is_target, err);
}

static int add_transposed_range(struct dcp_catalog *catalog, int tensor, int file,
                                int rank, uint64_t offset, int64_t begin, int64_t end,
                                bool is_target, struct dcp_error *err)
{
    const struct dcp_tensor *t = &catalog->tensors[tensor];
    int64_t columns = t->shape[0];
    size_t elem = dcp_dtype_size(t->dtype);

    for (int64_t at = begin, n; at < end; at += n) {
        int64_t column = at % columns;
        bool whole = !column && end - at >= columns;
        n = whole ? (end - at) / columns * columns : columns - column;
        n = n < end - at ? n : end - at;
        const struct dcp_axes_extent extent = {
            .file = file,
            .rank = rank,
            .offset = offset + (uint64_t)(at - begin) * elem,
            .first_row = at / columns,
            .first_column = column,
            .n_rows = whole ? n / columns : 1,
            .n_columns = whole ? columns : n,
            .row_stride = columns,
            .column_stride = 1,
        };
        DCP_TRY(dcp_axes_add(catalog, tensor, &extent, DCP_AXES_TRANSPOSED, 1, is_target,
                             err));
    }
    return DCP_OK;
}

int dcp_axes_add_range(struct dcp_catalog *catalog, int tensor, int file, int rank,
                       uint64_t offset, enum dcp_names_axes axes, int64_t begin,
                       int64_t end, bool is_target, struct dcp_error *err)
{
    size_t elem = dcp_dtype_size(catalog->tensors[tensor].dtype);

    if (axes == DCP_AXES_TRANSPOSED)
        return add_transposed_range(catalog, tensor, file, rank, offset, begin, end,
                                    is_target, err);
    const struct dcp_piece piece = {
        .tensor = tensor,
        .rank = rank,
        .file = file,
        .region = { .kind = DCP_FLAT, .begin = begin, .end = end },
        .offset = offset,
        .stored_size = (uint64_t)(end - begin) * elem,
    };
    return dcp_catalog_add_piece(catalog, &piece, err);
}

bool dcp_axes_heads_ok(enum dcp_names_axes axes, int64_t n_rows, int64_t heads)
{
    if (axes != DCP_AXES_Q_ROWS && axes != DCP_AXES_K_ROWS)
        return true;
    return heads > 0 && n_rows % heads == 0 && n_rows / heads % 2 == 0;
}
