/* What a step says twice: the header of a shard against the manifests. Readers of libdcp
 * take what the manifests say, readers of safetensors what the header says: it must be
 * the same model. */
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "native.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LENGTH_BYTES = 8 };

#define METADATA_KEY "__metadata__"

struct check {
    const struct dcp_source *source;
    const struct dcp_catalog *catalog;
    const struct dcp_difference_listener *differs;
    const struct dcp_file *file;
    uint64_t data_begin; /* in the shard */
    size_t *order;       /* the pieces of the shard, as its header has them */
    size_t n;
    json_t *header; /* members that were met are taken out */
    json_t *keys;   /* of a key: the tensor and the offset of its piece */
};

static int corrupt(const struct check *c, const char *what, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "the header of '%s' %s", c->file->name,
                         what);
}

static int read_header(struct check *c, struct dcp_error *err)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    DCP_CLEANUP_FREE void *text = NULL;
    unsigned char length[LENGTH_BYTES];

    DCP_TRY(dcp_input_open(&in, c->source, c->file->name, err));
    DCP_TRY(dcp_input_read(&in, 0, length, sizeof length, err));
    uint64_t n = dcp_le64(length);
    if (n > NATIVE_MAX_HEADER_BYTES || n + LENGTH_BYTES > in.size_bytes)
        return corrupt(c, "has a length that it cannot have", err);
    if ((n + LENGTH_BYTES) % NATIVE_HEADER_ALIGN)
        return corrupt(c, "does not end at a multiple of 4096 bytes", err);
    c->data_begin = n + LENGTH_BYTES;
    DCP_TRY(dcp_input_read_new(&in, LENGTH_BYTES, (size_t)n, &text, err));
    DCP_TRY(dcp_json_parse(text, (size_t)n, c->file->name, &c->header, err));
    const json_t *metadata = json_object_get(c->header, METADATA_KEY);
    const char *format = json_string_value(json_object_get(metadata, "format"));
    if (!format || strcmp(format, "pt"))
        return corrupt(c, "has no \"" METADATA_KEY "\":{\"format\":\"pt\"}", err);
    json_object_del(c->header, METADATA_KEY);
    return DCP_OK;
}

static bool is_number(const json_t *value, uint64_t number)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           (uint64_t)json_integer_value(value) == number;
}

static bool are_numbers(const json_t *array, const int64_t *numbers, int n)
{
    bool same = json_is_array(array) && json_array_size(array) == (size_t)n;

    for (int i = 0; i < n && same; i++)
        same = is_number(json_array_get(array, (size_t)i), (uint64_t)numbers[i]);
    return same;
}

static bool has_shape(const struct check *c, const struct dcp_piece *piece,
                      const json_t *shape)
{
    const struct dcp_tensor *tensor = &c->catalog->tensors[piece->tensor];
    int64_t stored = (int64_t)piece->stored_size;
    int64_t elems = dcp_piece_elems(c->catalog, piece);

    if (dcp_native_is_bytes(c->catalog, piece))
        return are_numbers(shape, &stored, 1);
    if (piece->region.kind == DCP_FLAT)
        return are_numbers(shape, &elems, 1);
    return are_numbers(shape,
                       piece->region.kind == DCP_BOX ? piece->region.size : tensor->shape,
                       tensor->ndim);
}

/* What a member of the header says otherwise than the manifests; NULL: nothing. */
static const char *difference(const struct check *c, const struct dcp_piece *piece,
                              const json_t *entry, uint64_t at)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const char *want = dcp_native_is_bytes(c->catalog, piece)
                           ? "U8"
                           : dcp_dtype_name(c->catalog->tensors[piece->tensor].dtype);

    if (!entry)
        return "the header of its shard does not name it";
    if (!dtype || strcmp(dtype, want))
        return "the header of its shard gives it another dtype";
    if (!has_shape(c, piece, json_object_get(entry, "shape")))
        return "the header of its shard gives it another shape";
    if (json_array_size(offsets) != 2 || !is_number(json_array_get(offsets, 0), at) ||
        !is_number(json_array_get(offsets, 1), at + piece->stored_size))
        return "the header of its shard gives it other bytes";
    return piece->offset != c->data_begin + at
               ? "it does not begin where the piece before it ends"
               : NULL;
}

static int check_pieces(struct check *c, struct dcp_error *err)
{
    const struct dcp_difference_listener *differs = c->differs;
    uint64_t at = 0;

    if (c->n && !json_object_size(c->header))
        return differs->report(differs->self, NULL,
                               "its header names none of its tensors", err);
    for (size_t i = 0; i < c->n; i++) {
        const struct dcp_piece *piece = &c->catalog->pieces[c->order[i]];
        DCP_CLEANUP_BUF struct dcp_buf key = { 0 };
        dcp_native_key(&key, c->catalog, c->order, i);
        if (key.failed || json_object_set_new(c->keys, (char *)key.data,
                                              json_pack("[i, I]", piece->tensor,
                                                        (json_int_t)piece->offset)))
            return dcp_error_memory(err, "the header of a shard");
        const char *what =
            difference(c, piece, json_object_get(c->header, (char *)key.data), at);
        json_object_del(c->header, (char *)key.data);
        at += piece->stored_size;
        if (what)
            DCP_TRY(differs->report(differs->self, piece, what, err));
    }
    if (c->file->size_bytes != c->data_begin + at)
        DCP_TRY(differs->report(differs->self, NULL,
                                "it does not end where its last piece does", err));
    if (json_object_size(c->header))
        return differs->report(differs->self, NULL,
                               "its header names tensors that the manifest does not",
                               err);
    return DCP_OK;
}

