#include "table.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "native.h"
#include <inttypes.h>
#include <string.h>

/* How a region is told: the lower half of a piece's second member; the upper half is its
 * codec, by its number. */
enum { AS_WHOLE, AS_FLAT, AS_BOX };

enum { LEAST_BYTES = 10 }; /* of a piece without blocks */

static void add_region(struct dcp_buf *buf, const struct dcp_region *region, int ndim)
{
    if (region->kind == DCP_FLAT) {
        dcp_buf_add_varint(buf, (uint64_t)region->begin);
        dcp_buf_add_varint(buf, (uint64_t)(region->end - region->begin));
    }
    for (int d = 0; region->kind == DCP_BOX && d < ndim; d++) {
        dcp_buf_add_varint(buf, (uint64_t)region->offset[d]);
        dcp_buf_add_varint(buf, (uint64_t)region->size[d]);
    }
}

void dcp_native_table_add(struct dcp_buf *buf, const struct dcp_catalog *catalog,
                          int rank, const size_t *order, size_t n, uint64_t first)
{
    static const unsigned kinds[] = {
        [DCP_WHOLE] = AS_WHOLE, [DCP_FLAT] = AS_FLAT, [DCP_BOX] = AS_BOX
    };

    dcp_buf_add(buf, NATIVE_TABLE_MAGIC, strlen(NATIVE_TABLE_MAGIC));
    dcp_buf_add_le32(buf, NATIVE_TABLE_VERSION);
    dcp_buf_add_le32(buf, (uint32_t)rank);
    dcp_buf_add_le32(buf, (uint32_t)catalog->world_size);
    dcp_buf_add_le64(buf, (uint64_t)catalog->step);
    dcp_buf_add_le64(buf, first);
    dcp_buf_add_le64(buf, n);
    for (size_t i = 0; i < n; i++) {
        const struct dcp_piece *piece = &catalog->pieces[order[i]];
        dcp_buf_add_varint(buf, (uint64_t)piece->tensor);
        dcp_buf_add_u8(buf, (uint8_t)(kinds[piece->region.kind] | piece->codec << 4));
        add_region(buf, &piece->region, catalog->tensors[piece->tensor].ndim);
        dcp_buf_add_le64(buf, piece->crc);
        for (size_t b = 0; b < piece->n_blocks; b++) {
            dcp_buf_add_le64(buf, piece->blocks[b].xxh3);
            if (piece->codec != DCP_CODEC_NONE)
                dcp_buf_add_varint(buf, piece->blocks[b].stored_size);
        }
    }
}

/* A table that is read. */
struct table {
    const char *name; /* of its file */
    int rank, file;   /* of the shard */
    struct dcp_catalog *catalog;
    struct dcp_cursor in;
    uint64_t at,
        end; /* in the shard: where the next piece begins, where the shard ends */
    struct dcp_block *blocks;
    size_t cap_blocks;
};

static int corrupt(const struct table *t, const char *what, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' %s", t->name, what);
}

/* *out_n: pieces, no more than there is room for. */
static int index_head(struct table *t, uint64_t *out_n, struct dcp_error *err)
{
    const void *magic = dcp_cursor_take(&t->in, strlen(NATIVE_TABLE_MAGIC));

    if (!magic || memcmp(magic, NATIVE_TABLE_MAGIC, strlen(NATIVE_TABLE_MAGIC)))
        return corrupt(t, "is no table of pieces", err);
    uint32_t version = dcp_cursor_le32(&t->in);
    if (!t->in.bad && version != NATIVE_TABLE_VERSION)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' has format version %" PRIu32
                             "; this program reads version %d",
                             t->name, version, NATIVE_TABLE_VERSION);
    uint32_t rank = dcp_cursor_le32(&t->in), world_size = dcp_cursor_le32(&t->in);
    uint64_t step = dcp_cursor_le64(&t->in);
    t->at = dcp_cursor_le64(&t->in);
    *out_n = dcp_cursor_le64(&t->in);
    if (t->in.bad)
        return corrupt(t, "ends too early", err);
    if (rank != (uint32_t)t->rank || world_size != (uint32_t)t->catalog->world_size ||
        step != (uint64_t)t->catalog->step)
        return corrupt(
            t, "is of another step, rank or world size than '" NATIVE_MANIFEST "' says",
            err);
    if (*out_n > dcp_cursor_left(&t->in) / LEAST_BYTES)
        return corrupt(t, "ends too early", err);
    return DCP_OK;
}

/* A number that is an offset or a size; what is too large for one is no number. */
static int64_t take_number(struct dcp_cursor *in)
{
    uint64_t v = dcp_cursor_varint(in);

    if (v > INT64_MAX)
        in->bad = true;
    return in->bad ? 0 : (int64_t)v;
}

