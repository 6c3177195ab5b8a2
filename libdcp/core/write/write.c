#include "base/hash.h"
#include "base/mem.h"
#include "core/catalog/region.h"
#include "core/delta/folder.h"
#include "core/integrity/fingerprint.h"
#include "core/plan/target.h"
#include "own.h"
#include <string.h>

#define CHUNK_BLOCKS 8 /* blocks a job writes before another may be chosen */
#define SLOTS 3        /* blocks a worker codes before they are placed */

struct job {
    struct dcp_write *write;
    size_t piece, first_block, n_blocks;
};

static size_t n_blocks_of(uint64_t bytes)
{
    return (size_t)((bytes + DCP_BLOCK_BYTES - 1) / DCP_BLOCK_BYTES);
}

int dcp_write_new(const struct dcp_write_setup *setup, struct dcp_write **out_write,
                  struct dcp_error *err)
{
    struct dcp_write *w = calloc(1, sizeof *w);
    struct dcp_catalog *target = setup->target->catalog;
    size_t n_workers = (size_t)dcp_pool_workers(setup->pool);
    int rc = DCP_OK;

    *out_write = NULL;
    if (!w)
        return dcp_error_memory(err, "a writer");
    w->setup = *setup;
    w->catalog = target;
    pthread_mutex_init(&w->lock, NULL);

    w->n_pieces = target->n_pieces;
    w->digests = dcp_mem_calloc(w->n_pieces, sizeof *w->digests);
    w->parts = dcp_mem_calloc(target->n_tensors, sizeof *w->parts);
    w->workers = dcp_mem_calloc(n_workers, sizeof *w->workers);

    if (!w->digests || !w->parts || !w->workers)
        rc = dcp_error_memory(err, "a writer");
    for (size_t i = 0; i < n_workers && !rc; i++) {

        w->workers[i].scratch = dcp_mem_aligned(64, DCP_BLOCK_BYTES);
        rc = w->workers[i].scratch ? dcp_coder_new(&w->workers[i].coder, err)
                                   : dcp_error_memory(err, "a writer's buffer");
    }

    if (!rc)
        rc = dcp_write_index(w, err);
    if (rc) {
        dcp_write_free(w);
        return rc;
    }
    *out_write = w;
    return DCP_OK;
}

void dcp_write_free(struct dcp_write *w)
{
    if (!w)
        return;
    for (size_t f = 0; f < w->cap_files; f++) {
        if (w->files[f].handle)
            w->setup.store->ops->close(w->setup.store->self, w->files[f].handle, NULL);
        dcp_against_close(w->files[f].against);
    }
    for (size_t p = 0; w->digests && p < w->n_pieces; p++) {
        free(w->digests[p].crc);
        free(w->digests[p].stored_crc);
        free(w->digests[p].crc32);
    }
    for (int i = 0; w->workers && i < dcp_pool_workers(w->setup.pool); i++) {
        dcp_coder_free(w->workers[i].coder);
        free(w->workers[i].scratch);
    }
    free(w->files);
    free(w->workers);

    free(w->digests);
    free(w->parts);
    free(w->order);
    free(w->file_first);
    pthread_mutex_destroy(&w->lock);

    free(w);
}

void dcp_write_against(struct dcp_write *w, const struct dcp_write_base *base)
{
    w->base = *base;
}

const struct dcp_coded *dcp_write_coded(const struct dcp_write *w, size_t file,
                                        const struct dcp_error **out_why)
{
    *out_why = &w->unfit;
    return file < w->cap_files && w->files[file].coded.size_bytes ? &w->files[file].coded
                                                                  : NULL;
}

uint64_t dcp_write_parts(const struct dcp_write *w, size_t tensor)
{
    return w->parts[tensor];
}

static int report(struct dcp_write *w, uint64_t n, struct dcp_error *err)
{
    uint64_t done = atomic_fetch_add(&w->done_bytes, n) + n;
    bool stop = false;

    if (w->setup.progress.report) {
        pthread_mutex_lock(&w->lock);
        stop =
            w->setup.progress.report(w->setup.progress.self, done, w->setup.total_bytes);
        pthread_mutex_unlock(&w->lock);
    }
    return stop ? dcp_error_set(err, DCP_E_INTERRUPTED, "interrupted") : DCP_OK;
}

/* A block of a piece, as it is before any codec. */
struct block {
    size_t piece, i, n;
    const unsigned char *raw; /* lives until the worker's next */
};

static int read_block(struct dcp_write *w, int worker, size_t p, size_t i,
                      struct block *out, struct dcp_error *err)
{
    const struct dcp_read_callback *callback = &w->setup.read_callback;
    uint64_t begin = (uint64_t)i * DCP_BLOCK_BYTES;
    uint64_t left = dcp_piece_bytes(w->catalog, &w->catalog->pieces[p]) - begin;
    size_t n = (size_t)(left < DCP_BLOCK_BYTES ? left : DCP_BLOCK_BYTES);

