/* view: the calls by which torch rebuilds a tensor, as views of storages. Nothing
 * is rebuilt: shape, strides and place are read from the arguments and checked. */
#include "base/mem.h"
#include "base/str.h"
#include "form.h"
#include "formats/common/optim.h"
#include <stdio.h>
#include <string.h>

/* What would be called, and with what. */
struct call {
    const struct dcp_pickle_node *fn, *args;
};

struct storage {
    struct dcp_torch_storage *at;
    uint64_t begin, size_bytes; /* the part of it that is meant */
    enum dcp_dtype dtype;
    bool untyped;
    int64_t n_elems; /* of dtype */
};

static const struct {
    const char *name;
    enum dcp_dtype dtype;
} storage_classes[] = {
    { "DoubleStorage", DCP_F64 },
    { "FloatStorage", DCP_F32 },
    { "HalfStorage", DCP_F16 },
    { "BFloat16Storage", DCP_BF16 },
    { "LongStorage", DCP_I64 },
    { "IntStorage", DCP_I32 },
    { "ShortStorage", DCP_I16 },
    { "CharStorage", DCP_I8 },
    { "ByteStorage", DCP_U8 },
    { "BoolStorage", DCP_BOOL },
    { "ComplexDoubleStorage", DCP_C128 },
    { "ComplexFloatStorage", DCP_C64 },
};

const char *dcp_torch_storage_class(enum dcp_dtype dtype)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(storage_classes); i++)
        if (storage_classes[i].dtype == dtype)
            return storage_classes[i].name;
    return NULL;
}

static int refuse(const struct dcp_torch_file *file, int code, const char *name,
                  const char *what, struct dcp_error *err)
{
    return dcp_error_of_tensor(err, code, name, "'%s': tensor '%s' %s", file->in.shown,
                               DCP_SHOWN(name[0] ? name : DCP_TORCH_BARE_TENSOR), what);
}

/* -- storages ------------------------------------------------------------------------ */

bool dcp_torch_class_dtype(const struct dcp_pickle_node *cls, enum dcp_dtype *out,
                           bool *out_untyped)
{
    *out_untyped = dcp_pickle_is_global(cls, "torch.storage", "UntypedStorage") ||
                   dcp_pickle_is_global(cls, "torch", "UntypedStorage");
    if (*out_untyped) {
        *out = DCP_U8;
        return true;
    }
    for (size_t i = 0; i < DCP_ARRAY_LEN(storage_classes); i++)
        if (dcp_pickle_is_global(cls, "torch", storage_classes[i].name) ||
            dcp_pickle_is_global(cls, "torch.cuda", storage_classes[i].name)) {
            *out = storage_classes[i].dtype;
            return true;
        }
    return false;
}

/* The storage with the key of an id; its bytes, and all that is known of them. */
static int find_storage(struct dcp_torch_file *file, const struct dcp_pickle_node *key,
                        const char *name, struct storage *out, struct dcp_error *err)
{
    char text[DCP_TORCH_KEY_CAP];

    if (!dcp_torch_key(key, text))
        return refuse(file, DCP_E_CORRUPT, name, "has a storage key that is no number",
                      err);
    out->at = dcp_torch_find_storage(file, text);
    if (!out->at)
        return refuse(file, DCP_E_CORRUPT, name, "has no record for its storage", err);
    if (out->at->codec != DCP_CODEC_NONE && !file->takes_streams)
        return refuse(file, DCP_E_UNSUPPORTED, name,
                      "is compressed; load and save the file once with torch", err);
    out->size_bytes = out->at->size_bytes;
    return DCP_OK;
}

static bool is_count(const struct dcp_pickle_node *node)
{
    return node && node->kind == DCP_PICKLE_INT && node->number >= 0;
}

/* view_metadata of a stream: None, or (key, offset, number of elements), the part of the
 * storage that the tensor's own storage is. */
