/* repair: what is lost or corrupt of a step is written again beside it, proved, and put
 * in its place file by file. Until then nothing of the step is touched, so that a repair
 * that is interrupted can be begun again. */
#include "base/fs.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/str.h"
#include "core/parity/code.h"
#include "core/parity/reconstruction.h"
#include "core/run/leftover.h"
#include "core/run/pin.h"
#include "core/run/steps.h"
#include "core/verify/parity.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define PROOF_BYTES ((size_t)1 << 20)
#define TMP_PREFIX DCP_TMP_PREFIX "repair-"

/* A file of the step: a column's, a parity file, or the manifest. */
struct target {
    char name[64]; /* of parity files; those of columns have theirs */
    const struct dcp_parity_file *file;
    int group, row;           /* of a parity file */
    bool bad;                 /* it is to be written again */
    _Atomic uint64_t n_units; /* units of it that are not good */
    struct dcp_store_file *out;
};

struct repair {
    const struct dcp_store *store;
    const struct dcp_repair_options *options;
    const char *step;
    char *prefix, *tmp;          /* "step-…/", ".tmp-repair-step-…" */
    struct dcp_store_file *held; /* tmp, while it is written */
    struct dcp_reconstruction *rebuilt;
    const struct dcp_parity *parity;
    struct target *targets; /* columns' files, then parity files, then the manifest */
    size_t n_targets;
    struct dcp_pool *pool;
    unsigned char **scratch; /* by worker: all units of a stripe */
    int n_workers, group;    /* the group that is gone through */
    bool writing;
    _Atomic bool unproved; /* a stripe without any parity file was met */
    uint64_t done_bytes;   /* under lock */
    uint64_t total_bytes;
    pthread_mutex_t lock; /* of progress */
};

static const char *name_of(const struct target *target)
{
    return target->file ? target->file->name : target->name;
}

static struct target *parity_target(const struct repair *r, int group, int row)
{
    return &r->targets[r->parity->n_files + (size_t)(group * r->parity->rows + row)];
}

static struct target *manifest_target(const struct repair *r)
{
    return &r->targets[r->n_targets - 1];
}

static int report(struct repair *r, uint64_t n, struct dcp_error *err)
{
    const struct dcp_progress *progress = &r->options->progress;
    bool stop = false;

    pthread_mutex_lock(&r->lock); /* so that what is told never falls */
    r->done_bytes += n;
    if (progress->report)
        stop = progress->report(progress->self, r->done_bytes, r->total_bytes);
    pthread_mutex_unlock(&r->lock);
    return stop ? dcp_error_set(err, DCP_E_INTERRUPTED, "interrupted") : DCP_OK;
}

/* -- what is wrong ------------------------------------------------------------------- */

/* A record is read back at once: no digest covers all of a parity file. */
static int write_record(const struct repair *r, struct target *target, uint64_t stripe,
                        const struct dcp_reconstruction_stripe *at, struct dcp_error *err)
{
    const struct dcp_store *store = r->store;
    const struct dcp_parity_group *g = &r->parity->groups[r->group];
    int row = target->row;
    uint64_t begin = dcp_parity_record_at(r->parity, r->group, stripe),
             behind = begin + DCP_PARITY_UNIT, there[DCP_ERASURE_MAX_UNITS];
    unsigned char trailer[(DCP_ERASURE_MAX_UNITS + 1) * sizeof(uint64_t)];
    unsigned char *unit = at->units[g->n + row];

    dcp_parity_seal(r->parity, r->group, row, stripe, at->digests, trailer);
    DCP_TRY(store->ops->write_at(store->self, target->out, begin, unit, DCP_PARITY_UNIT,
                                 err));
    DCP_TRY(store->ops->write_at(store->self, target->out, behind, trailer,
                                 g->trailer_bytes, err));
    DCP_TRY(
        store->ops->read_at(store->self, target->out, begin, unit, DCP_PARITY_UNIT, err));
    DCP_TRY(store->ops->read_at(store->self, target->out, behind, trailer,
                                g->trailer_bytes, err));
    return dcp_hash_xxh3(unit, DCP_PARITY_UNIT) == at->digests[g->n + row] &&
                   dcp_parity_unseal(r->parity, r->group, row, stripe, trailer, there)
               ? DCP_OK
               : dcp_fs_not_written(name_of(target), err);
}