    *out = (struct block){ .piece = p, .i = i, .n = n };
    return callback->read(callback->self, worker, p, begin, n, w->workers[worker].scratch,
                          &out->raw, err);
}

/* Adds n bytes at `at` of a block to its digests. */
static void add_digests(struct dcp_write *w, const struct block *block, size_t at,
                        size_t n)
{
    const struct dcp_read_callback *callback = &w->setup.read_callback;
    struct dcp_write_digests *digests = &w->digests[block->piece];
    const unsigned char *raw = block->raw + at;

    digests->crc[block->i] = dcp_hash_crc64(digests->crc[block->i], raw, n);
    if (digests->crc32)
        digests->crc32[block->i] = dcp_hash_crc32(digests->crc32[block->i], raw, n);
    if (callback->look)
        callback->look(callback->self, block->piece, raw, n);
}

static void add_fingerprint(struct dcp_write *w, const struct block *block)
{
    const struct dcp_piece *piece = &w->catalog->pieces[block->piece];
    const struct dcp_tensor *tensor = &w->catalog->tensors[piece->tensor];
    size_t elem = dcp_dtype_size(tensor->dtype);

    if (!dcp_region_is_replica(w->catalog, block->piece))
        atomic_fetch_xor(&w->parts[piece->tensor],
                         dcp_fingerprint_piece(
                             tensor, piece, (int64_t)(block->i * DCP_BLOCK_BYTES / elem),
                             (int64_t)(block->n / elem), block->raw,
                             w->digests[block->piece].crc[block->i]));
}

/* One block: read callback, digests, codec. *out_stored lives until the worker's next. */
static int code_block(struct dcp_write *w, int worker, size_t p, size_t i,
                      const void **out_stored, size_t *out_n, struct dcp_error *err)
{
    const struct dcp_piece *piece = &w->catalog->pieces[p];
    struct dcp_write_digests *digests = &w->digests[p];
    size_t elem = dcp_dtype_size(w->catalog->tensors[piece->tensor].dtype);
    struct block block;

    DCP_TRY(read_block(w, worker, p, i, &block, err));
    add_digests(w, &block, 0, block.n);
    add_fingerprint(w, &block);
    DCP_TRY(dcp_coder_encode(w->workers[worker].coder, piece->codec, elem, block.raw,
                             block.n, out_stored, out_n, err));
    if (digests->blocks) {
        digests->blocks[i].xxh3 = dcp_hash_xxh3(*out_stored, *out_n);
        digests->blocks[i].stored_size = (uint32_t)*out_n;
    }
    if (digests->stored_crc)
        digests->stored_crc[i] = dcp_hash_crc64(0, *out_stored, *out_n);
    return DCP_OK;
}

/* One block without a codec: each slice is written, and then digested, for which the
 * kernel brought it to the cache. */
static int write_block(struct dcp_write *w, int worker, size_t p, size_t i, uint64_t to,
                       size_t *out_n, struct dcp_error *err)
{
    struct dcp_write_digests *digests = &w->digests[p];
    int file = w->catalog->pieces[p].file;
    struct dcp_against *against = w->files[file].against;
    struct block block;

    DCP_TRY(read_block(w, worker, p, i, &block, err));
    for (size_t at = 0, n; at < block.n; at += n) {
        n = block.n - at < DCP_HASH_SLICE ? block.n - at : DCP_HASH_SLICE;
        if (against) /* what is written depends on the digests of all */
            dcp_against_see(against, block.raw + at, n);
        else
            DCP_TRY(dcp_write_at(w, file, to + at, block.raw + at, n, err));
        add_digests(w, &block, at, n);
    }
    add_fingerprint(w, &block);
    if (digests->blocks) {
        digests->blocks[i].xxh3 = dcp_hash_xxh3(block.raw, block.n);
        digests->blocks[i].stored_size = (uint32_t)block.n;
    }
    *out_n = block.n;
    return DCP_OK;
}

static int run_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    const struct job *job = &((const struct job *)arg)[i];
    struct dcp_write *w = job->write;
    const struct dcp_store *store = w->setup.store;
    const struct dcp_piece *piece = &w->catalog->pieces[job->piece];
    uint64_t at = piece->offset + (uint64_t)job->first_block * DCP_BLOCK_BYTES, from = at;
    struct dcp_against *against = w->files[piece->file].against;

    for (size_t b = 0; b < job->n_blocks; b++) {
        size_t n;
        DCP_TRY(write_block(w, worker, job->piece, job->first_block + b, at, &n, err));
        at += n;
        DCP_TRY(report(w, n, err));
    }

    if (store->ops->flush_hint && !against)
        store->ops->flush_hint(store->self, w->files[piece->file].handle, from,
                               at - from);
    return DCP_OK;
}

