#include "blocks.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "codec.h"
#include "decoder.h"
#include "index.h"
#include "mend.h"
#include "region.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_OPEN_FILES 32
#define MAX_STREAMS 4
#define MIN_WINDOW (64u << 10)

struct cached {
    size_t piece;
    uint64_t block; /* UINT64_MAX: empty */
    uint64_t used;  /* clock of the last use */
    unsigned char *data;
};

struct open_file {
    int file; /* in the catalog, -1: free */
    uint64_t used;
    struct dcp_store_file *handle;
};

/* What follows a small read in its file, so that small pieces that are neighbours cost
 * one read. A window a file, as far as memory goes: the shards of a checkpoint are read
 * in turn. */
struct window {
    int file; /* in the catalog, -1: empty */
    uint64_t at, n, used;
    unsigned char *data;
};

/* A coded stream that is being read. Pieces of one stream take turns with it. */
struct coded {
    struct dcp_blocks *blocks;
    int file; /* the extent */
    uint64_t offset, used;
    struct dcp_decoder *decoder; /* NULL: none */
};

struct dcp_blocks {
    struct dcp_source source; /* of its store, or of the one that mends */
    const struct dcp_catalog *catalog;
    bool verify, mends;
    struct dcp_mend *mend;   /* what is read through it; NULL: nothing was damaged yet */
    struct dcp_error mended; /* why it is */
    uint64_t clock, n_bytes;
    struct dcp_coder *coder;
    unsigned char *stored; /* a block as it lies in the file */
    struct cached *cache;
    size_t n_cache;
    struct open_file files[MAX_OPEN_FILES];
    struct window *windows;
    size_t n_windows, window_bytes;
    struct coded streams[MAX_STREAMS];
};

char *dcp_source_file(const struct dcp_source *source, const char *file)
{
    size_t dir = strlen(source->name);

    if (!source->is_dir) {
        const char *slash = strrchr(source->name, '/');
        dir = slash ? (size_t)(slash - source->name) : 0;
    }
    size_t n = strlen(file);
    char *path = malloc(dir + n + 2);
    if (!path)
        return NULL;
    if (dir) {
        memcpy(path, source->name, dir);
        path[dir++] = '/';
    }
    memcpy(path + dir, file, n + 1);
    return path;
}

/* From the first element of a strided piece to behind its last. */
static uint64_t span_bytes(const struct dcp_tensor *tensor, const struct dcp_piece *piece)
{
    int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM], last = 0;

    if (dcp_region_elems(tensor, &piece->region) == 0)
        return 0;
    dcp_region_box(tensor, &piece->region, offset, size);
    for (int d = 0; d < tensor->ndim; d++)
        last += (size[d] - 1) * piece->stride[d];
    return (uint64_t)(last + 1) * dcp_dtype_size(tensor->dtype);
}

uint64_t dcp_blocks_raw_bytes(const struct dcp_catalog *catalog,
                              const struct dcp_piece *piece)
{
    return piece->stride ? span_bytes(&catalog->tensors[piece->tensor], piece)
                         : dcp_piece_bytes(catalog, piece);
}

/* As many windows as there are files, as large as the memory allows. */
static void size_windows(struct dcp_blocks *b, uint64_t memory_bytes)
{
    uint64_t files = b->catalog->n_files ? b->catalog->n_files : 1;
    uint64_t bytes = memory_bytes / files;

    bytes = bytes < MIN_WINDOW        ? MIN_WINDOW
            : bytes > DCP_BLOCK_BYTES ? DCP_BLOCK_BYTES
                                      : bytes;
    b->window_bytes = (size_t)bytes;
    b->n_windows = (size_t)(memory_bytes / bytes < files ? memory_bytes / bytes : files);
    if (b->n_windows == 0)
        b->n_windows = 1;
}

int dcp_blocks_new(const struct dcp_source *source, const struct dcp_catalog *catalog,
                   uint64_t memory_bytes, bool verify, struct dcp_blocks **out_blocks,
                   struct dcp_error *err)
{
    struct dcp_blocks *b = calloc(1, sizeof *b);
    uint64_t n = memory_bytes / 2 / DCP_BLOCK_BYTES;
    int rc = b ? DCP_OK : dcp_error_memory(err, "a block reader");

