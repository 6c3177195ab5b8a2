#include "pack.h"
#include "base/hash.h"
#include "base/mem.h"
#include "grid.h"
#include <dcp/grid.h>
#include <string.h>

static int bad(struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "a message between ranks is corrupt");
}

static void put_text(struct dcp_buf *buf, const char *text)
{
    size_t n = strlen(text) + 1; /* with its NUL, so that it can be borrowed in place */

    dcp_buf_add_le32(buf, (uint32_t)n);
    dcp_buf_add(buf, text, n);
}

/* Borrowed from the message. Never NULL: "" and bad when there is none. */
static const char *get_text(struct dcp_cursor *in)
{
    uint32_t n = dcp_cursor_le32(in);
    const char *text = dcp_cursor_take(in, n);

    if (!text || n == 0 || text[n - 1] != '\0' || memchr(text, 0, n - 1)) {
        in->bad = true;
        return "";
    }
    return text;
}

/* A text that may be NULL; then "", which is none of these. */
static void put_optional(struct dcp_buf *buf, const char *text)
{
    put_text(buf, text ? text : "");
}

static const char *get_optional(struct dcp_cursor *in)
{
    const char *text = get_text(in);

    return text[0] ? text : NULL;
}

static void put_dims(struct dcp_buf *buf, const int64_t *dims, int n)
{
    for (int d = 0; d < n; d++)
        dcp_buf_add_le64(buf, (uint64_t)dims[d]);
}

static void get_dims(struct dcp_cursor *in, int64_t *dims, int n)
{
    for (int d = 0; d < n; d++)
        dims[d] = (int64_t)dcp_cursor_le64(in);
}

enum { DIGEST_SLICE = 16384 }; /* is in the cache yet when it is digested */
enum { TENSOR_BYTES = 25 };    /* of its numbers, but for its shape */
enum { META = 1, PARAM = 2, TIED = 4, QUANTIZED = 8 }; /* one of them says: there is */

static void pack_tensor(const struct dcp_tensor *tensor, struct dcp_buf *buf)
{
    bool own = tensor->param == tensor->name;
    unsigned char numbers[TENSOR_BYTES];
    numbers[0] = (uint8_t)tensor->role;
    numbers[1] = (uint8_t)tensor->dtype;
    numbers[2] = (uint8_t)tensor->ndim;
    numbers[3] = tensor->has_fingerprint;
    numbers[4] =
        (uint8_t)((tensor->is_meta ? META : 0) | (own ? 0 : PARAM) |
                  (tensor->tied_to ? TIED : 0) | (tensor->quantized ? QUANTIZED : 0));
    dcp_put_le32(numbers + 5, (uint32_t)tensor->group);
    dcp_put_le64(numbers + 9, tensor->fingerprint);
    dcp_put_le64(numbers + 17, tensor->quantized_bytes);
    dcp_buf_add(buf, numbers, sizeof numbers);
    put_text(buf, tensor->name);
    if (!own)
        put_text(buf, tensor->param);
    if (tensor->tied_to)
        put_text(buf, tensor->tied_to);
    if (tensor->quantized)
        put_text(buf, tensor->quantized);
    put_dims(buf, tensor->shape, tensor->ndim);
}

static void pack_tensors(const struct dcp_catalog *catalog, struct dcp_buf *buf)
{
    dcp_buf_add_le64(buf, catalog->n_tensors);
    for (size_t t = 0; t < catalog->n_tensors; t++)
        pack_tensor(&catalog->tensors[t], buf);
}

int dcp_pack_tensors_digest(const struct dcp_catalog *catalog, uint64_t *out,
                            struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };

    *out = 0;
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        pack_tensor(&catalog->tensors[t], &buf);
        if (buf.size_bytes < DIGEST_SLICE && t + 1 < catalog->n_tensors)
            continue;
        *out = dcp_hash_crc64(*out, buf.data, buf.size_bytes);
        buf.size_bytes = 0;
    }
    return dcp_buf_check(&buf, err);
}

