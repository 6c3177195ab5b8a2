#include "finish.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/size.h"
#include "core/integrity/fingerprint.h"
#include "core/parity/code.h"
#include "core/plan/contents.h"
#include "core/plan/target.h"
#include "core/run/steps.h"
#include "stream.h"
#include "weights.h"
#include <stdio.h>
#include <string.h>

/* Steps that a save rewrites: one grows old by each save, and where there are many that
 * did before it was asked for they go little by little, beside the training. */
enum { MOST_THINNED = 2 };
#define CONSOLIDATED_MEMORY ((uint64_t)32 << 20)

uint64_t dcp_save_work_bytes(const struct dcp_save_options *options)
{
    const uint64_t works[] = { options->delta > 1 ? DCP_AGAINST_MEMORY : 0,
                               options->consolidated ? CONSOLIDATED_MEMORY : 0,
                               options->keep_optimizer ? DCP_WEIGHTS_MEMORY : 0 };
    uint64_t most = 0; /* they come one after the other */

    for (size_t i = 0; i < DCP_ARRAY_LEN(works); i++)
        most = works[i] > most ? works[i] : most;
    return most;
}

int dcp_finish_init(struct dcp_finish *finish, const struct dcp_context *ctx,
                    const struct dcp_save_options *options, const char *name,
                    struct dcp_error *err)
{
    finish->ctx = ctx;
    finish->options = *options;
    finish->name = strdup(name);
    finish->read_back = options->verify_after_save ? DCP_READ_BACK_DISK
                        : options->no_read_back    ? DCP_READ_BACK_NOT
                                                   : DCP_READ_BACK_CACHE;
    finish->parts = dcp_mem_calloc(finish->catalog->n_tensors, sizeof *finish->parts);
    if (!finish->name || !finish->parts)
        return dcp_error_memory(err, "a save");
    if (!options->consolidated)
        return DCP_OK;
    finish->export_dtype = options->consolidated->dtype;
    finish->export_name = strdup(options->consolidated->name);
    finish->export_format = strdup(options->consolidated->format);
    finish->has_consolidated = finish->export_name && finish->export_format;
    return finish->has_consolidated ? DCP_OK : dcp_error_memory(err, "a save");
}

uint64_t dcp_finish_consolidated_bytes(const struct dcp_finish *finish)
{
    uint64_t bytes = 0;

    for (size_t t = 0; finish->has_consolidated && t < finish->catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &finish->catalog->tensors[t];
        bool cast = finish->export_dtype >= 0 && dcp_dtype_is_float(tensor->dtype);
        enum dcp_dtype dtype =
            cast ? (enum dcp_dtype)finish->export_dtype : tensor->dtype;
        if (!dcp_role_is_optim(tensor->role))
            bytes += (uint64_t)tensor->n_elems * dcp_dtype_size(dtype);
    }
    return bytes;
}

/* The consolidated export is a reshard of the step that lies in the temporary folder:
 * streamed, in constant memory. */
static int make_consolidated(struct dcp_finish *finish, struct dcp_error *err)
{
    struct dcp_catalog *catalog = NULL;
    int *src_tensor = NULL;
    struct dcp_plan *plan = NULL;
    struct dcp_source source = { finish->ctx->store, finish->publish.tmp, true };
    struct dcp_target_options target_options = { .name = finish->export_name };
    struct dcp_reshard_options options = { .dtype = finish->export_dtype,
                                           .only = DCP_ONLY_MODEL };
    const struct dcp_format *format = dcp_format_find(finish->export_format);
    struct dcp_target target = { .format = format, .options = &target_options };
    struct dcp_reshard_plan facts = { 0 };

    if (!format || (format->flags & DCP_FORMAT_IS_DIR) || format->packs)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is not a format of a single file",
                             finish->export_format);
    int rc = dcp_contents_new(finish->catalog, format, &options, &facts, &catalog,
                              &src_tensor, err);
    target.catalog = catalog;
    if (!rc)
        rc = dcp_target_open(&target, DCP_CODEC_NONE, err);
    if (!rc)
        rc = dcp_plan_new(finish->catalog, catalog, src_tensor, &plan, err);
    if (!rc)
        rc = dcp_stream_run(
            &(struct dcp_stream_setup){ .source = &source,
                                        .src = finish->catalog,
                                        .target = &target,
                                        .src_tensor = src_tensor,
                                        .plan = plan,
                                        .store = finish->ctx->store,
                                        .prefix = finish->prefix,
                                        .threads = 1,
                                        .memory_bytes = CONSOLIDATED_MEMORY,
                                        .verify = true,
                                        .read_back = finish->read_back },
            err);
    for (size_t f = 0; !rc && f < catalog->n_files; f++) {
        catalog->files[f].rank = -1; /* written already: no rank's file of the step */
        rc = dcp_catalog_add_file(finish->catalog, &catalog->files[f], NULL, err);
    }
    dcp_plan_free(plan);
    dcp_target_close(&target);
    dcp_catalog_free(catalog);
    free(src_tensor);
    return rc;
}

