#include "blocks.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "cache.h"
#include "core/catalog/index.h"
#include "core/catalog/region.h"
#include "core/files/codec.h"
#include "core/files/files.h"
#include "core/files/streams.h"
#include "core/parity/reconstruction.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { SMALL_BLOCK = 512 };

struct dcp_blocks {
    struct dcp_source source;
    const struct dcp_catalog *catalog;
    bool verify, reconstructs;
    struct dcp_proof *proof; /* borrowed; NULL: records are not checked */
    struct dcp_reconstruction
        *rebuilt; /* what is read through it; NULL: nothing was corrupt yet */
    struct dcp_error reconstructed; /* why it is */
    _Atomic bool rebuilds; /* of all that share this one's cache: somebody does */
    struct dcp_coder *coder;
    struct dcp_xxh3 *hash;
    unsigned char *stored;   /* a block as it lies in the file */
    struct dcp_cache *cache; /* units: a piece, or n_pieces + a record */
    struct dcp_blocks *with; /* whose cache it is; itself, as a rule */
    uint64_t cache_bytes;
    struct dcp_files *files;
    struct dcp_streams streams;
};

int dcp_blocks_new(const struct dcp_source *source, const struct dcp_catalog *catalog,
                   uint64_t memory_bytes, bool verify, struct dcp_blocks **out_blocks,
                   struct dcp_error *err)
{
    struct dcp_blocks *b = calloc(1, sizeof *b);
    uint64_t half =
        memory_bytes / 2 < DCP_BLOCK_BYTES ? DCP_BLOCK_BYTES : memory_bytes / 2;
    uint64_t least = (uint64_t)4 * DCP_BLOCK_BYTES;

    *out_blocks = NULL;
    if (!b)
        return dcp_error_memory(err, "a block reader");
    b->with = b;
    b->source = *source;
    b->catalog = catalog;
    b->verify = verify;
    int rc = dcp_coder_new(&b->coder, err);
    if (!rc)
        rc = dcp_files_new(source, catalog, half, &b->files, err);
    dcp_streams_init(&b->streams, b->files);
    b->cache_bytes = half < least ? least : half;
    b->cache = dcp_cache_new(b->cache_bytes);
    b->stored = malloc(DCP_BLOCK_BYTES);
    b->hash = dcp_hash_xxh3_new();
    if (!rc && (!b->cache || !b->stored || !b->hash))
        rc = dcp_error_memory(err, "a block reader");
    if (rc) {
        dcp_blocks_free(b);
        return rc;
    }
    *out_blocks = b;
    return DCP_OK;
}

void dcp_blocks_free(struct dcp_blocks *b)
{
    if (!b)
        return;
    dcp_streams_fini(&b->streams);
    dcp_files_free(b->files); /* before the store that they may be read through */
    dcp_reconstruction_free(b->rebuilt);
    if (b->with == b)
        dcp_cache_free(b->cache);
    free(b->stored);
    dcp_coder_free(b->coder);
    dcp_hash_xxh3_free(b->hash);
    free(b);
}

void dcp_blocks_share(struct dcp_blocks *b, struct dcp_blocks *with)
{
    dcp_cache_free(b->cache);
    b->cache = with->cache;
    b->with = with;
    dcp_cache_grow(with->cache, b->cache_bytes);
}

void dcp_blocks_check_records(struct dcp_blocks *b, struct dcp_proof *proof)
{
    b->proof = proof;
}

void dcp_blocks_reconstruct(struct dcp_blocks *b)
{
    b->reconstructs = b->catalog->parity;
}

const struct dcp_error *dcp_blocks_reconstructed(const struct dcp_blocks *b)
{
    return &b->reconstructed;
}

bool dcp_blocks_rebuild(const struct dcp_blocks *b)
{
    return b->with->rebuilds;
}

uint64_t dcp_blocks_bytes(const struct dcp_blocks *b)
{
    return dcp_files_bytes(b->files);
}

