/* against: files that are written as what differs from those of a base. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/order.h"
#include "core/delta/folder.h"
#include "core/delta/table.h"
#include "own.h"
#include <string.h>

struct dcp_against {
    const struct dcp_write_base *base;
    struct dcp_store_file *file;         /* the base's */
    const struct dcp_piece **base_piece; /* by piece of the target; NULL: it is empty */
    struct dcp_xxh3 *hash;               /* of what was seen of a block, */
    uint64_t seen;                       /* of so many bytes of the file, */
    uint64_t *xxh3;                      /* and of each block before */
};

/* -- whether they go together -------------------------------------------------------- */

static int differs(const struct dcp_write *w, int file, struct dcp_error *err)
{
    return dcp_error_set(
        err, DCP_E_MISMATCH,
        "'%s' has other pieces than the one of %s, or has them elsewhere",
        DCP_SHOWN(w->catalog->files[file].name), w->base.name);
}

static bool same_place(const struct dcp_piece *a, const struct dcp_piece *b)
{
    return a->offset == b->offset && a->stored_size == b->stored_size &&
           a->codec == DCP_CODEC_NONE && b->codec == DCP_CODEC_NONE && b->has_crc &&
           b->n_blocks == (b->stored_size + DCP_BLOCK_BYTES - 1) / DCP_BLOCK_BYTES;
}

/* The pieces of both in the order of the file, but for those without bytes. */
static int pair(struct dcp_write *w, int file, int base_file, struct dcp_against *against,
                struct dcp_error *err)
{
    const struct dcp_catalog *base = w->base.catalog;
    DCP_CLEANUP_FREE size_t *order = dcp_file_order(base);
    size_t b = 0, at = w->file_first[file], end = w->file_first[file + 1];

    if (!order)
        return dcp_error_memory(err, "a base");
    for (;; at++, b++) {
        while (at < end && !w->catalog->pieces[w->order[at]].stored_size)
            at++;
        while (b < base->n_pieces && (base->pieces[order[b]].file < base_file ||
                                      !base->pieces[order[b]].stored_size))
            b++;
        bool more = b < base->n_pieces && base->pieces[order[b]].file == base_file;
        if (at == end || !more)
            return at == end && !more ? DCP_OK : differs(w, file, err);
        if (!same_place(&w->catalog->pieces[w->order[at]], &base->pieces[order[b]]))
            return differs(w, file, err);
        against->base_piece[w->order[at]] = &base->pieces[order[b]];
    }
}

/* The header is the base's, byte for byte. No digest is of it alone, so this proves it.
 */
static int check_header(struct dcp_write *w, int file, const struct dcp_against *against,
                        struct dcp_error *err)
{
    const struct dcp_store *store = w->base.store;
    unsigned char *there = w->workers[0].scratch;

    for (size_t i = 0; i < w->setup.target->literals.n; i++) {
        const struct dcp_literal *literal = &w->setup.target->literals.items[i];
        for (size_t at = 0; literal->file == file && at < literal->size_bytes;) {
            size_t left = literal->size_bytes - at;
            size_t n = left < DCP_BLOCK_BYTES ? left : DCP_BLOCK_BYTES;
            DCP_TRY(store->ops->read_at(store->self, against->file, literal->offset + at,
                                        there, n, err));
            if (memcmp(there, (const unsigned char *)literal->data + at, n) != 0)
                return dcp_error_set(
                    err, DCP_E_CORRUPT,
                    "'%s' of %s has another header: it is corrupt, or of "
                    "other tensors",
                    DCP_SHOWN(w->catalog->files[file].name), w->base.name);
            at += n;
        }
    }
    return DCP_OK;
}

static int open_base(struct dcp_write *w, int file, struct dcp_against *against,
                     struct dcp_error *err)
{
    const struct dcp_catalog *base = w->base.catalog;
    const struct dcp_store *store = w->base.store;
    const char *name = w->catalog->files[file].name;
    uint64_t size = 0;
    bool is_dir;
    size_t f = 0;

    while (f < base->n_files && strcmp(base->files[f].name, name) != 0)
        f++;
    if (f == base->n_files)
        return differs(w, file, err);
    DCP_TRY(pair(w, file, (int)f, against, err));
    DCP_CLEANUP_FREE char *path = dcp_str_join(w->base.name, "/", name);
    if (!path)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(store->ops->stat(store->self, path, &is_dir, &size, err));
    if (is_dir || size != base->files[f].size_bytes)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' has another size",
                             DCP_SHOWN(path));
    DCP_TRY(store->ops->open(store->self, path, &against->file, err));
    if (w->setup.read_back == DCP_READ_BACK_DISK && store->ops->drop_cache)
        store->ops->drop_cache(store->self, against->file);
    return check_header(w, file, against, err);
}

