#include "fill.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/str.h"
#include "copy.h"
#include <inttypes.h>
#include <stdlib.h>

#define CHUNK_BYTES ((uint64_t)8 << 20) /* a job of the pool */
#define WORKER_CACHE ((uint64_t)8 << 20)
/* A call of the kernel each is worth it for runs of so much. */
#define MIN_RUN_BYTES ((uint64_t)64 << 10)

/* How a part of a piece is read: what proves it. */
enum way { BY_BLOCKS, BY_FINGERPRINT, BY_RUNS };

struct chunk {
    size_t piece;
    int64_t begin, end; /* elements of the piece */
    int file;           /* where the piece's first element is stored, */
    uint64_t offset;    /* so that files are read from front to back */
    enum way way;
    bool done, failed;
    uint64_t crc; /* of a whole tensor's */
};

struct dcp_fill {
    struct dcp_fill_setup setup;
    struct dcp_proof *proof;    /* of src */
    struct dcp_copier *copiers; /* one a worker */
    struct dcp_blocks **blocks; /* theirs */
    unsigned char **bounce; /* for devices the host cannot write: CHUNK_BYTES a copier */
    struct chunk *chunks;
    size_t n_chunks;
};

/* -- what is to be read -------------------------------------------------------------- */

static bool is_whole(const struct dcp_fill *fill, size_t p)
{
    return fill->setup.dst->pieces[p].region.kind == DCP_WHOLE;
}

/* Whether the fingerprint of a whole tensor is that of its bytes here. */
static bool has_fingerprint(const struct dcp_fill *fill, size_t p)
{
    const struct dcp_fill_setup *setup = &fill->setup;
    int to = setup->dst->pieces[p].tensor, from = setup->from[to];

    return from >= 0 && setup->src->tensors[from].has_fingerprint &&
           setup->src->tensors[from].dtype == setup->dst->tensors[to].dtype;
}

/* Whether digests of blocks would say again what the fingerprint says: not where they
 * come for nothing, since little is read or much of the cache, nor where another checksum
 * must be proved. */
static bool spares_blocks(const struct dcp_fill *fill, size_t p)
{
    const struct dcp_fill_setup *setup = &fill->setup;
    const struct dcp_plan *plan = setup->plan;
    const struct dcp_tensor *tensor = &setup->dst->tensors[setup->dst->pieces[p].tensor];
    bool spares =
        is_whole(fill, p) && has_fingerprint(fill, p) &&
        dcp_piece_bytes(setup->dst, &setup->dst->pieces[p]) >= DCP_BLOCK_BYTES &&
        dcp_copy_is_plain(plan, setup->src, setup->dst, p);

    for (size_t c = plan->first[p]; c < plan->first[p + 1] && spares; c++) {
        const struct dcp_copy *copy = &plan->copies[c];
        spares = setup->src->pieces[copy->src].n_blocks > 0 &&
                 (dcp_copy_runs(copy) == 1 ||
                  (uint64_t)copy->n * dcp_dtype_size(tensor->dtype) >= MIN_RUN_BYTES);
    }
    return spares;
}

static int by_source(const void *a, const void *b)
{
    const struct chunk *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->piece != y->piece)
        return x->piece < y->piece ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static int add_chunks(struct dcp_fill *fill, size_t p, size_t *cap, struct dcp_error *err)
{
    const struct dcp_fill_setup *setup = &fill->setup;
    const struct dcp_piece *piece = &setup->dst->pieces[p];
    int64_t elems = dcp_piece_elems(setup->dst, piece);
    enum dcp_dtype dtype = setup->dst->tensors[piece->tensor].dtype;
    int64_t step = (int64_t)(CHUNK_BYTES / dcp_dtype_size(dtype));
    struct chunk chunk = { .piece = p, .file = -1 };

    if (dcp_runs_has(setup->runs, piece->tensor))
        chunk.way = BY_RUNS;
    else if (setup->verify && spares_blocks(fill, p))
        chunk.way = BY_FINGERPRINT;
    if (setup->plan->first[p] < setup->plan->first[p + 1]) {
        size_t first = setup->plan->copies[setup->plan->first[p]].src;
        chunk.file = setup->src->pieces[first].file;
        chunk.offset = setup->src->pieces[first].offset;
    }
    for (; chunk.begin < elems; chunk.begin = chunk.end) {
        struct chunk *chunks =
            dcp_mem_grow(fill->chunks, cap, fill->n_chunks + 1, sizeof *chunks);
        if (!chunks)
            return dcp_error_memory(err, "a load");
        fill->chunks = chunks;
        chunk.end = elems - chunk.begin < step ? elems : chunk.begin + step;
        chunks[fill->n_chunks++] = chunk;
    }
    return DCP_OK;
}