void dcp_blocks_locate(const struct dcp_catalog *catalog, const struct dcp_piece *piece,
                       uint64_t begin, uint64_t n, int64_t *out_first, int64_t *out_last)
{
    const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
    int64_t elem = (int64_t)dcp_dtype_size(tensor->dtype), at, run;
    int64_t first = (int64_t)begin / elem, count = ((int64_t)n + elem - 1) / elem;
    struct dcp_region_walk walk;

    *out_first = 0;
    dcp_region_walk_init(&walk, tensor, &piece->region, first);
    dcp_region_walk_next(&walk, 1, out_first, &at, &run);
    *out_last = *out_first;
    dcp_region_walk_init(&walk, tensor, &piece->region, first + count - 1);
    dcp_region_walk_next(&walk, 1, out_last, &at, &run);
}

void dcp_blocks_extent(const struct dcp_piece *piece, uint64_t block, uint64_t raw_n,
                       uint64_t *out_offset, uint64_t *out_n)
{
    bool coded = piece->codec != DCP_CODEC_NONE;

    if (piece->codec >= DCP_N_CODECS) { /* nobody knows where in the stream */
        *out_offset = piece->offset;
        *out_n = piece->stored_size;
        return;
    }
    *out_offset = piece->offset + (coded ? 0 : block * DCP_BLOCK_BYTES);
    *out_n = coded ? 0 : raw_n;
    for (uint64_t b = 0; coded && b <= block && b < piece->n_blocks; b++) {
        *out_offset += *out_n;
        *out_n = piece->blocks[b].stored_size;
    }
}

/* Wraps what went wrong with a block in a sentence that names tensor, elements and file.
 */
static int complain(const struct dcp_blocks *b, const struct dcp_piece *piece,
                    uint64_t block, uint64_t raw_n, const char *what,
                    struct dcp_error *err)
{
    const struct dcp_tensor *tensor = &b->catalog->tensors[piece->tensor];
    uint64_t offset, stored_n;
    int64_t first, last;
    const char *file = b->catalog->files[piece->file].name;
    char why[240];

    snprintf(why, sizeof why, "%s", what); /* it may lie in err, which is written anew */
    dcp_blocks_locate(b->catalog, piece, block * DCP_BLOCK_BYTES, raw_n, &first, &last);
    dcp_blocks_extent(piece, block, raw_n, &offset, &stored_n);
    if (err)
        *err = (struct dcp_error){ 0 };
    dcp_error_file(err, file);
    return dcp_error_of_tensor(err, DCP_E_CORRUPT, tensor->name,
                               "tensor '%s' elements %" PRId64 "..%" PRId64
                               " are corrupt: %s (file '%s', bytes %" PRIu64 "..%" PRIu64
                               ")",
                               DCP_SHOWN(tensor->name), first, last, why, DCP_SHOWN(file),
                               offset, offset + stored_n - (stored_n > 0));
}

/* -- pieces ------------------------------------------------------------------------ */

/* A block of a piece whose whole extent is one coded stream. */
static int read_stream_block(struct dcp_blocks *b, const struct dcp_piece *piece,
                             uint64_t block, unsigned char *out, size_t raw_n,
                             struct dcp_error *err)
{
    const struct dcp_extent extent = { piece->file, piece->codec, piece->offset,
                                       piece->stored_size, piece->skip };
    struct dcp_error why = { 0 };
    int rc =
        dcp_streams_read(&b->streams, &extent, block * DCP_BLOCK_BYTES, raw_n, out, &why);

    if (rc == DCP_E_CORRUPT)
        return complain(b, piece, block, raw_n, why.message, err);
    if (rc && err)
        *err = why;
    return rc;
}

/* Bytes of a file and their digest. A large read is digested slice by slice, out of the
 * cache that the kernel brought it to. */