static int write_stripe(struct repair *r, uint64_t stripe,
                        const struct dcp_reconstruction_stripe *at, struct dcp_error *err)
{
    const struct dcp_parity_group *g = &r->parity->groups[r->group];

    for (int c = 0; c < g->n; c++) {
        uint64_t unit;
        const struct dcp_parity_file *file =
            dcp_parity_unit(r->parity, g->first + c, stripe, &unit);
        struct target *target = file ? &r->targets[file - r->parity->files] : NULL;
        if (!target || !target->bad)
            continue;
        uint64_t begin = unit * DCP_PARITY_UNIT, left = file->size_bytes - begin;
        DCP_TRY(r->store->ops->write_at(
            r->store->self, target->out, begin, at->units[c],
            left < DCP_PARITY_UNIT ? (size_t)left : DCP_PARITY_UNIT, err));
    }
    for (int row = 0; row < r->parity->rows; row++) {
        struct target *target = parity_target(r, r->group, row);
        if (target->bad)
            DCP_TRY(write_record(r, target, stripe, at, err));
    }
    return DCP_OK;
}

static void count_bad(struct repair *r, uint64_t stripe,
                      const struct dcp_reconstruction_stripe *at)
{
    const struct dcp_parity_group *g = &r->parity->groups[r->group];
    uint64_t unit;

    for (int c = 0; c < g->n; c++) {
        const struct dcp_parity_file *file =
            dcp_parity_unit(r->parity, g->first + c, stripe, &unit);
        if (file && !at->good[c])
            r->targets[file - r->parity->files].n_units++;
    }
    for (int row = 0; row < r->parity->rows; row++)
        if (!at->good[g->n + row])
            parity_target(r, r->group, row)->n_units++;
}

/* Twice through all stripes: first to see what is wrong, then to write it again. */
static int stripe_job(void *arg, int worker, size_t stripe, struct dcp_error *err)
{
    struct repair *r = arg;
    const struct dcp_parity_group *g = &r->parity->groups[r->group];
    struct dcp_reconstruction_stripe at;

    for (int i = 0; i < g->n + r->parity->rows; i++)
        at.units[i] = r->scratch[worker] + (size_t)i * DCP_PARITY_UNIT;
    DCP_TRY(dcp_reconstruction_stripe(r->rebuilt, r->group, stripe, &at, err));
    if (!at.proved)
        r->unproved = true;
    if (r->writing)
        DCP_TRY(write_stripe(r, stripe, &at, err));
    else
        count_bad(r, stripe, &at);
    return report(r, (uint64_t)g->n * DCP_PARITY_UNIT, err);
}

static bool group_is_bad(const struct repair *r, int group)
{
    const struct dcp_parity_group *g = &r->parity->groups[group];
    bool bad = false;

    for (size_t f = r->parity->column_first[g->first];
         f < r->parity->column_first[g->first + g->n]; f++)
        bad |= r->targets[f].bad;
    for (int row = 0; row < r->parity->rows; row++)
        bad |= parity_target(r, group, row)->bad;
    return bad;
}

static int each_stripe(struct repair *r, bool writing, struct dcp_error *err)
{
    r->writing = writing;
    for (int g = 0; g < r->parity->n_groups; g++) {
        r->group = g;
        if (!writing || group_is_bad(r, g))
            DCP_TRY(dcp_pool_for(r->pool, (size_t)r->parity->groups[g].n_stripes,
                                 stripe_job, r, err));
    }
    return DCP_OK;
}