static void warn_once(const struct dcp_finish *finish, const char *what,
                      const struct dcp_error *why)
{
    struct dcp_told *told = finish->told;
    uint64_t digest = dcp_hash_xxh3(why->message, strlen(why->message));

    for (size_t i = 0; i < DCP_ARRAY_LEN(told->digests); i++)
        if (i < told->n && told->digests[i] == digest)
            return;
    told->digests[told->n++ % DCP_ARRAY_LEN(told->digests)] = digest;
    dcp_log_write(finish->ctx->log, DCP_LOG_WARN, "%s: %s", what, why->message);
}

static void tell_thinned(void *self, const struct dcp_step *step, enum dcp_stay stay)
{
    const struct dcp_finish *finish = self;

    if (stay == DCP_GOES)
        dcp_log_write(finish->ctx->log, DCP_LOG_INFO, "%s holds its weights alone now",
                      step->name);
}

void dcp_finish_prune(const struct dcp_finish *finish, bool published)
{
    const struct dcp_save_options *options = &finish->options;
    struct dcp_error err = { 0 };
    const struct dcp_thinning thinning = { dcp_write_weights, MOST_THINNED };
    const struct dcp_retention retention = {
        .keep = published ? options->keep : 0,
        .keep_every = options->keep_every,
        .keep_optimizer = published ? options->keep_optimizer : 0,
        .pin_timeout_s = options->pin_timeout_s,
        .thinned = tell_thinned,
        .self = (void *)finish,
    };

    if (dcp_prune_held(finish->ctx->store, &retention, &thinning,
                       published ? options->step : -1, NULL, &err))
        warn_once(finish, "retention could not remove everything; saves continue", &err);
}

/* After the commit nothing may fail the save any more. */
static void after_commit(struct dcp_finish *finish)
{
    const struct dcp_store *store = finish->ctx->store;
    struct dcp_error err = { 0 };
    char text[80];

    snprintf(text, sizeof text, "%s\n", finish->name);
    if (store->ops->replace(store->self, DCP_LATEST, text, strlen(text), &err))
        warn_once(finish, "cannot write '" DCP_LATEST "'", &err);
    dcp_finish_prune(finish, true);
}

static bool is_delta(const struct dcp_finish *finish)
{
    return finish->base && finish->n_coded;
}

/* The description of a delta, of the files that there are by now. */
static int describe_delta(struct dcp_finish *finish, struct dcp_error *err)
{
    return dcp_write_delta(&(struct dcp_write_delta){ .store = finish->ctx->store,
                                                      .prefix = finish->prefix,
                                                      .base = finish->base,
                                                      .base_files = finish->base_catalog,
                                                      .catalog = finish->catalog,
                                                      .coded = finish->coded,
                                                      .n_coded = finish->n_coded,
                                                      .number = finish->number },
                           err);
}

/* What became of the files; what could not become a delta is full, and that is told. */
static void tell_delta(struct dcp_finish *finish)
{
    char full[DCP_SIZE_CAP], stored[DCP_SIZE_CAP];
    uint64_t all = 0;

    for (size_t f = 0; f < finish->catalog->n_files; f++)
        all += finish->catalog->files[f].size_bytes;
    finish->written_bytes = all;
    for (size_t c = 0; c < finish->n_coded; c++) {
        const struct dcp_coded_file *file = &finish->coded[c];
        finish->written_bytes += file->coded.size_bytes - file->size_bytes;
        finish->base_bytes += file->coded.base_bytes;
    }
    if (finish->unfit.code)
        warn_once(finish, "a step is stored in full, not as a delta", &finish->unfit);
    if (is_delta(finish))
        dcp_log_write(finish->ctx->log, DCP_LOG_INFO, "%s is a delta on %s: %s for %s",
                      finish->name, finish->base,
                      dcp_size_format(stored, finish->written_bytes),
                      dcp_size_format(full, all));
}

int dcp_finish_run(struct dcp_finish *finish, struct dcp_error *err)
{
    struct dcp_catalog *catalog = finish->catalog;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        catalog->tensors[t].fingerprint =
            dcp_fingerprint_whole(&catalog->tensors[t], finish->parts[t]);
        catalog->tensors[t].has_fingerprint = true;
    }
    finish->fingerprint = dcp_state_fingerprint(catalog);
    if (finish->has_consolidated && is_delta(finish)) /* which is read from the step */
        DCP_TRY(describe_delta(finish, err));
    if (finish->has_consolidated)
        DCP_TRY(make_consolidated(finish, err));
    if (finish->parity)
        DCP_TRY(dcp_parity_tell(finish->parity, catalog, err));
    DCP_TRY(dcp_write_global(finish->write, err));
    if (finish->parity)
        DCP_TRY(dcp_parity_end(&(struct dcp_parity_code){ .parity = finish->parity,
                                                          .store = finish->ctx->store,
                                                          .prefix = finish->prefix },
                               catalog, err));
    if (is_delta(finish))
        DCP_TRY(describe_delta(finish, err));
    tell_delta(finish);
    DCP_TRY(dcp_publish_commit(&finish->publish, NULL, false, err));
    after_commit(finish);
    return DCP_OK;
}

void dcp_finish_fini(struct dcp_finish *finish)
{
    dcp_write_free(finish->write);
    dcp_target_close(&finish->target);
    dcp_publish_fini(&finish->publish);
    dcp_parity_free(finish->parity);
    dcp_catalog_free(finish->catalog);
    free(finish->export_name);
    free(finish->export_format);
    free(finish->name);
    free(finish->parts);
    free(finish->coded);
    *finish = (struct dcp_finish){ 0 };
}
