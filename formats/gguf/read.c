/* read: the header of a file: keys and values, the table of tensors. */
#include "base/bytes.h"
#include "base/mem.h"
#include "base/str.h"
#include "gguf.h"
#include <string.h>

enum {
    HEADER_BYTES = 24,
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,        /* length, name, type, value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8, /* length, name, dimensions, type, offset */
    CHUNK_BYTES = 65536,
    SHOWN = 160
};

/* -- the cursor ---------------------------------------------------------------------- */

uint64_t dcp_gguf_left(const struct dcp_gguf_cursor *cursor)
{
    return cursor->in->size_bytes - cursor->base - cursor->at;
}

int dcp_gguf_take(struct dcp_gguf_cursor *cursor, uint64_t n, const unsigned char **out,
                  struct dcp_error *err)
{
    *out = NULL;
    if (n > dcp_gguf_left(cursor))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the header of '%s' is longer than the file",
                             cursor->in->shown);
    if (n > cursor->n - cursor->at) { /* keep what is left, read a piece behind it */
        size_t kept = cursor->n - cursor->at;
        uint64_t more = dcp_gguf_left(cursor) - kept;
        if (n + CHUNK_BYTES > cursor->cap) {
            unsigned char *buf =
                dcp_mem_grow(cursor->buf, &cursor->cap, (size_t)n + CHUNK_BYTES, 1);
            if (!buf)
                return dcp_error_memory(err, "a header");
            cursor->buf = buf;
        }
        if (more > cursor->cap - kept)
            more = cursor->cap - kept;
        memmove(cursor->buf, cursor->buf + cursor->at, kept);
        cursor->base += cursor->at;
        cursor->at = 0;
        cursor->n = kept;
        DCP_TRY(dcp_input_read(cursor->in, cursor->base + kept, cursor->buf + kept,
                               (size_t)more, err));
        cursor->n += (size_t)more;
    }
    *out = cursor->buf + cursor->at;
    cursor->at += (size_t)n;
    return DCP_OK;
}

int dcp_gguf_take_text(struct dcp_gguf_cursor *cursor, uint64_t max_bytes,
                       const char *what, const char **out, size_t *out_n,
                       struct dcp_error *err)
{
    const unsigned char *p;
    int rc = dcp_gguf_take(cursor, 8, &p, err);

    *out = NULL;
    *out_n = 0;
    if (rc)
        return rc;
    uint64_t n = dcp_le64(p);
    const char *shown = DCP_SHOWN(what);
    if (n > dcp_gguf_left(cursor))
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s': %s is longer than the file",
                             cursor->in->shown, shown);
    if (n > max_bytes)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s': %s has %llu bytes; at most %llu are possible",
                             cursor->in->shown, shown, (unsigned long long)n,
                             (unsigned long long)max_bytes);
    rc = dcp_gguf_take(cursor, n, &p, err);
    *out = rc ? NULL : (const char *)p;
    *out_n = (size_t)n;
    return rc;
}

/* -- keys and values ----------------------------------------------------------------- */

/* A name that ends at a NUL for good, in the arena. */
static int take_name(struct dcp_gguf_cursor *cursor, struct dcp_arena *arena,
                     uint64_t max_bytes, const char *what, const char **out,
                     struct dcp_error *err)
{
    const char *text;
    size_t n;

    DCP_TRY(dcp_gguf_take_text(cursor, max_bytes, what, &text, &n, err));
    if (!n || !dcp_str_utf8_ok(text, n))
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s': %s is empty or not UTF-8",
                             cursor->in->shown, what);
    *out = dcp_arena_text_n(arena, text, n);
    return *out ? DCP_OK : dcp_error_memory(err, "a name");
}

static int read_metadata(struct dcp_gguf_cursor *cursor, struct dcp_gguf *gguf,
                         uint64_t n, struct dcp_error *err)
{
    if (n > dcp_gguf_left(cursor) / MIN_KEY_BYTES)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' declares more keys than fit into the file",
                             cursor->in->shown);
    gguf->metadata = json_object();
    if (!gguf->metadata)
        return dcp_error_memory(err, "a header");
    for (uint64_t i = 0; i < n; i++) {
        const char *key;
        json_t *value = NULL;
        DCP_TRY(take_name(cursor, gguf->arena, DCP_GGUF_MAX_KEY_BYTES,
                          "the name of a key", &key, err));
        if (json_object_get(gguf->metadata, key))
            return dcp_error_set(err, DCP_E_CORRUPT, "'%s' has the key '%s' twice",
                                 cursor->in->shown, DCP_SHOWN(key));
        DCP_TRY(dcp_gguf_take_value(cursor, key, &value, err));
        if (json_object_set_new(gguf->metadata, key, value))
            return dcp_error_memory(err, "a header");
        if (cursor->base + cursor->at > DCP_GGUF_MAX_METADATA_BYTES)
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "the keys and values of '%s' are over %u bytes long",
                                 cursor->in->shown, DCP_GGUF_MAX_METADATA_BYTES);
    }
    return DCP_OK;
}