static int make_chunks(struct dcp_fill *fill, struct dcp_error *err)
{
    size_t cap = 0;
    bool in_order = true;

    for (size_t p = 0; p < fill->setup.dst->n_pieces; p++)
        DCP_TRY(add_chunks(fill, p, &cap, err));
    for (size_t c = 1; c < fill->n_chunks && in_order; c++)
        in_order = by_source(&fill->chunks[c - 1], &fill->chunks[c]) <= 0;
    if (!in_order)
        qsort(fill->chunks, fill->n_chunks, sizeof *fill->chunks, by_source);
    return DCP_OK;
}

static int make_copier(struct dcp_fill *fill, int i, struct dcp_error *err)
{
    const struct dcp_fill_setup *setup = &fill->setup;
    struct dcp_copier *copier = &fill->copiers[i];

    *copier =
        (struct dcp_copier){ .plan = setup->plan, .src = setup->src, .dst = setup->dst };
    copier->scratch = malloc(DCP_COPY_SCRATCH); /* pages are touched only by casts */
    if (!copier->scratch)
        return dcp_error_memory(err, "a load");
    if (fill->bounce)
        DCP_TRY(setup->device->ops->alloc_staging(
            setup->device->self, (size_t)CHUNK_BYTES, (void **)&fill->bounce[i], err));
    DCP_TRY(dcp_blocks_new(setup->source, setup->src, WORKER_CACHE, setup->verify,
                           &copier->blocks, err));
    fill->blocks[i] = copier->blocks;
    if (i > 0)
        dcp_blocks_share(copier->blocks, fill->blocks[0]);
    dcp_blocks_check_records(copier->blocks, fill->proof);
    return DCP_OK;
}

static int make_copiers(struct dcp_fill *fill, struct dcp_error *err)
{
    size_t n = (size_t)fill->setup.threads;

    fill->copiers = dcp_mem_calloc(n, sizeof *fill->copiers);
    fill->blocks = dcp_mem_calloc(n, sizeof *fill->blocks);
    if (!fill->setup.device->host_readable)
        fill->bounce = dcp_mem_calloc(n, sizeof *fill->bounce);
    if (!fill->copiers || !fill->blocks ||
        (!fill->setup.device->host_readable && !fill->bounce))
        return dcp_error_memory(err, "a load");
    if (fill->setup.verify)
        DCP_TRY(dcp_proof_new(fill->setup.src, &fill->proof, err));
    for (int i = 0; i < fill->setup.threads; i++)
        DCP_TRY(make_copier(fill, i, err));
    return DCP_OK;
}

int dcp_fill_new(const struct dcp_fill_setup *setup, struct dcp_fill **out,
                 struct dcp_error *err)
{
    struct dcp_fill *fill = calloc(1, sizeof *fill);

    *out = NULL;
    if (!fill)
        return dcp_error_memory(err, "a load");
    fill->setup = *setup;
    int rc = make_copiers(fill, err);
    if (!rc)
        rc = make_chunks(fill, err);
    if (rc)
        dcp_fill_free(fill);
    else
        *out = fill;
    return rc;
}

void dcp_fill_free(struct dcp_fill *fill)
{
    if (!fill)
        return;
    const struct dcp_device *device = fill->setup.device;
    for (int i = 0; fill->copiers && i < fill->setup.threads; i++) {
        dcp_blocks_free(fill->copiers[i].blocks);
        free(fill->copiers[i].scratch);
        dcp_scale_fini(&fill->copiers[i].scale);
        if (fill->bounce && fill->bounce[i])
            device->ops->free_staging(device->self, fill->bounce[i], (size_t)CHUNK_BYTES);
    }
    free(fill->copiers);
    free(fill->blocks);
    dcp_proof_free(fill->proof);
    free(fill->bounce);
    free(fill->chunks);
    free(fill);
}

/* -- reading ------------------------------------------------------------------------- */

/* n bytes of a chunk to host, digested out of the cache. */
static int read_chunk(struct dcp_copier *copier, struct chunk *chunk, bool whole,
                      unsigned char *host, size_t n, size_t elem, struct dcp_error *err)
{
    size_t step = whole || chunk->way == BY_RUNS ? DCP_BLOCK_BYTES : n;

    if (chunk->way == BY_FINGERPRINT)
        step = DCP_HASH_SLICE;
    chunk->crc = 0;
    for (size_t at = 0, m; at < n; at += m) {
        int64_t begin = chunk->begin + (int64_t)(at / elem);
        m = n - at < step ? n - at : step;
        DCP_TRY(dcp_copy_piece(copier, chunk->piece, begin, begin + (int64_t)(m / elem),
                               host + at, err));
        if (whole)
            chunk->crc = dcp_hash_crc64(chunk->crc, host + at, m);
    }
    return DCP_OK;
}