static int read_digested(struct dcp_blocks *b, int file, uint64_t offset, size_t n,
                         unsigned char *out, uint64_t *out_xxh3, struct dcp_error *err)
{
    if (n <= DCP_HASH_SLICE) {
        DCP_TRY(dcp_files_read_ahead(b->files, file, offset, n, out, err));
        *out_xxh3 = dcp_hash_xxh3(out, n);
        return DCP_OK;
    }
    for (size_t at = 0, m; at < n; at += m) {
        m = n - at < DCP_HASH_SLICE ? n - at : DCP_HASH_SLICE;
        int rc = dcp_files_read(b->files, file, offset + at, m, out + at, err);
        if (rc) {
            dcp_hash_xxh3_end(b->hash); /* begins anew */
            return rc;
        }
        dcp_hash_xxh3_add(b->hash, out + at, m);
    }
    *out_xxh3 = dcp_hash_xxh3_end(b->hash);
    return DCP_OK;
}

static int read_plain(struct dcp_blocks *b, const struct dcp_piece *piece, uint64_t block,
                      unsigned char *out, size_t raw_n, struct dcp_error *err)
{
    const struct dcp_tensor *tensor = &b->catalog->tensors[piece->tensor];
    uint64_t offset, stored_n;
    struct dcp_error why = { 0 };

    if (piece->codec >= DCP_N_CODECS)
        return read_stream_block(b, piece, block, out, raw_n, err);
    if (piece->codec != DCP_CODEC_NONE && block >= piece->n_blocks)
        return complain(b, piece, block, raw_n, "its block is not described", err);
    dcp_blocks_extent(piece, block, raw_n, &offset, &stored_n);
    if (stored_n > raw_n)
        return complain(b, piece, block, raw_n, "its block is too large", err);
    bool decode = piece->codec != DCP_CODEC_NONE && stored_n != raw_n;
    unsigned char *to = decode ? b->stored : out;
    bool digests = b->verify && block < piece->n_blocks;
    uint64_t xxh3 = 0;
    int rc =
        digests ? read_digested(b, piece->file, offset, (size_t)stored_n, to, &xxh3, &why)
                : dcp_files_read_ahead(b->files, piece->file, offset, (size_t)stored_n,
                                       to, &why);
    if (rc == DCP_E_CORRUPT)
        return complain(b, piece, block, raw_n, why.message, err);
    if (rc) {
        if (err)
            *err = why;
        dcp_error_tensor(err, tensor->name);
        dcp_error_file(err, b->catalog->files[piece->file].name);
        return rc;
    }
    if (digests && xxh3 != piece->blocks[block].xxh3)
        return complain(b, piece, block, raw_n, "the block digest differs", err);
    if (decode && dcp_coder_decode(b->coder, piece->codec, dcp_dtype_size(tensor->dtype),
                                   to, (size_t)stored_n, out, raw_n, &why))
        return complain(b, piece, block, raw_n, why.message, err);
    return DCP_OK;
}

/* All that is read from now on comes through the parity: slower, but right. */
static bool begin_reconstruction(struct dcp_blocks *b)
{
    b->reconstructs = false;
    if (dcp_reconstruction_open(b->source.store, b->source.name, &b->rebuilt, NULL))
        return false;
    dcp_files_move(b->files, dcp_reconstruction_store(b->rebuilt));
    return true;
}

/* One whole block of a piece, verified and decoded, to out. */
static int read_piece_block(struct dcp_blocks *b, size_t p, uint64_t block,
                            unsigned char *out, size_t raw_n, struct dcp_error *err)
{
    const struct dcp_piece *piece = &b->catalog->pieces[p];
    struct dcp_error why = { 0 };
    int rc = read_plain(b, piece, block, out, raw_n, &why);

    if (dcp_is_broken(rc) && b->reconstructs && begin_reconstruction(b) &&
        !read_plain(b, piece, block, out, raw_n, NULL)) {
        b->reconstructed = why;
        b->with->rebuilds = true;
        return DCP_OK;
    }
    if (rc && err)
        *err = why;
    return rc;
}

/* -- records ----------------------------------------------------------------------- */

/* The CRC-32 of a zip record may stand in its descriptor, behind the content, and be
 * known to nobody before. */
static int read_descriptor(struct dcp_blocks *b, const struct dcp_record *record,
                           const struct dcp_extent *extent, uint32_t *out_crc32,
                           struct dcp_error *err)
{
    unsigned char descriptor[8]; /* its signature, then the CRC */
    int rc = dcp_streams_read(&b->streams, extent, record->size_bytes, sizeof descriptor,
                              descriptor, err);