static int decide(struct repair *r, struct dcp_error *err)
{
    bool is_dir, intact;
    uint64_t size;
    size_t n;

    for (size_t t = 0; t < r->n_targets; t++) {
        struct target *target = &r->targets[t];
        DCP_CLEANUP_FREE char *path = dcp_str_join(r->prefix, name_of(target), "");
        int rc = path ? DCP_OK : DCP_E_MEMORY;
        target->bad = target->n_units > 0;
        if (!rc && target->file)
            rc = r->store->ops->stat(r->store->self, path, &is_dir, &size, NULL);
        if (!rc && target->file)
            target->bad |= is_dir || size != target->file->size_bytes;
        else if (!rc && target != manifest_target(r))
            rc = dcp_parity_check_ends(r->rebuilt, r->store, r->prefix, target->group,
                                       target->row);
        if (rc == DCP_E_MEMORY)
            return dcp_error_memory(err, "a repair");
        target->bad |= rc != DCP_OK;
    }
    dcp_reconstruction_manifest(r->rebuilt, &n, &intact);
    manifest_target(r)->bad = !intact;
    return DCP_OK;
}

/* -- writing it again ---------------------------------------------------------------- */

static uint64_t size_of(const struct repair *r, const struct target *target)
{
    size_t n;
    bool intact;

    if (target->file)
        return target->file->size_bytes;
    dcp_reconstruction_manifest(r->rebuilt, &n, &intact);
    return target == manifest_target(r) ? n : dcp_parity_bytes(r->parity, target->group);
}

static int begin_file(struct repair *r, struct target *target, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(r->tmp, "/", name_of(target));
    size_t n;
    bool intact;
    const void *manifest = dcp_reconstruction_manifest(r->rebuilt, &n, &intact);
    int rc = path ? r->store->ops->create(r->store->self, path, size_of(r, target),
                                          &target->out, err)
                  : dcp_error_memory(err, "a file name");

    if (!rc && target == manifest_target(r))
        rc = r->store->ops->write_at(r->store->self, target->out, 0, manifest, n, err);
    return rc;
}

static int end_file(struct repair *r, struct target *target, struct dcp_error *err)
{
    const struct dcp_store *store = r->store;
    DCP_CLEANUP_FREE char *path = dcp_str_join(r->tmp, "/", name_of(target));
    size_t n;
    bool intact, is_manifest = target == manifest_target(r);
    bool is_parity = !target->file && !is_manifest;
    const void *manifest = dcp_reconstruction_manifest(r->rebuilt, &n, &intact);
    uint64_t size = size_of(r, target);
    int rc = path ? DCP_OK : dcp_error_memory(err, "a file name");

    if (!rc && is_parity)
        rc = dcp_parity_write_ends(r->parity, store, target->out, target->group, manifest,
                                   n, &size, err);
    if (!rc)
        rc = store->ops->sync(store->self, target->out, size, err);
    if (!rc && is_manifest)
        rc = dcp_store_read_back(store, target->out, name_of(target), n,
                                 dcp_hash_crc64(0, manifest, n), err);
    int closed = store->ops->close(store->self, target->out, rc ? NULL : err);
    target->out = NULL;
    if (!rc)
        rc = closed;
    return rc || !is_parity
               ? rc
               : dcp_parity_check_written(r->parity, store, path, manifest, n, err);
}