static int parse_part(struct dcp_torch_file *file, const struct dcp_pickle_node *part,
                      const char *name, struct storage *out, struct dcp_error *err)
{
    const struct dcp_pickle_node *offset = dcp_pickle_item(part, 1),
                                 *n_elems = dcp_pickle_item(part, 2);

    if (part->kind == DCP_PICKLE_NONE)
        return DCP_OK;
    if (part->kind != DCP_PICKLE_TUPLE || part->list.n != 3 || !is_count(offset) ||
        !is_count(n_elems) || offset->number > out->n_elems ||
        n_elems->number > out->n_elems - offset->number)
        return refuse(file, DCP_E_CORRUPT, name,
                      "has a storage that is no part of the one it should be in", err);
    out->begin = (uint64_t)offset->number * dcp_dtype_size(out->dtype);
    out->n_elems = n_elems->number;
    out->size_bytes = (uint64_t)out->n_elems * dcp_dtype_size(out->dtype);
    return DCP_OK;
}

/* ('storage', class, key, location, number of elements), and in a stream view_metadata.
 */
static int parse_storage(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                         const char *name, struct storage *out, struct dcp_error *err)
{
    const struct dcp_pickle_node *id =
        node && node->kind == DCP_PICKLE_PERSID ? node->id : NULL;
    const struct dcp_pickle_node *key = dcp_pickle_item(id, 2),
                                 *location = dcp_pickle_item(id, 3),
                                 *numel = dcp_pickle_item(id, 4);
    bool is_stream = file->form == DCP_TORCH_STREAM;
    uint64_t size_bytes;

    *out = (struct storage){ 0 };
    if (!id || id->kind != DCP_PICKLE_TUPLE || id->list.n != (is_stream ? 6 : 5) ||
        !dcp_pickle_is_text(dcp_pickle_item(id, 0), "storage") ||
        key->kind != DCP_PICKLE_STR || location->kind != DCP_PICKLE_STR ||
        !is_count(numel))
        return refuse(file, DCP_E_CORRUPT, name, "has a malformed storage", err);
    if (!dcp_torch_class_dtype(dcp_pickle_item(id, 1), &out->dtype, &out->untyped))
        return refuse(file, DCP_E_UNSUPPORTED, name,
                      "has a storage of a class that is not supported (quantized?)", err);
    DCP_TRY(find_storage(file, key, name, out, err));
    out->n_elems = numel->number;
    if (!dcp_mul_u64((uint64_t)out->n_elems, dcp_dtype_size(out->dtype), &size_bytes) ||
        size_bytes > out->size_bytes)
        return refuse(file, DCP_E_CORRUPT, name, "needs more bytes than its record holds",
                      err);
    if (out->at->dtype >= 0 && out->at->dtype != (int)out->dtype)
        return refuse(file, DCP_E_CORRUPT, name,
                      "shares its storage with a tensor of another dtype", err);
    out->at->dtype = (int)out->dtype;
    return is_stream ? parse_part(file, dcp_pickle_item(id, 5), name, out, err) : DCP_OK;
}

/* -- shapes -------------------------------------------------------------------------- */

int dcp_torch_numbers(const struct dcp_pickle_node *node, int64_t out[DCP_MAX_NDIM])
{
    if (dcp_pickle_is_call(node, "torch", "Size"))
        node = dcp_pickle_item(node, 0);
    if (!node || (node->kind != DCP_PICKLE_TUPLE && node->kind != DCP_PICKLE_LIST))
        return -1;
    if (node->list.n > DCP_MAX_NDIM)
        return DCP_MAX_NDIM + 1;
    for (size_t i = 0; i < node->list.n; i++) {
        if (node->list.items[i]->kind != DCP_PICKLE_INT ||
            node->list.items[i]->number < 0)
            return -1;
        out[i] = node->list.items[i]->number;
    }
    return (int)node->list.n;
}

static int parse_shape(struct dcp_torch_file *file, const struct dcp_pickle_node *size,
                       const struct dcp_pickle_node *stride, const char *name,
                       struct dcp_torch_view *out, struct dcp_error *err)
{
    int ndim = dcp_torch_numbers(size, out->shape),
        n = dcp_torch_numbers(stride, out->stride);

    if (ndim > DCP_MAX_NDIM)
        return refuse(file, DCP_E_UNSUPPORTED, name, "has more dimensions than supported",
                      err);
    if (ndim < 0 || n != ndim)
        return refuse(file, DCP_E_CORRUPT, name, "has a malformed size or stride", err);
    out->ndim = ndim;
    return DCP_OK;
}