static int unpack_tensors(struct dcp_cursor *in, struct dcp_catalog *catalog,
                          struct dcp_error *err)
{
    uint64_t n = dcp_cursor_le64(in);

    if (in->bad || n > dcp_cursor_left(in) / TENSOR_BYTES)
        return bad(err);
    DCP_TRY(dcp_catalog_reserve(catalog, (size_t)n, 0, err));
    for (uint64_t t = 0; t < n && !in->bad; t++) {
        int64_t shape[DCP_MAX_NDIM];
        const unsigned char *numbers = dcp_cursor_take(in, TENSOR_BYTES);
        if (!numbers || numbers[2] > DCP_MAX_NDIM)
            return bad(err);
        struct dcp_tensor tensor = { .role = (enum dcp_role)numbers[0],
                                     .dtype = (enum dcp_dtype)numbers[1],
                                     .ndim = numbers[2],
                                     .has_fingerprint = numbers[3],
                                     .is_meta = numbers[4] & META,
                                     .group = (int)dcp_le32(numbers + 5),
                                     .fingerprint = dcp_le64(numbers + 9),
                                     .quantized_bytes = dcp_le64(numbers + 17),
                                     .shape = shape };
        tensor.name = get_text(in);
        tensor.param = numbers[4] & PARAM ? get_text(in) : NULL;
        tensor.tied_to = numbers[4] & TIED ? get_text(in) : NULL;
        tensor.quantized = numbers[4] & QUANTIZED ? get_text(in) : NULL;
        get_dims(in, shape, tensor.ndim);
        if (!in->bad)
            DCP_TRY(dcp_catalog_add_tensor(catalog, &tensor, NULL, err));
    }
    return in->bad ? bad(err) : DCP_OK;
}

enum { NO_GRID, A_GRID, GRID_BEFORE }; /* that of the tensor before */

static void pack_grids(const struct dcp_catalog *catalog, struct dcp_buf *buf)
{
    const struct dcp_grid *before = NULL;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        const struct dcp_grid *grid = tensor->grid;
        int64_t cells[DCP_MAX_NDIM];
        bool told = grid && grid != before;
        dcp_buf_add_u8(buf, told ? A_GRID : grid ? GRID_BEFORE : NO_GRID);
        before = grid;
        if (!told)
            continue;
        dcp_buf_add_u8(buf, grid->flat);
        int ndim = dcp_grid_ndim(tensor, grid);
        put_dims(buf, grid->lead, ndim);
        put_dims(buf, grid->size, ndim);
        int64_t n = grid->ranks ? dcp_grid_cells(tensor, grid, cells) : 0;
        dcp_buf_add_u8(buf, (uint8_t)n);
        for (int64_t i = 0; i < n; i++)
            dcp_buf_add_le32(buf, (uint32_t)grid->ranks[i]);
        dcp_buf_add_le32(buf, (uint32_t)grid->first);
        for (int d = 0; d < ndim; d++)
            dcp_buf_add_le32(buf, (uint32_t)grid->stride[d]);
    }
}

static int unpack_grids(struct dcp_cursor *in, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    size_t n_listed = 0; /* ranks, by the grid before */

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        struct dcp_tensor *tensor = &catalog->tensors[t];
        int ranks[DCP_GRID_MOST_RANKS];
        struct dcp_grid grid = { 0 };
        uint8_t how = dcp_cursor_u8(in);
        if (how == NO_GRID)
            continue;
        if (how == GRID_BEFORE) {
            const struct dcp_grid *before = t ? tensor[-1].grid : NULL;
            if (!before || !dcp_grid_ok(tensor, before, n_listed, catalog->world_size))
                return bad(err);
            tensor->grid = before;
            continue;
        }
        grid.flat = dcp_cursor_u8(in);
        int ndim = dcp_grid_ndim(tensor, &grid);
        get_dims(in, grid.lead, ndim);
        get_dims(in, grid.size, ndim);
        size_t n = n_listed = dcp_cursor_u8(in);
        if (n > DCP_GRID_MOST_RANKS)
            return bad(err);
        for (size_t i = 0; i < n; i++)
            ranks[i] = (int)dcp_cursor_le32(in);
        grid.ranks = n ? ranks : NULL;
        grid.first = (int)dcp_cursor_le32(in);
        for (int d = 0; d < ndim; d++)
            grid.stride[d] = (int)dcp_cursor_le32(in);
        if (in->bad || !dcp_grid_ok(tensor, &grid, n, catalog->world_size))
            return bad(err);
        tensor->grid = dcp_grid_copy(catalog, tensor, &grid);
        if (!tensor->grid)
            return dcp_error_memory(err, "a grid of pieces");
    }
    return in->bad ? bad(err) : DCP_OK;
}

