#include "pass.h"
#include "base/hash.h"
#include "base/mem.h"
#include "table.h"

int dcp_delta_passes_init(struct dcp_delta_passes *passes, int threads,
                          struct dcp_error *err)
{
    *passes = (struct dcp_delta_passes){ .workers = 1 };
    threads = threads ? threads : 2;
    if (threads > 1)
        DCP_TRY(dcp_pool_new(threads - 1, &passes->pool, err));
    passes->workers = dcp_pool_workers(passes->pool);
    passes->window = (size_t)passes->workers * DCP_DELTA_WINDOW;
    passes->buffers = dcp_mem_calloc((size_t)passes->workers, DCP_DELTA_BLOCK_BYTES);
    passes->crcs = dcp_mem_calloc(passes->window, sizeof *passes->crcs);
    return passes->buffers && passes->crcs ? DCP_OK : dcp_error_memory(err, "a delta");
}

void dcp_delta_passes_fini(struct dcp_delta_passes *passes)
{
    if (passes->pool)
        dcp_pool_free(passes->pool);
    free(passes->buffers);
    free(passes->crcs);
    *passes = (struct dcp_delta_passes){ 0 };
}

/* The blocks of one window. */
struct window {
    struct dcp_delta_passes *passes;
    const struct dcp_store *store;
    struct dcp_store_file *file;
    uint64_t size_bytes;
    size_t first;
    const struct dcp_delta_use *use;
};

static int take_block(void *arg, int worker, size_t slot, struct dcp_error *err)
{
    const struct window *window = arg;
    const struct dcp_delta_use *use = window->use;
    size_t block = window->first + slot;
    size_t n = dcp_delta_block_bytes(window->size_bytes, block);
    unsigned char *bytes =
        window->passes->buffers + (size_t)worker * DCP_DELTA_BLOCK_BYTES;

    DCP_TRY(window->store->ops->read_at(window->store->self, window->file,
                                        (uint64_t)block * DCP_DELTA_BLOCK_BYTES, bytes, n,
                                        err));
    window->passes->crcs[slot] = dcp_hash_crc64(0, bytes, n);
    return use->each ? use->each(use->self, worker, slot, block, bytes, n, err) : DCP_OK;
}

static int report(struct dcp_delta_passes *passes, uint64_t bytes, struct dcp_error *err)
{
    const struct dcp_progress *progress = &passes->progress;

    passes->done_bytes += bytes;
    if (progress->report &&
        progress->report(progress->self, passes->done_bytes, passes->total_bytes))
        return dcp_error_set(err, DCP_E_INTERRUPTED, "interrupted; nothing was written");
    return DCP_OK;
}

int dcp_delta_pass(struct dcp_delta_passes *passes, const struct dcp_store *store,
                   struct dcp_store_file *file, uint64_t size_bytes,
                   const struct dcp_delta_use *use, uint64_t *out_crc,
                   struct dcp_error *err)
{
    size_t n_blocks = dcp_delta_n_blocks(size_bytes);
    struct window window = { .passes = passes,
                             .store = store,
                             .file = file,
                             .size_bytes = size_bytes,
                             .use = use };

    *out_crc = 0;
    for (; window.first < n_blocks; window.first += passes->window) {
        size_t n = n_blocks - window.first;
        uint64_t bytes = 0;
        n = n < passes->window ? n : passes->window;
        DCP_TRY(dcp_pool_for(passes->pool, n, take_block, &window, err));
        for (size_t i = 0; i < n; i++) {
            size_t of_block = dcp_delta_block_bytes(size_bytes, window.first + i);
            *out_crc = dcp_hash_crc64_combine(*out_crc, passes->crcs[i], of_block);
            bytes += of_block;
        }
        if (use->window)
            DCP_TRY(use->window(use->self, n, err));
        DCP_TRY(report(passes, bytes, err));
    }
    return DCP_OK;
}