bool dcp_torch_view_elems(const struct dcp_torch_view *view, int64_t *out)
{
    *out = 1;
    for (int d = 0; d < view->ndim; d++)
        if (!view->shape[d]) {
            *out = 0;
            return true;
        }
    for (int d = 0; d < view->ndim; d++)
        if (!dcp_mul_i64(*out, view->shape[d], out))
            return false;
    return true;
}

int dcp_torch_number(struct dcp_torch_file *file, const struct dcp_torch_view *view,
                     bool *out_found, double *out, struct dcp_error *err)
{
    unsigned char data[8] = { 0 };
    size_t n = dcp_dtype_size(view->dtype);
    int64_t n_elems;

    *out_found = false;
    if (!view->has_data || n > sizeof data || !dcp_torch_view_elems(view, &n_elems) ||
        n_elems != 1 || (view->memory && view->stored_size != n))
        return DCP_OK;
    if (view->memory)
        memcpy(data, view->memory, n);
    else
        DCP_TRY(
            dcp_torch_read(file, view->offset, view->codec, view->skip, data, n, err));
    *out_found = dcp_optim_number(view->dtype, data, out);
    return DCP_OK;
}

bool dcp_torch_view_is_dense(const struct dcp_torch_view *view)
{
    int64_t n = 1;

    for (int d = view->ndim; d-- > 0;) {
        if (view->shape[d] > 1 && view->stride[d] != n)
            return false;
        if (__builtin_mul_overflow(n, view->shape[d], &n))
            return true; /* there is no element: others were counted */
    }
    return true;
}

/* Checks that the view stays in its storage, and finds its bytes in the file. */
static int place(struct dcp_torch_file *file, const struct storage *storage,
                 int64_t offset, const char *name, struct dcp_torch_view *view,
                 struct dcp_error *err)
{
    int64_t item = (int64_t)dcp_dtype_size(view->dtype), n_elems, last = offset, step;
    int64_t room =
        storage->n_elems * (int64_t)dcp_dtype_size(storage->dtype) / item; /* checked */
    bool fits = dcp_torch_view_elems(view, &n_elems) && n_elems <= INT64_MAX / item;

    for (int d = 0; d < view->ndim && n_elems > 0 && fits; d++)
        fits = dcp_mul_i64(view->shape[d] - 1, view->stride[d], &step) &&
               dcp_add_i64(last, step, &last);
    if (!fits || (n_elems && last >= room) || offset > room)
        return refuse(file, DCP_E_CORRUPT, name, "reaches past the end of its storage",
                      err);
    if (n_elems > room && n_elems * item > (int64_t)DCP_TORCH_MAX_EXPANDED_BYTES)
        return refuse(file, DCP_E_UNSUPPORTED, name,
                      "repeats a small storage to a size that is not plausible", err);
    const struct dcp_torch_storage *at = storage->at;
    view->has_data = true;
    view->dense = !n_elems || dcp_torch_view_is_dense(view);
    view->skip = storage->begin + (uint64_t)(offset * item);
    view->stored_size = n_elems ? (uint64_t)((last - offset + 1) * item) : 0;
    if (n_elems && at->codec != DCP_CODEC_NONE) {
        view->codec = at->codec;
        view->offset = at->offset;
        view->stored_size = at->stored_size;
    } else {
        view->offset = at->codec == DCP_CODEC_NONE ? at->offset + view->skip : at->offset;
        view->skip = 0;
    }
    return DCP_OK;
}

/* -- calls --------------------------------------------------------------------------- */

static bool is_rebuild(const struct call *call, const char *name)
{
    return dcp_pickle_is_global(call->fn, "torch._utils", name);
}

static const struct dcp_pickle_node *arg(const struct call *call, size_t i)
{
    return dcp_pickle_item(call->args, i);
}

bool dcp_torch_dtype(const struct dcp_pickle_node *node, enum dcp_dtype *out)
{
    if (!node || node->kind != DCP_PICKLE_GLOBAL || strcmp(node->global.module, "torch"))
        return false;
    for (int d = 0; d < DCP_N_DTYPES; d++)
        if (!strcmp(node->global.name, dcp_dtype_torch_name((enum dcp_dtype)d))) {
            *out = (enum dcp_dtype)d;
            return true;
        }
    return false;
}