int dcp_against_open(struct dcp_write *w, int file, struct dcp_against **out,
                     struct dcp_error *err)
{
    struct dcp_against *against = calloc(1, sizeof *against);

    *out = NULL;
    if (!against)
        return dcp_error_memory(err, "a base");
    against->base = &w->base;
    against->base_piece = dcp_mem_calloc(w->n_pieces, sizeof(void *));
    against->hash = dcp_hash_xxh3_new();
    against->xxh3 =
        dcp_mem_calloc(dcp_delta_n_blocks(w->catalog->files[file].size_bytes) + 1,
                       sizeof *against->xxh3);
    int rc = against->base_piece && against->hash && against->xxh3
                 ? open_base(w, file, against, err)
                 : dcp_error_memory(err, "a base");
    if (rc)
        dcp_against_close(against);
    else
        *out = against;
    return rc;
}

void dcp_against_close(struct dcp_against *against)
{
    if (!against)
        return;
    if (against->file)
        against->base->store->ops->close(against->base->store->self, against->file, NULL);
    dcp_hash_xxh3_free(against->hash);
    free(against->base_piece);
    free(against->xxh3);
    free(against);
}

void dcp_against_see(struct dcp_against *against, const void *data, size_t n)
{
    const unsigned char *from = data;

    while (n) {
        size_t block = (size_t)(against->seen / DCP_DELTA_BLOCK_BYTES);
        size_t left =
            DCP_DELTA_BLOCK_BYTES - (size_t)(against->seen % DCP_DELTA_BLOCK_BYTES);
        size_t some = left < n ? left : n;
        dcp_hash_xxh3_add(against->hash, from, some);
        if (some == left)
            against->xxh3[block] = dcp_hash_xxh3_end(against->hash);
        against->seen += some;
        from += some;
        n -= some;
    }
}

/* -- coding -------------------------------------------------------------------------- */

struct coding {
    struct dcp_write *w;
    const struct dcp_against *against;
    struct dcp_store_file *out;
    const struct dcp_segment *segments;
    size_t n_segments, first;     /* the first one that is not behind us */
    bool *is_base;                /* by segment: it is the base's, by its digests */
    unsigned char *target, *mine; /* a block of the file, of both */
    unsigned char *kept;          /* a block of a base's piece, proved: */
    size_t kept_piece, kept_block;
    struct dcp_delta_coder *coder;
    struct dcp_delta_table table;
    uint64_t at, crc; /* what was written */
    struct dcp_coded coded;
    bool unfit; /* the base is to blame */
};

/* The CRC-64 of a piece is over all of it, the XXH3 over each block: 128 bits agree for
 * every byte of it. */
static bool has_digests(const struct dcp_piece *piece, const struct dcp_piece *base)
{
    bool same = base && piece->crc == base->crc && piece->n_blocks == base->n_blocks;

    for (size_t b = 0; same && b < piece->n_blocks; b++)
        same = piece->blocks[b].xxh3 == base->blocks[b].xxh3;
    return same;
}

/* One block of a base's piece, with its digest. */
static int keep_block(struct coding *c, size_t p, size_t block, struct dcp_error *err)
{
    const struct dcp_store *store = c->w->base.store;
    const struct dcp_piece *piece = c->against->base_piece[p];
    uint64_t begin = (uint64_t)block * DCP_BLOCK_BYTES, left = piece->stored_size - begin;
    size_t n = left < DCP_BLOCK_BYTES ? (size_t)left : DCP_BLOCK_BYTES;

    if (c->kept_piece == p && c->kept_block == block)
        return DCP_OK;
    c->kept_piece = SIZE_MAX;
    DCP_TRY(store->ops->read_at(store->self, c->against->file, piece->offset + begin,
                                c->kept, n, err));
    if (dcp_hash_xxh3(c->kept, n) != piece->blocks[block].xxh3)
        return dcp_error_set(
            err, DCP_E_CORRUPT, "'%s' of %s is corrupt: a digest differs",
            DCP_SHOWN(c->w->catalog->files[c->w->catalog->pieces[p].file].name),
            c->w->base.name);
    c->kept_piece = p;
    c->kept_block = block;
    return DCP_OK;
}

