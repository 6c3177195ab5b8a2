#include "coded.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "table.h"
#include <inttypes.h>
#include <string.h>

/* Reads are of blocks of tensors, which end anywhere in blocks of the file: what two of
 * them share is kept for the next one. */
enum { KEPT = 2 };

struct kept {
    unsigned char *bytes; /* NULL: none */
    size_t block;
    uint64_t used;
};

struct dcp_delta_coded_file {
    struct dcp_delta_origin origin;
    char *path;
    struct dcp_store_file *delta;
    struct dcp_delta_table table;
    pthread_mutex_t lock; /* of: */
    struct kept kept[KEPT];
    uint64_t clock;
};

/* -- coders -------------------------------------------------------------------------- */

void dcp_delta_coders_init(struct dcp_delta_coders *coders)
{
    *coders = (struct dcp_delta_coders){ .n = 0 };
    pthread_mutex_init(&coders->lock, NULL);
}

void dcp_delta_coders_fini(struct dcp_delta_coders *coders)
{
    for (int i = 0; i < coders->n; i++)
        dcp_delta_coder_free(coders->idle[i]);
    pthread_mutex_destroy(&coders->lock);
}

static int take(struct dcp_delta_coders *coders, struct dcp_delta_coder **out,
                struct dcp_error *err)
{
    pthread_mutex_lock(&coders->lock);
    *out = coders->n ? coders->idle[--coders->n] : NULL;
    pthread_mutex_unlock(&coders->lock);
    return *out ? DCP_OK : dcp_delta_coder_new(out, err);
}

static void give(struct dcp_delta_coders *coders, struct dcp_delta_coder *coder)
{
    pthread_mutex_lock(&coders->lock);
    if (coders->n < DCP_DELTA_IDLE) {
        coders->idle[coders->n++] = coder;
        coder = NULL;
    }
    pthread_mutex_unlock(&coders->lock);
    dcp_delta_coder_free(coder);
}

/* -- one block ----------------------------------------------------------------------- */

/* The same bytes of the base; zeros where it has none. */
static int read_base(const struct dcp_delta_origin *origin, uint64_t offset,
                     unsigned char *out, size_t n, struct dcp_error *err)
{
    uint64_t left = origin->base_file && offset < origin->base_bytes
                        ? origin->base_bytes - offset
                        : 0;
    size_t base_n = left < n ? (size_t)left : n;

    memset(out + base_n, 0, n - base_n);
    return base_n ? origin->base->ops->read_at(origin->base->self, origin->base_file,
                                               offset, out, base_n, err)
                  : DCP_OK;
}

static int apply(struct dcp_delta_coded_file *file, size_t i, unsigned char *bytes,
                 size_t n, struct dcp_error *err)
{
    const struct dcp_delta_origin *origin = &file->origin;
    const struct dcp_delta_entry *entry = &file->table.entries[i];
    struct dcp_delta_coder *coder;
    struct dcp_error why = { 0 };

    DCP_TRY(take(origin->coders, &coder, err));
    unsigned char *stored = dcp_delta_coder_room(coder);
    int rc = origin->store->ops->read_at(origin->store->self, file->delta, entry->offset,
                                         stored, entry->size_bytes, &why);
    if (!rc && dcp_hash_xxh3(stored, entry->size_bytes) != entry->stored_xxh3)
        rc = dcp_error_set(&why, DCP_E_CORRUPT,
                           "'%s' is corrupt: the digest of its block %zu differs",
                           DCP_SHOWN(file->path), i);
    if (!rc && (rc = dcp_delta_decode(coder, entry->method, entry->width, stored,
                                      entry->size_bytes, bytes, n, &why)))
        dcp_error_prefix(&why, "'%s'", DCP_SHOWN(file->path));
    give(origin->coders, coder);
    if (rc && err)
        *err = why;
    return rc;
}

static int decode(struct dcp_delta_coded_file *file, size_t i, unsigned char *out,
                  struct dcp_error *err)
{
    const struct dcp_delta_entry *entry = &file->table.entries[i];
    size_t n = dcp_delta_block_bytes(file->table.target_bytes, i);
    uint64_t offset = (uint64_t)i * DCP_DELTA_BLOCK_BYTES;

    DCP_TRY(read_base(&file->origin, offset, out, n, err));
    if (entry->method != DCP_DELTA_UNCHANGED)
        DCP_TRY(apply(file, i, out, n, err));
    if (dcp_hash_xxh3(out, n) == entry->target_xxh3)
        return DCP_OK;
    dcp_error_set(err, DCP_E_CORRUPT,
                  "'%s' does not fit its base: bytes %" PRIu64 " to %" PRIu64
                  " of that file in '%s' are not those that it was made against",
                  DCP_SHOWN(file->path), offset, offset + n - 1, file->origin.base->root);
    return DCP_E_CORRUPT;
}

/* -- any bytes ----------------------------------------------------------------------- */

/* Copies out of a block that is kept; else takes the place of the one that was not used
 * for longest out of the file, for *out. */