    *out_blocks = NULL;
    if (!rc)
        rc = dcp_coder_new(&b->coder, err);
    if (rc) {
        free(b);
        return rc;
    }
    b->source = *source;
    b->catalog = catalog;
    b->verify = verify;
    for (int i = 0; i < MAX_OPEN_FILES; i++)
        b->files[i].file = -1;
    b->n_cache = n < 4 ? 4 : (size_t)n;
    b->cache = dcp_mem_calloc(b->n_cache, sizeof *b->cache);
    b->stored = malloc(DCP_BLOCK_BYTES);
    size_windows(b,
                 memory_bytes < 2 * DCP_BLOCK_BYTES ? DCP_BLOCK_BYTES : memory_bytes / 2);
    b->windows = dcp_mem_calloc(b->n_windows, sizeof *b->windows);
    if (!b->cache || !b->stored || !b->windows) {
        dcp_blocks_free(b);
        return dcp_error_memory(err, "a block reader");
    }
    for (size_t i = 0; i < b->n_cache; i++)
        b->cache[i].block = UINT64_MAX;
    for (size_t i = 0; i < b->n_windows; i++)
        b->windows[i].file = -1;
    *out_blocks = b;
    return DCP_OK;
}

static void close_files(struct dcp_blocks *b)
{
    const struct dcp_store *store = b->source.store;

    for (int i = 0; i < MAX_OPEN_FILES; i++)
        if (b->files[i].file >= 0) {
            store->ops->close(store->self, b->files[i].handle, NULL);
            b->files[i].file = -1;
        }
}

void dcp_blocks_free(struct dcp_blocks *b)
{
    if (!b)
        return;
    close_files(b);
    dcp_mend_free(b->mend);
    for (size_t i = 0; b->cache && i < b->n_cache; i++)
        free(b->cache[i].data);
    free(b->cache);
    free(b->stored);
    for (size_t i = 0; b->windows && i < b->n_windows; i++)
        free(b->windows[i].data);
    free(b->windows);
    for (int i = 0; i < MAX_STREAMS; i++)
        dcp_decoder_free(b->streams[i].decoder);
    dcp_coder_free(b->coder);
    free(b);
}

void dcp_blocks_mend(struct dcp_blocks *b)
{
    b->mends = b->catalog->parity;
}

const struct dcp_error *dcp_blocks_mended(const struct dcp_blocks *b)
{
    return &b->mended;
}

uint64_t dcp_blocks_bytes(const struct dcp_blocks *b)
{
    return b->n_bytes;
}

static int open_file(struct dcp_blocks *b, int file, struct dcp_store_file **out,
                     struct dcp_error *err)
{
    const struct dcp_store *store = b->source.store;
    struct open_file *victim = &b->files[0];

    for (int i = 0; i < MAX_OPEN_FILES; i++) {
        struct open_file *slot = &b->files[i];
        if (slot->file == file) {
            slot->used = ++b->clock;
            *out = slot->handle;
            return DCP_OK;
        }
        if (victim->file >= 0 && (slot->file < 0 || slot->used < victim->used))
            victim = slot;
    }
    if (victim->file >= 0) {
        store->ops->close(store->self, victim->handle, NULL);
        victim->file = -1;
    }
    DCP_CLEANUP_FREE char *path =
        dcp_source_file(&b->source, b->catalog->files[file].name);
    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = store->ops->open(store->self, path, &victim->handle, err);
    if (rc)
        return rc;
    victim->file = file;
    victim->used = ++b->clock;
    *out = victim->handle;
    return DCP_OK;
}

static int read_file(struct dcp_blocks *b, int file, uint64_t offset, size_t n, void *out,
                     struct dcp_error *err)
{
    const struct dcp_store *store = b->source.store;
    struct dcp_store_file *handle = NULL;
    int rc = open_file(b, file, &handle, err);

    if (rc)
        return rc;
    b->n_bytes += n;
    return store->ops->read_at(store->self, handle, offset, out, n, err);
}

static struct window *window_of(struct dcp_blocks *b, int file)
{
    struct window *victim = &b->windows[0];

    for (size_t i = 0; i < b->n_windows; i++) {
        if (b->windows[i].file == file)
            return &b->windows[i];
        if (b->windows[i].used < victim->used)
            victim = &b->windows[i];
    }
    victim->file = -1;
    return victim;
}

