#include "checkpoint.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/delta.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define READER_BYTES (16u << 20)

/* -- open -------------------------------------------------------------------------- */

/* The folder of a numbered step of a run folder; caller frees. */
static int find_step(const char *path, int64_t step, char **out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    struct dcp_step found = { .name = "" };
    struct dcp_store store;
    size_t n = 0, i = 0;

    *out = NULL;
    DCP_TRY(dcp_store_delta_dir(&store, path, false, err));
    int rc = dcp_steps(&store, &steps, &n, NULL, err);
    while (i < n && steps[i].step != step)
        i++;
    if (i < n)
        found = steps[i];
    else if (!rc) /* which says what is there instead */
        rc = dcp_find(&(struct dcp_context){ .store = &store }, step, &found, err);
    dcp_store_free(&store);
    if (rc && n)
        dcp_error_hint(err, "the newest of its %zu is %" PRId64, n, steps[0].step);
    DCP_TRY(rc);
    *out = dcp_fs_join(path, found.name);
    return *out ? DCP_OK : dcp_error_memory(err, "a path");
}

int dcp_flat_open_location(const char *path, int64_t step, const char *base,
                           struct dcp_location *out, struct dcp_error *err)
{
    const struct dcp_location_options options = { .base = base };
    DCP_CLEANUP_FREE char *chosen = NULL;

    if (!path)
        return dcp_error_set(err, DCP_E_USAGE, "there is no path to open");
    if (step >= 0)
        DCP_TRY(find_step(path, step, &chosen, err));
    return dcp_location_open_with(chosen ? chosen : path, &options, out, err);
}

/* Steps of this library's own are never saved into again. */
static int take_files(struct dcp_flat_checkpoint *checkpoint, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = checkpoint->catalog;

    if (checkpoint->identity.path || !strcmp(catalog->format, "native"))
        return DCP_OK;
    checkpoint->files = dcp_mem_calloc(catalog->n_files, sizeof *checkpoint->files);
    for (size_t f = 0; f < catalog->n_files && checkpoint->files; f++) {
        DCP_CLEANUP_FREE char *path =
            dcp_fs_join(checkpoint->location.path, catalog->files[f].name);
        if (path)
            dcp_flat_identity_take(&checkpoint->files[f], path);
    }
    return checkpoint->files ? DCP_OK : dcp_error_memory(err, "a checkpoint");
}

static int open_checkpoint(const struct dcp_flat_open_options *options,
                           struct dcp_flat_checkpoint *checkpoint, struct dcp_error *err)
{
    int threads = dcp_flat_threads(options->threads);

    checkpoint->verify = !options->no_verify;
    checkpoint->threads = threads > 0 ? threads : 2;
    DCP_TRY(dcp_flat_open_location(options->path, options->step, options->base,
                                   &checkpoint->location, err));
    dcp_flat_identity_take(&checkpoint->identity, checkpoint->location.path);
    DCP_TRY(dcp_location_index(&checkpoint->location, &checkpoint->catalog, err));
    for (size_t t = 0; t < checkpoint->catalog->n_tensors; t++)
        checkpoint->size_bytes += dcp_tensor_bytes(&checkpoint->catalog->tensors[t]);
    return take_files(checkpoint, err);
}

int32_t dcp_flat_checkpoint_open(const struct dcp_flat_open_options *options,
                                 struct dcp_flat_checkpoint **out,
                                 struct dcp_flat_error *err)
{
    struct dcp_flat_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    struct dcp_flat_open_options ours;
    struct dcp_error why = { 0 };

    *out = NULL;
    if (!checkpoint)
        return dcp_flat_fail(err, dcp_error_memory(&why, "a checkpoint"), &why);
    pthread_mutex_init(&checkpoint->lock, NULL);
    pthread_mutex_init(&checkpoint->records, NULL);
    dcp_flat_take(&ours, sizeof ours, options);
    int rc = open_checkpoint(&ours, checkpoint, &why);
    if (rc)
        dcp_flat_checkpoint_close(checkpoint);
    else
        *out = checkpoint;
    return dcp_flat_fail(err, rc, &why);
}

