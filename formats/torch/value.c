/* value: tensors and plain values as opcodes. */
#include "value.h"
#include "base/hex.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/training.h"
#include "formats/pickle/json.h"
#include "torch.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 2 * DCP_PICKLE_JSON_MAX_DEPTH };

static int write_value(struct dcp_torch_writer *w, json_t *value, int depth,
                       struct dcp_error *err);

/* -- tensors ------------------------------------------------------------------------- */

/* The persistent id of a storage. The text of its key is one object, wherever it stands:
 * *key_memo is where the memo has it, once `again` is true. */
static void write_storage(struct dcp_pickle_out *out, const char *class,
                          enum dcp_dtype dtype, size_t key, int64_t n_elems,
                          uint32_t *key_memo, bool again)
{
    char text[32];

    dcp_pickle_op(out, '(');
    dcp_pickle_shared_text(out, "storage");
    if (class)
        dcp_pickle_global(out, "torch", class);
    else
        dcp_pickle_global(out, "torch.storage", "UntypedStorage");
    snprintf(text, sizeof text, "%zu", key);
    if (again)
        dcp_pickle_fetch(out, *key_memo);
    else
        *key_memo = dcp_pickle_text(out, text, strlen(text));
    dcp_pickle_shared_text(out, "cpu");
    dcp_pickle_int(out, class ? n_elems : n_elems * (int64_t)dcp_dtype_size(dtype));
    dcp_pickle_op(out, 't');
    dcp_pickle_put(out);
    dcp_pickle_op(out, 'Q');
}

/* The function that rebuilds a tensor of a dtype, and its arguments. */
static void write_rebuild(struct dcp_pickle_out *out, enum dcp_dtype dtype)
{
    dcp_pickle_global(out, "torch._utils",
                      dcp_torch_storage_class(dtype) ? "_rebuild_tensor_v2"
                                                     : "_rebuild_tensor_v3");
}

static void write_arguments(struct dcp_pickle_out *out, enum dcp_dtype dtype, int ndim,
                            const int64_t *shape, size_t key, int64_t n_elems,
                            uint32_t *key_memo, bool again, bool grad)
{
    const char *class = dcp_torch_storage_class(dtype);
    int64_t stride[DCP_MAX_NDIM], n = 1;

    for (int d = ndim; d-- > 0;) {
        stride[d] = n;
        if (__builtin_mul_overflow(n, shape[d] ? shape[d] : 1, &n))
            n = 1; /* there is no element: any stride will do */
    }
    dcp_pickle_op(out, '(');
    write_storage(out, class, dtype, key, n_elems, key_memo, again);
    dcp_pickle_int(out, 0);
    dcp_pickle_numbers(out, shape, (size_t)ndim);
    dcp_pickle_numbers(out, stride, (size_t)ndim);
    dcp_pickle_bool(out, grad); /* requires_grad */
    dcp_pickle_global(out, "collections", "OrderedDict");
    dcp_pickle_op(out, ')');
    dcp_pickle_op(out, 'R');
    dcp_pickle_put(out); /* no hooks */
    if (!class)
        dcp_pickle_global(out, "torch", dcp_dtype_torch_name(dtype));
    dcp_pickle_op(out, 't');
    dcp_pickle_put(out);
}

/* What the writer needs to name the storage of a tensor: its root, its number. */
static size_t meet_storage(struct dcp_torch_writer *w, size_t tensor, bool *out_again)
{
    size_t root = dcp_torch_tie(w->catalog, tensor);

    *out_again = w->memo && w->storage[root] >= 0;
    if (w->storage[root] < 0) {
        w->first_seen[w->n_storages] = root;
        w->storage[root] = (int64_t)w->n_storages++;
    }
    return root;
}

void dcp_torch_write_arguments(struct dcp_torch_writer *w, size_t tensor, bool grad)
{
    const struct dcp_tensor *t = &w->catalog->tensors[tensor];
    bool again;
    size_t root = meet_storage(w, tensor, &again);
    uint32_t none, *key = w->memo ? &w->memo[root].key : &none;

    write_arguments(w->out, t->dtype, t->ndim, t->shape, (size_t)w->storage[root],
                    t->n_elems, key, again, grad);
}

void dcp_torch_write_rebuild(struct dcp_torch_writer *w, size_t tensor)
{
    write_rebuild(w->out, w->catalog->tensors[tensor].dtype);
}