static int prepare_piece(struct dcp_write *w, size_t p, struct dcp_error *err)
{
    struct dcp_catalog *target = w->catalog;
    struct dcp_piece *piece = &target->pieces[p];
    struct dcp_write_digests *digests = &w->digests[p];
    size_t n = n_blocks_of(dcp_piece_bytes(target, piece));
    bool ok = true;

    digests->n = n;
    digests->crc = dcp_mem_calloc(n, sizeof *digests->crc);
    ok = digests->crc != NULL;
    if (w->setup.target->format->flags & DCP_FORMAT_CRC32)
        ok = (digests->crc32 = dcp_mem_calloc(n, sizeof *digests->crc32)) && ok;
    if (w->setup.target->format->flags & DCP_FORMAT_CODECS)
        ok = (digests->blocks = dcp_catalog_alloc(target, n, sizeof *digests->blocks)) &&
             ok;
    if (piece->codec != DCP_CODEC_NONE)
        ok = (digests->stored_crc = dcp_mem_calloc(n, sizeof *digests->stored_crc)) && ok;
    return ok ? DCP_OK : dcp_error_memory(err, "digests of a piece");
}

/* A block on its way into a file whose pieces are packed. */
struct slot {
    size_t piece, block, n;
    uint64_t at;
    unsigned char *stored; /* DCP_BLOCK_BYTES */
};

struct packing {
    struct dcp_write *write;
    struct slot *slots;
    size_t n_slots, n; /* there are, are filled */
    int file;          /* of the block that was placed last, */
    uint64_t at;       /* and where it ends */
};

static int code_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    const struct packing *packing = arg;
    struct slot *slot = &packing->slots[i];
    const void *stored;

    DCP_TRY(code_block(packing->write, worker, slot->piece, slot->block, &stored,
                       &slot->n, err));
    memcpy(slot->stored, stored, slot->n);
    return DCP_OK;
}

static int slot_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    const struct packing *packing = arg;
    const struct slot *slot = &packing->slots[i];
    struct dcp_write *w = packing->write;

    (void)worker;
    DCP_TRY(dcp_write_at(w, w->catalog->pieces[slot->piece].file, slot->at, slot->stored,
                         slot->n, err));
    return report(w, slot->n, err);
}

/* A piece begins where the one before it in its file ended. */
static void place_piece(struct packing *packing, struct dcp_piece *piece)
{
    if (piece->file != packing->file)
        packing->at = piece->offset;
    packing->file = piece->file;
    piece->offset = packing->at;
    piece->stored_size = 0;
}

/* Codes what waits, on all workers, and only then knows where each block goes. */
static int write_slots(struct packing *packing, struct dcp_error *err)
{
    struct dcp_write *w = packing->write;

    DCP_TRY(dcp_pool_for(w->setup.pool, packing->n, code_job, packing, err));
    for (size_t i = 0; i < packing->n; i++) {
        struct slot *slot = &packing->slots[i];
        struct dcp_piece *piece = &w->catalog->pieces[slot->piece];
        if (slot->block == 0)
            place_piece(packing, piece);
        slot->at = packing->at;
        packing->at += slot->n;
        piece->stored_size += slot->n;
    }
    DCP_TRY(dcp_pool_for(w->setup.pool, packing->n, slot_job, packing, err));
    packing->n = 0;
    return DCP_OK;
}

static int pack_piece(struct packing *packing, size_t p, struct dcp_error *err)
{
    struct dcp_write *w = packing->write;

    if (w->digests[p].n == 0) { /* it stands behind what waits */
        DCP_TRY(write_slots(packing, err));
        place_piece(packing, &w->catalog->pieces[p]);
    }
    for (size_t b = 0; b < w->digests[p].n; b++) {
        struct slot *slot = &packing->slots[packing->n++];
        slot->piece = p;
        slot->block = b;
        if (packing->n == packing->n_slots)
            DCP_TRY(write_slots(packing, err));
    }
    return DCP_OK;
}

/* The first place in `order` from i on whose piece lies in a file of the rank; behind the
 * last: the number of pieces. Files of others are passed over whole. */
static size_t next_of(const struct dcp_write *w, int rank, size_t i)
{
    const struct dcp_catalog *target = w->catalog;

    while (i < target->n_pieces) {
        int file = target->pieces[w->order[i]].file;
        if (target->files[file].rank == rank)
            break;
        i = w->file_first[file + 1];
    }
    return i;
}

