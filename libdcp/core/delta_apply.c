/* delta_apply: what a delta stands for, as files. */
#include "base/mem.h"
#include "base/str.h"
#include "core/delta/folder.h"
#include "core/delta/output.h"
#include "core/delta/pass.h"
#include "delta_target.h"
#include <dcp/delta.h>
#include <string.h>

struct apply {
    const struct dcp_source *source;
    const struct dcp_delta_options *options;
    struct dcp_delta_folder is;
    struct dcp_delta_target target;
    struct dcp_delta_passes passes;
};

/* A file that is being written. */
struct copying {
    struct apply *apply;
    struct dcp_store_file *out;
};

static int write_block(void *self, int worker, size_t slot, size_t block,
                       const unsigned char *bytes, size_t n, struct dcp_error *err)
{
    struct copying *copying = self;
    const struct dcp_store *store = &copying->apply->target.store;

    (void)worker, (void)slot;
    return store->ops->write_at(store->self, copying->out,
                                (uint64_t)block * DCP_DELTA_BLOCK_BYTES, bytes, n, err);
}

/* Reads all of a file of a store: what it is must be what the delta says. */
static int prove(struct apply *apply, const struct dcp_store *store, const char *prefix,
                 const struct dcp_delta_file *file, const struct dcp_delta_use *use,
                 struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(prefix, *prefix ? "/" : "", file->name);
    struct dcp_store_file *in;
    uint64_t crc;

    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = store->ops->open(store->self, path, &in, err);
    if (rc)
        return rc;
    rc = dcp_delta_pass(&apply->passes, store, in, file->size_bytes, use, &crc, err);
    store->ops->close(store->self, in, NULL);
    if (!rc && crc != file->crc)
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           "'%s/%s' is corrupt: it is not what the delta stands for",
                           store->root, DCP_SHOWN(path));
    return rc;
}

static int write_file(struct apply *apply, const struct dcp_delta_file *file,
                      struct dcp_error *err)
{
    struct copying copying = { .apply = apply };
    const struct dcp_delta_use write = { .self = &copying, .each = write_block },
                               look = { 0 };
    struct dcp_delta_target *target = &apply->target;
    const struct dcp_delta_output output = { &target->store, target->publish.prefix };
    struct dcp_error why = { 0 };

    int rc = dcp_delta_output_create(&output, file->name, "", file->size_bytes,
                                     &copying.out, err);
    if (rc)
        return rc;
    rc = prove(apply, apply->source->store, apply->source->name, file, &write, &why);
    if (rc)
        target->store.ops->close(target->store.self, copying.out, NULL);
    else
        rc = dcp_delta_output_close(&output, copying.out, file->size_bytes, &why);
    if (!rc)
        rc = dcp_delta_output_sync_folders(&output, file->name, &why);
    if (!rc)
        rc = prove(apply, &target->store, target->publish.tmp, file, &look, &why);
    if (rc && err)
        *err = why;
    return rc;
}

static int get_ready(struct apply *apply, const struct dcp_location *delta,
                     const char *path, struct dcp_delta_result *result,
                     struct dcp_error *err)
{
    struct dcp_error why = { 0 };

    apply->target.replaces = apply->options->force;
    DCP_TRY(dcp_delta_target_check(&apply->target, delta, path, err));
    int rc = dcp_delta_folder_read(apply->source->store, apply->source->name, &apply->is,
                                   &why);
    if (rc == DCP_E_NOT_FOUND)
        return dcp_error_set(err, DCP_E_USAGE,
                             "'%s' is no delta: it is all there already", delta->path);
    if (rc && err)
        *err = why;
    if (rc)
        return rc;
    DCP_TRY(dcp_delta_passes_init(&apply->passes, apply->options->threads, err));
    result->chain = apply->is.chain;
    result->n_files = apply->is.n_files;
    for (size_t i = 0; i < apply->is.n_files; i++) {
        const struct dcp_delta_file *file = &apply->is.files[i];
        result->full_bytes += file->size_bytes;
        result->stored_bytes += file->coded ? file->delta_bytes : file->size_bytes;
    }
    apply->passes.progress = apply->options->progress;
    apply->passes.total_bytes = result->full_bytes * 2;
    return DCP_OK;
}

int dcp_delta_apply(struct dcp_location *delta, const char *path,
                    const struct dcp_delta_options *options,
                    struct dcp_delta_result *out_result, struct dcp_error *err)
{
    struct apply apply = { .source = &delta->source, .options = options };

    *out_result = (struct dcp_delta_result){ 0 };
    int rc = get_ready(&apply, delta, path, out_result, err);
    if (!rc && !options->dry_run) {
        rc = dcp_delta_target_begin(&apply.target, out_result->full_bytes, err);
        for (size_t i = 0; i < apply.is.n_files && !rc; i++)
            rc = write_file(&apply, &apply.is.files[i], err);
        if (!rc)
            rc = dcp_delta_target_commit(&apply.target, err);
    }
    dcp_delta_target_end(&apply.target, options->log);
    dcp_delta_passes_fini(&apply.passes);
    dcp_delta_folder_fini(&apply.is);
    return rc;
}