void dcp_torch_write_storage(struct dcp_torch_writer *w, size_t tensor, bool untyped)
{
    const struct dcp_tensor *t = &w->catalog->tensors[tensor];
    bool again;
    size_t root = meet_storage(w, tensor, &again);
    uint32_t none, *key = w->memo ? &w->memo[root].key : &none;

    write_storage(w->out, untyped ? NULL : dcp_torch_storage_class(t->dtype), t->dtype,
                  (size_t)w->storage[root], t->n_elems, key, again);
}

void dcp_torch_write_view(struct dcp_pickle_out *out, enum dcp_dtype dtype, int ndim,
                          const int64_t *shape, size_t key, int64_t n_elems)
{
    uint32_t memo;

    write_rebuild(out, dtype);
    write_arguments(out, dtype, ndim, shape, key, n_elems, &memo, false, false);
    dcp_pickle_op(out, 'R');
    dcp_pickle_put(out);
}

static void remember(struct dcp_torch_writer *w, size_t tensor, uint32_t at)
{
    if (!w->memo)
        return;
    w->memo[tensor].tensor = at;
    w->memo[tensor].has_tensor = true;
}

void dcp_torch_write_tensor(struct dcp_torch_writer *w, size_t tensor)
{
    dcp_torch_write_rebuild(w, tensor);
    dcp_torch_write_arguments(w, tensor, false);
    dcp_pickle_op(w->out, 'R');
    remember(w, tensor, dcp_pickle_put(w->out));
}

/* The tensor that a JSON object stands for: the very object that its first name stands
 * for, a plain one, or one in a dress (dress.h). */
static int write_tensor(struct dcp_torch_writer *w, size_t tensor, json_t *value,
                        int depth, struct dcp_error *err)
{
    size_t root = dcp_torch_tie(w->catalog, tensor);

    if (json_object_get(value, DCP_PY_AGAIN) && root != tensor && w->memo &&
        w->memo[root].has_tensor) {
        dcp_pickle_fetch(w->out, w->memo[root].tensor);
        remember(w, tensor, w->memo[root].tensor);
        return DCP_OK;
    }
    if (json_object_size(value) == 1) {
        dcp_torch_write_tensor(w, tensor);
        return DCP_OK;
    }
    int rc = dcp_torch_write_dressed(w, tensor, value, depth, err);
    remember(w, tensor, dcp_pickle_put(w->out));
    return rc;
}

/* -- references ---------------------------------------------------------------------- */

/* A writer without storages has tensors of its own, and none of the catalog's. */
static int find_tensor(const struct dcp_torch_writer *w, const json_t *value)
{
    const char *name = dcp_py_tensor(value);

    return name && w->storage ? dcp_catalog_find(w->catalog, name) : -1;
}

static int find_object(const struct dcp_torch_writer *w, const json_t *value)
{
    const char *name = dcp_py_value(value);

    return name && strcmp(name, DCP_TORCH_TREE)
               ? dcp_catalog_find_object(w->catalog, name)
               : -1;
}

/* Whether a value stands for something: false for references to what is not there. */
static bool is_there(const struct dcp_torch_writer *w, const json_t *value)
{
    if (dcp_py_tensor(value))
        return find_tensor(w, value) >= 0;
    if (dcp_py_value(value))
        return find_object(w, value) >= 0;
    return true;
}

/* An object of the catalog. */
static int write_object(struct dcp_torch_writer *w, const struct dcp_object *object,
                        struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *value = NULL;

    DCP_TRY(dcp_training_value(object, &value, err));
    if (!value) {
        dcp_pickle_bytes_call(w->out, object->data, object->size_bytes);
        return DCP_OK;
    }
    /* Half the depth is left: an object in an object in an object ends here. */
    return write_value(w, value, MAX_DEPTH / 2, err);
}

/* -- texts that stand for other things ----------------------------------------------- */

/* Hexadecimal to bytes in the arena; false when it is none. */
static bool parse_hex(struct dcp_torch_writer *w, const json_t *text,
                      const unsigned char **out, size_t *out_n)
{
    const char *hex = json_string_value(text);
    size_t n = json_string_length(text) / 2;
    unsigned char *bytes = hex ? dcp_arena_alloc(w->arena, n, 1) : NULL;

    *out = bytes;
    *out_n = n;
    return bytes && dcp_hex_parse_all(hex, bytes);
}

static bool write_bytes(struct dcp_torch_writer *w, json_t *value)
{
    const unsigned char *bytes;
    size_t n;

    if (!parse_hex(w, value, &bytes, &n))
        return false;
    dcp_pickle_bytes_call(w->out, bytes, n);
    return true;
}