/* ggml reads it as a u32, and ends the program when it is anything else. */
static int read_alignment(const struct dcp_gguf_cursor *cursor,
                          const struct dcp_gguf *gguf, uint64_t *out,
                          struct dcp_error *err)
{
    int64_t value = DCP_GGUF_ALIGN;
    const json_t *found = json_object_get(gguf->metadata, DCP_GGUF_ALIGNMENT);

    if (found && !json_object_get(found, "u32"))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s': " DCP_GGUF_ALIGNMENT " is no u32, which readers of "
                             "GGUF want",
                             cursor->in->shown);
    if (found && (!dcp_gguf_get_int(gguf->metadata, DCP_GGUF_ALIGNMENT, &value) ||
                  value <= 0 || value > (1 << 30) || (value & (value - 1))))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s': " DCP_GGUF_ALIGNMENT " is not a power of two",
                             cursor->in->shown);
    *out = (uint64_t)value;
    return DCP_OK;
}

/* -- the table of tensors ------------------------------------------------------------ */

/* By ggml's number: a dtype, or blocks of quantized numbers. Source: GGML_QUANT_SIZES of
 * gguf-py's constants.py, and ggml-common.h. */
static const struct {
    const char *name;
    enum dcp_dtype dtype;
    uint16_t block_elems, block_bytes; /* 0: it is no block */
} ggml_types[] = {
    [0] = { "F32", DCP_F32, 0, 0 },        [1] = { "F16", DCP_F16, 0, 0 },
    [2] = { "Q4_0", DCP_U8, 32, 18 },      [3] = { "Q4_1", DCP_U8, 32, 20 },
    [6] = { "Q5_0", DCP_U8, 32, 22 },      [7] = { "Q5_1", DCP_U8, 32, 24 },
    [8] = { "Q8_0", DCP_U8, 32, 34 },      [9] = { "Q8_1", DCP_U8, 32, 36 },
    [10] = { "Q2_K", DCP_U8, 256, 84 },    [11] = { "Q3_K", DCP_U8, 256, 110 },
    [12] = { "Q4_K", DCP_U8, 256, 144 },   [13] = { "Q5_K", DCP_U8, 256, 176 },
    [14] = { "Q6_K", DCP_U8, 256, 210 },   [15] = { "Q8_K", DCP_U8, 256, 292 },
    [16] = { "IQ2_XXS", DCP_U8, 256, 66 }, [17] = { "IQ2_XS", DCP_U8, 256, 74 },
    [18] = { "IQ3_XXS", DCP_U8, 256, 98 }, [19] = { "IQ1_S", DCP_U8, 256, 50 },
    [20] = { "IQ4_NL", DCP_U8, 32, 18 },   [21] = { "IQ3_S", DCP_U8, 256, 110 },
    [22] = { "IQ2_S", DCP_U8, 256, 82 },   [23] = { "IQ4_XS", DCP_U8, 256, 136 },
    [24] = { "I8", DCP_I8, 0, 0 },         [25] = { "I16", DCP_I16, 0, 0 },
    [26] = { "I32", DCP_I32, 0, 0 },       [27] = { "I64", DCP_I64, 0, 0 },
    [28] = { "F64", DCP_F64, 0, 0 },       [29] = { "IQ1_M", DCP_U8, 256, 56 },
    [30] = { "BF16", DCP_BF16, 0, 0 },     [34] = { "TQ1_0", DCP_U8, 256, 54 },
    [35] = { "TQ2_0", DCP_U8, 256, 66 },   [39] = { "MXFP4", DCP_U8, 32, 17 },
    [40] = { "NVFP4", DCP_U8, 64, 36 },    [41] = { "Q1_0", DCP_U8, 128, 18 },
};

int dcp_gguf_type_of(enum dcp_dtype dtype)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(ggml_types); i++)
        if (ggml_types[i].name && !ggml_types[i].block_elems &&
            ggml_types[i].dtype == dtype)
            return (int)i;
    return -1;
}