    *out_crc32 = rc ? 0 : dcp_le32(descriptor + 4);
    return rc;
}

/* One whole block of a record's content, noted in the proof. */
static int read_record_block(struct dcp_blocks *b, size_t r, uint64_t block,
                             unsigned char *out, size_t raw_n, struct dcp_error *err)
{
    const struct dcp_record *record = &b->catalog->records[r];
    const struct dcp_extent extent = { record->file, record->codec, record->offset,
                                       record->stored_size, record->skip };
    bool coded = record->codec != DCP_CODEC_NONE;
    uint64_t at = block * DCP_BLOCK_BYTES;
    bool asks = record->crc32_behind && at + raw_n == record->size_bytes;
    uint32_t crc32 = 0;

    int rc = coded ? dcp_streams_read(&b->streams, &extent, at, raw_n, out, err)
                   : dcp_files_read_ahead(b->files, record->file, record->offset + at,
                                          raw_n, out, err);
    if (!rc && asks)
        rc = read_descriptor(b, record, &extent, &crc32, err);
    if (!rc)
        return dcp_proof_add(b->proof, r, block, out, raw_n, asks ? &crc32 : NULL, err);
    if (rc == DCP_E_CORRUPT)
        dcp_proof_break(b->proof, r, err);
    return rc;
}

/* -- both -------------------------------------------------------------------------- */

static int read_block(struct dcp_blocks *b, size_t unit, uint64_t block,
                      unsigned char *out, size_t raw_n, struct dcp_error *err)
{
    size_t n = b->catalog->n_pieces;

    return unit < n ? read_piece_block(b, unit, block, out, raw_n, err)
                    : read_record_block(b, unit - n, block, out, raw_n, err);
}

/* n bytes from `at` on of a block in the cache, which it is read to when it is not there.
 */
static int read_cached(struct dcp_blocks *b, size_t unit, uint64_t block, size_t raw_n,
                       size_t at, size_t n, unsigned char *out, struct dcp_error *err)
{
    bool fill;
    struct dcp_cached *cached = dcp_cache_take(b->cache, unit, block, raw_n, &fill);

    if (!cached)
        return dcp_error_memory(err, "a cached block");
    unsigned char *data = dcp_cached_data(cached);
    int rc = fill ? read_block(b, unit, block, data, raw_n, err) : DCP_OK;
    if (!rc && n)
        memcpy(out, data + at, n);
    dcp_cache_give(b->cache, cached, !rc);
    return rc;
}

/* A part of a block that is so small that to read and digest it again costs less than to
 * keep it. */
static int read_small(struct dcp_blocks *b, size_t unit, size_t raw_n, size_t begin,
                      size_t n, unsigned char *out, struct dcp_error *err)
{
    unsigned char block[SMALL_BLOCK];

    DCP_TRY(read_block(b, unit, 0, block, raw_n, err));
    memcpy(out, block + begin, n);
    return DCP_OK;
}

/* Whether it is the one block of a piece that is not coded. */
static bool is_small(const struct dcp_blocks *b, size_t unit, uint64_t raw)
{
    return raw <= SMALL_BLOCK && unit < b->catalog->n_pieces &&
           b->catalog->pieces[unit].codec == DCP_CODEC_NONE;
}

/* Bytes begin .. begin + n of a unit of raw bytes, whole blocks straight to out. */
static int read_unit(struct dcp_blocks *b, size_t unit, uint64_t raw, uint64_t begin,
                     size_t n, unsigned char *out, struct dcp_error *err)
{
    if (n > 0 && n < raw && is_small(b, unit, raw))
        return read_small(b, unit, (size_t)raw, (size_t)begin, n, out, err);
    while (n > 0) {
        uint64_t block = begin / DCP_BLOCK_BYTES, at = block * DCP_BLOCK_BYTES;
        size_t raw_n = (size_t)(raw - at < DCP_BLOCK_BYTES ? raw - at : DCP_BLOCK_BYTES);
        size_t in_block = (size_t)(begin - at);
        size_t take = raw_n - in_block < n ? raw_n - in_block : n;
        DCP_TRY(take == raw_n
                    ? read_block(b, unit, block, out, raw_n, err)
                    : read_cached(b, unit, block, raw_n, in_block, take, out, err));
        begin += take;
        out += take;
        n -= take;
    }
    return DCP_OK;
}

