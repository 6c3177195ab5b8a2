/* load: each rank gets the part of the step's catalog that it needs, and fills its own
 * pieces; then all agree. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/str.h"
#include "core/catalog/index.h"
#include "core/catalog/order.h"
#include "core/catalog/region.h"
#include "core/collective/await.h"
#include "core/integrity/fingerprint.h"
#include "core/parity/reconstruction.h"
#include "core/plan/local.h"
#include "core/read/copy.h"
#include "core/read/metadata.h"
#include "core/read/prove.h"
#include "core/read/runs.h"
#include "core/run/pin.h"
#include "core/run/steps.h"
#include <inttypes.h>
#include <string.h>

#define CHUNK_BYTES ((uint64_t)8 << 20) /* a job of the pool */
#define WORKER_CACHE ((uint64_t)8 << 20)

struct chunk {
    size_t piece;
    int64_t begin, end; /* elements of the piece */
    int file;           /* where the piece's first element is stored, */
    uint64_t offset;    /* so that files are read from front to back */
    uint64_t crc;
};

struct load {
    const struct dcp_context *ctx;
    const struct dcp_device *device;
    struct dcp_catalog *src;
    const struct dcp_catalog *dst;
    int *from; /* the tensor of src behind each of dst; -1: none */
    struct dcp_plan *plan;
    struct dcp_runs *runs;      /* tensors that are read without blocks; NULL: none */
    bool again;                 /* what they do not prove is read by blocks */
    struct dcp_proof *proof;    /* of src */
    struct dcp_copier *copiers; /* one a worker */
    struct dcp_blocks **blocks; /* theirs */
    unsigned char **bounce; /* for devices the host cannot write: CHUNK_BYTES a copier */
    int n_copiers;
    struct chunk *chunks;
    size_t n_chunks;
};

static int fill_chunk(void *arg, int worker, size_t i, struct dcp_error *err)
{
    struct load *load = arg;
    struct chunk *chunk = &load->chunks[i];
    const struct dcp_piece *piece = &load->dst->pieces[chunk->piece];
    size_t elem = dcp_dtype_size(load->dst->tensors[piece->tensor].dtype);
    size_t n = (size_t)(chunk->end - chunk->begin) * elem;
    unsigned char *to = (unsigned char *)piece->data + (size_t)chunk->begin * elem;
    bool bounces = load->bounce && !dcp_device_reads(load->device, to);
    unsigned char *host = bounces ? load->bounce[worker] : to;

    struct dcp_copier *copier = &load->copiers[worker];
    bool by_runs = dcp_runs_has(load->runs, piece->tensor);
    bool digests = piece->region.kind == DCP_WHOLE;
    size_t step = digests || by_runs ? DCP_BLOCK_BYTES : n; /* in the cache yet */
    int rc = DCP_OK;

    if (load->again && !by_runs)
        return DCP_OK;
    copier->by_runs = by_runs && !load->again;
    copier->part = 0;
    chunk->crc = 0;

    for (size_t at = 0, m; at < n && !rc; at += m) {
        int64_t begin = chunk->begin + (int64_t)(at / elem);
        m = n - at < step ? n - at : step;
        rc = dcp_copy_piece(copier, chunk->piece, begin, begin + (int64_t)(m / elem),
                            host + at, err);
        if (!rc && digests)
            chunk->crc = dcp_hash_crc64(chunk->crc, host + at, m);
    }
    if (!rc && bounces)
        rc = load->device->ops->to_device(load->device->self, to, host, n, err);
    if (!copier->by_runs)
        return rc;
    dcp_runs_note(load->runs, chunk->piece, copier->part, rc);
    return DCP_OK; /* blocks tell what is wrong */
}

