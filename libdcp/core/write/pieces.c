/* The pieces of ranks: read, digested, coded and written, in jobs of the pool. */
#include "base/hash.h"
#include "base/mem.h"
#include "core/catalog/region.h"
#include "core/integrity/fingerprint.h"
#include "own.h"
#include <string.h>

#define CHUNK_BLOCKS 8 /* blocks a job writes before another may be chosen */
#define SLOTS 3        /* blocks a worker codes before they are placed */
#define FLUSH_BYTES ((uint64_t)1 << 20)
/* Of a piece that is written with others: the copy costs more than the call above that.
 */
#define SMALL_BYTES ((uint64_t)8 << 10)
#define JOINED_BYTES ((uint64_t)256 << 10)       /* of such pieces together; */
#define JOINED_SPREAD_BYTES ((uint64_t)32 << 10) /* where ranks share blocks */

/* Blocks of a piece; or small pieces that lie one behind the other, at once. */
struct job {
    struct dcp_write *write;
    size_t at, n_pieces; /* in write->order */
    size_t first_block, n_blocks;
    uint64_t size_bytes; /* of small pieces, JOINED_BYTES at most; else 0 */
};

static size_t n_blocks_of(uint64_t bytes)
{
    return (size_t)((bytes + DCP_BLOCK_BYTES - 1) / DCP_BLOCK_BYTES);
}

static int report(struct dcp_write *w, uint64_t n, struct dcp_error *err)
{
    bool stop = false;

    pthread_mutex_lock(&w->lock); /* so that what is told never falls */
    w->done_bytes += n;
    if (w->setup.progress.report)
        stop = w->setup.progress.report(w->setup.progress.self, w->done_bytes,
                                        w->setup.total_bytes);
    pthread_mutex_unlock(&w->lock);
    return stop ? dcp_error_set(err, DCP_E_INTERRUPTED, "interrupted") : DCP_OK;
}

size_t dcp_write_next_of(const struct dcp_write *w, int rank, size_t i)
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

/* A block of a piece, as it is before any codec. */
struct block {
    size_t piece, i, n;
    const unsigned char *raw; /* lives until the worker's next */
};