/* Bytes begin .. begin + n of a base's piece. */
static int read_base(struct coding *c, size_t p, uint64_t begin, unsigned char *out,
                     size_t n, struct dcp_error *err)
{
    while (n) {
        size_t block = (size_t)(begin / DCP_BLOCK_BYTES);
        size_t at = (size_t)(begin % DCP_BLOCK_BYTES), some = DCP_BLOCK_BYTES - at;
        some = some < n ? some : n;
        int rc = keep_block(c, p, block, err);
        if (rc) {
            c->unfit = true;
            return rc;
        }
        memcpy(out, c->kept + at, some);
        out += some;
        begin += some;
        n -= some;
    }
    return DCP_OK;
}

static int read_target(struct coding *c, const struct dcp_segment *segment,
                       uint64_t begin, size_t n, unsigned char *out,
                       struct dcp_error *err)
{
    const unsigned char *raw = segment->literal;

    if (raw)
        raw += begin;
    else
        DCP_TRY(dcp_write_raw(c->w, segment->piece, begin, n, &raw, err));
    memcpy(out, raw, n);
    return DCP_OK;
}

/* Where a segment lies in n bytes of the file from `at` on, which it does. */
struct part {
    uint64_t begin; /* in the segment */
    size_t at, n;
};

static struct part part_of(const struct dcp_segment *segment, uint64_t at, size_t n)
{
    uint64_t from = segment->offset > at ? segment->offset : at;
    uint64_t end = segment->offset + segment->size_bytes;

    end = end < at + n ? end : at + n;
    return (struct part){ from - segment->offset, (size_t)(from - at),
                          (size_t)(end - from) };
}

/* The segments that n bytes of the file from `at` on are of. *out_same: all of them are
 * the base's, by their digests. */
static size_t find_segments(struct coding *c, uint64_t at, size_t n, bool *out_same)
{
    size_t end = c->first;

    *out_same = true;
    while (c->segments[c->first].offset + c->segments[c->first].size_bytes <= at)
        c->first++;
    for (end = c->first; end < c->n_segments && c->segments[end].offset < at + n; end++)
        *out_same &= c->is_base[end];
    return end;
}

/* These bytes as they are in memory, and the base's. */
static int read_both(struct coding *c, uint64_t at, size_t n, size_t end,
                     struct dcp_error *err)
{
    for (size_t s = c->first; s < end; s++) {
        const struct part part = part_of(&c->segments[s], at, n);
        unsigned char *target = c->target + part.at, *mine = c->mine + part.at;
        DCP_TRY(read_target(c, &c->segments[s], part.begin, part.n, target, err));
        if (c->is_base[s])
            memcpy(mine, target, part.n);
        else
            DCP_TRY(read_base(c, c->segments[s].piece, part.begin, mine, part.n, err));
    }
    return DCP_OK;
}

static int put(struct coding *c, const void *data, size_t n, struct dcp_error *err)
{
    const struct dcp_store *store = c->w->setup.store;

    if (n)
        DCP_TRY(store->ops->write_at(store->self, c->out, c->at, data, n, err));
    c->crc = dcp_hash_crc64(c->crc, data, n);
    c->at += n;
    return DCP_OK;
}

/* The bytes of a block that is coded are read again from memory, after their digests were
 * taken: they must be what these are of. */
static int encode(struct coding *c, size_t block, size_t end, struct dcp_delta_coded *out,
                  struct dcp_error *err)
{
    size_t n = dcp_delta_block_bytes(c->table.target_bytes, block);

    DCP_TRY(read_both(c, (uint64_t)block * DCP_DELTA_BLOCK_BYTES, n, end, err));
    if (dcp_hash_xxh3(c->target, n) != c->against->xxh3[block])
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the state changed in memory while it was saved");
    return dcp_delta_encode(c->coder, c->mine, c->target, n, 0, out, err);
}

static int code_block(struct coding *c, size_t block, struct dcp_error *err)
{
    const struct dcp_store *store = c->w->setup.store;
    struct dcp_delta_coded coded = { .method = DCP_DELTA_UNCHANGED };
    size_t n = dcp_delta_block_bytes(c->table.target_bytes, block);
    uint64_t before = c->at;
    bool same;
    size_t end = find_segments(c, (uint64_t)block * DCP_DELTA_BLOCK_BYTES, n, &same);

    if (!same)
        DCP_TRY(encode(c, block, end, &coded, err));
    c->coded.base_bytes += n - coded.n_changed * (coded.width ? (size_t)coded.width : 1);
    c->table.entries[block] = (struct dcp_delta_entry){
        .size_bytes = (uint32_t)coded.size_bytes,
        .method = (uint8_t)coded.method,
        .width = (uint8_t)coded.width,
        .stored_xxh3 = dcp_hash_xxh3(coded.data, coded.size_bytes),
        .target_xxh3 = c->against->xxh3[block],
    };
    DCP_TRY(put(c, coded.data, coded.size_bytes, err));
    if (store->ops->flush_hint && c->at > before)
        store->ops->flush_hint(store->self, c->out, before, c->at - before);
    return DCP_OK;
}