/* Borrowed from dims. Whether it lies in its tensor is seen when the piece is added. */
static struct dcp_region take_region(struct dcp_cursor *in, unsigned kind, int ndim,
                                     int64_t dims[2][DCP_MAX_NDIM])
{
    struct dcp_region region = { .kind = DCP_WHOLE };

    if (kind == AS_FLAT) {
        region.kind = DCP_FLAT;
        region.begin = take_number(in);
        int64_t n = take_number(in);
        in->bad |= n > INT64_MAX - region.begin;
        region.end = in->bad ? region.begin : region.begin + n;
    } else if (kind == AS_BOX) {
        region =
            (struct dcp_region){ .kind = DCP_BOX, .offset = dims[0], .size = dims[1] };
        for (int d = 0; d < ndim; d++) {
            dims[0][d] = take_number(in);
            dims[1][d] = take_number(in);
        }
    }
    return region;
}

/* The blocks of a piece of so many raw bytes. Their number is held against what is left
 * of the table before there is memory for them. */
static int index_blocks(struct table *t, struct dcp_piece *piece, uint64_t raw,
                        struct dcp_error *err)
{
    uint64_t n = raw / DCP_BLOCK_BYTES + (raw % DCP_BLOCK_BYTES != 0);
    bool coded = piece->codec != DCP_CODEC_NONE;

    if (n > dcp_cursor_left(&t->in) / (coded ? 9 : 8))
        return corrupt(t, "ends too early", err);
    struct dcp_block *blocks =
        dcp_mem_grow(t->blocks, &t->cap_blocks, (size_t)n + 1, sizeof *blocks);
    if (!blocks)
        return dcp_error_memory(err, "block digests");
    t->blocks = blocks;
    for (uint64_t b = 0; b < n; b++) {
        uint64_t left = raw - b * DCP_BLOCK_BYTES;
        uint64_t size = left < DCP_BLOCK_BYTES ? left : DCP_BLOCK_BYTES;
        blocks[b].xxh3 = dcp_cursor_le64(&t->in);
        uint64_t stored = coded ? dcp_cursor_varint(&t->in) : size;
        if (stored < 1 || stored > size)
            return corrupt(t, "has a stored block without a valid size", err);
        blocks[b].stored_size = (uint32_t)stored;
        piece->stored_size += stored;
    }
    piece->blocks = blocks;
    piece->n_blocks = (size_t)n;
    return DCP_OK;
}

static int index_piece(struct table *t, struct dcp_error *err)
{
    int64_t dims[2][DCP_MAX_NDIM];
    struct dcp_piece piece = { .rank = t->rank, .file = t->file, .has_crc = true };
    uint64_t tensor = dcp_cursor_varint(&t->in), raw;
    unsigned how = dcp_cursor_u8(&t->in);

    if (!t->in.bad && tensor >= t->catalog->n_tensors)
        return corrupt(t, "has a piece that belongs to no tensor", err);
    if (how >> 4 >= DCP_N_CODECS)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "the codec of a piece is unknown to this version");
    if (t->in.bad || (how & 15) > AS_BOX)
        return corrupt(t, "has a piece that is not valid", err);
    const struct dcp_tensor *of = &t->catalog->tensors[tensor];
    piece.tensor = (int)tensor;
    piece.codec = (enum dcp_codec)(how >> 4);
    piece.region = take_region(&t->in, how & 15, of->ndim, dims);
    piece.crc = dcp_cursor_le64(&t->in);
    piece.offset = t->at;
    if (t->in.bad || !dcp_native_raw_bytes(of, &piece.region, &raw))
        return corrupt(t, "has a piece without a valid region", err);
    DCP_TRY(index_blocks(t, &piece, raw, err));
    if (t->in.bad || piece.stored_size > t->end - t->at)
        return corrupt(t, "has a piece that lies outside its shard", err);
    t->at += piece.stored_size;
    return dcp_catalog_add_piece(t->catalog, &piece, err);
}

int dcp_native_table_count(const void *data, size_t size_bytes, const char *name,
                           int rank, struct dcp_catalog *catalog, uint64_t *out_n,
                           struct dcp_error *err)
{
    struct table t = { .name = name,
                       .rank = rank,
                       .catalog = catalog,
                       .in = dcp_cursor_init(data, size_bytes) };

    return index_head(&t, out_n, err);
}

int dcp_native_table_index(const void *data, size_t size_bytes, const char *name,
                           int rank, int file, struct dcp_catalog *catalog,
                           struct dcp_error *err)
{
    struct table t = { .name = name,
                       .rank = rank,
                       .file = file,
                       .catalog = catalog,
                       .in = dcp_cursor_init(data, size_bytes),
                       .end = catalog->files[file].size_bytes };
    uint64_t n = 0;

    int rc = index_head(&t, &n, err);
    if (!rc && t.at > t.end)
        rc = corrupt(&t, "begins behind the end of its shard", err);
    if (!rc)
        rc = dcp_catalog_reserve(catalog, 0, (size_t)n, err);
    for (uint64_t i = 0; i < n && !rc; i++)
        rc = index_piece(&t, err);
    if (!rc && (t.at != t.end || dcp_cursor_left(&t.in)))
        rc = corrupt(&t, "does not end where its shard does", err);
    free(t.blocks);
    return rc;
}
