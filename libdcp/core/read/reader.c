/* reader: any part of any tensor of a checkpoint, whatever its layout: a plan onto whole
 * tensors. */
#include "base/mem.h"
#include "copy.h"
#include "core/plan/choose.h"
#include <dcp/reshard.h>
#include <stdatomic.h>

/* What the readers of a checkpoint have in common. */
struct shared {
    _Atomic int n_readers;
    struct dcp_source source;
    const struct dcp_catalog *catalog;
    struct dcp_catalog *whole; /* the same tensors, in one piece each */
    struct dcp_plan *plan;
    struct dcp_proof *proof; /* NULL: nothing is verified */
};

struct dcp_reader {
    struct shared *shared;
    struct dcp_blocks *blocks;
    struct dcp_copier copier;
};

static void release(struct shared *shared)
{
    if (!shared || atomic_fetch_sub(&shared->n_readers, 1) > 1)
        return;
    dcp_proof_free(shared->proof);
    dcp_plan_free(shared->plan);
    dcp_catalog_free(shared->whole);
    free(shared);
}

static int shared_new(const struct dcp_source *source, const struct dcp_catalog *catalog,
                      bool verify, struct shared **out, struct dcp_error *err)
{
    struct shared *shared = calloc(1, sizeof *shared);
    int rc =
        shared ? dcp_catalog_new(&shared->whole, err) : dcp_error_memory(err, "a reader");

    *out = NULL;
    if (!shared)
        return rc;
    shared->n_readers = 1;
    shared->source = *source;
    shared->catalog = catalog;
    for (size_t t = 0; t < catalog->n_tensors && !rc; t++) {
        rc = dcp_catalog_add_tensor(shared->whole, &catalog->tensors[t], NULL, err);
        struct dcp_piece piece = { .tensor = (int)t, .file = -1 };
        if (catalog->tensors[t].is_meta) /* none of it */
            piece.region = (struct dcp_region){ .kind = DCP_FLAT };
        if (!rc)
            rc = dcp_catalog_add_piece(shared->whole, &piece, err);
    }
    if (!rc)
        rc = dcp_catalog_sort(shared->whole, err);
    if (!rc)
        rc = dcp_plan_new(catalog, shared->whole, NULL, &shared->plan, err);
    if (!rc && verify)
        rc = dcp_proof_new(catalog, &shared->proof, err);
    if (rc)
        release(shared);
    else
        *out = shared;
    return rc;
}

/* Takes over the reference to `shared`, also when it fails. */
static int reader_new(struct shared *shared, uint64_t memory_bytes,
                      struct dcp_reader **out_reader, struct dcp_error *err)
{
    struct dcp_reader *reader = calloc(1, sizeof *reader);

    *out_reader = NULL;
    if (!reader) {
        release(shared);
        return dcp_error_memory(err, "a reader");
    }
    reader->shared = shared;
    int rc = dcp_blocks_new(&shared->source, shared->catalog, memory_bytes,
                            shared->proof != NULL, &reader->blocks, err);
    if (rc) {
        dcp_reader_free(reader);
        return rc;
    }
    dcp_blocks_check_records(reader->blocks, shared->proof);
    reader->copier = (struct dcp_copier){ .plan = shared->plan,
                                          .src = shared->catalog,
                                          .dst = shared->whole,
                                          .blocks = reader->blocks };
    *out_reader = reader;
    return DCP_OK;
}

int dcp_reader_new(const struct dcp_source *source, const struct dcp_catalog *catalog,
                   uint64_t memory_bytes, bool verify, struct dcp_reader **out_reader,
                   struct dcp_error *err)
{
    struct shared *shared;
    int rc = shared_new(source, catalog, verify, &shared, err);

    *out_reader = NULL;
    return rc ? rc : reader_new(shared, memory_bytes, out_reader, err);
}

int dcp_reader_clone(struct dcp_reader *reader, uint64_t memory_bytes,
                     struct dcp_reader **out_reader, struct dcp_error *err)
{
    atomic_fetch_add(&reader->shared->n_readers, 1);
    return reader_new(reader->shared, memory_bytes, out_reader, err);
}

int dcp_reader_read(struct dcp_reader *reader, int tensor, int64_t begin, int64_t end,
                    void *out, struct dcp_error *err)
{
    const struct dcp_catalog *whole = reader->shared->whole;

    if (tensor < 0 || (size_t)tensor >= whole->n_tensors || begin < 0 || begin > end ||
        end > whole->tensors[tensor].n_elems)
        return dcp_error_set(err, DCP_E_USAGE, "a read reaches outside of its tensor");
    if (whole->tensors[tensor].quantized)
        return dcp_quantized_refuse(&whole->tensors[tensor], err);
    return dcp_copy_piece(&reader->copier, (size_t)tensor, begin, end, out, err);
}

void dcp_reader_reconstruct(struct dcp_reader *reader)
{
    dcp_blocks_reconstruct(reader->blocks);
}

const struct dcp_error *dcp_reader_reconstructed(const struct dcp_reader *reader)
{
    return dcp_blocks_reconstructed(reader->blocks);
}

int dcp_reader_check(struct dcp_reader *reader, struct dcp_error *err)
{
    return reader->shared->proof ? dcp_blocks_prove(&reader->blocks, NULL, err) : DCP_OK;
}

void dcp_reader_free(struct dcp_reader *reader)
{
    if (!reader)
        return;
    dcp_blocks_free(reader->blocks);
    release(reader->shared);
    free(reader);
}
