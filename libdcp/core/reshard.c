/* reshard: decide (plan), then do (stream, prove, publish). */
#include "base/fs.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/str.h"
#include "core/catalog/order.h"
#include "core/integrity/proof.h"
#include "core/parity/parity.h"
#include "core/parts/parts.h"
#include "core/plan/choose.h"
#include "core/plan/contents.h"
#include "core/plan/plan.h"
#include "core/plan/target.h"
#include "core/run/destination.h"
#include "core/run/publish.h"
#include "core/write/stream.h"
#include <dcp/reshard.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_MEMORY ((uint64_t)256 << 20)

struct dcp_reshard {
    struct dcp_location *location; /* borrowed */
    struct dcp_reshard_options options;
    const struct dcp_format *format;
    bool packs; /* the files of that format become one archive */
    const struct dcp_catalog *src;
    struct dcp_catalog *own_src, *target; /* own_src: what src is, unless it was given */
    struct dcp_target open;               /* of target */
    int *src_tensor;
    struct dcp_plan *plan;
    struct dcp_reshard_plan facts;
    char *dir, *name;            /* of the target */
    _Atomic uint64_t *overflows; /* by tensor of the target; NULL: nothing is cast */
    struct dcp_parts parts;      /* of options.n_parts, when these are not 0 */
    bool was_done;
};

/* Runs that touch in a source file are one read. Counted in the order the target is
 * written, which is the order of its files. */
static int count_reads(struct dcp_reshard *reshard, struct dcp_error *err)
{
    struct dcp_reshard_plan *facts = &reshard->facts;
    const struct dcp_plan *plan = reshard->plan;
    DCP_CLEANUP_FREE size_t *order = dcp_file_order(reshard->target);
    DCP_CLEANUP_FREE uint64_t *at = dcp_mem_calloc(reshard->src->n_files + 1, sizeof *at);

    if (!order || !at)
        return dcp_error_memory(err, "a reshard");
    for (size_t i = 0; i < reshard->target->n_pieces; i++)
        for (size_t c = plan->first[order[i]]; c < plan->first[order[i] + 1]; c++) {
            const struct dcp_copy *copy = &plan->copies[c];
            const struct dcp_piece *piece = &reshard->src->pieces[copy->src];
            uint64_t elem = dcp_dtype_size(reshard->src->tensors[piece->tensor].dtype);
            uint64_t runs = (uint64_t)dcp_copy_runs(copy);
            uint64_t offset = piece->offset + (uint64_t)copy->src_at * elem;
            uint64_t *last = &at[piece->file + 1];
            facts->n_reads += offset == *last ? runs - 1 : runs;
            facts->read_bytes += runs * (uint64_t)copy->n * elem;
            *last = runs == 1 ? offset + (uint64_t)copy->n * elem : UINT64_MAX;
        }
    facts->n_copies = plan->n_runs;
    return DCP_OK;
}

/* What a lossy reshard leaves out, and one of the model alone. */
static int count_left(struct dcp_reshard *reshard, struct dcp_error *err)
{
    struct dcp_identity *of_src;
    int rc = dcp_identity_new(reshard->src, &of_src, err);

    for (size_t t = 0; t < reshard->src->n_tensors && !rc; t++) {
        const struct dcp_tensor *tensor = &reshard->src->tensors[t];
        if (dcp_choose_is_beside(reshard->src, tensor, &reshard->options)) {
            if (!reshard->facts.n_beside++)
                reshard->facts.first_beside = tensor->name;
            continue;
        }
        if (!dcp_choose_selected(tensor, &reshard->options) ||
            dcp_choose_disposition(reshard->src, of_src, reshard->format, reshard->target,
                                   tensor) != DCP_DISPOSITION_UNSUPPORTED)
            continue;
        if (!reshard->facts.n_left++)
            reshard->facts.first_left = tensor->name;
    }
    dcp_identity_free(of_src);
    return rc;
}

