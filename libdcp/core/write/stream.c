#include "stream.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/region.h"
#include "core/integrity/fingerprint.h"
#include "core/parity/code.h"
#include "core/read/copy.h"
#include "write.h"
#include <inttypes.h>
#include <stdatomic.h>

/* Memory of a worker beside its cache: the writer's block, the coder's two, zstd's own.
 */
#define WORKER_BYTES (8u << 20)

struct stream {
    const struct dcp_stream_setup *setup;
    struct dcp_catalog *catalog; /* of the target */
    struct dcp_copier *copiers;  /* one a worker */
    struct dcp_blocks **blocks;  /* theirs */
    struct dcp_proof *proof;     /* of the source; NULL: it is not verified */
    int n_workers;
    _Atomic uint64_t *src_parts; /* NULL when the source keeps fingerprints */
};

static int read_callback(void *self, int worker, size_t piece, uint64_t begin, size_t n,
                         unsigned char *scratch, const unsigned char **out,
                         struct dcp_error *err)
{
    struct stream *s = self;
    const struct dcp_catalog *target = s->catalog;
    size_t elem = dcp_dtype_size(target->tensors[target->pieces[piece].tensor].dtype);

    *out = scratch;
    return dcp_copy_piece(&s->copiers[worker], piece, (int64_t)(begin / elem),
                          (int64_t)((begin + n) / elem), scratch, err);
}

static bool needs_casts(const struct dcp_stream_setup *setup)
{
    const struct dcp_catalog *target = setup->target->catalog;

    for (size_t t = 0; t < target->n_tensors; t++)
        if (target->tensors[t].dtype != setup->src->tensors[setup->src_tensor[t]].dtype)
            return true;
    return false;
}

static void stream_fini(struct stream *s)
{
    for (int i = 0; s->copiers && i < s->n_workers; i++) {
        dcp_blocks_free(s->copiers[i].blocks);
        free(s->copiers[i].scratch);
        dcp_scale_fini(&s->copiers[i].scale);
    }
    free(s->copiers);
    free(s->blocks);
    free(s->src_parts);
    dcp_proof_free(s->proof);
}

static int stream_init(struct stream *s, const struct dcp_stream_setup *setup,
                       struct dcp_error *err)
{
    uint64_t worker_bytes = setup->memory_bytes / (uint64_t)setup->threads;
    uint64_t cache =
        worker_bytes > 2 * WORKER_BYTES ? worker_bytes - WORKER_BYTES : WORKER_BYTES;
    bool casts = needs_casts(setup), keeps = true;

    *s = (struct stream){ .setup = setup,
                          .catalog = setup->target->catalog,
                          .n_workers = setup->threads };
    s->copiers = dcp_mem_calloc((size_t)s->n_workers, sizeof *s->copiers);
    s->blocks = dcp_mem_calloc((size_t)s->n_workers, sizeof *s->blocks);
    for (size_t t = 0; t < s->catalog->n_tensors; t++)
        keeps = keeps && setup->src->tensors[setup->src_tensor[t]].has_fingerprint;
    if (!keeps && setup->verify)
        s->src_parts = dcp_mem_calloc(s->catalog->n_tensors, sizeof *s->src_parts);
    if (!s->copiers || !s->blocks || (!keeps && setup->verify && !s->src_parts))
        return dcp_error_memory(err, "a stream");
    if (setup->verify)
        DCP_TRY(dcp_proof_new(setup->src, &s->proof, err));
    for (int i = 0; i < s->n_workers; i++) {
        struct dcp_copier *copier = &s->copiers[i];
        *copier = (struct dcp_copier){ .plan = setup->plan,
                                       .src = setup->src,
                                       .dst = s->catalog,
                                       .overflows = setup->overflows,
                                       .src_parts = s->src_parts };
        if (casts && !(copier->scratch = malloc(DCP_COPY_SCRATCH)))
            return dcp_error_memory(err, "a stream");
        DCP_TRY(dcp_blocks_new(setup->source, setup->src, cache, setup->verify,
                               &copier->blocks, err));
        s->blocks[i] = copier->blocks;
        dcp_blocks_check_records(copier->blocks, s->proof);
        if (setup->reconstructed)
            dcp_blocks_reconstruct(copier->blocks);
    }
    return DCP_OK;
}

/* Replicas, which no fingerprint counts, are what they repeat. */
static int prove_replicas(const struct dcp_catalog *target, struct dcp_error *err)
{
    for (size_t p = 1; p < target->n_pieces; p++) {
        const struct dcp_piece *piece = &target->pieces[p];
        const struct dcp_tensor *tensor = &target->tensors[piece->tensor];
        if (!dcp_replica_differs(target, p))
            continue;
        return dcp_error_of_tensor(
            err, DCP_E_CORRUPT, tensor->name,
            "tensor '%s' was written differently for ranks %d and %d; "
            "nothing was published",
            DCP_SHOWN(tensor->name), piece[-1].rank, piece->rank);
    }
    return DCP_OK;
}

