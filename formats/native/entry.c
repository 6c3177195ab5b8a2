/* Entries of the manifests that describe tensors and pieces. Every number is checked. */
#include "base/mem.h"
#include "base/str.h"
#include "native.h"
#include <string.h>

/* Small numbers of an array, each >= 0. */
static int get_dims(const json_t *array, const char *what, int64_t out[DCP_MAX_NDIM],
                    int *out_n, struct dcp_error *err)
{
    size_t n = json_array_size(array);

    if (!json_is_array(array) || n > DCP_MAX_NDIM)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "%s must be an array of at most %d numbers", what,
                             DCP_MAX_NDIM);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return dcp_error_set(err, DCP_E_CORRUPT, "%s must hold numbers from 0 on",
                                 what);
        out[i] = json_integer_value(v);
    }
    *out_n = (int)n;
    return DCP_OK;
}

int dcp_native_parse_tensor(const json_t *entry, struct dcp_native_told *out,
                            struct dcp_error *err)
{
    static const char what[] = "a tensor of " NATIVE_MANIFEST;

    *out = (struct dcp_native_told){ 0 };
    DCP_TRY(dcp_json_get_text(entry, "name", what, &out->name, err));
    DCP_TRY(dcp_json_get_text(entry, "dtype", what, &out->dtype, err));
    DCP_TRY(dcp_json_get_text(entry, "role", what, &out->role, err));
    DCP_TRY(dcp_json_get_i64(entry, "group", what, &out->group, err));
    DCP_TRY(dcp_json_get_hex64(entry, "crc64", what, &out->crc, err));
    DCP_TRY(get_dims(json_object_get(entry, "shape"), "a shape", out->shape, &out->ndim,
                     err));
    if (json_object_get(entry, "param"))
        DCP_TRY(dcp_json_get_text(entry, "param", what, &out->param, err));
    return dcp_native_parse_grid(entry, out, err);
}

int dcp_native_add_told(const struct dcp_native_told *told, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    int d = dcp_dtype_parse(told->dtype), r = dcp_role_parse(told->role), index;

    if (d < 0 || strcmp(dcp_dtype_name((enum dcp_dtype)d), told->dtype) || r < 0 ||
        told->group < 0 || told->group > INT32_MAX)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "a tensor of " NATIVE_MANIFEST
                             " has an unknown dtype, role or group");
    DCP_TRY(dcp_catalog_add_tensor(catalog,
                                   &(struct dcp_tensor){ .name = told->name,
                                                         .param = told->param,
                                                         .dtype = (enum dcp_dtype)d,
                                                         .role = (enum dcp_role)r,
                                                         .group = (int)told->group,
                                                         .ndim = told->ndim,
                                                         .shape = told->shape,
                                                         .has_fingerprint = true,
                                                         .fingerprint = told->crc },
                                   &index, err));
    return dcp_native_add_told_grid(told, catalog, &catalog->tensors[index], err);
}

/* Block digests: 16 hex digits each in one text, and stored sizes where a codec was at
 * work. */
static int get_blocks(const json_t *entry, struct dcp_piece *piece, uint64_t raw,
                      struct dcp_block **out, struct dcp_error *err)
{
    size_t n = (size_t)((raw + DCP_BLOCK_BYTES - 1) / DCP_BLOCK_BYTES);
    const json_t *stored = json_object_get(entry, "stored");
    const char *hex;
    uint64_t sum = 0;

    DCP_TRY(dcp_json_get_text(entry, "xxh3", "a piece", &hex, err));
    if (strlen(hex) != 16 * n || (piece->codec && json_array_size(stored) != n))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "a piece does not describe its %zu blocks", n);
    struct dcp_block *blocks = dcp_mem_calloc(n, sizeof *blocks);
    if (!blocks)
        return dcp_error_memory(err, "block digests");
    *out = blocks;
    for (size_t b = 0; b < n; b++) {
        char digits[17];
        uint64_t left = raw - (uint64_t)b * DCP_BLOCK_BYTES;
        uint64_t size = left < DCP_BLOCK_BYTES ? left : DCP_BLOCK_BYTES;
        memcpy(digits, hex + 16 * b, 16);
        digits[16] = '\0';
        if (!dcp_str_parse_hex64(digits, &blocks[b].xxh3))
            return dcp_error_set(err, DCP_E_CORRUPT, "a block digest is not a number");
        if (piece->codec) {
            json_int_t v = json_integer_value(json_array_get(stored, b));
            if (v < 1 || (uint64_t)v > size)
                return dcp_error_set(err, DCP_E_CORRUPT,
                                     "a stored block has no valid size");
            size = (uint64_t)v;
        }
        blocks[b].stored_size = (uint32_t)size;
        sum += size;
    }
    piece->blocks = blocks;
    piece->n_blocks = n;
    if (sum != piece->stored_size)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the blocks of a piece do not add up to its size");
    return DCP_OK;
}