/* A file of a column is what its digest says. */
static int prove(const struct repair *r, const char *folder,
                 const struct dcp_parity_file *file, struct dcp_error *err)
{
    const struct dcp_store *store = r->store;
    DCP_CLEANUP_FREE char *path = folder[0] ? dcp_str_join(folder, "/", file->name)
                                            : dcp_str_join(file->name, "", "");
    DCP_CLEANUP_FREE unsigned char *buffer = malloc(PROOF_BYTES);
    struct dcp_store_file *open;
    uint64_t crc = 0;

    if (!path || !buffer)
        return dcp_error_memory(err, "a repair");
    int rc = store->ops->open(store->self, path, &open, err);
    if (rc)
        return rc;
    for (uint64_t at = 0; at < file->size_bytes && !rc; at += PROOF_BYTES) {
        uint64_t left = file->size_bytes - at;
        size_t n = left < PROOF_BYTES ? (size_t)left : PROOF_BYTES;
        rc = store->ops->read_at(store->self, open, at, buffer, n, err);
        crc = dcp_hash_crc64(crc, buffer, n);
    }
    store->ops->close(store->self, open, NULL);
    if (!rc && crc != file->crc)
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           "'%s' cannot be rebuilt: what parity gives does not have its "
                           "digest; nothing was changed",
                           file->name);
    return rc;
}

static int prove_all(const struct repair *r, struct dcp_error *err)
{
    for (size_t f = 0; f < r->parity->n_files; f++)
        if (r->targets[f].bad || r->unproved)
            DCP_TRY(prove(r, r->targets[f].bad ? r->tmp : r->step, &r->parity->files[f],
                          err));
    return DCP_OK;
}

static int put_in_place(struct repair *r, const struct target *target,
                        struct dcp_error *err)
{
    const struct dcp_store *store = r->store;
    DCP_CLEANUP_FREE char *from = dcp_str_join(r->tmp, "/", name_of(target));
    DCP_CLEANUP_FREE char *to = dcp_str_join(r->prefix, name_of(target), "");
    bool is_dir;
    uint64_t size;

    if (!from || !to)
        return dcp_error_memory(err, "a file name");
    if (store->ops->stat(store->self, to, &is_dir, &size, NULL) == DCP_E_NOT_FOUND)
        return store->ops->publish(store->self, from, to, err);
    struct dcp_error why = { 0 };
    int rc = store->ops->exchange ? store->ops->exchange(store->self, from, to, &why)
                                  : DCP_E_UNSUPPORTED;
    if (rc ==
        DCP_E_UNSUPPORTED) { /* a crash in between leaves one file more to rebuild */
        rc = store->ops->remove(store->self, to, err);
        return rc ? rc : store->ops->publish(store->self, from, to, err);
    }
    if (rc && err)
        *err = why;
    return rc;
}

static int rewrite(struct repair *r, struct dcp_error *err)
{
    const struct dcp_store *store = r->store;

    DCP_TRY(dcp_leftover_make(store, TMP_PREFIX, r->step, &r->tmp, &r->held, err));
    for (size_t t = 0; t < r->n_targets; t++)
        if (r->targets[t].bad)
            DCP_TRY(begin_file(r, &r->targets[t], err));
    DCP_TRY(each_stripe(r, true, err));
    for (size_t t = 0; t < r->n_targets; t++)
        if (r->targets[t].bad)
            DCP_TRY(end_file(r, &r->targets[t], err));
    DCP_TRY(prove_all(r, err));
    for (size_t t = 0; t < r->n_targets; t++)
        if (r->targets[t].bad)
            DCP_TRY(put_in_place(r, &r->targets[t], err));
    return DCP_OK;
}

/* -- the whole ----------------------------------------------------------------------- */

