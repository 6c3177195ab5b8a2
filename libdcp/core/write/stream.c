#include "stream.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/region.h"
#include "core/integrity/fingerprint.h"
#include "core/parity/code.h"
#include "core/read/copy.h"
#include "write.h"
#include <inttypes.h>
#include <stdatomic.h>

/* Memory of a worker beside its cache: the writer's block and the three that wait to be
 * placed, the coder's two, zstd's own. */
#define WORKER_BYTES (8u << 20)
#define MOST_OPEN 256                                /* files of a target */
#define SPREAD_BYTES ((uint64_t)8 * DCP_BLOCK_BYTES) /* runs of the ranks at once */

struct stream {
    const struct dcp_stream_setup *setup;
    struct dcp_catalog *catalog; /* of the target */
    struct dcp_copier *copiers;  /* one a worker */
    struct dcp_blocks **blocks;  /* theirs */
    struct dcp_proof *proof;     /* of the source; NULL: it is not verified */
    int n_workers;
    struct dcp_pool *pool;
    struct dcp_write *write;
    uint64_t *parts;             /* of fingerprints of what was written, by tensor */
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

static bool rebuilds(void *self)
{
    const struct stream *s = self;

    return dcp_blocks_rebuild(s->blocks[0]);
}

static bool needs_casts(const struct dcp_stream_setup *setup)
{
    const struct dcp_catalog *target = setup->target->catalog;

    for (size_t t = 0; t < target->n_tensors; t++)
        if (target->tensors[t].dtype != setup->src->tensors[setup->src_tensor[t]].dtype)
            return true;
    return false;
}

/* The first thing that had to be read through parity is told. */
static void stream_fini(struct stream *s)
{
    struct dcp_error *told = s->setup->reconstructed;

    for (int i = 0; s->copiers && i < s->n_workers && told; i++)
        if (!told->code && s->copiers[i].blocks)
            *told = *dcp_blocks_reconstructed(s->copiers[i].blocks);
    dcp_write_free(s->write);
    dcp_pool_free(s->pool);
    for (int i = 0; s->copiers && i < s->n_workers; i++) {
        dcp_blocks_free(s->copiers[i].blocks);
        free(s->copiers[i].scratch);
        dcp_scale_fini(&s->copiers[i].scale);
    }
    free(s->copiers);
    free(s->blocks);
    free(s->parts);
    free(s->src_parts);
    dcp_proof_free(s->proof);
}

static int open_readers(struct stream *s, const struct dcp_stream_setup *setup,
                        struct dcp_error *err)
{
    uint64_t worker_bytes = setup->memory_bytes / (uint64_t)setup->threads;
    uint64_t cache =
        worker_bytes > 2 * WORKER_BYTES ? worker_bytes - WORKER_BYTES : WORKER_BYTES;
    bool casts = needs_casts(setup), keeps = true;

    s->copiers = dcp_mem_calloc((size_t)s->n_workers, sizeof *s->copiers);
    s->blocks = dcp_mem_calloc((size_t)s->n_workers, sizeof *s->blocks);
    for (size_t t = 0; t < s->catalog->n_tensors; t++)
        keeps = keeps && setup->src->tensors[setup->src_tensor[t]].has_fingerprint;
    if (!keeps && setup->verify)
        s->src_parts = dcp_mem_calloc(s->catalog->n_tensors, sizeof *s->src_parts);
    s->parts = dcp_mem_calloc(s->catalog->n_tensors, sizeof *s->parts);
    if (!s->copiers || !s->blocks || !s->parts ||
        (!keeps && setup->verify && !s->src_parts))
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
        if (i > 0)
            dcp_blocks_share(copier->blocks, s->blocks[0]);
        dcp_blocks_check_records(copier->blocks, s->proof);
        if (setup->reconstructed)
            dcp_blocks_reconstruct(copier->blocks);
    }
    return DCP_OK;
}