/* {'conj': True} and {'neg': True}: the values are not those in the storage. */
static bool is_lazy(const struct dcp_pickle_node *metadata)
{
    const struct dcp_pickle_node *conj = dcp_pickle_get(metadata, "conj"),
                                 *neg = dcp_pickle_get(metadata, "neg");

    return (conj && conj->kind == DCP_PICKLE_BOOL && conj->truth) ||
           (neg && neg->kind == DCP_PICKLE_BOOL && neg->truth);
}

/* _rebuild_tensor(storage, offset, size, stride),
 * _v2 (…, requires_grad, hooks[, metadata]), _v3 (…, dtype[, metadata]). */
static int view_tensor(struct dcp_torch_file *file, const struct call *call,
                       const char *name, struct dcp_torch_view *out,
                       struct dcp_error *err)
{
    const struct dcp_pickle_node *offset = arg(call, 1);
    bool v3 = is_rebuild(call, "_rebuild_tensor_v3");
    size_t metadata = v3 ? 7 : 6;
    struct storage storage;

    DCP_TRY(parse_storage(file, arg(call, 0), name, &storage, err));
    DCP_TRY(parse_shape(file, arg(call, 2), arg(call, 3), name, out, err));
    out->dtype = storage.dtype;
    if (v3 && !dcp_torch_dtype(arg(call, 6), &out->dtype))
        return refuse(file, DCP_E_UNSUPPORTED, name, "has a dtype that is not supported",
                      err);
    if (!v3 && storage.untyped)
        return refuse(file, DCP_E_CORRUPT, name, "has no dtype", err);
    if (!offset || offset->kind != DCP_PICKLE_INT || offset->number < 0)
        return refuse(file, DCP_E_CORRUPT, name, "has a malformed offset", err);
    if (is_lazy(arg(call, metadata)))
        return refuse(file, DCP_E_UNSUPPORTED, name,
                      "is stored as the conjugate or negative of itself; save it once "
                      "with resolve_conj() and resolve_neg()",
                      err);
    return place(file, &storage, offset->number, name, out, err);
}

/* _rebuild_meta_tensor_no_storage(dtype, size, stride, requires_grad) */
static int view_meta(struct dcp_torch_file *file, const struct call *call,
                     const char *name, struct dcp_torch_view *out, struct dcp_error *err)
{
    if (!dcp_torch_dtype(arg(call, 0), &out->dtype))
        return refuse(file, DCP_E_UNSUPPORTED, name, "has a dtype that is not supported",
                      err);
    return parse_shape(file, arg(call, 1), arg(call, 2), name, out, err);
}

/* In a tar file an id is the key of a tensor or of a storage. */
static int view_tar(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                    const char *name, struct dcp_torch_view *out, struct storage *storage,
                    int64_t *out_offset, struct dcp_error *err)
{
    char key[DCP_TORCH_KEY_CAP] = "";
    bool is_key = dcp_torch_key(node->id, key);
    const struct dcp_torch_tar_tensor *tensor =
        is_key ? dcp_torch_find_tar_tensor(file, key) : NULL;

    *storage = (struct storage){ .at = tensor   ? &file->storages[tensor->storage]
                                       : is_key ? dcp_torch_find_storage(file, key)
                                                : NULL };
    if (!storage->at)
        return refuse(file, DCP_E_CORRUPT, name, "refers to nothing in the file", err);
    storage->dtype = (enum dcp_dtype)storage->at->dtype;
    storage->size_bytes = storage->at->size_bytes;
    storage->n_elems = (int64_t)(storage->size_bytes / dcp_dtype_size(storage->dtype));
    if (tensor) {
        out->ndim = tensor->ndim;
        memcpy(out->shape, tensor->shape, sizeof out->shape);
        memcpy(out->stride, tensor->stride, sizeof out->stride);
    }
    *out_offset = tensor ? tensor->offset : -1;
    return DCP_OK;
}