static int code_file(struct coding *c, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf table = { 0 };
    unsigned char head[DCP_DELTA_HEAD_BYTES];

    dcp_delta_put_head(head);
    DCP_TRY(put(c, head, sizeof head, err));
    for (size_t i = 0; i < c->table.n_blocks; i++)
        DCP_TRY(code_block(c, i, err));
    dcp_delta_put_table(&table, &c->table, &c->coded.table_crc);
    DCP_TRY(dcp_buf_check(&table, err));
    return put(c, table.data, table.size_bytes, err);
}

static int make_durable(struct coding *c, const char *path, struct dcp_error *err)
{
    const struct dcp_store *store = c->w->setup.store;
    enum dcp_read_back back = c->w->setup.read_back;

    DCP_TRY(store->ops->sync(store->self, c->out, c->at, err));
    if (back == DCP_READ_BACK_DISK && store->ops->drop_cache)
        store->ops->drop_cache(store->self, c->out);
    return back ? dcp_store_read_back(store, c->out, path, c->at, c->crc, err) : DCP_OK;
}

static int coding_init(struct coding *c, uint64_t size_bytes, struct dcp_error *err)
{
    c->table.target_bytes = size_bytes;
    c->table.n_blocks = dcp_delta_n_blocks(size_bytes);
    c->table.entries = dcp_mem_calloc(c->table.n_blocks, sizeof *c->table.entries);
    c->is_base = dcp_mem_calloc(c->n_segments, sizeof *c->is_base);
    c->target = malloc(DCP_DELTA_BLOCK_BYTES);
    c->mine = malloc(DCP_DELTA_BLOCK_BYTES);
    c->kept = malloc(DCP_BLOCK_BYTES);
    if (!c->table.entries || !c->is_base || !c->target || !c->mine || !c->kept)
        return dcp_error_memory(err, "a delta");
    for (size_t s = 0; s < c->n_segments; s++) {
        size_t p = c->segments[s].piece;
        c->is_base[s] = c->segments[s].literal ||
                        (c->w->base.by_digest && has_digests(&c->w->catalog->pieces[p],
                                                             c->against->base_piece[p]));
    }
    return dcp_delta_coder_new(&c->coder, err);
}

static void coding_fini(struct coding *c)
{
    dcp_delta_coder_free(c->coder);
    free(c->table.entries);
    free(c->is_base);
    free(c->target);
    free(c->mine);
    free(c->kept);
}

int dcp_against_write(struct dcp_write *w, int file, const struct dcp_segment *segments,
                      size_t n, uint64_t size_bytes, bool *out_unfit,
                      struct dcp_error *err)
{
    const struct dcp_store *store = w->setup.store;
    struct dcp_write_file *into = &w->files[file];
    struct coding c = { .w = w,
                        .against = into->against,
                        .out = into->handle,
                        .segments = segments,
                        .n_segments = n,
                        .kept_piece = SIZE_MAX };
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(w->setup.prefix, w->catalog->files[file].name, DCP_DELTA_SUFFIX);

    if (size_bytes % DCP_DELTA_BLOCK_BYTES) /* the last block */
        into->against->xxh3[size_bytes / DCP_DELTA_BLOCK_BYTES] =
            dcp_hash_xxh3_end(into->against->hash);
    int rc = path ? coding_init(&c, size_bytes, err) : dcp_error_memory(err, "a delta");
    if (!rc)
        rc = code_file(&c, err);
    if (!rc)
        rc = make_durable(&c, path, err);
    into->handle = NULL;
    int closed = store->ops->close(store->self, c.out, rc ? NULL : err);
    rc = rc ? rc : closed;
    if (!rc)
        rc = dcp_write_sync_folders(w, file, err);
    *out_unfit = rc && c.unfit && !dcp_store_clear(store, path, NULL);
    c.coded.size_bytes = c.at;
    if (!rc)
        into->coded = c.coded;
    coding_fini(&c);
    return rc;
}