static bool find_kept(struct dcp_delta_coded_file *file, size_t block, size_t at,
                      void *out, size_t n, unsigned char **out_room)
{
    struct kept *oldest = &file->kept[0];
    bool found = false;

    pthread_mutex_lock(&file->lock);
    for (int i = 0; i < KEPT && !found; i++) {
        struct kept *kept = &file->kept[i];
        if (kept->bytes && kept->block == block) {
            memcpy(out, kept->bytes + at, n);
            kept->used = ++file->clock;
            found = true;
        } else if (!kept->bytes || (oldest->bytes && kept->used < oldest->used)) {
            oldest = kept;
        }
    }
    *out_room = found ? NULL : oldest->bytes;
    if (!found)
        oldest->bytes = NULL;
    pthread_mutex_unlock(&file->lock);
    return found;
}

/* Gives the bytes of a block to the file, where it has a place for them. */
static void keep(struct dcp_delta_coded_file *file, size_t block, unsigned char *bytes)
{
    pthread_mutex_lock(&file->lock);
    for (int i = 0; i < KEPT && bytes; i++)
        if (!file->kept[i].bytes) {
            file->kept[i] = (struct kept){ bytes, block, ++file->clock };
            bytes = NULL;
        }
    pthread_mutex_unlock(&file->lock);
    free(bytes);
}

static int read_part(struct dcp_delta_coded_file *file, size_t block, size_t at,
                     void *out, size_t n, struct dcp_error *err)
{
    unsigned char *room;

    if (find_kept(file, block, at, out, n, &room))
        return DCP_OK;
    if (!room && !(room = malloc(DCP_DELTA_BLOCK_BYTES)))
        return dcp_error_memory(err, "a block of a delta");
    int rc = decode(file, block, room, err);
    if (rc) {
        free(room);
        return rc;
    }
    memcpy(out, room + at, n);
    keep(file, block, room);
    return DCP_OK;
}

int dcp_delta_coded_read(struct dcp_delta_coded_file *file, uint64_t offset, void *out,
                         size_t n, struct dcp_error *err)
{
    uint64_t end = file->table.target_bytes;
    unsigned char *to = out;

    if (offset > end || n > end - offset)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "what '%s' stands for ends before byte %" PRIu64,
                             DCP_SHOWN(file->path), offset + n);
    while (n) {
        size_t block = (size_t)(offset / DCP_DELTA_BLOCK_BYTES);
        size_t at = (size_t)(offset % DCP_DELTA_BLOCK_BYTES);
        size_t all = dcp_delta_block_bytes(end, block), some = all - at;
        some = some < n ? some : n;
        DCP_TRY(some == all ? decode(file, block, to, err)
                            : read_part(file, block, at, to, some, err));
        to += some;
        offset += some;
        n -= some;
    }
    return DCP_OK;
}

/* -- opening and closing ------------------------------------------------------------- */

int dcp_delta_coded_open(const struct dcp_delta_origin *origin,
                         struct dcp_delta_coded_file **out, struct dcp_error *err)
{
    const struct dcp_store *store = origin->store;
    struct dcp_delta_coded_file *file = calloc(1, sizeof *file);
    bool is_dir;
    uint64_t size = 0;

    *out = NULL;
    if (!file)
        return dcp_error_memory(err, "a delta");
    file->origin = *origin;
    file->origin.base_file = NULL;
    pthread_mutex_init(&file->lock, NULL);
    file->path = strdup(origin->path);
    int rc = file->path ? DCP_OK : dcp_error_memory(err, "a delta");
    if (!rc)
        rc = store->ops->open(store->self, origin->path, &file->delta, err);
    if (!rc)
        rc = store->ops->stat(store->self, origin->path, &is_dir, &size, err);
    if (!rc && size != origin->file->delta_bytes)
        rc = dcp_error_set(err, DCP_E_CORRUPT, "'%s' has %" PRIu64 " bytes, not %" PRIu64,
                           DCP_SHOWN(file->path), size, origin->file->delta_bytes);
    if (!rc)
        rc = dcp_delta_read_table(store, file->delta, file->path, size,
                                  origin->file->table_crc, origin->file->size_bytes,
                                  &file->table, err);
    if (rc) {
        dcp_delta_coded_close(file, NULL);
        return rc;
    }
    file->origin.base_file = origin->base_file;
    *out = file;
    return DCP_OK;
}

void dcp_delta_coded_drop_cache(struct dcp_delta_coded_file *file)
{
    const struct dcp_delta_origin *origin = &file->origin;

    if (origin->store->ops->drop_cache)
        origin->store->ops->drop_cache(origin->store->self, file->delta);
    if (origin->base_file && origin->base->ops->drop_cache)
        origin->base->ops->drop_cache(origin->base->self, origin->base_file);
}

int dcp_delta_coded_close(struct dcp_delta_coded_file *file, struct dcp_error *err)
{
    const struct dcp_delta_origin *origin = &file->origin;
    int rc = DCP_OK;

    if (file->delta)
        rc = origin->store->ops->close(origin->store->self, file->delta, err);
    if (origin->base_file) {
        int base = origin->base->ops->close(origin->base->self, origin->base_file,
                                            rc ? NULL : err);
        rc = rc ? rc : base;
    }
    for (int i = 0; i < KEPT; i++)
        free(file->kept[i].bytes);
    pthread_mutex_destroy(&file->lock);
    free(file->table.entries);
    free(file->path);
    free(file);
    return rc;
}