/* A storage that stands alone is a tensor of one dimension. */
static int view_id(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                   const char *name, struct dcp_torch_view *out, struct dcp_error *err)
{
    struct storage storage;
    int64_t offset = -1;

    DCP_TRY(file->form == DCP_TORCH_TAR
                ? view_tar(file, node, name, out, &storage, &offset, err)
                : parse_storage(file, node, name, &storage, err));
    out->dtype = storage.dtype;
    if (offset < 0) {
        out->ndim = 1;
        out->shape[0] = storage.n_elems;
        out->stride[0] = 1;
        offset = 0;
    }
    return place(file, &storage, offset, name, out, err);
}

/* Calls that only dress the tensor in their first argument. */
static bool is_wrapper(const struct call *call)
{
    return is_rebuild(call, "_rebuild_parameter") ||
           is_rebuild(call, "_rebuild_parameter_with_state") ||
           is_rebuild(call, "_rebuild_device_tensor_from_cpu_tensor") ||
           is_rebuild(call, "_rebuild_device_tensor_from_numpy") ||
           dcp_pickle_is_global(call->fn, "torch.nn.parameter", "Parameter") ||
           dcp_pickle_is_global(call->fn, "torch.autograd.variable", "Variable");
}

/* _rebuild_from_type_v2(function, type, args, state): a call in a call. */
static bool is_typed(const struct call *call)
{
    return dcp_pickle_is_global(call->fn, "torch._tensor", "_rebuild_from_type_v2") ||
           dcp_pickle_is_global(call->fn, "torch.tensor", "_rebuild_from_type_v2");
}

/* A DTensor or ShardedTensor: fsdp/view.c reads these, in the files of all ranks. */
static bool is_piece(const struct call *call)
{
    const struct dcp_pickle_node *class = arg(call, 1);

    return is_typed(call) &&
           dcp_pickle_is_global(arg(call, 0), "torch._utils",
                                "_rebuild_wrapper_subclass") &&
           class && class->kind == DCP_PICKLE_GLOBAL &&
           dcp_str_starts(class->global.module, "torch.distributed.");
}

static int refuse_piece(struct dcp_torch_file *file, const char *name,
                        struct dcp_error *err)
{
    refuse(file, DCP_E_UNSUPPORTED, name, "is only one rank's piece of a tensor", err);
    dcp_error_hint(err, "the files of all ranks are read together, when they are named "
                        "model_world_size_4_rank_0.pt and so on");
    return DCP_E_UNSUPPORTED;
}

int dcp_torch_view(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                   const char *name, bool *out_found, struct dcp_torch_view *out,
                   struct dcp_error *err)
{
    *out = (struct dcp_torch_view){ 0 };
    *out_found = true;
    for (;;) { /* each turn goes one level down the tree */
        if (node->kind == DCP_PICKLE_PERSID)
            return view_id(file, node, name, out, err);
        if (node->kind != DCP_PICKLE_OBJECT)
            break;
        struct call call = { node->object->cls, node->object->args };
        if (is_piece(&call))
            return refuse_piece(file, name, err);
        if (is_typed(&call) && arg(&call, 2) && arg(&call, 2)->kind == DCP_PICKLE_TUPLE)
            call = (struct call){ arg(&call, 0), arg(&call, 2) };
        if (is_wrapper(&call) && arg(&call, 0)) {
            node = arg(&call, 0);
            continue;
        }
        bool is_tensor = is_rebuild(&call, "_rebuild_tensor") ||
                         is_rebuild(&call, "_rebuild_tensor_v2") ||
                         is_rebuild(&call, "_rebuild_tensor_v3");
        bool is_meta = is_rebuild(&call, "_rebuild_meta_tensor_no_storage");
        if ((is_tensor || is_meta) && (node->object->items.n || node->object->pairs.n))
            return refuse(file, DCP_E_CORRUPT, name, "has items, which tensors have not",
                          err);
        if (is_tensor)
            return view_tensor(file, &call, name, out, err);
        if (is_meta)
            return view_meta(file, &call, name, out, err);
        if (is_rebuild(&call, "_rebuild_qtensor"))
            return refuse(file, DCP_E_UNSUPPORTED, name,
                          "is quantized; save it dequantized", err);
        return dcp_torch_numpy_view(file, node, out_found, out, err);
    }
    *out_found = false;
    return DCP_OK;
}