static void put_blocks(struct dcp_buf *buf, const struct dcp_piece *piece)
{
    dcp_buf_add_le64(buf, piece->n_blocks);
    for (size_t b = 0; b < piece->n_blocks; b++) {
        dcp_buf_add_le64(buf, piece->blocks[b].xxh3);
        dcp_buf_add_le32(buf, piece->blocks[b].stored_size);
    }
}

/* Into memory of the catalog. */
static int get_blocks(struct dcp_cursor *in, struct dcp_catalog *catalog,
                      struct dcp_piece *piece, struct dcp_error *err)
{
    uint64_t n = dcp_cursor_le64(in);

    if (in->bad || n > dcp_cursor_left(in) / 12)
        return bad(err);
    if (n == 0)
        return DCP_OK;
    struct dcp_block *blocks = dcp_catalog_alloc(catalog, (size_t)n, sizeof *blocks);
    if (!blocks)
        return dcp_error_memory(err, "block digests");
    for (uint64_t b = 0; b < n; b++) {
        blocks[b].xxh3 = dcp_cursor_le64(in);
        blocks[b].stored_size = dcp_cursor_le32(in);
    }
    piece->blocks = blocks;
    piece->n_blocks = (size_t)n;
    return DCP_OK;
}

void dcp_pack_region(const struct dcp_region *region, int ndim, struct dcp_buf *buf)
{
    dcp_buf_add_u8(buf, (uint8_t)region->kind);
    if (region->kind == DCP_FLAT) {
        dcp_buf_add_varint(buf, (uint64_t)region->begin);
        dcp_buf_add_varint(buf, (uint64_t)region->end);
    }
    for (int d = 0; region->kind == DCP_BOX && d < ndim; d++) {
        dcp_buf_add_varint(buf, (uint64_t)region->offset[d]);
        dcp_buf_add_varint(buf, (uint64_t)region->size[d]);
    }
}

struct dcp_region dcp_unpack_region(struct dcp_cursor *in, int ndim,
                                    int64_t dims[2][DCP_MAX_NDIM])
{
    struct dcp_region region = { .kind = (enum dcp_region_kind)dcp_cursor_u8(in) };

    if (region.kind == DCP_FLAT) {
        region.begin = (int64_t)dcp_cursor_varint(in);
        region.end = (int64_t)dcp_cursor_varint(in);
    } else if (region.kind == DCP_BOX) {
        for (int d = 0; d < ndim; d++) {
            dims[0][d] = (int64_t)dcp_cursor_varint(in);
            dims[1][d] = (int64_t)dcp_cursor_varint(in);
        }
        region.offset = dims[0];
        region.size = dims[1];
    }
    return region;
}

void dcp_pack_pieces(const struct dcp_catalog *catalog, struct dcp_buf *buf)
{
    dcp_buf_add_le64(buf, catalog->n_pieces);
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        int ndim = catalog->tensors[piece->tensor].ndim;
        dcp_buf_add_le32(buf, (uint32_t)piece->tensor);
        dcp_buf_add_le32(buf, (uint32_t)piece->rank);
        dcp_buf_add_le32(buf, (uint32_t)piece->file);
        dcp_buf_add_u8(buf, (uint8_t)piece->codec);
        dcp_buf_add_u8(buf, piece->stride != NULL);
        dcp_buf_add_u8(buf, (uint8_t)piece->swap_bytes);
        dcp_buf_add_u8(buf, piece->has_crc);
        dcp_buf_add_u8(buf, piece->has_crc32);
        dcp_pack_region(&piece->region, ndim, buf);
        if (piece->stride)
            put_dims(buf, piece->stride, ndim);
        dcp_buf_add_le64(buf, piece->offset);
        dcp_buf_add_le64(buf, piece->stored_size);
        dcp_buf_add_le64(buf, piece->skip);
        dcp_buf_add_le64(buf, piece->crc);
        dcp_buf_add_le32(buf, piece->crc32);
        put_blocks(buf, piece);
    }
}