static int get_region(const json_t *entry, const struct dcp_tensor *tensor,
                      int64_t dims[2][DCP_MAX_NDIM], struct dcp_region *out,
                      struct dcp_error *err)
{
    const json_t *flat = json_object_get(entry, "flat"),
                 *box = json_object_get(entry, "box");
    int n, m, rc = DCP_OK;

    *out = (struct dcp_region){ .kind = DCP_WHOLE };
    if (flat && box)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "a piece is both a flat range and a box");
    if (flat) {
        rc = get_dims(flat, "a flat range", dims[0], &n, err);
        if (!rc && n != 2)
            rc = dcp_error_set(err, DCP_E_CORRUPT, "a flat range must have two numbers");
        if (!rc)
            *out = (struct dcp_region){ .kind = DCP_FLAT,
                                        .begin = dims[0][0],
                                        .end = dims[0][1] };
    } else if (box) {
        rc = get_dims(json_array_get(box, 0), "a box", dims[0], &n, err);
        if (!rc)
            rc = get_dims(json_array_get(box, 1), "a box", dims[1], &m, err);
        if (!rc && (n != tensor->ndim || m != tensor->ndim))
            rc = dcp_error_set(err, DCP_E_CORRUPT,
                               "a box has another number of dimensions than its tensor");
        *out = (struct dcp_region){ .kind = DCP_BOX, .offset = dims[0], .size = dims[1] };
    }
    return rc;
}

/* A product that overflows cannot agree with a size that fits in a file. */
bool dcp_native_raw_bytes(const struct dcp_tensor *tensor,
                          const struct dcp_region *region, uint64_t *out)
{
    const int64_t *sizes = region->kind == DCP_BOX ? region->size : tensor->shape;
    bool ok = true;

    *out = dcp_dtype_size(tensor->dtype);
    if (region->kind == DCP_FLAT)
        return region->begin <= region->end &&
               dcp_mul_u64(*out, (uint64_t)(region->end - region->begin), out);
    for (int d = 0; d < tensor->ndim && ok; d++)
        ok = dcp_mul_u64(*out, (uint64_t)sizes[d], out);
    return ok;
}

int dcp_native_index_piece(const json_t *entry, struct dcp_catalog *catalog, int rank,
                           int file, struct dcp_error *err)
{
    static const char what[] = "a piece of a shard manifest";
    int64_t tensor = -1, dims[2][DCP_MAX_NDIM];
    uint64_t file_size = catalog->files[file].size_bytes;
    const char *codec, *key;
    struct dcp_piece piece = { .rank = rank, .file = file, .has_crc = true };
    DCP_CLEANUP_FREE struct dcp_block *blocks = NULL;

    DCP_TRY(dcp_json_get_i64(entry, "tensor", what, &tensor, err));
    DCP_TRY(dcp_json_get_u64(entry, "offset", what, &piece.offset, err));
    DCP_TRY(dcp_json_get_u64(entry, "size_bytes", what, &piece.stored_size, err));
    DCP_TRY(dcp_json_get_text(entry, "codec", what, &codec, err));
    DCP_TRY(dcp_json_get_hex64(entry, "crc64", what, &piece.crc, err));
    DCP_TRY(dcp_json_get_text(entry, "key", what, &key, err));
    if (tensor < 0 || (size_t)tensor >= catalog->n_tensors)
        return dcp_error_set(err, DCP_E_CORRUPT, "%s belongs to no tensor", what);
    int c = dcp_codec_parse(codec);
    if (c < 0)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "the codec of a piece is unknown to this version");
    if (piece.offset > file_size || piece.stored_size > file_size - piece.offset)
        return dcp_error_set(err, DCP_E_CORRUPT, "%s lies outside its file", what);
    piece.tensor = (int)tensor;
    piece.codec = (enum dcp_codec)c;
    DCP_TRY(get_region(entry, &catalog->tensors[tensor], dims, &piece.region, err));
    uint64_t raw;
    bool ok = dcp_native_raw_bytes(&catalog->tensors[tensor], &piece.region, &raw);
    if (!ok || (piece.codec == DCP_CODEC_NONE && raw != piece.stored_size) ||
        piece.stored_size > raw)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the size of %s is not that of its region", what);
    DCP_TRY(get_blocks(entry, &piece, raw, &blocks, err));
    return dcp_catalog_add_piece(catalog, &piece, err);
}