static int repair_init(struct repair *r, struct dcp_error *err)
{
    size_t units = 0;

    DCP_TRY(dcp_reconstruction_open(r->store, r->step, &r->rebuilt, err));
    r->parity = dcp_reconstruction_parity(r->rebuilt);
    r->n_targets = r->parity->n_files + dcp_parity_n_rows(r->parity) + 1;
    r->targets = dcp_mem_calloc(r->n_targets, sizeof *r->targets);
    r->prefix = dcp_str_join(r->step, r->step[0] ? "/" : "", "");
    r->n_workers = r->options->threads > 0 ? r->options->threads : 2;
    r->scratch = dcp_mem_calloc((size_t)r->n_workers, sizeof *r->scratch);
    if (!r->targets || !r->prefix || !r->scratch)
        return dcp_error_memory(err, "a repair");
    for (size_t f = 0; f < r->parity->n_files; f++)
        r->targets[f].file = &r->parity->files[f];
    for (int g = 0; g < r->parity->n_groups; g++) {
        size_t all = (size_t)(r->parity->groups[g].n + r->parity->rows);
        units = all > units ? all : units;
        r->total_bytes += r->parity->groups[g].n_stripes *
                          (uint64_t)r->parity->groups[g].n * DCP_PARITY_UNIT;
        for (int row = 0; row < r->parity->rows; row++) {
            struct target *target = parity_target(r, g, row);
            target->group = g;
            target->row = row;
            dcp_parity_name(r->parity, g, row, target->name);
        }
    }
    snprintf(manifest_target(r)->name, sizeof manifest_target(r)->name,
             DCP_PARITY_MANIFEST);
    for (int w = 0; w < r->n_workers; w++)
        if (!(r->scratch[w] = dcp_mem_aligned(64, units * DCP_PARITY_UNIT)))
            return dcp_error_memory(err, "a repair");
    return r->n_workers > 1 ? dcp_pool_new(r->n_workers - 1, &r->pool, err) : DCP_OK;
}

static void repair_fini(struct repair *r)
{
    for (size_t t = 0; r->targets && t < r->n_targets; t++)
        if (r->targets[t].out)
            r->store->ops->close(r->store->self, r->targets[t].out, NULL);
    for (int w = 0; r->scratch && w < r->n_workers; w++)
        free(r->scratch[w]);
    dcp_pool_free(r->pool);
    dcp_reconstruction_free(r->rebuilt);
    free(r->scratch);
    free(r->targets);
    free(r->prefix);
    free(r->tmp);
}

static void tell(const struct repair *r, struct dcp_repair_result *result)
{
    for (size_t t = 0; t < r->n_targets; t++) {
        const struct target *target = &r->targets[t];
        if (!target->bad)
            continue;
        result->n_files++;
        result->n_units += target->n_units;
        if (r->options->repaired)
            r->options->repaired(r->options->self, name_of(target), size_of(r, target));
    }
}

int dcp_repair(const struct dcp_store *store, const char *step,
               const struct dcp_repair_options *options,
               struct dcp_repair_result *out_result, struct dcp_error *err)
{
    static const struct dcp_repair_options none = { 0 };
    struct repair r = { .store = store,
                        .options = options ? options : &none,
                        .step = step };
    struct dcp_repair_result result = { 0 };
    bool in_run = dcp_step_parse(step) >= 0; /* elsewhere there is no lease to take */

    if (in_run)
        DCP_TRY(store->ops->lock(store->self, err));
    pthread_mutex_init(&r.lock, NULL);
    int rc = repair_init(&r, err);
    if (!rc)
        rc = each_stripe(&r, false, err);
    if (!rc)
        rc = decide(&r, err);
    bool bad = r.unproved;
    for (size_t t = 0; t < r.n_targets && !rc; t++)
        bad |= r.targets[t].bad;
    if (!rc && bad) {
        r.total_bytes *= 2;
        rc = rewrite(&r, err);
    } else if (!rc) { /* what one left that was killed when its work was done */
        rc = dcp_leftover_clear(store, TMP_PREFIX, step, &r.tmp, err);
    }
    dcp_unpin(store, &r.held);
    if (r.tmp)
        dcp_leftover_remove(store, r.tmp, NULL);
    if (!rc)
        tell(&r, &result);
    result.size_bytes = r.total_bytes;
    repair_fini(&r);
    pthread_mutex_destroy(&r.lock);
    if (in_run)
        store->ops->unlock(store->self);
    if (!rc && out_result)
        *out_result = result;
    return rc;
}
