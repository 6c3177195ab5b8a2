/* Catalog to native files. Text is written by hand, field by field in a fixed order, so
 * that equal states give equal bytes. */
#include "base/buf.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/literals.h"
#include "native.h"
#include "table.h"
#include <dcp/dcp.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void dcp_native_add_numbers(struct dcp_buf *buf, const int64_t *numbers, int n)
{
    dcp_buf_add_u8(buf, '[');
    for (int i = 0; i < n; i++) {
        if (i)
            dcp_buf_add_u8(buf, ',');
        dcp_buf_add_i64(buf, numbers[i]);
    }
    dcp_buf_add_u8(buf, ']');
}

/* The pieces of one rank in the order of a safetensors file: dtype descending, then name,
 * then place. */
static int shard_order(const void *a, const void *b, void *arg)
{
    const struct dcp_catalog *catalog = arg;
    size_t i = *(const size_t *)a, j = *(const size_t *)b;
    const struct dcp_piece *p = &catalog->pieces[i], *q = &catalog->pieces[j];
    const struct dcp_tensor *t = &catalog->tensors[p->tensor];
    const struct dcp_tensor *u = &catalog->tensors[q->tensor];

    if (t->dtype != u->dtype)
        return t->dtype > u->dtype ? -1 : 1;
    int order = strcmp(t->name, u->name);
    return order ? order : i < j ? -1 : i > j;
}

void dcp_native_order(const struct dcp_catalog *catalog, size_t *pieces, size_t n)
{
    qsort_r(pieces, n, sizeof *pieces, shard_order, (void *)catalog);
}

/* True for a tensor name that could be taken for the key of another's piece, or for the
 * metadata of the file. */
static bool is_ambiguous(const char *name)
{
    const char *mark = strrchr(name, '#');

    return !strcmp(name, "__metadata__") ||
           (mark && mark[1] && !mark[1 + strspn(mark + 1, "0123456789")]);
}

void dcp_native_key(struct dcp_buf *buf, const struct dcp_catalog *catalog,
                    const size_t *order, size_t i)
{
    const struct dcp_piece *piece = &catalog->pieces[order[i]];
    const char *name = catalog->tensors[piece->tensor].name;
    size_t k = 0;

    while (k < i && catalog->pieces[order[i - k - 1]].tensor == piece->tensor)
        k++;
    dcp_buf_add_text(buf, name);
    if (k || is_ambiguous(name))
        dcp_buf_add_fmt(buf, "#%zu", k);
}

static void add_key(struct dcp_buf *buf, const struct dcp_catalog *catalog,
                    const size_t *order, size_t i)
{
    DCP_CLEANUP_BUF struct dcp_buf key = { 0 };

    dcp_native_key(&key, catalog, order, i);
    buf->failed |= key.failed;
    if (!key.failed)
        dcp_json_quote(buf, (const char *)key.data);
}

/* The safetensors header of a shard: its length field and JSON, padded to total bytes (0:
 * to alignment). */
static void build_header(struct dcp_buf *buf, const struct dcp_catalog *catalog,
                         const size_t *order, size_t n, size_t total)
{
    int64_t at = 0;

    dcp_buf_add_le64(buf, 0);
    dcp_buf_add_text(buf, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++) {
        const struct dcp_piece *piece = &catalog->pieces[order[i]];
        const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
        int64_t elems = dcp_piece_elems(catalog, piece);
        int64_t stored = (int64_t)piece->stored_size;
        bool bytes = dcp_native_is_bytes(catalog, piece);
        dcp_buf_add_u8(buf, ',');
        add_key(buf, catalog, order, i);
        dcp_buf_add_text(buf, ":{\"dtype\":\"");
        dcp_buf_add_text(buf, bytes ? "U8" : dcp_dtype_name(tensor->dtype));
        dcp_buf_add_text(buf, "\",\"shape\":");
        if (bytes)
            dcp_native_add_numbers(buf, &stored, 1);
        else if (piece->region.kind == DCP_WHOLE)
            dcp_native_add_numbers(buf, tensor->shape, tensor->ndim);
        else if (piece->region.kind == DCP_BOX)
            dcp_native_add_numbers(buf, piece->region.size, tensor->ndim);
        else
            dcp_native_add_numbers(buf, &elems, 1);
        const int64_t range[] = { at, at + stored };
        dcp_buf_add_text(buf, ",\"data_offsets\":");
        dcp_native_add_numbers(buf, range, 2);
        dcp_buf_add_u8(buf, '}');
        at += stored;
    }
    dcp_buf_add_u8(buf, '}');
    if (!total)
        total = (buf->size_bytes + NATIVE_HEADER_ALIGN - 1) / NATIVE_HEADER_ALIGN *
                NATIVE_HEADER_ALIGN;
    dcp_buf_add_fill(buf, ' ', total - buf->size_bytes);
    if (!buf->failed)
        for (int b = 0; b < 8; b++)
            buf->data[b] = (unsigned char)((uint64_t)(total - 8) >> (8 * b));
}