static bool write_bytearray(struct dcp_torch_writer *w, json_t *value)
{
    const unsigned char *bytes;
    size_t n;

    if (!parse_hex(w, value, &bytes, &n))
        return false;
    dcp_pickle_global(w->out, "__builtin__", "bytearray");
    dcp_pickle_bytes_call(w->out, bytes, n);
    dcp_pickle_tuple_end(w->out, 1);
    dcp_pickle_op(w->out, 'R');
    dcp_pickle_put(w->out);
    return true;
}

static bool write_text(struct dcp_torch_writer *w, json_t *value)
{
    const unsigned char *bytes;
    size_t n;

    if (!parse_hex(w, value, &bytes, &n))
        return false;
    dcp_pickle_text(w->out, (const char *)bytes, n);
    return true;
}

static bool write_int(struct dcp_torch_writer *w, json_t *value)
{
    const unsigned char *bytes;
    size_t n;

    if (!json_is_string(value) ||
        !dcp_pickle_long_parse(w->arena, json_string_value(value), &bytes, &n))
        return false;
    dcp_pickle_long(w->out, bytes, n);
    return true;
}

static bool write_float(struct dcp_torch_writer *w, json_t *value)
{
    const char *text = json_string_value(value);

    if (!text || (strcmp(text, "nan") && strcmp(text, "inf") && strcmp(text, "-inf")))
        return false;
    dcp_pickle_float(w->out, text[0] == 'n'   ? NAN
                             : text[0] == '-' ? -INFINITY
                                              : INFINITY);
    return true;
}

static bool write_global(struct dcp_torch_writer *w, json_t *value)
{
    const char *text = json_string_value(value);

    return text && dcp_torch_write_global(w->out, text);
}

static const struct {
    const char *tag;
    bool (*write)(struct dcp_torch_writer *w, json_t *value); /* false: it is no such */
} texts[] = {
    { DCP_PY_BYTES, write_bytes }, { DCP_PY_BYTEARRAY, write_bytearray },
    { DCP_PY_TEXT, write_text },   { DCP_PY_INT, write_int },
    { DCP_PY_FLOAT, write_float }, { DCP_PY_GLOBAL, write_global },
};

/* -- containers ---------------------------------------------------------------------- */

int dcp_torch_write_items(struct dcp_torch_writer *w, json_t *list, int depth,
                          struct dcp_error *err)
{
    size_t n = json_array_size(list);
    int rc = DCP_OK;

    for (size_t i = 0; i < n && !rc; i++) {
        dcp_pickle_fill_next(w->out, DCP_PICKLE_FILL_LIST, i, n);
        rc = write_value(w, json_array_get(list, i), depth, err);
    }
    dcp_pickle_fill_end(w->out, DCP_PICKLE_FILL_LIST, n);
    return rc;
}

static int write_list(struct dcp_torch_writer *w, json_t *list, int depth,
                      struct dcp_error *err)
{
    dcp_pickle_op(w->out, ']');
    dcp_pickle_put(w->out);
    return dcp_torch_write_items(w, list, depth, err);
}

int dcp_torch_write_tuple(struct dcp_torch_writer *w, json_t *list, int depth,
                          struct dcp_error *err)
{
    size_t n = json_array_size(list);
    int rc = DCP_OK;

    dcp_pickle_tuple_begin(w->out, n);
    for (size_t i = 0; i < n && !rc; i++)
        rc = write_value(w, json_array_get(list, i), depth, err);
    dcp_pickle_tuple_end(w->out, n);
    return rc;
}

/* set([…]), frozenset([…]) */
static int write_set(struct dcp_torch_writer *w, const char *class, json_t *list,
                     int depth, struct dcp_error *err)
{
    dcp_pickle_global(w->out, "__builtin__", class);
    int rc = write_list(w, list, depth, err);
    dcp_pickle_tuple_end(w->out, 1);
    dcp_pickle_op(w->out, 'R');
    dcp_pickle_put(w->out);
    return rc;
}

static int write_key(struct dcp_torch_writer *w, json_t *key, int depth,
                     struct dcp_error *err)
{
    if (!json_is_string(key))
        return write_value(w, key, depth, err);
    dcp_pickle_shared_text(w->out, json_string_value(key));
    return DCP_OK;
}

static bool is_pair_there(const struct dcp_torch_writer *w, const json_t *pair)
{
    return json_array_size(pair) == 2 && is_there(w, json_array_get(pair, 1));
}

int dcp_torch_write_pairs(struct dcp_torch_writer *w, json_t *pairs,
                          enum dcp_pickle_fill fill, int depth, struct dcp_error *err)
{
    size_t i, n = 0, written = 0;
    json_t *pair;
    int rc = DCP_OK;