static int fill_chunk(void *arg, int worker, size_t i, struct dcp_error *err)
{
    struct dcp_fill *fill = arg;
    const struct dcp_device *device = fill->setup.device;
    struct dcp_copier *copier = &fill->copiers[worker];
    struct chunk *chunk = &fill->chunks[i];
    const struct dcp_piece *piece = &fill->setup.dst->pieces[chunk->piece];
    size_t elem = dcp_dtype_size(fill->setup.dst->tensors[piece->tensor].dtype);
    size_t n = (size_t)(chunk->end - chunk->begin) * elem;
    unsigned char *to = (unsigned char *)piece->data + (size_t)chunk->begin * elem;
    bool bounces = fill->bounce && !dcp_device_reads(device, to);
    unsigned char *host = bounces ? fill->bounce[worker] : to;
    uint64_t part = 0;

    if (chunk->done)
        return DCP_OK;
    copier->raw = chunk->way != BY_BLOCKS;
    copier->part = chunk->way == BY_RUNS ? &part : NULL;
    int rc = read_chunk(copier, chunk, is_whole(fill, chunk->piece), host, n, elem, err);
    if (!rc && bounces)
        rc = device->ops->to_device(device->self, to, host, n, err);
    if (chunk->way == BY_RUNS)
        dcp_runs_note(fill->setup.runs, chunk->piece, part, rc);
    chunk->done = true;
    chunk->failed = rc != DCP_OK;
    return chunk->way == BY_BLOCKS ? rc : DCP_OK; /* blocks tell what is wrong */
}

static int read_all(struct dcp_fill *fill, struct dcp_error *err)
{
    struct dcp_pool *pool = NULL;
    int rc = DCP_OK;

    if (fill->setup.threads > 1)
        rc = dcp_pool_new(fill->setup.threads - 1, &pool, err); /* the caller works too */
    if (!rc)
        rc = dcp_pool_for(pool, fill->n_chunks, fill_chunk, fill, err);
    dcp_pool_free(pool);
    return rc;
}

/* The n chunks of a whole tensor are held against its fingerprint. */
static int check_whole(const struct dcp_fill *fill, struct chunk *chunks, size_t n,
                       bool *out_again, struct dcp_error *err)
{
    const struct dcp_fill_setup *setup = &fill->setup;
    const struct dcp_tensor *to =
        &setup->dst->tensors[setup->dst->pieces[chunks->piece].tensor];
    uint64_t crc = 0, elem = dcp_dtype_size(to->dtype);
    bool failed = false;

    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = (uint64_t)(chunks[i].end - chunks[i].begin) * elem;
        crc = dcp_hash_crc64_combine(crc, chunks[i].crc, bytes);
        failed |= chunks[i].failed;
    }
    uint64_t saved =
        setup->src->tensors[setup->from[to - setup->dst->tensors]].fingerprint;
    if (!failed && crc == saved)
        return DCP_OK;
    if (chunks->way == BY_BLOCKS)
        return dcp_error_of_tensor(err, DCP_E_CORRUPT, to->name,
                                   "tensor '%s' was read with fingerprint %016" PRIx64
                                   ", it was saved with %016" PRIx64,
                                   DCP_SHOWN(to->name), crc, saved);
    for (size_t i = 0; i < n; i++) {
        chunks[i].way = BY_BLOCKS;
        chunks[i].done = false;
    }
    *out_again = true;
    return DCP_OK;
}

/* *out_again: something is not done after all. What was read by runs others prove. */
static int check(struct dcp_fill *fill, bool *out_again, struct dcp_error *err)
{
    *out_again = false;
    for (size_t c = 0, n; c < fill->n_chunks; c += n) {
        struct chunk *chunks = &fill->chunks[c];
        for (n = 1; c + n < fill->n_chunks && chunks[n].piece == chunks->piece; n++)
            ;
        if (chunks->way != BY_RUNS && is_whole(fill, chunks->piece) &&
            has_fingerprint(fill, chunks->piece))
            DCP_TRY(check_whole(fill, chunks, n, out_again, err));
    }
    return DCP_OK;
}

int dcp_fill_run(struct dcp_fill *fill, struct dcp_error *err)
{
    bool again = false;

    do {
        DCP_TRY(read_all(fill, err));
        if (fill->setup.verify)
            DCP_TRY(check(fill, &again, err));
    } while (again);
    return DCP_OK;
}

void dcp_fill_again(struct dcp_fill *fill)
{
    for (size_t c = 0; c < fill->n_chunks; c++) {
        struct chunk *chunk = &fill->chunks[c];
        if (chunk->way != BY_RUNS ||
            !dcp_runs_has(fill->setup.runs, fill->setup.dst->pieces[chunk->piece].tensor))
            continue;
        chunk->way = BY_BLOCKS;
        chunk->done = false;
    }
}

const struct dcp_proof *dcp_fill_proof(const struct dcp_fill *fill)
{
    return fill->proof;
}

struct dcp_blocks *const *dcp_fill_blocks(const struct dcp_fill *fill, int *out_n)
{
    *out_n = fill->setup.threads;
    return fill->blocks;
}

uint64_t dcp_fill_bytes(const struct dcp_fill *fill)
{
    uint64_t bytes = 0;

    for (int i = 0; fill && i < fill->setup.threads; i++)
        bytes += dcp_blocks_bytes(fill->blocks[i]);
    return bytes;
}