/* Pieces that may shrink are packed one behind the other. */
static int write_packed(struct dcp_write *w, int rank, struct dcp_error *err)
{
    const struct dcp_catalog *target = w->catalog;
    size_t n_slots = SLOTS * (size_t)dcp_pool_workers(w->setup.pool);
    DCP_CLEANUP_FREE struct slot *slots = dcp_mem_calloc(n_slots, sizeof *slots);
    DCP_CLEANUP_FREE unsigned char *memory = dcp_mem_calloc(n_slots, DCP_BLOCK_BYTES);
    struct packing packing = {
        .write = w, .slots = slots, .n_slots = n_slots, .file = -1
    };

    if (!slots || !memory)
        return dcp_error_memory(err, "the blocks of a writer");
    for (size_t i = 0; i < n_slots; i++)
        slots[i].stored = memory + i * DCP_BLOCK_BYTES;
    for (size_t i = next_of(w, rank, 0); i < target->n_pieces;
         i = next_of(w, rank, i + 1))
        DCP_TRY(pack_piece(&packing, w->order[i], err));
    return write_slots(&packing, err);
}

static int add_job(struct job **jobs, size_t *n, size_t *cap, struct job job,
                   struct dcp_error *err)
{
    struct job *grown = dcp_mem_grow(*jobs, cap, *n + 1, sizeof job);

    if (!grown)
        return dcp_error_memory(err, "the jobs of a writer");
    *jobs = grown;
    grown[(*n)++] = job;
    return DCP_OK;
}

static int write_pieces(struct dcp_write *w, int rank, struct dcp_error *err)
{
    struct dcp_catalog *target = w->catalog;
    struct job *jobs = NULL;
    size_t n = 0, cap = 0;
    bool packed = false;
    int rc = DCP_OK;

    for (size_t i = next_of(w, rank, 0); i < target->n_pieces && !rc;
         i = next_of(w, rank, i + 1)) {
        size_t p = w->order[i];
        struct dcp_piece *piece = &target->pieces[p];
        packed |= piece->codec != DCP_CODEC_NONE;
        rc = prepare_piece(w, p, err);
        for (size_t b = 0; b < w->digests[p].n && !rc && !packed; b += CHUNK_BLOCKS) {
            size_t left = w->digests[p].n - b;
            struct job job = { w, p, b, left < CHUNK_BLOCKS ? left : CHUNK_BLOCKS };
            rc = add_job(&jobs, &n, &cap, job, err);
        }
    }
    if (!rc)
        rc = packed ? write_packed(w, rank, err)
                    : dcp_pool_for(w->setup.pool, n, run_job, jobs, err);
    free(jobs);
    return rc;
}

/* What cannot be coded is written as it is. */
static int create(struct dcp_write *w, int file, struct dcp_error *err)
{
    uint64_t size = w->catalog->files[file].size_bytes;
    struct dcp_write_file *into = &w->files[file];

    if (w->base.store && !w->setup.pool &&
        !dcp_against_open(w, file, &into->against, &w->unfit))
        return dcp_write_open(w, file, DCP_DELTA_SUFFIX, 0, err);
    return dcp_write_open(w, file, "", size, err);
}

int dcp_write_create(struct dcp_write *w, int rank, struct dcp_error *err)
{
    const struct dcp_catalog *target = w->catalog;
    int rc = dcp_write_reserve(w, err);

    for (size_t f = 0; f < target->n_files && !rc; f++)
        if (target->files[f].rank == rank && target->files[f].size_bytes &&
            !w->files[f].done && !w->files[f].handle)
            rc = create(w, (int)f, err);
    return rc;
}

int dcp_write_rank(struct dcp_write *w, int rank, struct dcp_error *err)
{
    struct dcp_catalog *target = w->catalog;

    DCP_TRY(dcp_write_create(w, rank, err));
    for (size_t f = 0; f < target->n_files; f++)
        if (target->files[f].rank == rank && target->files[f].size_bytes &&
            !w->files[f].done)
            DCP_TRY(dcp_write_early(w, (int)f, err));
    DCP_TRY(write_pieces(w, rank, err));
    for (size_t i = next_of(w, rank, 0); i < target->n_pieces;
         i = next_of(w, rank, i + 1))
        dcp_write_digest(w, w->order[i]);
    DCP_TRY(dcp_target_finalize(w->setup.target, rank, err));
    DCP_TRY(dcp_write_reserve(w, err));
    for (size_t f = 0; f < target->n_files; f++)
        if (target->files[f].rank == rank && !w->files[f].done)
            DCP_TRY(dcp_write_finish(w, (int)f, err));
    return DCP_OK;
}

int dcp_write_global(struct dcp_write *w, struct dcp_error *err)
{
    struct dcp_catalog *target = w->catalog;
    size_t before = target->n_files;

    DCP_TRY(dcp_target_finish(w->setup.target, err));
    DCP_TRY(dcp_write_reserve(w, err));
    for (size_t f = before; f < target->n_files; f++)
        DCP_TRY(dcp_write_finish(w, (int)f, err));
    return DCP_OK;
}