/* The type, and with the elements that size_bytes has so far, the size. */
static int read_type(const char *file, uint32_t type, struct dcp_gguf_tensor *tensor,
                     struct dcp_error *err)
{
    const char *name = type < DCP_ARRAY_LEN(ggml_types) ? ggml_types[type].name : NULL;
    const char *shown = DCP_SHOWN(tensor->name);

    if (!name)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s': tensor '%s' has type %u, which is not known", file,
                             shown, (unsigned)type);
    uint64_t per_block = ggml_types[type].block_elems,
             each = ggml_types[type].block_bytes;
    tensor->dtype = ggml_types[type].dtype;
    if (per_block) {
        int64_t row = tensor->ndim ? tensor->shape[tensor->ndim - 1] : 1;
        if ((uint64_t)row % per_block)
            return dcp_error_set(
                err, DCP_E_CORRUPT,
                "'%s': the rows of tensor '%s' are not a multiple of the block size (%s)",
                file, shown, name);
        tensor->quantized = name;
        tensor->size_bytes /= per_block;
    } else {
        each = dcp_dtype_size(tensor->dtype);
    }
    return dcp_mul_u64(tensor->size_bytes, each, &tensor->size_bytes)
               ? DCP_OK
               : dcp_error_set(err, DCP_E_CORRUPT,
                               "'%s': the size of tensor '%s' overflows", file, shown);
}

/* Dimensions, the fastest first in the file, and the tensor's bytes. */
static int read_shape(struct dcp_gguf_cursor *cursor, struct dcp_gguf_tensor *tensor,
                      struct dcp_error *err)
{
    const unsigned char *p;
    uint64_t elems = 1;
    bool zero = false, fits = true;
    const char *shown = DCP_SHOWN(tensor->name);
    DCP_TRY(dcp_gguf_take(cursor, 4, &p, err));
    if (dcp_le32(p) > DCP_GGUF_MAX_DIMS)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s': tensor '%s' has %u dimensions; there are at most %d",
                             cursor->in->shown, shown, (unsigned)dcp_le32(p),
                             DCP_GGUF_MAX_DIMS);
    tensor->ndim = (int)dcp_le32(p);
    DCP_TRY(dcp_gguf_take(cursor, 8 * (uint64_t)tensor->ndim, &p, err));
    for (int d = 0; d < tensor->ndim; d++) {
        uint64_t n = dcp_le64(p + 8 * (size_t)d);
        tensor->shape[tensor->ndim - 1 - d] = (int64_t)n;
        zero = zero || !n;
        fits = fits && n <= INT64_MAX && dcp_mul_u64(elems, n ? n : 1, &elems);
    }
    tensor->size_bytes = zero ? 0 : elems;
    return fits ? DCP_OK
                : dcp_error_set(err, DCP_E_CORRUPT,
                                "'%s': the dimensions of tensor '%s' overflow",
                                cursor->in->shown, shown);
}

static int read_tensor(struct dcp_gguf_cursor *cursor, struct dcp_gguf *gguf,
                       struct dcp_gguf_tensor *tensor, struct dcp_error *err)
{
    const unsigned char *p;

    DCP_TRY(take_name(cursor, gguf->arena, DCP_GGUF_MAX_NAME_BYTES,
                      "the name of a tensor", &tensor->name, err));
    DCP_TRY(read_shape(cursor, tensor, err));
    DCP_TRY(dcp_gguf_take(cursor, 12, &p, err));
    tensor->offset = dcp_le64(p + 4);
    return read_type(cursor->in->shown, dcp_le32(p), tensor, err);
}

/* Every tensor begins where the one before it ends, rounded up, and lies in the file. */
static int place_tensors(const struct dcp_gguf_cursor *cursor, struct dcp_gguf *gguf,
                         uint64_t alignment, struct dcp_error *err)
{
    uint64_t size = cursor->in->size_bytes, at = cursor->base + cursor->at, sum = 0;
    uint64_t data = (at + alignment - 1) / alignment * alignment;

    for (size_t i = 0; i < gguf->n_tensors; i++) {
        struct dcp_gguf_tensor *tensor = &gguf->tensors[i];
        const char *shown = DCP_SHOWN(tensor->name);
        if (tensor->offset != sum)
            return dcp_error_set(
                err, DCP_E_CORRUPT,
                "'%s': tensor '%s' has offset %llu, the one before it ends at %llu",
                cursor->in->shown, shown, (unsigned long long)tensor->offset,
                (unsigned long long)sum);
        if (tensor->size_bytes &&
            (data > size || sum > size - data || tensor->size_bytes > size - data - sum))
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "'%s' ends before tensor '%s' does: it is incomplete",
                                 cursor->in->shown, shown);
        if (!tensor->size_bytes && data + sum > size)
            tensor->offset = size;
        else
            tensor->offset = data + sum;
        sum = (sum + tensor->size_bytes + alignment - 1) / alignment * alignment;
    }
    if (data <= size && size - data > sum)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' has %llu bytes behind its tensors",
                             cursor->in->shown, (unsigned long long)(size - data - sum));
    return DCP_OK;
}