/* Stored bytes of a block. A small read fills a window from its offset on. */
static int read_stored(struct dcp_blocks *b, int file, uint64_t offset, size_t n,
                       void *out, struct dcp_error *err)
{
    uint64_t size = b->catalog->files[file].size_bytes;

    if (n >= b->window_bytes / 2 || offset >= size || n > size - offset)
        return read_file(b, file, offset, n, out, err);
    struct window *window = window_of(b, file);
    if (!window->data && !(window->data = malloc(b->window_bytes)))
        return dcp_error_memory(err, "a window of a file");
    if (window->file < 0 || offset < window->at || offset + n > window->at + window->n) {
        window->n = size - offset < b->window_bytes ? size - offset : b->window_bytes;
        window->at = offset;
        window->file = -1;
        int rc = read_file(b, file, offset, (size_t)window->n, window->data, err);
        if (rc)
            return rc;
        window->file = file;
    }
    window->used = ++b->clock;
    memcpy(out, window->data + (offset - window->at), n);
    return DCP_OK;
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
    char name[160], file[160], why[240];

    snprintf(why, sizeof why, "%s", what); /* it may lie in err, which is written anew */
    dcp_blocks_locate(b->catalog, piece, block * DCP_BLOCK_BYTES, raw_n, &first, &last);
    dcp_blocks_extent(piece, block, raw_n, &offset, &stored_n);
    if (err)
        *err = (struct dcp_error){ 0 };
    dcp_error_set(err, DCP_E_CORRUPT,
                  "tensor '%s' elements %" PRId64 "..%" PRId64
                  " are damaged: %s (file '%s', bytes %" PRIu64 "..%" PRIu64 ")",
                  dcp_str_escape(name, sizeof name, tensor->name), first, last, why,
                  dcp_str_escape(file, sizeof file, b->catalog->files[piece->file].name),
                  offset, offset + stored_n - (stored_n > 0));
    dcp_error_tensor(err, tensor->name);
    return DCP_E_CORRUPT;
}

static int read_coded(void *self, uint64_t at, void *out, size_t n, struct dcp_error *err)
{
    const struct coded *stream = self;

    return read_file(stream->blocks, stream->file, stream->offset + at, n, out, err);
}

/* The stream of a piece, at or before a decoded byte. */
static int stream_at(struct dcp_blocks *b, const struct dcp_piece *piece, uint64_t at,
                     struct dcp_decoder **out, struct dcp_error *err)
{
    struct coded *stream = &b->streams[0];
    bool found = false;

    for (int i = 0; i < MAX_STREAMS && !found; i++) {
        struct coded *slot = &b->streams[i];
        found =
            slot->decoder && slot->file == piece->file && slot->offset == piece->offset;
        if (found || slot->used < stream->used)
            stream = slot;
    }
    if (!found || dcp_decoder_at(stream->decoder) > at) {
        const struct dcp_decoder_input input = { stream, read_coded, piece->stored_size };
        dcp_decoder_free(stream->decoder);
        *stream =
            (struct coded){ .blocks = b, .file = piece->file, .offset = piece->offset };
        int rc = dcp_decoder_new(piece->codec, &input, &stream->decoder, err);
        if (rc)
            return rc;
    }
    stream->used = ++b->clock;
    *out = stream->decoder;
    return DCP_OK;
}

/* A block of a piece whose whole extent is one coded stream. */
static int read_stream_block(struct dcp_blocks *b, const struct dcp_piece *piece,
                             uint64_t block, unsigned char *out, size_t raw_n,
                             struct dcp_error *err)
{
    uint64_t at = piece->skip + block * DCP_BLOCK_BYTES;
    struct dcp_decoder *decoder = NULL;
    struct dcp_error why = { 0 };
    int rc = stream_at(b, piece, at, &decoder, &why);