int dcp_unpack_pieces(struct dcp_cursor *in, struct dcp_catalog *catalog, int rank,
                      struct dcp_error *err)
{
    uint64_t n = dcp_cursor_le64(in);
    int rc = DCP_OK;

    for (uint64_t p = 0; p < n && !rc && !in->bad; p++) {
        int64_t dims[2][DCP_MAX_NDIM], stride[DCP_MAX_NDIM];
        struct dcp_piece piece = { .tensor = (int)dcp_cursor_le32(in) };
        piece.rank = (int)dcp_cursor_le32(in);
        piece.file = (int)dcp_cursor_le32(in);
        piece.codec = (enum dcp_codec)dcp_cursor_u8(in);
        bool strided = dcp_cursor_u8(in);
        piece.swap_bytes = dcp_cursor_u8(in);
        piece.has_crc = dcp_cursor_u8(in);
        piece.has_crc32 = dcp_cursor_u8(in);
        if (in->bad || piece.tensor < 0 || (size_t)piece.tensor >= catalog->n_tensors)
            return bad(err);
        int ndim = catalog->tensors[piece.tensor].ndim;
        piece.region = dcp_unpack_region(in, ndim, dims);
        if (strided) {
            get_dims(in, stride, ndim);
            piece.stride = stride;
        }
        piece.offset = dcp_cursor_le64(in);
        piece.stored_size = dcp_cursor_le64(in);
        piece.skip = dcp_cursor_le64(in);
        piece.crc = dcp_cursor_le64(in);
        piece.crc32 = dcp_cursor_le32(in);
        rc = get_blocks(in, catalog, &piece, err);
        if (rank >= 0)
            piece.rank = rank;
        if (!rc && !in->bad)
            rc = dcp_catalog_add_piece(catalog, &piece, err);
    }
    return rc ? rc : in->bad ? bad(err) : DCP_OK;
}

void dcp_pack_files(const struct dcp_catalog *catalog, int rank, struct dcp_buf *buf)
{
    uint64_t n = 0;

    for (size_t f = 0; f < catalog->n_files; f++)
        n += rank < 0 || catalog->files[f].rank == rank;
    dcp_buf_add_le64(buf, n);
    for (size_t f = 0; f < catalog->n_files; f++) {
        const struct dcp_file *file = &catalog->files[f];
        if (rank >= 0 && file->rank != rank)
            continue;
        put_text(buf, file->name);
        dcp_buf_add_le32(buf, (uint32_t)file->rank);
        dcp_buf_add_u8(buf, file->has_crc);
        dcp_buf_add_le64(buf, file->size_bytes);
        dcp_buf_add_le64(buf, file->crc);
    }
}

int dcp_unpack_files(struct dcp_cursor *in, struct dcp_catalog *catalog,
                     struct dcp_error *err)
{
    uint64_t n = dcp_cursor_le64(in);

    for (uint64_t i = 0; i < n && !in->bad; i++) {
        struct dcp_file file = { .name = get_text(in) };
        file.rank = (int)dcp_cursor_le32(in);
        file.has_crc = dcp_cursor_u8(in);
        file.size_bytes = dcp_cursor_le64(in);
        file.crc = dcp_cursor_le64(in);
        if (!in->bad)
            DCP_TRY(dcp_catalog_add_file(catalog, &file, NULL, err));
    }
    return in->bad ? bad(err) : DCP_OK;
}

