/* reshard: decide (plan), then do (stream, prove, publish). */
#include "base/fs.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/str.h"
#include "core/parity/parity.h"
#include "core/plan/contents.h"
#include "core/plan/target.h"
#include "core/run/destination.h"
#include "core/run/publish.h"
#include "core/write/stream.h"
#include "reshard_own.h"
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_MEMORY ((uint64_t)256 << 20)

static int index_source(struct dcp_reshard *reshard, struct dcp_error *err)
{
    reshard->src = reshard->options.source;
    if (reshard->src)
        return DCP_OK;
    int rc = dcp_location_index(reshard->location, &reshard->own_src, err);
    reshard->src = reshard->own_src;
    return rc;
}

static int open_folder(const struct dcp_reshard *reshard, struct dcp_store *out,
                       struct dcp_error *err)
{
    *out = (struct dcp_store){ 0 };
    return dcp_fs_is_dir(reshard->dir) ? dcp_store_dir(out, reshard->dir, false, err)
                                       : DCP_OK;
}

/* Who finishes need not be told how many parts there are. */
static int find_parts(struct dcp_reshard *reshard, const char *target_path,
                      struct dcp_error *err)
{
    enum dcp_staging_state state = DCP_STAGING_NONE;
    struct dcp_store store;
    int n = 0, rc = open_folder(reshard, &store, err);

    if (!rc && store.ops)
        rc = dcp_parts_find(&store, reshard->name, &n, &state, err);
    dcp_store_free(&store);
    if (rc)
        return rc;
    if (state == DCP_STAGING_NONE && dcp_fs_exists(target_path))
        return dcp_error_set(err, DCP_E_EXISTS,
                             "'%s' exists already, and no parts wait to be finished",
                             target_path);
    if (n == 0) {
        dcp_error_set(err, DCP_E_NOT_FOUND, "no part of '%s' is made", target_path);
        dcp_error_hint(err, "make them by the same command with --part 1/N to --part N/N "
                            "in the place of --finish");
        return DCP_E_NOT_FOUND;
    }
    if (!reshard->options.n_parts)
        reshard->options.n_parts = n;
    return DCP_OK;
}

static int check_parts(const struct dcp_reshard *reshard, struct dcp_error *err)
{
    const struct dcp_reshard_options *options = &reshard->options;

    if (options->n_parts < 0 || options->part < 0 || options->part > options->n_parts ||
        (options->finish ? options->part > 0 : options->n_parts && !options->part))
        return dcp_error_set(err, DCP_E_USAGE, "there is no part %d of %d", options->part,
                             options->n_parts);
    if (!options->n_parts && !options->finish)
        return DCP_OK;
    if (!reshard->packs && reshard->format->flags & DCP_FORMAT_IS_DIR)
        return DCP_OK;
    dcp_error_set(err, DCP_E_USAGE,
                  "a target of format %s is one file, which cannot be "
                  "made in parts",
                  reshard->packs ? "bundle" : reshard->format->name);
    dcp_error_hint(err,
                   "choose a format of several files, such as native, torch-dist, or "
                   "hf with --max-shard-size");
    return DCP_E_USAGE;
}

/* A folder that is named like an archive is not what was meant. */
static int check_name(const struct dcp_reshard *reshard, const char *path,
                      struct dcp_error *err)
{
    static const char *const archives[] = { ".tar",     ".tar.gz", ".tar.xz",
                                            ".tar.bz2", ".tgz",    ".zip" };

    for (size_t i = 0; i < DCP_ARRAY_LEN(archives); i++)
        if (dcp_str_ends(path, archives[i]) && !reshard->packs &&
            reshard->format->flags & DCP_FORMAT_IS_DIR) {
            dcp_error_set(err, DCP_E_USAGE,
                          "'%s' is named like an archive, and would be a folder", path);
            dcp_error_hint(err, "archives are written as .tar.zst");
            return DCP_E_USAGE;
        }
    return DCP_OK;
}