static void free_readers(struct dcp_flat_checkpoint *checkpoint)
{
    while (checkpoint->n_idle > 0)
        dcp_reader_free(checkpoint->idle[--checkpoint->n_idle]);
    dcp_reader_free(checkpoint->first);
    checkpoint->first = NULL;
}

void dcp_flat_checkpoint_close(struct dcp_flat_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    free_readers(checkpoint);
    dcp_flat_tables_free(checkpoint->tables);
    for (size_t f = 0; checkpoint->files && f < checkpoint->catalog->n_files; f++)
        dcp_flat_identity_fini(&checkpoint->files[f]);
    free(checkpoint->files);
    dcp_catalog_free(checkpoint->catalog);
    dcp_location_close(&checkpoint->location);
    dcp_flat_identity_fini(&checkpoint->identity);
    pthread_mutex_destroy(&checkpoint->records);
    pthread_mutex_destroy(&checkpoint->lock);
    free(checkpoint);
}

/* -- what it is -------------------------------------------------------------------- */

static int or_1(int n)
{
    return n ? n : 1;
}

void dcp_flat_checkpoint_info(struct dcp_flat_checkpoint *checkpoint,
                              struct dcp_flat_info *out)
{
    const struct dcp_catalog *catalog = checkpoint->catalog;
    const struct dcp_location *location = &checkpoint->location;
    struct dcp_flat_info told = { .path = location->path,
                                  .format = catalog->format,
                                  .version = catalog->version,
                                  .layout = catalog->layout,
                                  .producer = catalog->producer,
                                  .step = catalog->step,
                                  .world_size = catalog->world_size,
                                  .dp = or_1(catalog->mesh.dp),
                                  .tp = or_1(catalog->mesh.tp),
                                  .pp = or_1(catalog->mesh.pp),
                                  .diverged = catalog->diverged,
                                  .passed_over = location->passed_over,
                                  .n_tensors = catalog->n_tensors,
                                  .n_files = catalog->n_files,
                                  .n_objects = catalog->n_objects,
                                  .size_bytes = checkpoint->size_bytes };

    pthread_mutex_lock(&checkpoint->lock);
    snprintf(told.corruption, sizeof told.corruption, "%s",
             location->corruption.code ? location->corruption.message
                                       : checkpoint->corruption);
    pthread_mutex_unlock(&checkpoint->lock);
    dcp_flat_give(out, &told, sizeof told);
}

/* -- readers ----------------------------------------------------------------------- */

static bool is_alone(const struct dcp_flat_checkpoint *checkpoint)
{
    return checkpoint->verify && checkpoint->catalog->n_records > 0;
}

/* One that is idle, or a new one; under the lock. */
static int take_one(struct dcp_flat_checkpoint *checkpoint, struct dcp_reader **out,
                    struct dcp_error *err)
{
    if (checkpoint->n_idle > 0) {
        *out = checkpoint->idle[--checkpoint->n_idle];
        return DCP_OK;
    }
    if (!checkpoint->first)
        DCP_TRY(dcp_reader_new(&checkpoint->location.source, checkpoint->catalog,
                               READER_BYTES, checkpoint->verify, &checkpoint->first,
                               err));
    DCP_TRY(dcp_reader_clone(checkpoint->first, READER_BYTES, out, err));
    if (checkpoint->verify)
        dcp_reader_reconstruct(*out);
    return DCP_OK;
}

int dcp_flat_check_box(const struct dcp_flat_checkpoint *checkpoint,
                       const struct dcp_tensor *of, const int64_t *offset,
                       const int64_t *size, struct dcp_error *err)
{
    if (of->is_meta) /* a quantized one is, too */
        return dcp_error_of_tensor(
            err, DCP_E_UNSUPPORTED, of->name,
            of->quantized ? "tensor '%s' of '%s' is quantized (%s): its numbers are not "
                            "read"
                          : "tensor '%s' of '%s' has no numbers%s: only its dtype and "
                            "shape were saved",
            DCP_SHOWN(of->name), checkpoint->location.path,
            of->quantized ? of->quantized : "");
    for (int d = 0; d < of->ndim; d++)
        if (offset[d] < 0 || size[d] < 0 || offset[d] > of->shape[d] ||
            size[d] > of->shape[d] - offset[d])
            return dcp_error_of_tensor(
                err, DCP_E_USAGE, of->name,
                "a box reaches outside of tensor '%s' in "
                "dimension %d: %" PRId64 " and %" PRId64 " of %" PRId64,
                DCP_SHOWN(of->name), d, offset[d], size[d], of->shape[d]);
    return DCP_OK;
}

