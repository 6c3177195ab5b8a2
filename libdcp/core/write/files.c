#include "base/fs.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/order.h"
#include "own.h"
#include <inttypes.h>
#include <string.h>

int dcp_write_index(struct dcp_write *w, struct dcp_error *err)
{
    struct dcp_catalog *target = w->catalog;
    size_t at = 0;

    w->n_laid = target->n_files;
    w->order = dcp_file_order(target);
    w->file_first = dcp_mem_calloc(w->n_laid + 1, sizeof *w->file_first);
    if (!w->order || !w->file_first)
        return dcp_error_memory(err, "a writer's index");
    for (size_t f = 0; f <= w->n_laid; f++) {
        while (at < target->n_pieces && target->pieces[w->order[at]].file < (int)f)
            at++;
        w->file_first[f] = at;
    }
    return DCP_OK;
}

int dcp_write_at(struct dcp_write *w, int file, uint64_t offset, const void *data,
                 size_t n, struct dcp_error *err)
{
    const struct dcp_store *store = w->setup.store;

    return store->ops->write_at(store->self, w->files[file].handle, offset, data, n, err);
}

void dcp_write_flush(struct dcp_write *w, int file, uint64_t from, uint64_t n)
{
    const struct dcp_store *store = w->setup.store;

    if (n && store->ops->flush_hint)
        store->ops->flush_hint(store->self, w->files[file].handle, from, n);
}

size_t dcp_write_slice(const struct dcp_write *w, int file)
{
    return w->files[file].direct ? DCP_BLOCK_BYTES : DCP_HASH_SLICE;
}

void dcp_write_digest(struct dcp_write *w, size_t p)
{
    struct dcp_catalog *target = w->catalog;
    struct dcp_piece *piece = &target->pieces[p];
    struct dcp_write_digests *digests = &w->digests[p];
    uint64_t left = dcp_piece_bytes(target, piece), stored_crc = 0;

    piece->crc = 0;
    piece->crc32 = 0;
    for (size_t b = 0; b < digests->n; b++) {
        uint64_t n = left < DCP_BLOCK_BYTES ? left : DCP_BLOCK_BYTES;
        piece->crc = dcp_hash_crc64_combine(piece->crc, digests->crc[b], n);
        if (digests->crc32)
            piece->crc32 = dcp_hash_crc32_combine(piece->crc32, digests->crc32[b], n);
        if (digests->stored_crc)
            stored_crc = dcp_hash_crc64_combine(stored_crc, digests->stored_crc[b],
                                                digests->blocks[b].stored_size);
        left -= n;
    }
    piece->has_crc = true;
    piece->has_crc32 = digests->crc32 != NULL;
    piece->blocks = digests->blocks;
    piece->n_blocks = digests->blocks ? digests->n : 0;
    digests->file_crc = digests->stored_crc ? stored_crc : piece->crc;
}

static int by_offset(const void *a, const void *b)
{
    const struct dcp_segment *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->size_bytes < y->size_bytes ? -1 : x->size_bytes > y->size_bytes;
}

static int add_segment(struct dcp_segment **segments, size_t *n, size_t *cap,
                       struct dcp_segment segment, struct dcp_error *err)
{
    struct dcp_segment *grown = dcp_mem_grow(*segments, cap, *n + 1, sizeof segment);

    if (!grown)
        return dcp_error_memory(err, "the contents of a file");
    *segments = grown;
    grown[(*n)++] = segment;
    return DCP_OK;
}

/* Everything that lies in a file, in order. It must tile the file: no byte is unaccounted
 * for. */
static int collect(struct dcp_write *w, int file, struct dcp_segment **out, size_t *out_n,
                   struct dcp_error *err)
{
    struct dcp_catalog *target = w->catalog;
    size_t cap = 0;
    uint64_t at = 0;
    int rc = DCP_OK;