static void pack_records(const struct dcp_catalog *catalog, struct dcp_buf *buf)
{
    dcp_buf_add_le64(buf, catalog->n_records);
    for (size_t r = 0; r < catalog->n_records; r++) {
        const struct dcp_record *record = &catalog->records[r];
        put_text(buf, record->name);
        dcp_buf_add_le32(buf, (uint32_t)record->file);
        dcp_buf_add_u8(buf, (uint8_t)record->codec);
        dcp_buf_add_u8(buf, record->crc32_behind);
        dcp_buf_add_le64(buf, record->offset);
        dcp_buf_add_le64(buf, record->stored_size);
        dcp_buf_add_le64(buf, record->skip);
        dcp_buf_add_le64(buf, record->size_bytes);
        dcp_buf_add_le32(buf, record->crc32);
    }
}

static int unpack_records(struct dcp_cursor *in, struct dcp_catalog *catalog,
                          struct dcp_error *err)
{
    uint64_t n = dcp_cursor_le64(in);

    for (uint64_t r = 0; r < n && !in->bad; r++) {
        struct dcp_record record = { .name = get_text(in) };
        record.file = (int)dcp_cursor_le32(in);
        record.codec = (enum dcp_codec)dcp_cursor_u8(in);
        record.crc32_behind = dcp_cursor_u8(in);
        record.offset = dcp_cursor_le64(in);
        record.stored_size = dcp_cursor_le64(in);
        record.skip = dcp_cursor_le64(in);
        record.size_bytes = dcp_cursor_le64(in);
        record.crc32 = dcp_cursor_le32(in);
        if (!in->bad)
            DCP_TRY(dcp_catalog_add_record(catalog, &record, err));
    }
    return in->bad ? bad(err) : DCP_OK;
}

static void pack_objects(const struct dcp_catalog *catalog, struct dcp_buf *buf)
{
    dcp_buf_add_le64(buf, catalog->n_objects);
    for (size_t o = 0; o < catalog->n_objects; o++) {
        const struct dcp_object *object = &catalog->objects[o];
        put_text(buf, object->name);
        dcp_buf_add_u8(buf, (uint8_t)object->kind);
        dcp_buf_add_le64(buf, object->size_bytes);
        dcp_buf_add(buf, object->data, object->size_bytes);
    }
}

static int unpack_objects(struct dcp_cursor *in, struct dcp_catalog *catalog,
                          struct dcp_error *err)
{
    uint64_t n = dcp_cursor_le64(in);

    for (uint64_t i = 0; i < n && !in->bad; i++) {
        struct dcp_object object = { .name = get_text(in) };
        object.kind = (enum dcp_object_kind)dcp_cursor_u8(in);
        object.size_bytes = (size_t)dcp_cursor_le64(in);
        object.data = dcp_cursor_take(in, object.size_bytes);
        if (!in->bad)
            DCP_TRY(dcp_catalog_add_object(catalog, &object, err));
    }
    return in->bad ? bad(err) : DCP_OK;
}

/* The bytes of pieces that an index found in no file of their own, such as arrays inside
 * a pickle. */
static void pack_memory(const struct dcp_catalog *catalog, struct dcp_buf *buf)
{
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        if (piece->file >= 0)
            continue;
        dcp_buf_add_u8(buf, piece->data != NULL);
        if (piece->data)
            dcp_buf_add(buf, piece->data, (size_t)dcp_piece_span(catalog, piece));
    }
}

static int unpack_memory(struct dcp_cursor *in, struct dcp_catalog *catalog,
                         struct dcp_error *err)
{
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        struct dcp_piece *piece = &catalog->pieces[p];
        if (piece->file >= 0 || !dcp_cursor_u8(in))
            continue;
        uint64_t n = dcp_piece_span(catalog, piece);
        const void *bytes = dcp_cursor_take(in, (size_t)n);
        if (!bytes)
            return bad(err);
        piece->data = dcp_catalog_alloc(catalog, (size_t)n + 1, 1);
        if (!piece->data)
            return dcp_error_memory(err, "a tensor in memory");
        memcpy(piece->data, bytes, (size_t)n);
    }
    return in->bad ? bad(err) : DCP_OK;
}