static bool shard_is_coded(const struct dcp_catalog *catalog, const size_t *order,
                           size_t n)
{
    bool coded = false;

    for (size_t i = 0; i < n; i++)
        coded |= catalog->pieces[order[i]].codec != DCP_CODEC_NONE;
    return coded;
}

/* What is known of a shard between assign and finalize. */
struct shard {
    size_t *order, n; /* its pieces */
    uint64_t first;   /* where the first of them lies: behind the header */
    int file;
};

int dcp_native_open(struct dcp_target *target, struct dcp_error *err)
{
    target->state =
        dcp_mem_calloc((size_t)target->catalog->world_size, sizeof(struct shard));
    return target->state ? DCP_OK : dcp_error_memory(err, "the shards of a step");
}

void dcp_native_close(struct dcp_target *target)
{
    struct shard *shards = target->state;

    for (int r = 0; shards && r < target->catalog->world_size; r++)
        free(shards[r].order);
    free(shards);
}

static int assign_shard(struct dcp_target *target, int rank, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    struct shard *shard = (struct shard *)target->state + rank;
    DCP_CLEANUP_BUF struct dcp_buf header = { 0 };
    char name[64];

    for (size_t i = 0; i < shard->n; i++) {
        struct dcp_piece *piece = &catalog->pieces[shard->order[i]];
        piece->stored_size = dcp_piece_bytes(catalog, piece);
    }
    build_header(&header, catalog, shard->order, shard->n, 0);
    DCP_TRY(dcp_buf_check(&header, err));
    if (header.size_bytes > NATIVE_MAX_HEADER_BYTES)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "a native step cannot hold: %zu pieces in shard %d",
                             shard->n, rank);
    uint64_t at = shard->first = header.size_bytes;
    dcp_native_shard_name(name, rank, catalog->world_size, NATIVE_SHARD_SUFFIX);
    DCP_TRY(dcp_catalog_add_file(
        catalog, &(struct dcp_file){ .name = name, .rank = rank }, &shard->file, err));
    for (size_t i = 0; i < shard->n; i++) {
        struct dcp_piece *piece = &catalog->pieces[shard->order[i]];
        piece->file = shard->file;
        piece->offset = at;
        at += piece->stored_size;
    }
    catalog->files[shard->file].size_bytes = at;
    /* With a codec the header comes last, in finalize, when the stored sizes are known:
     * this one is the longest it can become. */
    if (shard_is_coded(catalog, shard->order, shard->n))
        return DCP_OK;
    return dcp_literals_take(target, shard->file, 0, &header, err);
}

/* The pieces of ranks begin .. end, each rank's in the order of its shard. */
static int order_shards(struct dcp_catalog *catalog, struct shard *shards, int begin,
                        int end, struct dcp_error *err)
{
    bool good = true;

    for (size_t p = 0; p < catalog->n_pieces; p++)
        if (catalog->pieces[p].rank >= begin && catalog->pieces[p].rank < end)
            shards[catalog->pieces[p].rank].n++;
    for (int r = begin; r < end; r++) {
        shards[r].order = dcp_mem_calloc(shards[r].n, sizeof *shards[r].order);
        good = good && shards[r].order;
        shards[r].n = 0;
    }
    if (!good)
        return dcp_error_memory(err, "the pieces of a shard");
    for (size_t p = 0; p < catalog->n_pieces; p++)
        if (catalog->pieces[p].rank >= begin && catalog->pieces[p].rank < end) {
            struct shard *shard = &shards[catalog->pieces[p].rank];
            shard->order[shard->n++] = p;
        }
    for (int r = begin; r < end; r++)
        dcp_native_order(catalog, shards[r].order, shards[r].n);
    return DCP_OK;
}