/* Tensors whose bytes in the source nothing vouches for. */
static int count_unproved(struct dcp_reshard *reshard, struct dcp_error *err)
{
    struct dcp_proof *proof;
    int rc = dcp_proof_new(reshard->src, &proof, err);

    for (size_t t = 0; t < reshard->target->n_tensors && !rc; t++)
        reshard->facts.n_unproved +=
            !reshard->target->tensors[t].tied_to &&
            !dcp_proof_covers(proof, &reshard->src->tensors[reshard->src_tensor[t]]);
    dcp_proof_free(proof);
    return rc;
}

/* Weights and their masters: which of them are in the target. */
static void count_masters(struct dcp_reshard *reshard)
{
    struct dcp_reshard_plan *facts = &reshard->facts;
    const struct dcp_catalog *src = reshard->src, *target = reshard->target;
    uint64_t taken = 0, weights = 0;

    for (size_t t = 0; t < target->n_tensors; t++) {
        bool weight = target->tensors[t].role == DCP_ROLE_MODEL;
        bool master = src->tensors[reshard->src_tensor[t]].role == DCP_ROLE_MASTER;
        weights += weight;
        facts->n_from_masters += weight && master && !target->tensors[t].tied_to;
        taken += master;
    }
    for (size_t t = 0; t < src->n_tensors && weights && !taken; t++)
        facts->n_masters_left += src->tensors[t].role == DCP_ROLE_MASTER;
}

/* Of a folder that may have to be made. */
static uint64_t free_bytes_at(const char *dir)
{
    DCP_CLEANUP_FREE char *at = strdup(dir);
    while (at && *at && !dcp_fs_exists(at)) {
        char *slash = strrchr(at, '/');
        if (slash == at)
            slash++;
        *(slash ? slash : at) = '\0';
    }
    return at ? dcp_fs_free_bytes(*at ? at : ".") : UINT64_MAX;
}

static int fill_facts(struct dcp_reshard *reshard, struct dcp_error *err)
{
    struct dcp_reshard_plan *facts = &reshard->facts;
    const struct dcp_catalog *src = reshard->src, *target = reshard->target;
    bool *used = dcp_mem_calloc(src->n_files + 1, sizeof *used);

    facts->n_tensors = target->n_tensors;
    for (size_t t = 0; t < target->n_tensors; t++) {
        if (target->tensors[t].tied_to)
            continue;
        facts->n_cast +=
            target->tensors[t].dtype != src->tensors[reshard->src_tensor[t]].dtype;
        facts->source_bytes += dcp_tensor_bytes(&src->tensors[reshard->src_tensor[t]]);
        facts->target_bytes += dcp_tensor_bytes(&target->tensors[t]);
    }
    for (size_t c = 0; used && c < reshard->plan->n_copies; c++) {
        int file = src->pieces[reshard->plan->copies[c].src].file;
        if (file >= 0 && !used[file]) {
            used[file] = true;
            facts->source_files++;
        }
    }
    free(used);
    count_masters(reshard);
    DCP_TRY(count_left(reshard, err));
    DCP_TRY(dcp_contents_left(src, reshard->format, reshard->target, &facts->objects_left,
                              err));
    DCP_TRY(count_unproved(reshard, err));
    if (reshard->format->flags & DCP_FORMAT_MASTERS)
        facts->assumed = src->assumed;
    facts->target_files = target->n_files;
    uint64_t longest = 0;
    for (size_t f = 0; f < target->n_files; f++)
        if (target->files[f].size_bytes > longest)
            longest = target->files[f].size_bytes;
    if (reshard->options.parity)
        facts->parity_bytes =
            dcp_parity_expect(target->world_size, longest, reshard->options.parity);
    facts->n_writes = facts->target_files;
    /* Caches grow with what is read, up to the limit. */
    facts->buffer_bytes = reshard->options.memory_bytes < facts->source_bytes
                              ? reshard->options.memory_bytes
                              : facts->source_bytes;
    facts->free_bytes = free_bytes_at(reshard->dir);
    return count_reads(reshard, err);
}

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
    DCP_TRY(fill_facts(reshard, err));
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

    if (options->finish)
        bytes = reshard->facts.parity_bytes;
    else if (options->part)
        bytes = reshard->parts.deal.parts[options->part - 1].size_bytes;
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