    if ((size_t)file < w->n_laid)
        for (size_t i = w->file_first[file]; i < w->file_first[file + 1] && !rc; i++) {
            const struct dcp_piece *piece = &target->pieces[w->order[i]];
            struct dcp_segment segment = { piece->offset, piece->stored_size,
                                           w->digests[w->order[i]].file_crc, NULL,
                                           w->order[i] };
            rc = add_segment(out, out_n, &cap, segment, err);
        }
    for (size_t i = 0; i < w->setup.target->literals.n && !rc; i++) {
        const struct dcp_literal *literal = &w->setup.target->literals.items[i];
        if (literal->file == file)
            rc = add_segment(out, out_n, &cap,
                             (struct dcp_segment){
                                 literal->offset, literal->size_bytes,
                                 dcp_hash_crc64(0, literal->data, literal->size_bytes),
                                 i < w->files[file].n_early ? NULL : literal->data,
                                 SIZE_MAX },
                             err);
    }
    if (*out_n)
        qsort(*out, *out_n, sizeof **out, by_offset);
    for (size_t i = 0; i < *out_n && !rc; i++) {
        const struct dcp_segment *segment = &(*out)[i];
        if (segment->offset != at)
            rc = dcp_error_set(err, DCP_E_CORRUPT,
                               "the layout of '%s' has %s at byte %" PRIu64
                               "; nothing was published",
                               DCP_SHOWN(target->files[file].name),
                               segment->offset > at ? "a gap" : "an overlap", at);
        at += segment->size_bytes;
    }
    return rc;
}

/* The folders of a file below the target's own: made when they are not there, or made
 * durable from the innermost outwards. Another process may make one at the same time. */
static int make_folders(const struct dcp_store *store, char *path, size_t first,
                        struct dcp_error *err)
{
    for (char *slash = strchr(path + first, '/'); slash; slash = strchr(slash + 1, '/')) {
        bool is_dir;
        uint64_t size;
        *slash = '\0';
        int rc = store->ops->stat(store->self, path, &is_dir, &size, NULL);
        struct dcp_error why = { 0 };
        if (rc)
            rc = store->ops->make_dir(store->self, path, &why);
        *slash = '/';
        if (rc && rc != DCP_E_EXISTS) {
            if (err)
                *err = why;
            return rc;
        }
    }
    return DCP_OK;
}

int dcp_write_sync_folders(struct dcp_write *w, int file, struct dcp_error *err)
{
    const struct dcp_store *store = w->setup.store;
    const char *name = w->catalog->files[file].name, *prefix = w->setup.prefix;
    size_t first = strlen(prefix);
    DCP_CLEANUP_FREE char *path = dcp_str_join(prefix, name, "");
    int rc = path ? DCP_OK : dcp_error_memory(err, "a file name");

    for (char *slash; !rc && (slash = strrchr(path + first, '/'));) {
        *slash = '\0';
        rc = store->ops->sync_dir(store->self, path, err);
    }
    return rc;
}

int dcp_write_open(struct dcp_write *w, int file, const char *suffix, uint64_t size,
                   struct dcp_error *err)
{
    const struct dcp_store *store = w->setup.store;
    const char *name = w->catalog->files[file].name, *prefix = w->setup.prefix;
    DCP_CLEANUP_FREE char *path = dcp_str_join(prefix, name, suffix);

    if (!path)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(make_folders(store, path, strlen(prefix), err));
    if (w->setup.again)
        DCP_TRY(dcp_store_clear(store, path, err));
    DCP_TRY(store->ops->create(store->self, path, size, &w->files[file].handle, err));
    w->files[file].direct = w->setup.direct && !*suffix && store->ops->direct &&
                            store->ops->direct(store->self, w->files[file].handle);
    return DCP_OK;
}

