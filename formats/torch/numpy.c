/* numpy: NumPy arrays in a pickle. Their bytes stand in the pickle itself, so the
 * view is of memory. */
#include "base/mem.h"
#include "formats/numpy/npy.h"
#include "torch.h"
#include <string.h>

/* numpy.dtype('f4', False, True) with the state (3, '<', …). */
static bool parse_dtype(const struct dcp_pickle_node *node, enum dcp_dtype *out,
                        bool *out_swapped)
{
    const struct dcp_pickle_node *code = dcp_pickle_item(node, 0);

    if (!dcp_pickle_is_call(node, "numpy", "dtype"))
        return false;
    *out_swapped = dcp_pickle_is_text(dcp_pickle_item(node->object->state, 1), ">");
    return code && code->kind == DCP_PICKLE_STR &&
           dcp_npy_dtype(code->text.data, code->text.size_bytes, out);
}

static bool parse_shape(const struct dcp_pickle_node *node, bool fortran,
                        struct dcp_torch_view *out)
{
    int64_t n = 1;

    if (!node || node->kind != DCP_PICKLE_TUPLE || node->list.n > DCP_MAX_NDIM)
        return false;
    out->ndim = (int)node->list.n;
    for (int d = 0; d < out->ndim; d++) {
        const struct dcp_pickle_node *item = node->list.items[d];
        if (item->kind != DCP_PICKLE_INT || item->number < 0)
            return false;
        out->shape[d] = item->number;
    }
    for (int i = 0; i < out->ndim; i++) {
        int d = fortran ? i : out->ndim - 1 - i;
        out->stride[d] = n;
        if (!dcp_mul_i64(n, out->shape[d] ? out->shape[d] : 1, &n))
            return false;
    }
    return true;
}

/* Big-endian numbers to little-endian, in the arena. Complex ones swap each half. */
static const unsigned char *swap(struct dcp_arena *arena, const unsigned char *in,
                                 size_t n, enum dcp_dtype dtype)
{
    size_t size = dcp_dtype_size(dtype);
    unsigned char *out = dcp_arena_alloc(arena, n, 1);

    if (dtype == DCP_C64 || dtype == DCP_C128)
        size /= 2;
    for (size_t i = 0; out && i < n; i++)
        out[i] = in[i - i % size + size - 1 - i % size];
    return out;
}

/* NumPy 2 moved its modules. */
static bool is_numpy(const struct dcp_pickle_node *node, const char *old_module,
                     const char *new_module, const char *name)
{
    return dcp_pickle_is_call(node, old_module, name) ||
           dcp_pickle_is_call(node, new_module, name);
}

int dcp_torch_numpy_view(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                         bool *out_found, struct dcp_torch_view *out,
                         struct dcp_error *err)
{
    const struct dcp_pickle_node *shape, *dtype, *data;
    const unsigned char *bytes = NULL;
    bool fortran, swapped = false;
    int64_t n_elems;
    size_t n = 0;

    *out_found = false;
    if (is_numpy(node, "numpy.core.multiarray", "numpy._core.multiarray",
                 "_reconstruct")) {
        /* state: (version, shape, dtype, is Fortran, bytes) */
        const struct dcp_pickle_node *state = node->object->state;
        const struct dcp_pickle_node *order = dcp_pickle_item(state, 3);
        shape = dcp_pickle_item(state, 1);
        dtype = dcp_pickle_item(state, 2);
        data = dcp_pickle_item(state, 4);
        fortran = order && order->kind == DCP_PICKLE_BOOL && order->truth;
    } else if (is_numpy(node, "numpy.core.numeric", "numpy._core.numeric",
                        "_frombuffer")) {
        data = dcp_pickle_item(node, 0);
        dtype = dcp_pickle_item(node, 1);
        shape = dcp_pickle_item(node, 2);
        fortran = dcp_pickle_is_text(dcp_pickle_item(node, 3), "F");
    } else {
        return DCP_OK;
    }
    bool found = false;
    if (!data || !parse_dtype(dtype, &out->dtype, &swapped))
        return DCP_OK; /* strings, objects, structures: it stays opaque */
    DCP_TRY(dcp_pickle_bytes(data, file->arena, &found, &bytes, &n, err));
    if (!found || !parse_shape(shape, fortran, out) ||
        !dcp_torch_view_elems(out, &n_elems) ||
        (uint64_t)n_elems > n / dcp_dtype_size(out->dtype) ||
        (uint64_t)n_elems * dcp_dtype_size(out->dtype) != n)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' holds a NumPy array whose bytes do not fit its shape",
                             file->in.shown);
    if (swapped && !(bytes = swap(file->arena, bytes, n, out->dtype)))
        return dcp_error_memory(err, "a NumPy array");
    out->has_data = true;
    out->dense = !n_elems || dcp_torch_view_is_dense(out);
    out->stored_size = n;
    out->memory = bytes;
    *out_found = true;
    return DCP_OK;
}
