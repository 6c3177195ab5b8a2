#include "base/hash.h"
#include "base/mem.h"
#include "core/catalog/region.h"
#include "core/delta/folder.h"
#include "core/integrity/fingerprint.h"
#include "core/plan/target.h"
#include "own.h"
#include <string.h>

#define ENDS_AT_ONCE 64 /* files, which are open */

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
        w->workers[i].scratch = dcp_mem_aligned(DCP_STORE_DIRECT_ALIGN, DCP_BLOCK_BYTES);
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
    free(w->ends);
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

uint64_t dcp_write_shared(const struct dcp_write *w)
{
    return w->shared_bytes;
}

/* What cannot be coded is written as it is. */
static int create(struct dcp_write *w, int file, struct dcp_error *err)
{
    uint64_t size = w->catalog->files[file].size_bytes;
    struct dcp_write_file *into = &w->files[file];

    if (w->base.store && !w->setup.pool &&
        !dcp_against_open(w, file, &into->against, &w->unfit))
        return dcp_write_open(w, file, DCP_DELTA_SUFFIX, 0, err);
    if (!dcp_write_is_shared(w, file))
        return dcp_write_open(w, file, "", size, err);
    DCP_TRY(dcp_write_open(w, file, "", 0, err)); /* room for it all is not needed */
    return dcp_write_share(w, file, err);
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

static bool is_left(const struct dcp_write *w, size_t f, int rank)
{
    return w->catalog->files[f].rank == rank && !w->files[f].done;
}

/* What stands before the pieces of a rank. */
static int begin_rank(struct dcp_write *w, int rank, struct dcp_error *err)
{
    DCP_TRY(dcp_write_create(w, rank, err));
    for (size_t f = 0; f < w->catalog->n_files; f++)
        if (is_left(w, f, rank) && w->catalog->files[f].size_bytes)
            DCP_TRY(dcp_write_early(w, (int)f, err));
    return DCP_OK;
}

struct ends {
    struct dcp_write *write;
    const size_t *files;
};

static int fill_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    const struct ends *ends = arg;

    (void)worker;
    return dcp_write_fill(ends->write, (int)ends->files[i], err);
}

static int settle_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    const struct ends *ends = arg;

    return dcp_write_settle(ends->write, worker, (int)ends->files[i], err);
}

/* Files whose pieces are written: what stands behind them, and then the disk, which is
 * waited for once they are all on their way. Where there are enough of them each is
 * settled by one thread: while one waits another is read back. */
static int end_files(struct dcp_write *w, const size_t *files, size_t n,
                     struct dcp_error *err)
{
    size_t most = w->setup.in_order ? 1 : ENDS_AT_ONCE, m;

    for (size_t at = 0; at < n; at += m) {
        struct ends ends = { w, files + at };
        m = n - at < most ? n - at : most;
        DCP_TRY(dcp_pool_for(w->setup.pool, m, fill_job, &ends, err));
        if (m >= (size_t)dcp_pool_workers(w->setup.pool))
            DCP_TRY(dcp_pool_for(w->setup.pool, m, settle_job, &ends, err));
        else
            for (size_t i = 0; i < m; i++)
                DCP_TRY(dcp_write_settle(w, DCP_ALL_WORKERS, (int)ends.files[i], err));
    }
    return DCP_OK;
}

static int end_ranks(struct dcp_write *w, const int *ranks, size_t n,
                     struct dcp_error *err)
{
    struct dcp_catalog *target = w->catalog;
    size_t n_ends = 0;

    for (size_t r = 0; r < n; r++) {
        for (size_t i = dcp_write_next_of(w, ranks[r], 0); i < w->n_pieces;
             i = dcp_write_next_of(w, ranks[r], i + 1))
            dcp_write_digest(w, w->order[i]);
        DCP_TRY(dcp_target_finalize(w->setup.target, ranks[r], err));
    }
    DCP_TRY(dcp_write_reserve(w, err));
    for (size_t r = 0; r < n; r++)
        for (size_t f = 0; f < target->n_files; f++)
            if (is_left(w, f, ranks[r]))
                w->ends[n_ends++] = f;
    return end_files(w, w->ends, n_ends, err);
}

int dcp_write_ranks(struct dcp_write *w, const int *ranks, size_t n, size_t at_once,
                    struct dcp_error *err)
{
    size_t workers = (size_t)dcp_pool_workers(w->setup.pool), m;
    size_t most = at_once < workers ? workers : at_once;

    for (size_t at = 0; at < n; at += m) {
        m = n - at < most ? n - at : most;
        for (size_t r = 0; r < m; r++)
            DCP_TRY(begin_rank(w, ranks[at + r], err));
        DCP_TRY(dcp_write_pieces(w, ranks + at, m, err));
        DCP_TRY(end_ranks(w, ranks + at, m, err));
    }
    return DCP_OK;
}

int dcp_write_global(struct dcp_write *w, struct dcp_error *err)
{
    struct dcp_catalog *target = w->catalog;
    size_t before = target->n_files, n_ends = 0;

    DCP_TRY(dcp_target_finish(w->setup.target, err));
    DCP_TRY(dcp_write_reserve(w, err));
    for (size_t f = before; f < target->n_files; f++)
        w->ends[n_ends++] = f;
    return end_files(w, w->ends, n_ends, err);
}