int dcp_native_assign(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    struct shard *shards = target->state;
    size_t n = 0;

    dcp_catalog_mark_stored(catalog, NULL);
    if (catalog->step < -1)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "a native step cannot hold: the step %" PRId64,
                             catalog->step);
    int begin = target->first_rank;
    int end = target->n_ranks ? begin + target->n_ranks : catalog->world_size;
    DCP_TRY(order_shards(catalog, shards, begin, end, err));
    for (int r = begin; r < end; r++) {
        DCP_TRY(assign_shard(target, r, err));
        n += shards[r].n;
    }
    if (n != catalog->n_pieces)
        return dcp_error_set(
            err, DCP_E_MISMATCH,
            "a piece belongs to a rank that the world size does not have");
    return DCP_OK;
}

int dcp_native_finalize(struct dcp_target *target, int rank, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    const struct shard *shard = (struct shard *)target->state + rank;
    DCP_CLEANUP_BUF struct dcp_buf manifest = { 0 }, header = { 0 };
    char name[64];
    int file, rc = DCP_OK;

    if (shard_is_coded(catalog, shard->order, shard->n)) {
        build_header(&header, catalog, shard->order, shard->n, (size_t)shard->first);
        rc = dcp_literals_take(target, shard->file, 0, &header, err);
    }
    dcp_native_table_add(&manifest, catalog, rank, shard->order, shard->n, shard->first);
    dcp_native_shard_name(name, rank, catalog->world_size, NATIVE_TABLE_SUFFIX);
    if (!rc)
        rc = dcp_catalog_add_file(
            catalog, &(struct dcp_file){ .name = name, .rank = rank }, &file, err);
    return rc ? rc : dcp_literals_take(target, file, 0, &manifest, err);
}

/* What `find` makes of the pieces that are known here, or what was told of all. */
static int grid_of(struct dcp_catalog *catalog, const struct dcp_tensor *tensor,
                   const struct dcp_grid **out, struct dcp_error *err)
{
    const struct dcp_piece *piece;

    *out = tensor->grid;
    if (!tensor->n_pieces)
        return DCP_OK;
    piece = &catalog->pieces[tensor->first_piece];
    DCP_TRY(dcp_grid_find(catalog, tensor, &piece->region, &piece->rank, sizeof *piece,
                          tensor->n_pieces, out, err));
    *out = *out ? *out : tensor->grid;
    return DCP_OK;
}

static int add_tensor(struct dcp_buf *buf, struct dcp_catalog *catalog, size_t t,
                      struct dcp_error *err)
{
    const struct dcp_tensor *tensor = &catalog->tensors[t];
    const struct dcp_grid *grid;

    DCP_TRY(grid_of(catalog, tensor, &grid, err));
    dcp_buf_add_text(buf, "\n{\"name\":");
    dcp_json_quote(buf, tensor->name);
    if (strcmp(tensor->param, tensor->name)) {
        dcp_buf_add_text(buf, ",\"param\":");
        dcp_json_quote(buf, tensor->param);
    }
    dcp_buf_add_text(buf, ",\"role\":\"");
    dcp_buf_add_text(buf, dcp_role_name(tensor->role));
    dcp_buf_add_text(buf, "\",\"dtype\":\"");
    dcp_buf_add_text(buf, dcp_dtype_name(tensor->dtype));
    dcp_buf_add_text(buf, "\",\"shape\":");
    dcp_native_add_numbers(buf, tensor->shape, tensor->ndim);
    dcp_buf_add_text(buf, ",\"group\":");
    dcp_buf_add_i64(buf, tensor->group);
    dcp_buf_add_text(buf, ",\"crc64\":\"");
    dcp_buf_add_hex64(buf, tensor->fingerprint);
    dcp_buf_add_u8(buf, '"');
    if (grid)
        dcp_native_add_grid(buf, tensor, grid);
    dcp_buf_add_u8(buf, '}');
    return DCP_OK;
}

static int add_object(struct dcp_buf *buf, const struct dcp_object *object,
                      struct dcp_error *err)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *bytes = object->data;

    dcp_buf_add_text(buf, "\n{\"name\":");
    dcp_json_quote(buf, object->name);
    if (object->kind == DCP_OBJECT_BYTES) {
        dcp_buf_add_text(buf, ",\"kind\":\"bytes\",\"hex\":\"");
        for (size_t i = 0; i < object->size_bytes; i++) {
            dcp_buf_add_u8(buf, (uint8_t)hex[bytes[i] >> 4]);
            dcp_buf_add_u8(buf, (uint8_t)hex[bytes[i] & 15]);
        }
        dcp_buf_add_text(buf, "\"}");
        return DCP_OK;
    }
    /* Read and written again: what is embedded is valid, and in the one spelling. */
    DCP_CLEANUP_JSON json_t *value = NULL;
    DCP_TRY(dcp_json_parse(object->data, object->size_bytes, object->name, &value, err));
    DCP_CLEANUP_FREE char *text = dcp_json_text(value, 0);
    if (!text)
        return dcp_error_memory(err, "an object");
    dcp_buf_add_text(buf, ",\"kind\":\"json\",\"value\":");
    dcp_buf_add_text(buf, text);
    dcp_buf_add_u8(buf, '}');
    return DCP_OK;
}