/* The keys that a shard manifest without a table gives, which people look for in the
 * header. */
static int check_keys(const struct check *c, const struct dcp_file *manifest,
                      struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    DCP_CLEANUP_JSON json_t *root = NULL;
    const json_t *piece;
    size_t n = 0, i;

    DCP_TRY(dcp_source_read(c->source, manifest->name, NATIVE_MAX_MANIFEST_BYTES, &text,
                            &n, err));
    if (dcp_hash_crc64(0, text, n) != manifest->crc)
        return DCP_OK; /* which is another finding */
    DCP_TRY(dcp_json_parse(text, n, manifest->name, &root, err));
    json_array_foreach(json_object_get(root, "pieces"), i, piece)
    {
        const char *key = json_string_value(json_object_get(piece, "key"));
        const json_t *known = key ? json_object_get(c->keys, key) : NULL;
        if (known &&
            json_equal(json_array_get(known, 0), json_object_get(piece, "tensor")) &&
            json_equal(json_array_get(known, 1), json_object_get(piece, "offset")))
            continue;
        DCP_TRY(c->differs->report(c->differs->self, NULL,
                                   "its shard manifest gives a piece another key", err));
        break;
    }
    return DCP_OK;
}

/* A shard manifest may name a piece twice. */
static bool is_again(const struct dcp_catalog *catalog, const struct dcp_piece *piece,
                     const struct dcp_piece *before)
{
    const struct dcp_region *r = &piece->region, *s = &before->region;
    size_t n = (size_t)catalog->tensors[piece->tensor].ndim * sizeof *r->offset;

    if (piece->tensor != before->tensor || piece->offset != before->offset ||
        r->kind != s->kind)
        return false;
    if (r->kind == DCP_BOX)
        return !memcmp(r->offset, s->offset, n) && !memcmp(r->size, s->size, n);
    return r->begin == s->begin && r->end == s->end;
}

/* Second names of a tensor have its pieces too, and are in the manifest alone. */
static void leave_out(struct check *c)
{
    const struct dcp_piece *pieces = c->catalog->pieces;
    size_t kept = 0;

    for (size_t i = 0; i < c->n; i++) {
        const struct dcp_piece *piece = &pieces[c->order[i]];
        if (!c->catalog->tensors[piece->tensor].tied_to &&
            !(kept && is_again(c->catalog, piece, &pieces[c->order[kept - 1]])))
            c->order[kept++] = c->order[i];
    }
    c->n = kept;
}

static bool is_named(const struct dcp_catalog *catalog, const struct dcp_file *file,
                     const char *suffix)
{
    char name[64];

    dcp_native_shard_name(name, file->rank, catalog->world_size, suffix);
    return !strcmp(file->name, name);
}

/* The shard manifest of a file that is a shard, when both are there; else NULL. */
static const struct dcp_file *manifest_of(const struct dcp_catalog *catalog, size_t file)
{
    const struct dcp_file *shard = &catalog->files[file], *manifest = shard + 1;

    if (!is_named(catalog, shard, NATIVE_SHARD_SUFFIX) || shard->lost ||
        file + 1 == catalog->n_files || manifest->lost)
        return NULL;
    return is_named(catalog, manifest, NATIVE_TABLE_SUFFIX) ||
                   is_named(catalog, manifest, NATIVE_JSON_SUFFIX)
               ? manifest
               : NULL;
}

int dcp_native_check(const struct dcp_source *source, const struct dcp_catalog *catalog,
                     size_t file, const size_t *pieces, size_t n,
                     const struct dcp_difference_listener *differs, struct dcp_error *err)
{
    struct check c = { .source = source,
                       .catalog = catalog,
                       .differs = differs,
                       .file = &catalog->files[file] };
    const struct dcp_file *manifest = manifest_of(catalog, file);

    if (!manifest)
        return DCP_OK;
    c.order = dcp_mem_calloc(n, sizeof *c.order);
    c.keys = json_object();
    int rc = c.order && c.keys ? DCP_OK : dcp_error_memory(err, "the header of a shard");
    if (!rc) {
        c.n = n;
        if (n)
            memcpy(c.order, pieces, n * sizeof *pieces);
        dcp_native_order(catalog, c.order, n);
        leave_out(&c);
        rc = read_header(&c, err);
    }
    if (!rc)
        rc = check_pieces(&c, err);
    if (!rc && json_object_size(c.keys) == c.n &&
        is_named(catalog, manifest, NATIVE_JSON_SUFFIX))
        rc = check_keys(&c, manifest, err);
    free(c.order);
    json_decref(c.header);
    json_decref(c.keys);
    return rc;
}