static int plan_parts(struct dcp_reshard *reshard, struct dcp_error *err)
{
    const struct dcp_reshard_options *options = &reshard->options;
    struct dcp_identity_of_job job = { .source = &reshard->location->source,
                                       .src = reshard->src,
                                       .unproved = reshard->facts.n_unproved,
                                       .target = &reshard->open,
                                       .src_tensor = reshard->src_tensor,
                                       .parity = options->parity,
                                       .no_verify = options->no_verify,
                                       .n = options->n_parts };
    struct dcp_store store;

    if (!options->n_parts)
        return DCP_OK;
    DCP_TRY(dcp_parts_new(&reshard->parts, &reshard->open, &job, err));
    int rc = open_folder(reshard, &store, err);
    if (!rc && store.ops)
        rc = dcp_parts_look(&reshard->parts, &store, reshard->name, err);
    dcp_store_free(&store);
    return rc;
}

static int decide(struct dcp_reshard *reshard, const char *target_path,
                  struct dcp_error *err)
{
    struct dcp_reshard_options *options = &reshard->options;
    const struct dcp_format *format =
        options->format ? dcp_format_find(options->format) : dcp_format_of_steps();

    if (!format || !(format->flags & DCP_FORMAT_WRITES)) {
        dcp_error_set(err, DCP_E_UNSUPPORTED, "there is no format '%s' to write",
                      options->format);
        dcp_error_hint(err, "'dcp-reshard formats' lists them");
        return DCP_E_UNSUPPORTED;
    }
    reshard->packs = format->packs != NULL;
    reshard->format = reshard->packs ? format->packs : format;
    if (reshard->packs && options->codec != DCP_CODEC_NONE)
        return dcp_error_set(err, DCP_E_USAGE,
                             "a target of format %s is compressed as a whole: a codec "
                             "for its blocks does not apply",
                             format->name);
    if (options->parity && !(format->flags & DCP_FORMAT_STEPS))
        return dcp_error_set(err, DCP_E_USAGE,
                             "a target of format %s has no parity; native steps can have"
                             " it",
                             format->name);
    if (options->parity < 0 || options->parity > DCP_PARITY_MAX_ROWS)
        return dcp_error_set(err, DCP_E_USAGE, "parity is 0 to %d", DCP_PARITY_MAX_ROWS);
    DCP_TRY(check_parts(reshard, err));
    DCP_TRY(check_name(reshard, target_path, err));
    DCP_TRY(dcp_reshard_check_reflink(reshard, err));
    int rc = dcp_destination_check(reshard->location, target_path,
                                   options->force || options->finish, &reshard->dir,
                                   &reshard->name, err);
    if (!rc && options->finish)
        rc = find_parts(reshard, target_path, err);
    if (!options->target.name)
        options->target.name = reshard->name;
    if (!rc)
        rc = index_source(reshard, err);
    if (!rc)
        rc = dcp_reshard_try_reflink(reshard, err);
    if (!rc)
        rc = dcp_contents_new(reshard->src, reshard->format, options, &reshard->facts,
                              &reshard->target, &reshard->src_tensor, err);
    if (!rc && format->flags & DCP_FORMAT_STEPS)
        rc = dcp_destination_step(reshard->name, reshard->target, err);
    if (rc)
        return rc;
    reshard->target->format = format->name;
    reshard->open = (struct dcp_target){ .format = reshard->format,
                                         .catalog = reshard->target,
                                         .options = &options->target };
    DCP_TRY(dcp_target_open(&reshard->open, options->codec, err));
    DCP_TRY(dcp_plan_new(reshard->src, reshard->target, reshard->src_tensor,
                         &reshard->plan, err));
    DCP_TRY(dcp_reshard_find_clones(reshard, err));
    DCP_TRY(dcp_reshard_count(reshard, err));
    return plan_parts(reshard, err);
}

int dcp_reshard_plan(struct dcp_location *location, const char *target_path,
                     const struct dcp_reshard_options *options,
                     struct dcp_reshard **out_reshard, struct dcp_error *err)
{
    struct dcp_reshard *reshard = calloc(1, sizeof *reshard);

    *out_reshard = NULL;
    if (!reshard)
        return dcp_error_memory(err, "a reshard");
    reshard->location = location;
    reshard->options = *options;
    if (!reshard->options.memory_bytes)
        reshard->options.memory_bytes = DEFAULT_MEMORY;
    if (reshard->options.threads < 1)
        reshard->options.threads = 2;
    int rc = decide(reshard, target_path, err);
    if (rc) {
        dcp_reshard_free(reshard);
        return rc;
    }
    *out_reshard = reshard;
    return DCP_OK;
}

const struct dcp_reshard_plan *dcp_reshard_facts(const struct dcp_reshard *reshard)
{
    return &reshard->facts;
}