static int check_files(const struct dcp_flat_checkpoint *checkpoint,
                       const struct dcp_tensor *of, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = checkpoint->catalog;
    int last = -1;

    DCP_TRY(dcp_flat_identity_check(&checkpoint->identity, err));
    if (!checkpoint->files)
        return DCP_OK;
    for (size_t f = 0; !of && f < catalog->n_files; f++)
        DCP_TRY(dcp_flat_identity_check(&checkpoint->files[f], err));
    for (size_t p = 0; of && p < of->n_pieces; p++) {
        int file = catalog->pieces[of->first_piece + p].file;
        if (file >= 0 && file != last)
            DCP_TRY(dcp_flat_identity_check(&checkpoint->files[file], err));
        last = file;
    }
    return DCP_OK;
}

int dcp_flat_check_replaced(const struct dcp_flat_checkpoint *checkpoint,
                            const struct dcp_tensor *of, int rc, struct dcp_error *err)
{
    struct dcp_error replaced = { 0 };

    if (!check_files(checkpoint, of, &replaced))
        return rc;
    *err = replaced;
    return replaced.code;
}

int dcp_flat_readers_take(struct dcp_flat_checkpoint *checkpoint, int n,
                          struct dcp_flat_readers *out, struct dcp_error *err)
{
    int rc = DCP_OK;

    *out = (struct dcp_flat_readers){ .checkpoint = checkpoint };
    if (is_alone(checkpoint))
        pthread_mutex_lock(&checkpoint->records);
    pthread_mutex_lock(&checkpoint->lock);
    while (out->n < n && !rc) {
        rc = take_one(checkpoint, &out->items[out->n], err);
        out->n += !rc;
    }
    pthread_mutex_unlock(&checkpoint->lock);
    return rc ? dcp_flat_readers_give(out, rc, err) : DCP_OK;
}

static int explain(struct dcp_flat_checkpoint *checkpoint, int rc, struct dcp_error *err)
{
    const char *path = checkpoint->location.path;

    if (!rc || rc == DCP_E_MEMORY || rc == DCP_E_INTERRUPTED || rc == DCP_E_USAGE)
        return rc;
    if (dcp_location_failed(&checkpoint->location, rc, err) != rc)
        return err->code;
    dcp_error_prefix(err, "cannot read '%s'", path);
    if (rc == DCP_E_CORRUPT)
        dcp_error_hint(err, "a verify of '%s' lists everything that is corrupt", path);
    return rc;
}

int dcp_flat_readers_give(struct dcp_flat_readers *readers, int rc, struct dcp_error *err)
{
    struct dcp_flat_checkpoint *checkpoint = readers->checkpoint;

    if (!rc && readers->n)
        rc = dcp_reader_check(readers->items[0], err);
    pthread_mutex_lock(&checkpoint->lock);
    for (int i = 0; i < readers->n; i++) {
        const struct dcp_error *found = dcp_reader_reconstructed(readers->items[i]);
        if (found->code && !checkpoint->corruption[0])
            memcpy(checkpoint->corruption, found->message, sizeof found->message);
        if (!rc && checkpoint->n_idle < checkpoint->threads)
            checkpoint->idle[checkpoint->n_idle++] = readers->items[i];
        else
            dcp_reader_free(readers->items[i]);
    }
    /* What was found corrupt must be found again by who reads it next. */
    if (rc && is_alone(checkpoint))
        free_readers(checkpoint);
    pthread_mutex_unlock(&checkpoint->lock);
    if (is_alone(checkpoint))
        pthread_mutex_unlock(&checkpoint->records);
    readers->n = 0;
    return explain(checkpoint, rc, err);
}