static int read_block(struct dcp_write *w, int worker, size_t p, size_t i,
                      unsigned char *scratch, struct block *out, struct dcp_error *err)
{
    const struct dcp_read_callback *callback = &w->setup.read_callback;
    uint64_t begin = (uint64_t)i * DCP_BLOCK_BYTES;
    uint64_t left = dcp_piece_bytes(w->catalog, &w->catalog->pieces[p]) - begin;
    size_t n = (size_t)(left < DCP_BLOCK_BYTES ? left : DCP_BLOCK_BYTES);

    *out = (struct block){ .piece = p, .i = i, .n = n };
    return callback->read(callback->self, worker, p, begin, n, scratch, &out->raw, err);
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

    DCP_TRY(read_block(w, worker, p, i, w->workers[worker].scratch, &block, err));
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

/* What is known of a block that is stored as it is, once all of it has its CRC. */
static void note_block(struct dcp_write *w, const struct block *block)
{
    struct dcp_block *blocks = w->digests[block->piece].blocks;

    add_fingerprint(w, block);
    if (blocks) {
        blocks[block->i].xxh3 = dcp_hash_xxh3(block->raw, block->n);
        blocks[block->i].stored_size = (uint32_t)block->n;
    }
}

/* One block without a codec: each slice is written, and then digested, for which the
 * kernel brought it to the cache. */
static int write_block(struct dcp_write *w, int worker, size_t p, size_t i, uint64_t to,
                       size_t *out_n, struct dcp_error *err)
{
    int file = w->catalog->pieces[p].file;
    struct dcp_against *against = w->files[file].against;
    size_t slice = dcp_write_slice(w, file);
    struct block block;

    DCP_TRY(read_block(w, worker, p, i, w->workers[worker].scratch, &block, err));
    for (size_t at = 0, n; at < block.n; at += n) {
        n = block.n - at < slice ? block.n - at : slice;
        if (against) /* what is written depends on the digests of all */
            dcp_against_see(against, block.raw + at, n);
        else
            DCP_TRY(dcp_write_unshared(w, file, to + at, block.raw + at, n, err));
        add_digests(w, &block, at, n);
    }
    note_block(w, &block);
    *out_n = block.n;
    return DCP_OK;
}

/* Bytes `from` .. `to` of a file were written: where that is the last of FLUSH_BYTES the
 * kernel may begin to write those back. Of pieces that are small and many, a call of each
 * would cost as much as the bytes. */
static void flush(struct dcp_write *w, int file, uint64_t from, uint64_t to)
{
    uint64_t first = from / FLUSH_BYTES * FLUSH_BYTES;

    if (to - first >= FLUSH_BYTES)
        dcp_write_flush(w, file, first, to - first);
}

/* A call of the kernel for each would cost more than the bytes of small pieces. */
static int run_small(const struct job *job, int worker, struct dcp_error *err)
{
    struct dcp_write *w = job->write;
    const struct dcp_piece *first = &w->catalog->pieces[w->order[job->at]];
    unsigned char *scratch = w->workers[worker].scratch;
    size_t used = 0;

    for (size_t i = job->at; i < job->at + job->n_pieces; i++) {
        struct block block;
        if (!w->digests[w->order[i]].n)
            continue;
        DCP_TRY(read_block(w, worker, w->order[i], 0, scratch + used, &block, err));
        if (block.raw != scratch + used)
            memcpy(scratch + used, block.raw, block.n);
        add_digests(w, &block, 0, block.n);
        note_block(w, &block);
        used += block.n;
    }
    DCP_TRY(dcp_write_unshared(w, first->file, first->offset, scratch, used, err));
    flush(w, first->file, first->offset, first->offset + used);
    return report(w, used, err);
}

static int run_job(const struct job *job, int worker, struct dcp_error *err)
{
    struct dcp_write *w = job->write;
    size_t p = w->order[job->at];
    const struct dcp_piece *piece = &w->catalog->pieces[p];
    uint64_t at = piece->offset + (uint64_t)job->first_block * DCP_BLOCK_BYTES, from = at;

    if (job->size_bytes)
        return run_small(job, worker, err);
    for (size_t b = 0; b < job->n_blocks; b++) {
        size_t n;
        DCP_TRY(write_block(w, worker, p, job->first_block + b, at, &n, err));
        at += n;
        DCP_TRY(report(w, n, err));
    }
    if (!w->files[piece->file].against)
        flush(w, piece->file, from, at);
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
    size_t piece, block, raw_n, n;
    uint64_t at;
    unsigned char *stored; /* DCP_BLOCK_BYTES */
};

struct packing {
    struct dcp_write *write;
    struct slot *slots;
    size_t n_slots, n; /* there are, are filled */
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
    return report(w, slot->raw_n, err);
}

/* A piece begins where the one before it in its file ended. */
static void place_piece(struct dcp_write *w, struct dcp_piece *piece)
{
    struct dcp_write_file *file = &w->files[piece->file];

    if (!file->packed_to)
        file->packed_to = piece->offset;
    piece->offset = file->packed_to;
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
            place_piece(w, piece);
        slot->at = piece->offset + piece->stored_size;
        piece->stored_size += slot->n;
        w->files[piece->file].packed_to = slot->at + slot->n;
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
        place_piece(w, &w->catalog->pieces[p]);
    }
    uint64_t left = dcp_piece_bytes(w->catalog, &w->catalog->pieces[p]);
    for (size_t b = 0; b < w->digests[p].n; b++, left -= DCP_BLOCK_BYTES) {
        struct slot *slot = &packing->slots[packing->n++];
        slot->piece = p;
        slot->block = b;
        slot->raw_n = (size_t)(left < DCP_BLOCK_BYTES ? left : DCP_BLOCK_BYTES);
        if (packing->n == packing->n_slots)
            DCP_TRY(write_slots(packing, err));
    }
    return DCP_OK;
}