static int read_tensors(struct dcp_gguf_cursor *cursor, struct dcp_gguf *gguf, uint64_t n,
                        struct dcp_error *err)
{
    uint64_t alignment = 0;
    int rc = read_alignment(cursor, gguf, &alignment, err);

    if (!rc && n > dcp_gguf_left(cursor) / MIN_TENSOR_BYTES)
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           "'%s' declares more tensors than fit into the file",
                           cursor->in->shown);
    if (!rc && n > DCP_GGUF_MAX_TENSORS)
        rc = dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' has over %u tensors",
                           cursor->in->shown, DCP_GGUF_MAX_TENSORS);
    if (rc)
        return rc;
    gguf->tensors = dcp_arena_alloc(gguf->arena, (size_t)n + 1, sizeof *gguf->tensors);
    if (!gguf->tensors)
        return dcp_error_memory(err, "a table of tensors");
    for (; gguf->n_tensors < n && !rc; gguf->n_tensors++)
        rc = read_tensor(cursor, gguf, &gguf->tensors[gguf->n_tensors], err);
    return rc ? rc : place_tensors(cursor, gguf, alignment, err);
}

/* -- the file ------------------------------------------------------------------------ */

static int check_version(const struct dcp_input *in, uint32_t version,
                         struct dcp_error *err)
{
    if (version == 2 || version == 3)
        return DCP_OK;
    if (version && !(version & 0xffff))
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is a GGUF file of a big-endian machine, which is not "
                             "supported",
                             in->shown);
    return dcp_error_set(err, DCP_E_UNSUPPORTED,
                         "'%s' is a GGUF file of version %u; 2 and 3 are supported",
                         in->shown, (unsigned)version);
}

static int check_parts(const struct dcp_input *in, const struct dcp_gguf *gguf,
                       struct dcp_error *err)
{
    int64_t count;

    if (!dcp_gguf_get_int(gguf->metadata, "split.count", &count) || count < 2)
        return DCP_OK;
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "'%s' is one of %lld parts of a split GGUF file", in->shown,
                  (long long)count);
    dcp_error_hint(err, "join them with 'llama-gguf-split --merge'");
    return DCP_E_UNSUPPORTED;
}

int dcp_gguf_read(const struct dcp_input *in, struct dcp_gguf *out, struct dcp_error *err)
{
    struct dcp_gguf_cursor cursor = { .in = in, .values_left = DCP_GGUF_MAX_VALUES };
    uint64_t n_tensors = 0, n_keys = 0;
    const unsigned char *p;

    *out = (struct dcp_gguf){ .arena = dcp_arena_new() };
    if (!out->arena)
        return dcp_error_memory(err, "a header");
    int rc = dcp_gguf_take(&cursor, HEADER_BYTES, &p, err);
    if (!rc && memcmp(p, "GGUF", 4) != 0)
        rc = dcp_error_set(err, DCP_E_CORRUPT, "'%s' is no GGUF file", in->shown);
    if (!rc) {
        out->version = dcp_le32(p + 4);
        n_tensors = dcp_le64(p + 8);
        n_keys = dcp_le64(p + 16);
        rc = check_version(in, out->version, err);
    }
    if (!rc)
        rc = read_metadata(&cursor, out, n_keys, err);
    if (!rc)
        rc = check_parts(in, out, err);
    if (!rc)
        rc = read_tensors(&cursor, out, n_tensors, err);
    free(cursor.buf);
    return rc;
}

void dcp_gguf_fini(struct dcp_gguf *gguf)
{
    json_decref(gguf->metadata);
    dcp_arena_free(gguf->arena);
    *gguf = (struct dcp_gguf){ 0 };
}

const struct dcp_gguf_tensor *dcp_gguf_find(const struct dcp_gguf *gguf, const char *name)
{
    for (size_t i = 0; i < gguf->n_tensors; i++)
        if (!strcmp(gguf->tensors[i].name, name))
            return &gguf->tensors[i];
    return NULL;
}