static int past_end(struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "a read reaches past the end of its piece");
}

/* Bytes of a piece as they lie. */
static int read_raw(struct dcp_blocks *b, size_t p, uint64_t begin, size_t n, void *out,
                    struct dcp_error *err)
{
    const struct dcp_piece *piece = &b->catalog->pieces[p];
    uint64_t raw = dcp_piece_span(b->catalog, piece), at = 0;

    if (begin > raw || n > raw - begin)
        return past_end(err);
    if (piece->file < 0) {
        if (n)
            memcpy(out, (const unsigned char *)piece->data + begin, n);
        return DCP_OK;
    }
    int64_t record = b->proof ? dcp_proof_record(b->proof, p, &at) : DCP_NO_RECORD;
    if (record == DCP_NO_RECORD)
        return read_unit(b, p, raw, begin, n, out, err);
    return read_unit(b, b->catalog->n_pieces + (size_t)record,
                     b->catalog->records[record].size_bytes, at + begin, n, out, err);
}

/* Turns every number round. */
static void swap(unsigned char *data, size_t n, size_t width)
{
    for (size_t at = 0; at + width <= n; at += width)
        for (size_t i = 0; i < width / 2; i++) {
            unsigned char byte = data[at + i];
            data[at + i] = data[at + width - 1 - i];
            data[at + width - 1 - i] = byte;
        }
}

int dcp_blocks_read(struct dcp_blocks *b, size_t p, uint64_t begin, size_t n, void *out,
                    struct dcp_error *err)
{
    size_t width = (size_t)b->catalog->pieces[p].swap_bytes;

    if (width && (begin % width || n % width))
        return dcp_error_set(err, DCP_E_USAGE, "a read cuts a number in two");
    int rc = read_raw(b, p, begin, n, out, err);
    if (!rc && width)
        swap(out, n, width);
    return rc;
}

int dcp_blocks_read_run(struct dcp_blocks *b, size_t p, uint64_t begin, size_t n,
                        void *out, struct dcp_error *err)
{
    const struct dcp_piece *piece = &b->catalog->pieces[p];
    uint64_t raw = dcp_piece_span(b->catalog, piece);

    if (begin > raw || n > raw - begin)
        return past_end(err);
    return dcp_files_read(b->files, piece->file, piece->offset + begin, n, out, err);
}

int dcp_blocks_read_rest(struct dcp_blocks *b, size_t r, struct dcp_error *err)
{
    uint64_t left = b->catalog->records[r].size_bytes;

    for (uint64_t block = 0; left; block++) {
        size_t n = (size_t)(left < DCP_BLOCK_BYTES ? left : DCP_BLOCK_BYTES);
        if (!dcp_proof_has(b->proof, r, block))
            DCP_TRY(read_cached(b, b->catalog->n_pieces + r, block, n, 0, 0, NULL, err));
        left -= n;
    }
    return DCP_OK;
}

struct rest {
    struct dcp_blocks *const *blocks;
    const size_t *records;
};

static int rest_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    const struct rest *rest = arg;

    return dcp_blocks_read_rest(rest->blocks[worker], rest->records[i], err);
}

int dcp_blocks_read_rests(struct dcp_blocks *const *blocks, struct dcp_pool *pool,
                          const size_t *records, size_t n, struct dcp_error *err)
{
    struct rest rest = { blocks, records };

    return dcp_pool_for(pool, n, rest_job, &rest, err);
}

int dcp_blocks_prove(struct dcp_blocks *const *blocks, struct dcp_pool *pool,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE size_t *records = NULL;
    size_t n;

    DCP_TRY(dcp_proof_open(blocks[0]->proof, false, &records, &n, err));
    return dcp_blocks_read_rests(blocks, pool, records, n, err);
}