    json_array_foreach(pairs, i, pair)
    {
        n += is_pair_there(w, pair);
    }
    json_array_foreach(pairs, i, pair)
    {
        if (rc || !is_pair_there(w, pair))
            continue;
        dcp_pickle_fill_next(w->out, fill, written++, n);
        rc = write_key(w, json_array_get(pair, 0), depth, err);
        if (!rc)
            rc = write_value(w, json_array_get(pair, 1), depth, err);
    }
    dcp_pickle_fill_end(w->out, fill, n);
    return rc;
}

static int write_dict(struct dcp_torch_writer *w, json_t *dict, int depth,
                      struct dcp_error *err)
{
    size_t n = 0, written = 0;
    const char *key;
    json_t *value;
    int rc = DCP_OK;

    dcp_pickle_op(w->out, '}');
    dcp_pickle_put(w->out);
    json_object_foreach(dict, key, value)
    {
        n += is_there(w, value);
    }
    json_object_foreach(dict, key, value)
    {
        if (rc || !is_there(w, value))
            continue;
        dcp_pickle_fill_next(w->out, DCP_PICKLE_FILL_DICT, written++, n);
        dcp_pickle_shared_text(w->out, key);
        rc = write_value(w, value, depth, err);
    }
    dcp_pickle_fill_end(w->out, DCP_PICKLE_FILL_DICT, n);
    return rc;
}

/* A JSON object: one of the tags, a class, or a dict. */
static int write_json_object(struct dcp_torch_writer *w, json_t *value, int depth,
                             struct dcp_error *err)
{
    json_t *tagged;
    int at;

    if (dcp_py_class(value))
        return dcp_torch_write_call(w, value, depth, err);
    if (w->take && w->take(w, value))
        return DCP_OK;
    if (dcp_py_tensor(value) && (at = find_tensor(w, value)) >= 0)
        return write_tensor(w, (size_t)at, value, depth, err);
    if (json_object_size(value) != 1)
        return write_dict(w, value, depth, err);
    for (size_t i = 0; i < DCP_ARRAY_LEN(texts); i++)
        if ((tagged = json_object_get(value, texts[i].tag)) && texts[i].write(w, tagged))
            return DCP_OK;
    if ((at = find_object(w, value)) >= 0)
        return depth >= MAX_DEPTH / 2
                   ? dcp_error_set(err, DCP_E_CORRUPT, "an object refers to objects")
                   : write_object(w, &w->catalog->objects[at], err);
    if (!is_there(w, value)) {
        dcp_pickle_none(w->out);
        return DCP_OK;
    }
    if (json_is_array(tagged = json_object_get(value, DCP_PY_TUPLE)))
        return dcp_torch_write_tuple(w, tagged, depth, err);
    if (json_is_array(tagged = json_object_get(value, DCP_PY_SET)))
        return write_set(w, "set", tagged, depth, err);
    if (json_is_array(tagged = json_object_get(value, DCP_PY_FROZENSET)))
        return write_set(w, "frozenset", tagged, depth, err);
    if (json_is_array(tagged = json_object_get(value, DCP_PY_DICT))) {
        dcp_pickle_op(w->out, '}');
        dcp_pickle_put(w->out);
        return dcp_torch_write_pairs(w, tagged, DCP_PICKLE_FILL_DICT, depth, err);
    }
    return write_dict(w, value, depth, err);
}

static int write_value(struct dcp_torch_writer *w, json_t *value, int depth,
                       struct dcp_error *err)
{
    depth++;
    if (depth > MAX_DEPTH)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "a PyTorch file cannot hold: an object nested over %d deep",
                             DCP_PICKLE_JSON_MAX_DEPTH);
    switch (json_typeof(value)) {
    case JSON_NULL:
        dcp_pickle_none(w->out);
        return DCP_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        dcp_pickle_bool(w->out, json_is_true(value));
        return DCP_OK;
    case JSON_INTEGER:
        dcp_pickle_int(w->out, json_integer_value(value));
        return DCP_OK;
    case JSON_REAL:
        dcp_pickle_float(w->out, json_real_value(value));
        return DCP_OK;
    case JSON_STRING:
        dcp_pickle_text(w->out, json_string_value(value), json_string_length(value));
        return DCP_OK;
    case JSON_ARRAY:
        return write_list(w, value, depth, err);
    case JSON_OBJECT:
        break;
    }
    return write_json_object(w, value, depth, err);
}

int dcp_torch_write_value(struct dcp_torch_writer *w, json_t *value,
                          struct dcp_error *err)
{
    return write_value(w, value, 0, err);
}

int dcp_torch_write_inner(struct dcp_torch_writer *w, json_t *value, int depth,
                          struct dcp_error *err)
{
    return write_value(w, value, depth, err);
}