/* The two files of a rank. */
struct pair {
    const struct dcp_file *shard, *manifest;
};

/* By rank; caller frees. NULL: out of memory. */
static struct pair *find_pairs(const struct dcp_catalog *catalog)
{
    struct pair *pairs = dcp_mem_calloc((size_t)catalog->world_size, sizeof *pairs);
    char name[64];

    for (size_t f = 0; pairs && f < catalog->n_files; f++) {
        const struct dcp_file *file = &catalog->files[f];
        if (file->rank < 0 || file->rank >= catalog->world_size)
            continue;
        dcp_native_shard_name(name, file->rank, catalog->world_size, NATIVE_SHARD_SUFFIX);
        if (!strcmp(file->name, name))
            pairs[file->rank].shard = file;
        dcp_native_shard_name(name, file->rank, catalog->world_size, NATIVE_TABLE_SUFFIX);
        if (!strcmp(file->name, name))
            pairs[file->rank].manifest = file;
    }
    return pairs;
}

static int add_shard(struct dcp_buf *buf, const struct pair *pair, int rank,
                     struct dcp_error *err)
{
    const struct dcp_file *shard = pair->shard, *manifest = pair->manifest;

    if (!shard || !manifest || !shard->has_crc || !manifest->has_crc)
        return dcp_error_set(err, DCP_E_MISMATCH, "shard %d of the step was not written",
                             rank);
    dcp_buf_add_fmt(buf,
                    "\n{\"rank\":%d,\"file\":\"%s\",\"size_bytes\":%" PRIu64
                    ",\"crc64\":\"%016" PRIx64 "\",\"manifest\":\"%s\""
                    ",\"manifest_size_bytes\":%" PRIu64
                    ",\"manifest_crc64\":\"%016" PRIx64 "\"}",
                    rank, shard->name, shard->size_bytes, shard->crc, manifest->name,
                    manifest->size_bytes, manifest->crc);
    return DCP_OK;
}

/* Files of the step beside shards and their manifests: what was made from it, like
 * pytorch_model.bin. */
static void add_other_files(struct dcp_buf *buf, const struct dcp_catalog *catalog)
{
    bool first = true;

    dcp_buf_add_text(buf, ",\n\"files\":[");
    for (size_t f = 0; f < catalog->n_files; f++) {
        const struct dcp_file *file = &catalog->files[f];
        if (dcp_str_starts(file->name, "shard-"))
            continue;
        dcp_buf_add_text(buf, first ? "\n{\"name\":" : ",\n{\"name\":");
        dcp_json_quote(buf, file->name);
        dcp_buf_add_fmt(buf, ",\"size_bytes\":%" PRIu64 ",\"crc64\":\"%016" PRIx64 "\"}",
                        file->size_bytes, file->crc);
        first = false;
    }
    dcp_buf_add_u8(buf, ']');
}

/* Members of the source's manifest that this version does not know are kept. */
static int add_extra(struct dcp_buf *buf, const struct dcp_catalog *catalog,
                     struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *extra = NULL;
    int at = dcp_catalog_find_object(catalog, NATIVE_EXTRA);
    const char *key;
    json_t *value;

    if (at < 0)
        return DCP_OK;
    const struct dcp_object *object = &catalog->objects[at];
    DCP_TRY(dcp_json_parse(object->data, object->size_bytes, NATIVE_EXTRA, &extra, err));
    json_object_foreach(extra, key, value)
    {
        DCP_CLEANUP_FREE char *text = dcp_json_text(value, 0);
        dcp_buf_add_text(buf, ",\n");
        dcp_json_quote(buf, key);
        dcp_buf_add_u8(buf, ':');
        dcp_buf_add_text(buf, text ? text : "null");
        buf->failed |= !text;
    }
    return DCP_OK;
}

/* What no reader would take is found before the step exists: objects nested too deep, a
 * member twice. Tensors and shards have nothing in them that others wrote but names. */