/* `again`: see dcp_write_setup. stream_fini also after a failure. */
static int stream_init(struct stream *s, const struct dcp_stream_setup *setup,
                       uint64_t total_bytes, bool again, struct dcp_error *err)
{
    *s = (struct stream){ .setup = setup,
                          .catalog = setup->target->catalog,
                          .n_workers = setup->threads };
    DCP_TRY(open_readers(s, setup, err));
    if (setup->threads > 1) /* the caller works too */
        DCP_TRY(dcp_pool_new(setup->threads - 1, &s->pool, err));
    return dcp_write_new(
        &(struct dcp_write_setup){
            .store = setup->store,
            .prefix = setup->prefix,
            .target = setup->target,
            .read_callback = { .self = s, .read = read_callback, .rebuilds = rebuilds },
            .pool = s->pool,
            .read_back = setup->read_back,
            .parity = setup->parity > 0,
            .progress = setup->progress,
            .total_bytes = total_bytes,
            .in_order = setup->in_order,
            .again = again,
            .sharing = { setup->clones, setup->source, setup->src } },
        &s->write, err);
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
static int prove_tensors(const struct stream *s, struct dcp_error *err)
{
    struct dcp_catalog *target = s->catalog;

    for (size_t t = 0; t < target->n_tensors; t++) {
        struct dcp_tensor *tensor = &target->tensors[t];
        const struct dcp_tensor *from = &s->setup->src->tensors[s->setup->src_tensor[t]];
        if (tensor->tied_to)
            continue; /* its bytes are proved where they are */
        tensor->fingerprint = dcp_fingerprint_whole(tensor, s->parts[t]);
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

/* Of all files, and of the source as far as it was read. */
static int prove(const struct stream *s, struct dcp_error *err)
{
    if (s->proof)
        DCP_TRY(dcp_blocks_prove(s->blocks, s->pool, err));
    DCP_TRY(prove_tensors(s, err));
    return s->setup->verify ? prove_replicas(s->catalog, err) : DCP_OK;
}

int dcp_stream_writers(const struct dcp_catalog *target)
{
    int n = target->world_size;

    for (size_t f = 0; f < target->n_files; f++)
        n = target->files[f].rank >= n ? target->files[f].rank + 1 : n;
    return n;
}

/* Ranks that are written side by side: so many that together they want about all of a
 * block of the source, not a run of a few KiB of it. */
static size_t ranks_at_once(const struct stream *s, size_t n_writers)
{
    const struct dcp_catalog *target = s->catalog;
    size_t files_each = (target->n_files + n_writers - 1) / n_writers, n = 1;
    size_t most = dcp_fs_max_open() / 4; /* the readers have others */
    uint64_t bytes = 0;

    for (size_t p = 0; p < target->n_pieces; p++)
        bytes += dcp_piece_bytes(target, &target->pieces[p]);
    uint64_t run = bytes / (s->setup->plan->n_runs + 1);
    most = most < MOST_OPEN ? most : MOST_OPEN;
    while (!s->setup->in_order && run * n < SPREAD_BYTES && 2 * n * files_each <= most)
        n *= 2;
    return n;
}

/* Files of all ranks, or of those of a part. */
static int write_ranks(const struct stream *s, const struct dcp_shares *shares, int part,
                       struct dcp_error *err)
{
    int n_writers = dcp_stream_writers(s->catalog);
    DCP_CLEANUP_FREE int *ranks = dcp_mem_calloc((size_t)n_writers, sizeof *ranks);
    size_t n = 0;

    if (!ranks)
        return dcp_error_memory(err, "the ranks of a target");
    for (int r = 0; r < n_writers; r++)
        if (!shares || shares->part_of[r] == part)
            ranks[n++] = r;
    return dcp_write_ranks(s->write, ranks, n, ranks_at_once(s, (size_t)n_writers), err);
}

/* What is known of tensors once files are written. */
static void take_results(struct stream *s)
{
    for (size_t t = 0; t < s->catalog->n_tensors; t++)
        s->parts[t] = dcp_write_parts(s->write, t);
    if (s->setup->shared_bytes)
        *s->setup->shared_bytes = dcp_write_shared(s->write);
}

/* Parity of what all ranks wrote, and, once the manifest is written, copies of that. */
static int write_global(const struct stream *s, struct dcp_error *err)
{
    const struct dcp_stream_setup *setup = s->setup;
    struct dcp_parity *parity = NULL;
    DCP_CLEANUP_FREE uint64_t *sums = NULL;
    struct dcp_parity_code code = { .store = setup->store,
                                    .prefix = setup->prefix,
                                    .n_shares = 1,
                                    .pool = s->pool,
                                    .memory_bytes = setup->memory_bytes / 2 };
    int rc = DCP_OK;

    if (!setup->parity)
        return dcp_write_global(s->write, err);
    rc = dcp_parity_describe(setup->target->catalog, setup->parity, &parity, err);
    code.parity = parity;
    if (!rc)
        rc = dcp_parity_create(&code, err);
    if (!rc)
        rc = dcp_parity_run(&code, &sums, err);
    if (!rc)
        rc = dcp_parity_prove(parity, sums, err);
    if (!rc)
        rc = dcp_parity_tell(parity, setup->target->catalog, err);
    if (!rc)
        rc = dcp_write_global(s->write, err);
    if (!rc)
        rc = dcp_parity_end(&code, setup->target->catalog, err);
    dcp_parity_free(parity);
    return rc;
}

int dcp_stream_run(const struct dcp_stream_setup *setup, struct dcp_error *err)
{
    const struct dcp_catalog *target = setup->target->catalog;
    struct stream s;
    uint64_t total = 0;

    for (size_t t = 0; t < target->n_tensors; t++)
        if (!target->tensors[t].tied_to)
            total += dcp_tensor_bytes(&target->tensors[t]);
    int rc = stream_init(&s, setup, total, false, err);
    if (!rc)
        rc = write_ranks(&s, NULL, 0, err);
    if (!rc) {
        take_results(&s);
        rc = prove(&s, err);
    }
    if (!rc)
        rc = write_global(&s, err);
    stream_fini(&s);
    return rc;
}

/* -- a target in parts -------------------------------------------------------------- */

static struct dcp_share share_of(const struct stream *s, const struct dcp_shares *shares,
                                 int part)
{
    return (struct dcp_share){ .of = shares,
                               .part = part,
                               .target = s->catalog,
                               .parts = s->parts,
                               .src_parts = s->src_parts,
                               .overflows = s->setup->overflows,
                               .proof = s->proof,
                               .shared_bytes = s->setup->shared_bytes };
}

int dcp_stream_part(const struct dcp_stream_setup *setup, const struct dcp_shares *shares,
                    int part, struct dcp_buf *told, struct dcp_error *err)
{
    const struct dcp_catalog *target = setup->target->catalog;
    struct stream s;
    uint64_t total = 0;

    for (size_t p = 0; p < target->n_pieces; p++)
        if (shares->part_of[target->files[target->pieces[p].file].rank] == part)
            total += dcp_piece_bytes(target, &target->pieces[p]);
    int rc = stream_init(&s, setup, total, true, err);
    if (!rc)
        rc = write_ranks(&s, shares, part, err);
    const struct dcp_share share = share_of(&s, shares, part);
    if (!rc) {
        take_results(&s);
        dcp_share_pack(&share, told);
        rc = dcp_buf_check(told, err);
    }
    stream_fini(&s);
    return rc;
}

int dcp_stream_join(const struct dcp_stream_setup *setup, const struct dcp_shares *shares,
                    struct dcp_cursor *told, int n, struct dcp_error *err)
{
    const struct dcp_catalog *target = setup->target->catalog;
    struct stream s;
    int rc = stream_init(&s, setup, 0, true, err);

    for (int i = 0; i < n && !rc; i++) {
        const struct dcp_share share = share_of(&s, shares, i);
        rc = dcp_share_unpack(&share, &told[i], err);
    }
    if (!rc && !dcp_shares_complete(target))
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           "the parts do not tell of every file of the target");
    if (!rc)
        rc = prove(&s, err);
    if (!rc)
        rc = write_global(&s, err);
    stream_fini(&s);
    return rc;
}