int dcp_write_early(struct dcp_write *w, int file, struct dcp_error *err)
{
    struct dcp_write_file *into = &w->files[file];

    if (!into->against)
        into->n_early = w->setup.target->literals.n;
    for (size_t i = 0; i < w->setup.target->literals.n; i++) {
        const struct dcp_literal *literal = &w->setup.target->literals.items[i];
        if (literal->file != file || !literal->size_bytes)
            continue;
        if (into->against)
            dcp_against_see(into->against, literal->data, literal->size_bytes);
        else
            DCP_TRY(dcp_write_at(w, file, literal->offset, literal->data,
                                 literal->size_bytes, err));
    }
    return DCP_OK;
}

#define BACK_BYTES ((uint64_t)8 << 20) /* a job of the pool */

struct back {
    struct dcp_write *write;
    struct dcp_store_file *handle;
    uint64_t size_bytes;
    size_t slice;  /* read at once */
    uint64_t *crc; /* of each job */
    int worker;    /* of all jobs; DCP_ALL_WORKERS: each has its own */
};

static uint64_t back_bytes(const struct back *back, size_t i)
{
    uint64_t left = back->size_bytes - i * BACK_BYTES;
    return left < BACK_BYTES ? left : BACK_BYTES;
}

static int back_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    const struct back *back = arg;
    const struct dcp_store *store = back->write->setup.store;
    size_t who = (size_t)(back->worker == DCP_ALL_WORKERS ? worker : back->worker);
    unsigned char *scratch = back->write->workers[who].scratch;
    uint64_t at = i * BACK_BYTES, left = back_bytes(back, i);

    while (left) {
        size_t n = left < back->slice ? (size_t)left : back->slice;
        DCP_TRY(store->ops->read_at(store->self, back->handle, at, scratch, n, err));
        back->crc[i] = dcp_hash_crc64(back->crc[i], scratch, n);
        at += n;
        left -= n;
    }
    return DCP_OK;
}

/* A durable file is what was to be written. */
static int read_back(struct dcp_write *w, int worker, int file, uint64_t size_bytes,
                     uint64_t want, struct dcp_error *err)
{
    struct dcp_pool *pool = worker == DCP_ALL_WORKERS ? w->setup.pool : NULL;
    const struct dcp_store *store = w->setup.store;
    size_t n = (size_t)((size_bytes + BACK_BYTES - 1) / BACK_BYTES);
    DCP_CLEANUP_FREE uint64_t *crcs = dcp_mem_calloc(n, sizeof *crcs);
    struct back back = { w,          w->files[file].handle,
                         size_bytes, dcp_write_slice(w, file),
                         crcs,       worker };
    uint64_t crc = 0;

    if (!crcs)
        return dcp_error_memory(err, "a file that is read back");
    if (w->setup.read_back == DCP_READ_BACK_DISK && store->ops->drop_cache)
        store->ops->drop_cache(store->self, back.handle);
    int rc = dcp_pool_for(pool, n, back_job, &back, err);
    for (size_t i = 0; i < n; i++)
        crc = dcp_hash_crc64_combine(crc, crcs[i], back_bytes(&back, i));
    if (!rc && crc != want)
        rc = dcp_fs_not_written(w->catalog->files[file].name, err);
    return rc;
}

int dcp_write_raw(struct dcp_write *w, size_t piece, uint64_t begin, size_t n,
                  const unsigned char **out, struct dcp_error *err)
{
    const struct dcp_read_callback *from = &w->setup.read_callback;

    return from->read(from->self, 0, piece, begin, n, w->workers[0].scratch, out, err);
}

/* A piece whose digests are known already. */
static int write_piece(struct dcp_write *w, int file, const struct dcp_segment *segment,
                       struct dcp_error *err)
{
    for (uint64_t at = 0; at < segment->size_bytes; at += DCP_BLOCK_BYTES) {
        uint64_t left = segment->size_bytes - at;
        size_t n = left < DCP_BLOCK_BYTES ? (size_t)left : DCP_BLOCK_BYTES;
        const unsigned char *raw;
        DCP_TRY(dcp_write_raw(w, segment->piece, at, n, &raw, err));
        DCP_TRY(dcp_write_at(w, file, segment->offset + at, raw, n, err));
    }
    return DCP_OK;
}