static int make_copiers(struct load *load, const struct dcp_source *source, int n,
                        bool verify, struct dcp_error *err)
{
    load->n_copiers = n;
    load->copiers = dcp_mem_calloc((size_t)n, sizeof *load->copiers);
    load->blocks = dcp_mem_calloc((size_t)n, sizeof *load->blocks);
    if (!load->device->host_readable)
        load->bounce = dcp_mem_calloc((size_t)n, sizeof *load->bounce);
    if (!load->copiers || !load->blocks ||
        (!load->device->host_readable && !load->bounce))
        return dcp_error_memory(err, "a load");

    if (verify)
        DCP_TRY(dcp_proof_new(load->src, &load->proof, err));
    for (int i = 0; i < n; i++) {
        struct dcp_copier *copier = &load->copiers[i];
        *copier =
            (struct dcp_copier){ .plan = load->plan, .src = load->src, .dst = load->dst };

        copier->scratch = malloc(DCP_COPY_SCRATCH); /* pages are touched only by casts */
        if (!copier->scratch)
            return dcp_error_memory(err, "a load");
        if (load->bounce)
            DCP_TRY(load->device->ops->alloc_staging(
                load->device->self, (size_t)CHUNK_BYTES, (void **)&load->bounce[i], err));
        DCP_TRY(dcp_blocks_new(source, load->src, WORKER_CACHE, verify, &copier->blocks,
                               err));
        load->blocks[i] = copier->blocks;
        if (i > 0)
            dcp_blocks_share(copier->blocks, load->blocks[0]);
        dcp_blocks_check_records(copier->blocks, load->proof);
    }
    return DCP_OK;
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

static int make_chunks(struct load *load, struct dcp_error *err)
{
    size_t cap = 0;

    for (size_t p = 0; p < load->dst->n_pieces; p++) {
        int64_t elems = dcp_piece_elems(load->dst, &load->dst->pieces[p]);
        enum dcp_dtype dtype = load->dst->tensors[load->dst->pieces[p].tensor].dtype;
        int64_t step = (int64_t)(CHUNK_BYTES / dcp_dtype_size(dtype));
        struct dcp_piece from = { .file = -1 };
        if (load->plan->first[p] < load->plan->first[p + 1])
            from = load->src->pieces[load->plan->copies[load->plan->first[p]].src];
        for (int64_t at = 0; at < elems; at += step) {
            struct chunk *chunks =
                dcp_mem_grow(load->chunks, &cap, load->n_chunks + 1, sizeof *chunks);
            if (!chunks)
                return dcp_error_memory(err, "a load");
            load->chunks = chunks;
            chunks[load->n_chunks++] =
                (struct chunk){ .piece = p,
                                .begin = at,
                                .end = elems - at < step ? elems : at + step,
                                .file = from.file,
                                .offset = from.offset };
        }
    }
    bool in_order = true;
    for (size_t c = 1; c < load->n_chunks && in_order; c++)
        in_order = by_source(&load->chunks[c - 1], &load->chunks[c]) <= 0;
    if (!in_order)
        qsort(load->chunks, load->n_chunks, sizeof *load->chunks, by_source);
    return DCP_OK;
}

static void load_fini(struct load *load)
{
    for (int i = 0; load->copiers && i < load->n_copiers; i++) {
        dcp_blocks_free(load->copiers[i].blocks);
        free(load->copiers[i].scratch);
        dcp_scale_fini(&load->copiers[i].scale);
        if (load->bounce && load->bounce[i])
            load->device->ops->free_staging(load->device->self, load->bounce[i],
                                            (size_t)CHUNK_BYTES);
    }
    free(load->copiers);
    free(load->blocks);
    dcp_proof_free(load->proof);
    free(load->bounce);
    free(load->chunks);
    free(load->from);
    dcp_runs_free(load->runs);
    dcp_plan_free(load->plan);
}

/* Tensors that this rank read whole are held against their fingerprints. */
static int check_fingerprints(const struct load *load, struct dcp_error *err)
{
    for (size_t c = 0, n; c < load->n_chunks; c += n) {
        size_t p = load->chunks[c].piece;
        const struct dcp_piece *piece = &load->dst->pieces[p];
        for (n = 1; c + n < load->n_chunks && load->chunks[c + n].piece == p; n++)
            ;
        if (piece->region.kind != DCP_WHOLE)
            continue;
        const struct dcp_tensor *to = &load->dst->tensors[piece->tensor];
        const struct dcp_tensor *from = &load->src->tensors[load->from[piece->tensor]];
        uint64_t elem = dcp_dtype_size(to->dtype), crc = 0;
        for (const struct chunk *chunk = &load->chunks[c]; chunk < &load->chunks[c + n];
             chunk++)
            crc = dcp_hash_crc64_combine(crc, chunk->crc,
                                         (uint64_t)(chunk->end - chunk->begin) * elem);
        bool proved_later = !load->again && dcp_runs_has(load->runs, piece->tensor);
        if (!from->has_fingerprint || from->dtype != to->dtype ||
            crc == from->fingerprint || proved_later)
            continue;
        return dcp_error_of_tensor(err, DCP_E_CORRUPT, to->name,
                                   "tensor '%s' was read with fingerprint %016" PRIx64
                                   ", it was saved with %016" PRIx64,
                                   DCP_SHOWN(to->name), crc, from->fingerprint);
    }
    return DCP_OK;
}

static int check_dtypes(const struct load *load, bool allow_cast, struct dcp_error *err)
{
    for (size_t t = 0; t < load->dst->n_tensors; t++) {
        const struct dcp_tensor *to = &load->dst->tensors[t];
        if (load->from[t] < 0)
            continue; /* the planner says so */
        const struct dcp_tensor *from = &load->src->tensors[load->from[t]];
        bool floats = dcp_dtype_is_float(from->dtype) && dcp_dtype_is_float(to->dtype);
        if (from->dtype == to->dtype || (allow_cast && floats))
            continue;
        return dcp_error_of_tensor(err, DCP_E_MISMATCH, to->name,
                                   "tensor '%s' is %s in the checkpoint and %s here",
                                   DCP_SHOWN(to->name), dcp_dtype_name(from->dtype),
                                   dcp_dtype_name(to->dtype));
    }
    return DCP_OK;
}

/* This rank's part: nothing in here is collective. */
static int fill(struct load *load, const struct dcp_source *source,
                const struct dcp_load_options *options, struct dcp_error *err)
{
    int n_threads = load->ctx->threads > 0 ? load->ctx->threads : 2;
    struct dcp_pool *pool = NULL;
    int rc = DCP_OK;

    if (!load->copiers)
        rc = make_copiers(load, source, n_threads, !options->no_verify, err);
    if (!rc && !load->chunks)
        rc = make_chunks(load, err);
    if (!rc && n_threads > 1)
        rc = dcp_pool_new(n_threads - 1, &pool, err); /* the caller works too */
    if (!rc)
        rc = dcp_pool_for(pool, load->n_chunks, fill_chunk, load, err);
    dcp_pool_free(pool);
    if (!rc && !options->no_verify)
        rc = check_fingerprints(load, err);
    return rc;
}

/* What each rank does for itself. */
struct filling {
    struct load *load;
    const struct dcp_source *source;
    const struct dcp_load_options *options;
};

static int fill_here(void *arg, struct dcp_error *err)
{
    struct filling *f = arg;
    return fill(f->load, f->source, f->options, err);
}

/* Collective. Each rank plans its part and reads it. What a store reconstructs it reads
 * whole in any case. */
static int fill_all(struct load *load, struct dcp_comm *comm,
                    const struct dcp_source *source,
                    const struct dcp_load_options *options, struct dcp_error *err)
{
    struct filling filling = { load, source, options };
    int rc = DCP_OK;

    load->from = dcp_catalog_same(load->src, load->dst);
    if (!load->from)
        rc = dcp_error_memory(err, "a load");
    if (!rc)
        rc = check_dtypes(load, options->allow_cast, err);
    if (!rc)
        rc = dcp_plan_new(load->src, load->dst, load->from, &load->plan, err);
    if (options->no_verify || source->store != load->ctx->store)
        rc = dcp_agree(comm, rc, err);
    else
        rc = dcp_runs_choose(comm, load->plan, load->src, load->dst, load->from, rc,
                             &load->runs, err);
    if (!rc)
        rc = dcp_await(comm, fill_here, &filling, err);
    if (!rc && load->runs)
        rc = dcp_runs_prove(comm, load->runs, &load->again, err);
    if (!rc && load->again)
        rc = dcp_await(comm, fill_here, &filling, err);
    return rc;
}

/* Tensors that nothing but their place in the file vouches for. */
static size_t count_unproved(const struct load *load)
{
    size_t n = 0;

    for (size_t t = 0; load->proof && t < load->dst->n_tensors; t++) {
        int from = load->from[t];
        n += from >= 0 && !dcp_proof_covers(load->proof, &load->src->tensors[from]);
    }
    return n;
}

/* What is asked for, by all ranks. */
struct request {
    const struct dcp_context *ctx;
    struct dcp_comm *comm;
    const struct dcp_load_options *options;
    const struct dcp_catalog *into; /* what this rank has, sorted */
};

/* One step, from the store as it is or through `store` that reconstructs it. *head: what
 * rank 0 read of it, which is taken. */
static int load_from(const struct request *request, const struct dcp_store *store,
                     const char *name, struct dcp_catalog **head,
                     struct dcp_load_result *out, struct dcp_error *err)
{
    const struct dcp_context *ctx = request->ctx;
    const struct dcp_load_options *options = request->options;
    struct dcp_comm *comm = request->comm;
    struct load load = { .ctx = ctx, .dst = request->into };
    struct dcp_source source = { store, name, true };
    struct dcp_device host;
    bool is_dir;
    uint64_t size;

    dcp_device_host(&host);
    load.device = ctx->device ? ctx->device : &host;
    if (name[0] && !store->ops->stat(store->self, name, &is_dir, &size, NULL))
        source.is_dir = is_dir;
    int rc =
        dcp_metadata_read(comm, &source, options->format, load.dst, head, &load.src, err);
    if (rc)
        return rc;
    rc = fill_all(&load, comm, &source, options, err);
    if (!rc && !options->no_verify && load.src->n_records)
        rc = dcp_prove(comm, load.proof, load.src->n_records, load.blocks, load.n_copiers,
                       err);
    out->n_tensors = load.dst->n_tensors;
    out->n_unproved = rc ? 0 : count_unproved(&load);
    out->size_bytes = 0;
    for (int i = 0; load.copiers && i < load.n_copiers; i++)
        if (load.copiers[i].blocks)
            out->size_bytes += dcp_blocks_bytes(load.copiers[i].blocks);
    load_fini(&load);

    if (rc) {
        dcp_catalog_free(load.src);
        return rc;
    }
    out->step = load.src->step;
    out->world_size = load.src->world_size;
    out->catalog = load.src;
    return DCP_OK;
}

/* A corrupt step is read once more, slower, with what parity gives for what is not as it
 * was written. Every rank opens its own way to it. */
static int load_reconstructed(const struct request *request, const char *name,
                              struct dcp_load_result *out, const char *why,
                              struct dcp_error *err)
{
    const struct dcp_context *ctx = request->ctx;
    struct dcp_reconstruction *rebuilt = NULL;
    struct dcp_error failure = { 0 };
    int rc = dcp_reconstruction_open(ctx->store, name, &rebuilt, &failure);

    rc = dcp_agree(request->comm, rc, &failure);
    if (!rc)
        rc = load_from(request, dcp_reconstruction_store(rebuilt), name, NULL, out,
                       &failure);
    if (!rc && request->comm->rank == 0)
        dcp_log_write(ctx->log, DCP_LOG_WARN,
                      "%s is corrupt and was reconstructed from its parity while it was "
                      "read (%s); 'dcp-reshard repair %s/%s' repairs it",
                      name, why, ctx->store->root, name);
    dcp_reconstruction_free(rebuilt);
    if (rc && err)
        *err = failure;
    return rc;
}

/* Whether a step that could not be read went meanwhile; all ranks learn it. */
static bool is_gone(const struct request *request, const char *name)
{
    struct dcp_comm *comm = request->comm;
    bool gone = comm->rank == 0 && dcp_is_gone(request->ctx->store, name);

    return !dcp_comm_bcast(comm, &gone, sizeof gone, 0, NULL) && gone;
}

static int load_pinned(const struct request *request, const char *name,
                       struct dcp_catalog **head, struct dcp_load_result *out,
                       struct dcp_error *err)
{
    const char *format = request->options->format;
    struct dcp_error failure = { 0 };
    bool step = !format || !strcmp(format, "auto") ||
                dcp_format_find(format) == dcp_format_of_steps();
    int rc =
        load_from(request, request->ctx->store, name, step ? head : NULL, out, &failure);

    if (dcp_is_broken(rc) && step) {
        struct dcp_error why = { 0 };
        int reconstructed = load_reconstructed(request, name, out, failure.message, &why);
        if (reconstructed &&
            !dcp_is_broken(reconstructed)) /* it says nothing of the step */
            failure = why;
        rc = reconstructed && dcp_is_broken(reconstructed) ? rc : reconstructed;
    }
    if (rc && err)
        *err = failure;
    return rc;
}

/* A step that rank 0 has pinned for all. *out_gone: it was removed before or meanwhile.
 */
static int load_step(const struct request *request, const char *name,
                     struct dcp_reading *reading, struct dcp_load_result *out,
                     bool *out_gone, struct dcp_error *err)
{
    const struct dcp_store *store = request->ctx->store;
    struct dcp_error why = { 0 };
    int rc = load_pinned(request, name, &reading->head, out, &why);

    dcp_reading_end(store, reading);
    *out_gone = dcp_is_broken(rc) && is_gone(request, name);
    if (*out_gone) {
        why = (struct dcp_error){ 0 };
        rc = dcp_error_set(&why, DCP_E_NOT_FOUND, "'%s/%s' was removed while it was read",
                           store->root, name);
    }
    if (rc && err)
        *err = why;
    return rc;
}

/* The step that the caller names. */
static int load_named(const struct request *request, struct dcp_load_result *out,
                      struct dcp_error *err)
{
    const struct dcp_context *ctx = request->ctx;
    const char *name = request->options->name;
    struct dcp_reading reading = { 0 };
    bool gone;

    if (request->comm->rank == 0)
        dcp_pin(ctx->store, name, &reading.pin, NULL);
    return load_step(request, name, &reading, out, &gone, err);
}

/* The newest one that can be read, or that of a number. */
static int load_newest(const struct request *request, struct dcp_load_result *out,
                       struct dcp_error *err)
{
    const struct dcp_context *ctx = request->ctx;
    int64_t below = INT64_MAX, wanted = request->options->step;
    struct dcp_reading reading = { 0 };
    struct dcp_error first = { 0 };
    int n_gone = 0, rc;

    for (;;) {
        struct dcp_error failure = { 0 };
        struct dcp_step step = { .step = -1 };
        bool gone = false;
        rc = dcp_find_to_read(ctx, wanted, below, &step, &reading, &failure);
        if (!rc)
            rc = load_step(request, step.name, &reading, out, &gone, &failure);
        if (rc && gone && wanted < 0 && n_gone++ < DCP_MOST_LOOKS)
            continue; /* there is a newer one now */
        if (rc && !first.code)
            first = failure;
        if (!dcp_is_broken(rc) || wanted >= 0 || step.step < 0)
            break;
        /* Corrupt, or it cannot be read: the one before it, and that is told. */
        dcp_log_write(ctx->log, DCP_LOG_WARN, "%s was skipped: %s", step.name,
                      failure.message);
        below = step.step;
    }
    if (rc && err)
        *err = first;
    return rc ? first.code : rc;
}

int dcp_load(const struct dcp_context *ctx, const struct dcp_load_options *options,
             const struct dcp_state *into, struct dcp_load_result *out_result,
             struct dcp_error *err)
{
    struct dcp_load_result result = { 0 };
    struct dcp_comm self, *comm = ctx->comm;
    struct dcp_catalog *mine = NULL;
    double started = dcp_clock_s();

    if (!comm) {
        dcp_comm_self(&self);
        comm = &self;
    }
    int rc = dcp_local_catalog(into, comm->rank, options->only_model, &mine, err);
    if (!rc)
        rc = dcp_catalog_sort(mine, err);
    rc = dcp_agree(comm, rc, err);
    const struct request request = { ctx, comm, options, mine };
    if (!rc)
        rc = options->name ? load_named(&request, &result, err)
                           : load_newest(&request, &result, err);
    dcp_catalog_free(mine);
    if (rc)
        return rc;
    result.read_s = dcp_clock_s() - started;
    if (out_result)
        *out_result = result;
    else
        dcp_catalog_free(result.catalog);
    return DCP_OK;
}