const struct dcp_catalog *dcp_reshard_target(const struct dcp_reshard *reshard)
{
    return reshard->target;
}

/* What is published is what was written: another process that makes the same target, or
 * one that clears temporary folders, is found out here. */
static int check_file(const struct dcp_reshard *reshard, const struct dcp_store *store,
                      const char *prefix, const char *name, uint64_t size_bytes,
                      struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(prefix, name, "");
    bool is_dir = false;
    uint64_t size = 0;
    struct dcp_error why = { 0 };

    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = store->ops->stat(store->self, path, &is_dir, &size, &why);
    if (rc && rc != DCP_E_NOT_FOUND) {
        if (err)
            *err = why;
    } else if (rc || is_dir || size != size_bytes) {
        rc = dcp_error_set(err, DCP_E_BUSY,
                           "'%s/%s' was changed by another process while it was made; "
                           "nothing was published",
                           store->root, path);
        dcp_error_hint(err, "let only one process make '%s'", reshard->name);
    }
    return rc;
}

static int check_written(const struct dcp_reshard *reshard, const struct dcp_store *store,
                         const char *prefix, struct dcp_error *err)
{
    for (size_t f = 0; f < reshard->target->n_files; f++)
        DCP_TRY(check_file(reshard, store, prefix, reshard->target->files[f].name,
                           reshard->target->files[f].size_bytes, err));
    return DCP_OK;
}

static struct dcp_stream_setup stream_setup(struct dcp_reshard *reshard,
                                            const struct dcp_store *store,
                                            const char *prefix)
{
    const struct dcp_reshard_options *options = &reshard->options;
    const struct dcp_clones *clones = reshard->block_bytes ? &reshard->clones : NULL;

    return (struct dcp_stream_setup){ .source = &reshard->location->source,
                                      .src = reshard->src,
                                      .target = &reshard->open,
                                      .src_tensor = reshard->src_tensor,
                                      .plan = reshard->plan,
                                      .overflows = reshard->overflows,
                                      .store = store,
                                      .prefix = prefix,
                                      .threads = options->threads,
                                      .memory_bytes = options->memory_bytes,
                                      .verify = !options->no_verify,
                                      .read_back = options->no_verify
                                                       ? DCP_READ_BACK_NOT
                                                       : DCP_READ_BACK_CACHE,
                                      .parity = options->parity,
                                      .reconstructed = &reshard->location->corruption,
                                      .clones = clones,
                                      .shared_bytes = &reshard->shared_bytes,
                                      .progress = options->progress };
}

/* Writes the target's files, or the one archive of them. */
static int write_target(struct dcp_reshard *reshard, const struct dcp_store *store,
                        const char *prefix, struct dcp_error *err)
{
    const struct dcp_stream_setup setup = stream_setup(reshard, store, prefix);
    uint64_t bytes = 0;

    DCP_TRY(reshard->packs ? dcp_stream_pack(&setup, reshard->name, &bytes, err)
                           : dcp_stream_run(&setup, err));
    return reshard->packs ? check_file(reshard, store, prefix, reshard->name, bytes, err)
                          : check_written(reshard, store, prefix, err);
}

/* How small an archive becomes is not known before it is written. */
static int check_room(const struct dcp_reshard *reshard, struct dcp_error *err)
{
    const struct dcp_reshard_options *options = &reshard->options;
    char need[DCP_SIZE_CAP], room[DCP_SIZE_CAP];
    uint64_t bytes = reshard->facts.target_bytes + reshard->facts.parity_bytes;
    uint64_t shared = reshard->facts.shared_bytes;

    if (options->finish)
        bytes = reshard->facts.parity_bytes;
    else if (options->part)
        bytes = reshard->parts.deal.parts[options->part - 1].size_bytes -
                dcp_reshard_spared(reshard, options->part - 1);
    else /* of what several ranks hold only one is counted */
        bytes -= bytes < shared ? bytes : shared;
    if (reshard->packs || bytes <= reshard->facts.free_bytes)
        return DCP_OK;
    dcp_error_set(err, DCP_E_NO_SPACE, "'%s' needs %s, %s are free", reshard->name,
                  dcp_size_format(need, bytes),
                  dcp_size_format(room, reshard->facts.free_bytes));
    dcp_error_hint(err, "free some space, or choose a folder on another disk");
    return DCP_E_NO_SPACE;
}