/* Pieces that may shrink are packed one behind the other. The ranks take turns, as they
 * do where nothing shrinks. */
static int write_packed(struct dcp_write *w, const int *ranks, size_t n_ranks,
                        struct dcp_error *err)
{
    size_t n_slots = SLOTS * (size_t)dcp_pool_workers(w->setup.pool), n_left = n_ranks;
    DCP_CLEANUP_FREE struct slot *slots = dcp_mem_calloc(n_slots, sizeof *slots);
    DCP_CLEANUP_FREE unsigned char *memory = dcp_mem_calloc(n_slots, DCP_BLOCK_BYTES);
    DCP_CLEANUP_FREE size_t *next = dcp_mem_calloc(n_ranks, sizeof *next);
    struct packing packing = { .write = w, .slots = slots, .n_slots = n_slots };

    if (!slots || !memory || !next)
        return dcp_error_memory(err, "the blocks of a writer");
    for (size_t i = 0; i < n_slots; i++)
        slots[i].stored = memory + i * DCP_BLOCK_BYTES;
    while (n_left) {
        n_left = 0;
        for (size_t r = 0; r < n_ranks; r++) {
            next[r] = dcp_write_next_of(w, ranks[r], next[r]);
            if (next[r] == w->n_pieces)
                continue;
            DCP_TRY(pack_piece(&packing, w->order[next[r]++], err));
            n_left++;
        }
    }
    return write_slots(&packing, err);
}

struct jobs {
    struct job *items;
    size_t n, cap;
    bool spread; /* there are more ranks than workers: they share blocks that are read */
};

static int add_job(struct jobs *jobs, struct job job, struct dcp_error *err)
{
    struct job *grown = dcp_mem_grow(jobs->items, &jobs->cap, jobs->n + 1, sizeof job);

    if (!grown)
        return dcp_error_memory(err, "the jobs of a writer");
    jobs->items = grown;
    grown[jobs->n++] = job;
    return DCP_OK;
}

/* Whether a piece, order[i], can be written with the small ones of a job: it is small,
 * and begins where they end. */
static bool joins(const struct dcp_write *w, const struct job *job, size_t i,
                  uint64_t most_bytes)
{
    const struct dcp_piece *pieces = w->catalog->pieces;
    const struct dcp_piece *piece = &pieces[w->order[i]];
    const struct dcp_piece *first = &pieces[w->order[job->at]];
    uint64_t bytes = dcp_piece_bytes(w->catalog, piece);

    return job->size_bytes && bytes <= SMALL_BYTES && i == job->at + job->n_pieces &&
           piece->file == first->file &&
           piece->offset == first->offset + job->size_bytes &&
           job->size_bytes + bytes <= most_bytes;
}

/* The jobs of order[i], which is ready. */
static int add_jobs(struct dcp_write *w, struct jobs *jobs, size_t i,
                    struct dcp_error *err)
{
    size_t p = w->order[i], n = w->digests[p].n;
    const struct dcp_piece *piece = &w->catalog->pieces[p];
    uint64_t bytes = dcp_piece_bytes(w->catalog, piece);
    bool small = bytes <= SMALL_BYTES && !w->files[piece->file].against;

    size_t chunk = jobs->spread ? 1 : CHUNK_BLOCKS;
    uint64_t joined = jobs->spread ? JOINED_SPREAD_BYTES : JOINED_BYTES;

    if (jobs->n && joins(w, &jobs->items[jobs->n - 1], i, joined)) {
        jobs->items[jobs->n - 1].n_pieces++;
        jobs->items[jobs->n - 1].size_bytes += bytes;
        return DCP_OK;
    }
    for (size_t b = 0; b < n; b += chunk) {
        struct job job = { w, i, 1, b, n - b < chunk ? n - b : chunk, small ? bytes : 0 };
        DCP_TRY(add_job(jobs, job, err));
    }
    return DCP_OK;
}