static bool is_read_back(const struct dcp_write *w, const struct dcp_file *file)
{
    bool by_parity = w->setup.parity && file->rank >= 0;

    return w->setup.read_back == DCP_READ_BACK_DISK ||
           (w->setup.read_back == DCP_READ_BACK_CACHE && !by_parity);
}

/* What is not there yet, as it is. `all`: no piece is there. */
static int write_plain(struct dcp_write *w, int file, const struct dcp_segment *segments,
                       size_t n, uint64_t size, bool all, struct dcp_error *err)
{
    if (!w->files[file].handle)
        DCP_TRY(dcp_write_open(w, file, "", size, err));
    for (size_t i = 0; i < n; i++) {
        const struct dcp_segment *segment = &segments[i];
        if (segment->literal && segment->size_bytes)
            DCP_TRY(dcp_write_at(w, file, segment->offset, segment->literal,
                                 (size_t)segment->size_bytes, err));
        else if (all && !segment->literal)
            DCP_TRY(write_piece(w, file, segment, err));
    }
    dcp_write_flush(w, file, 0, size);
    return DCP_OK;
}

/* Against the base, or as it is where that turns out to be unfit. */
static int write_against(struct dcp_write *w, int file,
                         const struct dcp_segment *segments, size_t n, uint64_t size,
                         struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    bool unfit;
    int rc = dcp_against_write(w, file, segments, n, size, &unfit, &why);

    if (rc && unfit) {
        w->unfit = why;
        return write_plain(w, file, segments, n, size, true, err);
    }
    w->files[file].done = true;
    if (rc && err)
        *err = why;
    return rc;
}

int dcp_write_fill(struct dcp_write *w, int file, struct dcp_error *err)
{
    struct dcp_file *entry = &w->catalog->files[file];
    DCP_CLEANUP_FREE struct dcp_segment *segments = NULL;
    size_t n = 0;

    entry->size_bytes = 0;
    entry->crc = 0;
    DCP_TRY(collect(w, file, &segments, &n, err));
    for (size_t i = 0; i < n; i++) {
        entry->crc =
            dcp_hash_crc64_combine(entry->crc, segments[i].crc, segments[i].size_bytes);
        entry->size_bytes += segments[i].size_bytes;
    }
    entry->has_crc = true;
    return w->files[file].against
               ? write_against(w, file, segments, n, entry->size_bytes, err)
               : write_plain(w, file, segments, n, entry->size_bytes, false, err);
}

int dcp_write_settle(struct dcp_write *w, int worker, int file, struct dcp_error *err)
{
    const struct dcp_store *store = w->setup.store;
    const struct dcp_file *entry = &w->catalog->files[file];
    struct dcp_store_file *handle = w->files[file].handle;

    if (w->files[file].done)
        return DCP_OK;
    int rc = store->ops->sync(store->self, handle, entry->size_bytes, err);
    if (!rc && is_read_back(w, entry))
        rc = read_back(w, worker, file, entry->size_bytes, entry->crc, err);
    w->files[file].handle = NULL;
    w->files[file].done = true;
    int closed = store->ops->close(store->self, handle, rc ? NULL : err);
    rc = rc ? rc : closed;
    return rc ? rc : dcp_write_sync_folders(w, file, err);
}

int dcp_write_reserve(struct dcp_write *w, struct dcp_error *err)
{
    size_t n = w->catalog->n_files, old = w->cap_files;

    if (n <= old)
        return DCP_OK;
    struct dcp_write_file *files =
        dcp_mem_grow(w->files, &w->cap_files, n, sizeof *files);
    if (!files)
        return dcp_error_memory(err, "a writer's files");
    memset(files + old, 0, (w->cap_files - old) * sizeof *files);
    w->files = files;
    free(w->ends);
    w->ends = dcp_mem_calloc(w->cap_files, sizeof *w->ends);
    return w->ends ? DCP_OK : dcp_error_memory(err, "a writer's files");
}