    if (!rc)
        rc = dcp_decoder_read(decoder, NULL, at - dcp_decoder_at(decoder), &why);
    if (!rc)
        rc = dcp_decoder_read(decoder, out, raw_n, &why);
    for (int i = 0; i < MAX_STREAMS && rc; i++)
        if (decoder && b->streams[i].decoder == decoder) {
            dcp_decoder_free(decoder);
            b->streams[i] = (struct coded){ .used = 0 };
        }
    if (rc == DCP_E_CORRUPT)
        return complain(b, piece, block, raw_n, why.message, err);
    if (rc && err)
        *err = why;
    return rc;
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
    int rc = read_stored(b, piece->file, offset, (size_t)stored_n, to, &why);
    if (rc == DCP_E_CORRUPT)
        return complain(b, piece, block, raw_n, why.message, err);
    if (rc) {
        if (err)
            *err = why;
        dcp_error_tensor(err, tensor->name);
        return rc;
    }
    if (b->verify && block < piece->n_blocks &&
        dcp_hash_xxh3(to, (size_t)stored_n) != piece->blocks[block].xxh3)
        return complain(b, piece, block, raw_n, "the block digest differs", err);
    if (decode && dcp_coder_decode(b->coder, piece->codec, dcp_dtype_size(tensor->dtype),
                                   to, (size_t)stored_n, out, raw_n, &why))
        return complain(b, piece, block, raw_n, why.message, err);
    return DCP_OK;
}

/* All that is read from now on comes through the parity: slower, but right. */
static bool begin_mending(struct dcp_blocks *b)
{
    b->mends = false;
    if (dcp_mend_open(b->source.store, b->source.name, &b->mend, NULL))
        return false;
    close_files(b);
    for (size_t i = 0; i < b->n_windows; i++)
        b->windows[i].file = -1;
    b->source.store = dcp_mend_store(b->mend);
    return true;
}

/* One whole block, verified and decoded, to out. */
static int read_block(struct dcp_blocks *b, const struct dcp_piece *piece, uint64_t block,
                      unsigned char *out, size_t raw_n, struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    int rc = read_plain(b, piece, block, out, raw_n, &why);

    if (dcp_is_broken(rc) && b->mends && begin_mending(b) &&
        !read_plain(b, piece, block, out, raw_n, NULL)) {
        b->mended = why;
        return DCP_OK;
    }
    if (rc && err)
        *err = why;
    return rc;
}

/* A block in the cache, read when it is not there. */
static int cached_block(struct dcp_blocks *b, size_t p, uint64_t block, size_t raw_n,
                        const unsigned char **out, struct dcp_error *err)
{
    struct cached *victim = &b->cache[0];

    for (size_t i = 0; i < b->n_cache; i++) {
        struct cached *slot = &b->cache[i];
        if (slot->block == block && slot->piece == p) {
            slot->used = ++b->clock;
            *out = slot->data;
            return DCP_OK;
        }
        if (slot->used < victim->used)
            victim = slot;
    }
    if (!victim->data && !(victim->data = malloc(DCP_BLOCK_BYTES)))
        return dcp_error_memory(err, "a cached block");
    victim->block = UINT64_MAX;
    int rc = read_block(b, &b->catalog->pieces[p], block, victim->data, raw_n, err);
    if (rc)
        return rc;
    victim->piece = p;
    victim->block = block;
    victim->used = ++b->clock;
    *out = victim->data;
    return DCP_OK;
}

int dcp_blocks_read(struct dcp_blocks *b, size_t p, uint64_t begin, size_t n, void *out,
                    struct dcp_error *err)
{
    const struct dcp_piece *piece = &b->catalog->pieces[p];
    uint64_t raw = dcp_blocks_raw_bytes(b->catalog, piece);
    unsigned char *to = out;

    if (begin > raw || n > raw - begin)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "a read reaches past the end of its piece");
    if (piece->file < 0) {
        if (n)
            memcpy(to, (const unsigned char *)piece->data + begin, n);
        return DCP_OK;
    }
    while (n > 0) {
        uint64_t block = begin / DCP_BLOCK_BYTES, at = block * DCP_BLOCK_BYTES;
        size_t raw_n = (size_t)(raw - at < DCP_BLOCK_BYTES ? raw - at : DCP_BLOCK_BYTES);
        size_t in_block = (size_t)(begin - at);
        size_t take = raw_n - in_block < n ? raw_n - in_block : n;
        int rc;
        if (take == raw_n) {
            rc = read_block(b, piece, block, to, raw_n, err);
        } else {
            const unsigned char *data = NULL;
            rc = cached_block(b, p, block, raw_n, &data, err);
            if (!rc)
                memcpy(to, data + in_block, take);
        }
        if (rc)
            return rc;
        begin += take;
        to += take;
        n -= take;
    }
    return DCP_OK;
}