/* Makes the pieces of a rank ready, and adds their jobs. *out_packed: they may shrink. */
static int add_pieces(struct dcp_write *w, int rank, struct jobs *jobs, bool *out_packed,
                      struct dcp_error *err)
{
    struct dcp_catalog *target = w->catalog;

    for (size_t i = dcp_write_next_of(w, rank, 0); i < target->n_pieces;
         i = dcp_write_next_of(w, rank, i + 1)) {
        size_t p = w->order[i];
        *out_packed |= target->pieces[p].codec != DCP_CODEC_NONE;
        DCP_TRY(prepare_piece(w, p, err));
        DCP_TRY(add_jobs(w, jobs, i, err));
    }
    return DCP_OK;
}

/* The jobs of ranks, which take turns: two threads that write one file wait for each
 * other in the kernel. */
struct turns {
    struct job *jobs;
    size_t *first; /* of turn t: jobs first[t] .. first[t + 1] */
    size_t n, n_workers;
};

static void turns_fini(struct turns *turns)
{
    free(turns->jobs);
    free(turns->first);
}

/* Where ranks share blocks a turn is all of them, one job of each; else one job. The jobs
 * of rank r are from[r] .. from[r + 1]. */
static int take_turns(struct turns *turns, const struct jobs *jobs, const size_t *from,
                      size_t n_ranks, struct dcp_error *err)
{
    size_t n = 0;

    turns->jobs = dcp_mem_calloc(jobs->n + 1, sizeof *turns->jobs);
    turns->first = dcp_mem_calloc(jobs->n + 1, sizeof *turns->first);
    if (!turns->jobs || !turns->first)
        return dcp_error_memory(err, "the jobs of a writer");
    for (size_t i = 0; n < jobs->n; i++) {
        size_t begin = n;
        for (size_t r = 0; r < n_ranks; r++)
            if (i < from[r + 1] - from[r])
                turns->jobs[n++] = jobs->items[from[r] + i];
        for (size_t at = begin; at < n; at = jobs->spread ? n : at + 1)
            turns->first[turns->n++] = at;
    }
    turns->first[turns->n] = n;
    return DCP_OK;
}

/* Workers begin at different ranks. */
static int run_turn(void *arg, int worker, size_t i, struct dcp_error *err)
{
    const struct turns *turns = arg;
    size_t n = turns->first[i + 1] - turns->first[i];
    size_t begin = n * (i % turns->n_workers) / turns->n_workers;

    for (size_t j = 0; j < n; j++)
        DCP_TRY(run_job(&turns->jobs[turns->first[i] + (begin + j) % n], worker, err));
    return DCP_OK;
}

int dcp_write_pieces(struct dcp_write *w, const int *ranks, size_t n,
                     struct dcp_error *err)
{
    size_t n_workers = (size_t)dcp_pool_workers(w->setup.pool);
    DCP_CLEANUP_FREE size_t *from = dcp_mem_calloc(n + 1, sizeof *from);
    struct turns turns = { .n_workers = n_workers };
    struct jobs jobs = { .spread = n > n_workers };
    bool packed = false;
    int rc = from ? DCP_OK : dcp_error_memory(err, "the jobs of a writer");

    for (size_t r = 0; r < n && !rc; r++) {
        rc = add_pieces(w, ranks[r], &jobs, &packed, err);
        from[r + 1] = jobs.n;
    }
    if (!rc && packed)
        rc = write_packed(w, ranks, n, err);
    else if (!rc)
        rc = take_turns(&turns, &jobs, from, n, err);
    if (!rc && !packed)
        rc = dcp_pool_for(w->setup.pool, turns.n, run_turn, &turns, err);
    turns_fini(&turns);
    free(jobs.items);
    return rc;
}