static int check_readable(const struct dcp_buf *buf, struct dcp_error *err)
{
    static const char *const ours[] = { "tensors", "shards", NULL };
    const struct dcp_json_span doc = { (const char *)buf->data, buf->size_bytes };
    struct dcp_json_span found[DCP_ARRAY_LEN(ours)];
    DCP_CLEANUP_JSON json_t *root = NULL;

    DCP_TRY(dcp_buf_check(buf, err));
    if (buf->size_bytes > NATIVE_MAX_MANIFEST_BYTES)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "a native step cannot hold: a manifest of"
                             " %zu bytes",
                             buf->size_bytes);
    return dcp_json_walk_root(doc, NATIVE_MANIFEST, ours, found, &root, err);
}

static void add_ties(struct dcp_buf *buf, const struct dcp_catalog *catalog)
{
    const char *before = ",\n\"ties\":{";

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (!tensor->tied_to)
            continue;
        dcp_buf_add_text(buf, before);
        dcp_json_quote(buf, tensor->name);
        dcp_buf_add_u8(buf, ':');
        dcp_json_quote(buf, tensor->tied_to);
        before = ",";
    }
    if (before[1] == '\0')
        dcp_buf_add_u8(buf, '}');
}

/* What a reader must know: FORMAT.md, 7. */
static const char *required(const struct dcp_catalog *catalog)
{
    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (catalog->tensors[t].dtype == DCP_C128)
            return "\"" NATIVE_COMPLEX128 "\",\"" NATIVE_TABLES "\"";
    return "\"" NATIVE_TABLES "\"";
}

int dcp_native_finish(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    DCP_CLEANUP_FREE struct pair *pairs = find_pairs(catalog);
    int dp = catalog->mesh.dp ? catalog->mesh.dp : catalog->world_size, file, rc = DCP_OK;
    bool first = true;

    if (!pairs)
        return dcp_error_memory(err, "the shards of a step");

    dcp_buf_add_fmt(&buf,
                    "{\"format\":\"" NATIVE_FORMAT
                    "\",\"version\":%d,\"requires\":[%s],\"step\":%" PRId64
                    ",\"world\":%d,\"layout\":",
                    NATIVE_VERSION, required(catalog), catalog->step,
                    catalog->world_size);
    dcp_json_quote(&buf, catalog->layout);
    dcp_buf_add_fmt(&buf, ",\"mesh\":{\"dp\":%d,\"tp\":%d,\"pp\":%d},\n\"tensors\":[", dp,
                    catalog->mesh.tp ? catalog->mesh.tp : 1,
                    catalog->mesh.pp ? catalog->mesh.pp : 1);
    for (size_t t = 0; t < catalog->n_tensors && !rc; t++) {
        if (catalog->tensors[t].tied_to)
            continue; /* they come last */
        if (t)
            dcp_buf_add_u8(&buf, ',');
        rc = add_tensor(&buf, catalog, t, err);
    }
    dcp_buf_add_text(&buf, "],\n\"shards\":[");
    for (int r = 0; r < catalog->world_size && !rc; r++) {
        if (r)
            dcp_buf_add_u8(&buf, ',');
        rc = add_shard(&buf, &pairs[r], r, err);
    }
    dcp_buf_add_u8(&buf, ']');
    add_other_files(&buf, catalog);
    dcp_buf_add_text(&buf, ",\n\"objects\":[");
    for (size_t o = 0; o < catalog->n_objects && !rc; o++) {
        if (!strcmp(catalog->objects[o].name, NATIVE_EXTRA))
            continue;
        if (!first)
            dcp_buf_add_u8(&buf, ',');
        first = false;
        rc = add_object(&buf, &catalog->objects[o], err);
    }
    dcp_buf_add_u8(&buf, ']');
    add_ties(&buf, catalog);
    if (catalog->diverged)
        dcp_buf_add_text(&buf, ",\n\"finite\":false");
    if (catalog->parity) {
        dcp_buf_add_text(&buf, ",\n\"parity\":");
        dcp_buf_add_text(&buf, catalog->parity);
    }
    if (!rc)
        rc = add_extra(&buf, catalog, err);
    if (!rc)
        rc = dcp_buf_check(&buf, err);
    if (rc)
        return rc;
    dcp_buf_add_fmt(&buf, NATIVE_DIGEST_FORMAT,
                    dcp_hash_crc64(0, buf.data, buf.size_bytes));
    DCP_TRY(check_readable(&buf, err));
    DCP_TRY(dcp_catalog_add_file(catalog, &(struct dcp_file){ .name = NATIVE_MANIFEST },
                                 &file, err));
    return dcp_literals_take(target, file, 0, &buf, err);
}