/* What was written is what the source holds, tensor by tensor. Casts have no equal number
 * to be held against; their source was verified block by block. */
static int prove(const struct stream *s, const struct dcp_write *write,
                 struct dcp_error *err)
{
    struct dcp_catalog *target = s->catalog;

    for (size_t t = 0; t < target->n_tensors; t++) {
        struct dcp_tensor *tensor = &target->tensors[t];
        const struct dcp_tensor *from = &s->setup->src->tensors[s->setup->src_tensor[t]];
        if (tensor->tied_to)
            continue; /* its bytes are proved where they are */
        tensor->fingerprint = dcp_fingerprint_whole(tensor, dcp_write_parts(write, t));
        tensor->has_fingerprint = true;
        if (!s->setup->verify || tensor->dtype != from->dtype)
            continue;
        uint64_t want = from->has_fingerprint
                            ? from->fingerprint
                            : dcp_fingerprint_whole(from, s->src_parts[t]);
        if (want == tensor->fingerprint)
            continue;
        return dcp_error_of_tensor(
            err, DCP_E_CORRUPT, tensor->name,
            "tensor '%s': what was written has fingerprint %016" PRIx64
            ", the source %016" PRIx64 "; nothing was published",
            DCP_SHOWN(tensor->name), tensor->fingerprint, want);
    }
    return DCP_OK;
}

/* The ranks, and as many more as a layout with very many files has given files to, so
 * that not all are open at once. */
static int n_writers(const struct dcp_catalog *target)
{
    int n = target->world_size;

    for (size_t f = 0; f < target->n_files; f++)
        n = target->files[f].rank >= n ? target->files[f].rank + 1 : n;
    return n;
}

/* Parity of what all ranks wrote, and, once the manifest is written, copies of that. */
static int write_global(const struct dcp_stream_setup *setup, struct dcp_write *write,
                        struct dcp_pool *pool, struct dcp_error *err)
{
    struct dcp_parity *parity = NULL;
    DCP_CLEANUP_FREE uint64_t *sums = NULL;
    struct dcp_parity_code code = { .store = setup->store,
                                    .prefix = setup->prefix,
                                    .n_shares = 1,
                                    .pool = pool,
                                    .memory_bytes = setup->memory_bytes / 2 };
    int rc = DCP_OK;

    if (!setup->parity)
        return dcp_write_global(write, err);
    rc = dcp_parity_describe(setup->target->catalog, setup->parity, &parity, err);
    code.parity = parity;
    if (!rc)
        rc = dcp_parity_create(&code, err);
    if (!rc)
        rc = dcp_parity_run(&code, &sums, err);
    if (!rc)
        rc = dcp_parity_prove(parity, sums, 1, err);
    if (!rc)
        rc = dcp_parity_tell(parity, setup->target->catalog, err);
    if (!rc)
        rc = dcp_write_global(write, err);
    if (!rc)
        rc = dcp_parity_end(&code, setup->target->catalog, err);
    dcp_parity_free(parity);
    return rc;
}

int dcp_stream_run(const struct dcp_stream_setup *setup, struct dcp_error *err)
{
    const struct dcp_catalog *target = setup->target->catalog;
    struct stream s;
    struct dcp_pool *pool = NULL;
    struct dcp_write *write = NULL;
    uint64_t total = 0;
    int rc = stream_init(&s, setup, err);

    for (size_t t = 0; t < target->n_tensors; t++)
        if (!target->tensors[t].tied_to)
            total += dcp_tensor_bytes(&target->tensors[t]);
    if (!rc && setup->threads > 1)
        rc = dcp_pool_new(setup->threads - 1, &pool, err); /* the caller works too */
    if (!rc)
        rc = dcp_write_new(
            &(struct dcp_write_setup){ .store = setup->store,
                                       .prefix = setup->prefix,
                                       .target = setup->target,
                                       .read_callback = { &s, read_callback },
                                       .pool = pool,
                                       .read_back = setup->read_back,
                                       .progress = setup->progress,
                                       .total_bytes = total },
            &write, err);
    for (int r = 0; r < n_writers(target) && !rc; r++)
        rc = dcp_write_rank(write, r, err);
    if (!rc && s.proof)
        rc = dcp_blocks_prove(s.blocks, pool, err);
    if (!rc)
        rc = prove(&s, write, err);
    if (!rc && setup->verify)
        rc = prove_replicas(target, err);
    if (!rc)
        rc = write_global(setup, write, pool, err);
    for (int i = 0; s.copiers && i < s.n_workers && setup->reconstructed; i++)
        if (!setup->reconstructed->code && s.copiers[i].blocks)
            *setup->reconstructed = *dcp_blocks_reconstructed(s.copiers[i].blocks);
    dcp_write_free(write);
    dcp_pool_free(pool);
    stream_fini(&s);
    return rc;
}