int dcp_pack_catalog(const struct dcp_catalog *catalog, struct dcp_buf *buf,
                     struct dcp_error *err)
{
    put_text(buf, catalog->format);
    put_text(buf, catalog->version);
    put_text(buf, catalog->layout);
    put_text(buf, catalog->producer);
    put_optional(buf, catalog->parity);
    put_optional(buf, catalog->assumed);
    put_optional(buf, catalog->assumed_order);
    put_optional(buf, catalog->untold);
    dcp_buf_add_u8(buf, catalog->diverged);
    dcp_buf_add_le64(buf, (uint64_t)catalog->step);
    dcp_buf_add_le32(buf, (uint32_t)catalog->world_size);
    dcp_buf_add_le32(buf, (uint32_t)catalog->mesh.dp);
    dcp_buf_add_le32(buf, (uint32_t)catalog->mesh.tp);
    dcp_buf_add_le32(buf, (uint32_t)catalog->mesh.pp);
    dcp_buf_add_le32(buf, (uint32_t)catalog->weights_dtype);
    pack_tensors(catalog, buf);
    pack_grids(catalog, buf);
    dcp_pack_files(catalog, -1, buf);
    pack_records(catalog, buf);
    dcp_pack_pieces(catalog, buf);
    pack_memory(catalog, buf);
    pack_objects(catalog, buf);
    return dcp_buf_check(buf, err);
}

int dcp_unpack_catalog(const void *data, size_t size_bytes,
                       struct dcp_catalog **out_catalog, struct dcp_error *err)
{
    struct dcp_cursor in = dcp_cursor_init(data, size_bytes);
    struct dcp_catalog *catalog;
    int rc = dcp_catalog_new(&catalog, err);

    *out_catalog = NULL;
    if (rc)
        return rc;
    catalog->format = dcp_catalog_text(catalog, get_text(&in));
    catalog->version = dcp_catalog_text(catalog, get_text(&in));
    catalog->layout = dcp_catalog_text(catalog, get_text(&in));
    catalog->producer = dcp_catalog_text(catalog, get_text(&in));
    const char *parity = get_optional(&in), *assumed = get_optional(&in);
    const char *order = get_optional(&in), *untold = get_optional(&in);
    catalog->parity = parity ? dcp_catalog_text(catalog, parity) : NULL;
    catalog->assumed = assumed ? dcp_catalog_text(catalog, assumed) : NULL;
    catalog->assumed_order = order ? dcp_catalog_text(catalog, order) : NULL;
    catalog->untold = untold ? dcp_catalog_text(catalog, untold) : NULL;
    catalog->diverged = dcp_cursor_u8(&in);
    if (!catalog->format || !catalog->version || !catalog->layout || !catalog->producer ||
        !catalog->parity != !parity || !catalog->assumed != !assumed ||
        !catalog->assumed_order != !order || !catalog->untold != !untold)
        rc = dcp_error_memory(err, "a catalog");
    catalog->step = (int64_t)dcp_cursor_le64(&in);
    catalog->world_size = (int)dcp_cursor_le32(&in);
    catalog->mesh.dp = (int)dcp_cursor_le32(&in);
    catalog->mesh.tp = (int)dcp_cursor_le32(&in);
    catalog->mesh.pp = (int)dcp_cursor_le32(&in);
    catalog->weights_dtype = (int)dcp_cursor_le32(&in);
    if (!rc)
        rc = unpack_tensors(&in, catalog, err);
    if (!rc)
        rc = unpack_grids(&in, catalog, err);
    if (!rc)
        rc = dcp_unpack_files(&in, catalog, err);
    if (!rc)
        rc = unpack_records(&in, catalog, err);
    if (!rc)
        rc = dcp_unpack_pieces(&in, catalog, -1, err);
    if (!rc)
        rc = unpack_memory(&in, catalog, err);
    if (!rc)
        rc = unpack_objects(&in, catalog, err);
    if (!rc && in.at != in.size_bytes)
        rc = bad(err);
    if (!rc)
        rc = dcp_catalog_sort(catalog, err);
    if (rc) {
        dcp_catalog_free(catalog);
        return rc;
    }
    *out_catalog = catalog;
    return DCP_OK;
}