/* All of it, in a temporary folder of this process. */
static int run_alone(struct dcp_reshard *reshard, const struct dcp_store *store,
                     struct dcp_error *err)
{
    const struct dcp_reshard_options *options = &reshard->options;
    bool is_dir = !reshard->packs && reshard->format->flags & DCP_FORMAT_IS_DIR;
    struct dcp_publication publish = { 0 };
    int rc = dcp_publish_begin(&publish, store, reshard->name, options->force, err);

    if (!rc)
        rc = write_target(reshard, store, publish.prefix, err);
    if (!rc && is_dir && options->made)
        rc = options->made(options->self,
                           &(struct dcp_source){ store, publish.tmp, true }, err);
    if (!rc)
        rc = dcp_publish_commit(&publish,
                                is_dir           ? NULL
                                : reshard->packs ? reshard->name
                                                 : reshard->target->files[0].name,
                                options->force, err);
    struct dcp_error why = { 0 };
    if (dcp_publish_clear(&publish, &why))
        dcp_log_write(options->log, DCP_LOG_WARN, "%s; it is no longer needed",
                      why.message);
    dcp_publish_fini(&publish);
    return rc;
}

static int run_in_parts(struct dcp_reshard *reshard, const struct dcp_store *store,
                        struct dcp_error *err)
{
    const struct dcp_reshard_options *options = &reshard->options;
    struct dcp_stream_setup setup = stream_setup(reshard, store, "");
    const struct dcp_parts_finish finish = { .name = reshard->name,
                                             .force = options->force,
                                             .log = options->log,
                                             .made = options->made,
                                             .self = options->self };

    return options->finish ? dcp_parts_finish(&reshard->parts, &setup, &finish,
                                              &reshard->was_done, err)
                           : dcp_parts_make(&reshard->parts, &setup, reshard->name,
                                            options->part - 1, &reshard->was_done, err);
}

int dcp_reshard_run(struct dcp_reshard *reshard, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *made = NULL;
    struct dcp_store store = { 0 };

    DCP_TRY(check_room(reshard, err));
    free(reshard->overflows);
    reshard->overflows = NULL;
    reshard->shared_bytes = 0;
    if (reshard->facts.n_cast) {
        reshard->overflows =
            dcp_mem_calloc(reshard->target->n_tensors, sizeof *reshard->overflows);
        if (!reshard->overflows)
            return dcp_error_memory(err, "a reshard");
    }
    int rc = dcp_fs_make_missing(reshard->dir, &made, err);
    if (!rc)
        rc = dcp_store_dir(&store, reshard->dir, false, err);
    if (!rc)
        rc = reshard->options.n_parts ? run_in_parts(reshard, &store, err)
                                      : run_alone(reshard, &store, err);
    if (rc == DCP_E_EXISTS && !reshard->options.force)
        dcp_error_hint(err, "choose another name, or replace it with --force");
    if (store.ops)
        dcp_store_free(&store);
    if (rc && made)
        dcp_fs_remove_made(reshard->dir, made);
    return rc;
}

bool dcp_reshard_was_done(const struct dcp_reshard *reshard)
{
    return reshard->was_done;
}

int dcp_reshard_n_parts(const struct dcp_reshard *reshard)
{
    return reshard->options.n_parts;
}

const struct dcp_reshard_part *dcp_reshard_part(const struct dcp_reshard *reshard, int i)
{
    return &reshard->parts.deal.parts[i];
}

uint64_t dcp_reshard_overflows(const struct dcp_reshard *reshard, size_t *out_tensors,
                               const char **out_first)
{
    uint64_t sum = 0;

    *out_tensors = 0;
    *out_first = NULL;
    for (size_t t = 0; reshard->overflows && t < reshard->target->n_tensors; t++) {
        if (!reshard->overflows[t])
            continue;
        sum += reshard->overflows[t];
        if (!(*out_tensors)++)
            *out_first = reshard->target->tensors[t].name;
    }
    return sum;
}

void dcp_reshard_free(struct dcp_reshard *reshard)
{
    if (!reshard)
        return;
    dcp_parts_fini(&reshard->parts);
    dcp_clones_fini(&reshard->clones);
    dcp_plan_free(reshard->plan);
    dcp_target_close(&reshard->open);
    dcp_catalog_free(reshard->own_src);
    dcp_catalog_free(reshard->target);
    free(reshard->src_tensor);
    free(reshard->overflows);
    free(reshard->dir);
    free(reshard->name);
    free(reshard);
}
