/* value_dress: tensors as parameters, classes of tensors, arrays of NumPy, storages. */
#include "base/mem.h"
#include "formats/numpy/npy.h"
#include "torch.h"
#include "value.h"
#include <string.h>

static void call(struct dcp_pickle_out *out, size_t n_args)
{
    dcp_pickle_tuple_end(out, n_args);
    dcp_pickle_op(out, 'R');
}

static void no_hooks(struct dcp_pickle_out *out)
{
    dcp_pickle_global(out, "collections", "OrderedDict");
    call(out, 0);
    dcp_pickle_put(out);
}

/* dtype('f4', False, True), filled with (3, '<', None, None, None, -1, -1, 0) */
static void write_dtype(struct dcp_pickle_out *out, enum dcp_dtype dtype)
{
    dcp_pickle_global(out, "numpy", "dtype");
    dcp_pickle_shared_text(out, dcp_npy_code(dtype));
    dcp_pickle_bool(out, false);
    dcp_pickle_bool(out, true);
    call(out, 3);
    dcp_pickle_put(out);
    dcp_pickle_tuple_begin(out, 8);
    dcp_pickle_int(out, 3);
    dcp_pickle_shared_text(out, dcp_dtype_size(dtype) > 1 ? "<" : "|");
    for (int i = 0; i < 3; i++)
        dcp_pickle_none(out);
    dcp_pickle_int(out, -1);
    dcp_pickle_int(out, -1);
    dcp_pickle_int(out, 0);
    dcp_pickle_tuple_end(out, 8);
    dcp_pickle_op(out, 'b');
}

/* _reconstruct(ndarray, (0,), b'b'), filled with (1, shape, dtype, False, bytes); the
 * bytes are a hole. */
static void write_array(struct dcp_torch_writer *w, size_t tensor, const char *module)
{
    const struct dcp_tensor *t = &w->catalog->tensors[tensor];
    uint64_t n = dcp_tensor_bytes(t);
    const int64_t zero = 0;
    struct dcp_pickle_out *out = w->out;

    dcp_pickle_global(out, module, "_reconstruct");
    dcp_pickle_global(out, "numpy", "ndarray");
    dcp_pickle_numbers(out, &zero, 1);
    dcp_pickle_bytes_call(out, (const unsigned char *)"b", 1);
    call(out, 3);
    dcp_pickle_put(out);
    dcp_pickle_tuple_begin(out, 5);
    dcp_pickle_int(out, 1);
    dcp_pickle_numbers(out, t->shape, (size_t)t->ndim);
    write_dtype(out, t->dtype);
    dcp_pickle_bool(out, false);
    dcp_pickle_op(out, n > UINT32_MAX ? '\x8e' : 'B');
    if (n > UINT32_MAX)
        dcp_buf_add_le64(&out->buf, n);
    else
        dcp_buf_add_le32(&out->buf, (uint32_t)n);
    w->holes[w->n_holes++] = (struct dcp_torch_hole){ tensor, out->buf.size_bytes };
    dcp_pickle_put(out);
    dcp_pickle_tuple_end(out, 5);
    dcp_pickle_op(out, 'b');
}

static int write_typed(struct dcp_torch_writer *w, size_t tensor, json_t *value,
                       int depth, struct dcp_error *err)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    json_t *state = json_object_get(value, "state");
    int rc = DCP_OK;

    dcp_pickle_global(w->out, "torch._tensor", "_rebuild_from_type_v2");
    dcp_pickle_tuple_begin(w->out, 4);
    dcp_torch_write_rebuild(w, tensor);
    if (!dcp_torch_write_global(w->out, type))
        dcp_pickle_global(w->out, "torch", "Tensor");
    dcp_torch_write_arguments(w, tensor, json_is_true(json_object_get(value, "grad")));
    if (state) {
        rc = dcp_torch_write_inner(w, state, depth, err);
    } else {
        dcp_pickle_op(w->out, '}');
        dcp_pickle_put(w->out);
    }
    call(w->out, 4);
    return rc;
}

static int write_bare(struct dcp_torch_writer *w, size_t tensor, json_t *value, int depth,
                      struct dcp_error *err)
{
    bool parameter = json_is_true(json_object_get(value, "parameter"));

    if (json_is_string(json_object_get(value, "type")))
        return write_typed(w, tensor, value, depth, err);
    dcp_torch_write_rebuild(w, tensor);
    dcp_torch_write_arguments(w, tensor,
                              !parameter && json_is_true(json_object_get(value, "grad")));
    dcp_pickle_op(w->out, 'R');
    return DCP_OK;
}

static int write_parameter(struct dcp_torch_writer *w, size_t tensor, json_t *value,
                           int depth, struct dcp_error *err)
{
    json_t *attributes = json_object_get(value, "attributes");
    size_t n_args = attributes ? 4 : 3;

    dcp_pickle_global(w->out, "torch._utils",
                      attributes ? "_rebuild_parameter_with_state"
                                 : "_rebuild_parameter");
    dcp_pickle_tuple_begin(w->out, n_args);
    int rc = write_bare(w, tensor, value, depth, err);
    dcp_pickle_put(w->out);
    dcp_pickle_bool(w->out, json_is_true(json_object_get(value, "grad")));
    no_hooks(w->out);
    if (!rc && attributes)
        rc = dcp_torch_write_inner(w, attributes, depth, err);
    call(w->out, n_args);
    return rc;
}

/* An array that another name shares is a tensor; so is one of a dtype that NumPy has
 * not. */
static bool is_array(const struct dcp_torch_writer *w, size_t tensor)
{
    const struct dcp_tensor *t = &w->catalog->tensors[tensor];
    bool free = w->holes && !t->tied_to && w->storage[tensor] < 0;

    for (size_t h = 0; h < w->n_holes && free; h++)
        free = w->holes[h].tensor != tensor;
    return free && dcp_npy_code(t->dtype);
}

int dcp_torch_write_dressed(struct dcp_torch_writer *w, size_t tensor, json_t *value,
                            int depth, struct dcp_error *err)
{
    const char *module = json_string_value(json_object_get(value, "array")),
               *storage = json_string_value(json_object_get(value, "storage"));

    if (module && is_array(w, tensor)) {
        write_array(w, tensor,
                    strcmp(module, "numpy._core.multiarray") ? "numpy.core.multiarray"
                                                             : module);
        return DCP_OK;
    }
    if (storage && dcp_torch_storage_class(w->catalog->tensors[tensor].dtype)) {
        dcp_torch_write_storage(w, tensor, !strcmp(storage, "untyped"));
        return DCP_OK;
    }
    return json_is_true(json_object_get(value, "parameter"))
               ? write_parameter(w, tensor, value, depth, err)
               : write_bare(w, tensor, value, depth, err);
}
