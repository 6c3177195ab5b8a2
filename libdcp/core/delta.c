/* delta: makes one of two checkpoints that go together. */
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/delta/making.h"
#include "delta_target.h"
#include <dcp/delta.h>
#include <string.h>

struct make {
    struct dcp_location *base, *source;
    const struct dcp_delta_options *options;
    struct dcp_catalog *base_catalog, *catalog;
    struct dcp_delta_making making;
    struct dcp_delta_target target;
};

/* -- whether the two go together ----------------------------------------------------- */

static int refuse(int code, const struct dcp_location *of, const char *why,
                  struct dcp_error *err)
{
    return dcp_error_set(err, code, "there is no delta of '%s': %s", of->path, why);
}

static int check_one(const struct dcp_location *of, const struct dcp_catalog *catalog,
                     struct dcp_error *err)
{
    if (of->corruption.code)
        return refuse(DCP_E_CORRUPT, of, of->corruption.message, err);
    for (size_t p = 0; p < catalog->n_pieces; p++)
        if (of->format->flags & DCP_FORMAT_STEPS &&
            catalog->pieces[p].codec != DCP_CODEC_NONE)
            return refuse(DCP_E_UNSUPPORTED, of,
                          "its pieces are compressed, which hides what did not change",
                          err);
    return DCP_OK;
}

static int check_pair(const struct make *make, struct dcp_error *err)
{
    const struct dcp_location *base = make->base, *source = make->source;
    const struct dcp_catalog *a = make->base_catalog, *b = make->catalog;

    if (!dcp_fs_is_dir(base->path))
        return refuse(DCP_E_UNSUPPORTED, base, "a base is a folder", err);
    if (!source->source.is_dir)
        return refuse(DCP_E_UNSUPPORTED, source, "it is no folder", err);
    DCP_TRY(check_one(base, a, err));
    DCP_TRY(check_one(source, b, err));
    if (b->parity)
        return refuse(DCP_E_UNSUPPORTED, source,
                      "it has parity, which protects files that a delta does not have",
                      err);
    if (base->format != source->format)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "'%s' is %s, '%s' is %s: a delta is "
                             "between two of one format",
                             base->path, base->format->name, source->path,
                             source->format->name);
    if (a->world_size != b->world_size) {
        dcp_error_set(err, DCP_E_MISMATCH,
                      "'%s' was saved by %d ranks, '%s' by %d: their shards have nothing "
                      "in common",
                      base->path, a->world_size, source->path, b->world_size);
        dcp_error_hint(err, "bring one to the other's world size: dcp-reshard --world %d",
                       a->world_size);
        return DCP_E_MISMATCH;
    }
    return DCP_OK;
}

/* -- which base it is -----------------------------------------------------------------
 */

static int choose_base(struct make *make, struct dcp_error *err)
{
    const struct dcp_source *base = &make->base->source;
    int longest =
        make->options->max_chain ? make->options->max_chain : DCP_DELTA_USUAL_CHAIN;
    DCP_CLEANUP_FREE char *of_base = NULL, *from = NULL, *dir = NULL;
    DCP_CLEANUP_FREE char *to = realpath(make->base->path, NULL);
    struct dcp_error why = { 0 };
    int chain;

    int rc = dcp_delta_base(base->store, base->name, &of_base, &chain, &why);
    if (rc && rc != DCP_E_NOT_FOUND) {
        if (err)
            *err = why;
        return rc;
    }
    make->making.is.chain = rc ? 1 : chain + 1;
    if (make->making.is.chain > longest) {
        dcp_error_set(err, DCP_E_MISMATCH,
                      "this would be delta number %d of a chain, over the limit of %d",
                      make->making.is.chain, longest);
        dcp_error_hint(err,
                       "take a base that is no delta, or raise --max-chain (at most "
                       "%d)",
                       DCP_DELTA_MAX_CHAIN);
        return DCP_E_MISMATCH;
    }
    DCP_CLEANUP_FREE char *itself = realpath(make->source->path, NULL);
    if (to && itself && !strcmp(to, itself))
        return refuse(DCP_E_USAGE, make->source, "it would be its own base", err);
    if (!(dir = dcp_fs_real(make->target.dir)) || !to ||
        !(from = dcp_fs_join(dir, make->target.name)) ||
        !(make->making.is.base_path = dcp_delta_path_between(from, to)))
        return dcp_error_memory(err, "a path");
    if (!dcp_delta_base_ok(make->making.is.base_path) ||
        !dcp_str_utf8_ok(make->making.is.base_path, strlen(make->making.is.base_path)))
        return refuse(DCP_E_UNSUPPORTED, make->base, "its path cannot be written down",
                      err);
    return DCP_OK;
}

/* -- the act ------------------------------------------------------------------------- */

/* What a native manifest says of a file must be what was read of it. */
static int check_crc(const struct dcp_location *of, const struct dcp_catalog *catalog,
                     const char *name, uint64_t crc, struct dcp_error *err)
{
    for (size_t f = 0; f < catalog->n_files; f++) {
        const struct dcp_file *file = &catalog->files[f];
        if (file->has_crc && file->crc != crc && !strcmp(file->name, name)) {
            dcp_error_set(err, DCP_E_CORRUPT, "'%s/%s' is corrupt: its digest differs",
                          of->path, name);
            dcp_error_hint(err, "'dcp-inspect verify %s' lists all damage", of->path);
            return DCP_E_CORRUPT;
        }
    }
    return DCP_OK;
}

static int prove(void *self, bool of_base, const char *name, uint64_t crc,
                 struct dcp_error *err)
{
    const struct make *make = self;

    return of_base ? check_crc(make->base, make->base_catalog, name, crc, err)
                   : check_crc(make->source, make->catalog, name, crc, err);
}

static int get_ready(struct make *make, const char *path, struct dcp_error *err)
{
    make->target.replaces = make->options->force;
    DCP_TRY(dcp_delta_target_check(&make->target, make->base, path, err));
    DCP_TRY(dcp_delta_target_check(&make->target, make->source, path, err));
    DCP_TRY(dcp_location_index(make->base, &make->base_catalog, err));
    DCP_TRY(dcp_location_index(make->source, &make->catalog, err));
    DCP_TRY(check_pair(make, err));
    DCP_TRY(choose_base(make, err));
    if (!make->options->dry_run) { /* how small it gets is not known before */
        DCP_TRY(dcp_delta_target_begin(&make->target, 0, err));
        make->making.output =
            (struct dcp_delta_output){ &make->target.store, make->target.publish.prefix };
    }
    int rc = dcp_delta_making_init(&make->making, err);
    if (rc)
        dcp_error_prefix(err, "'%s'", make->source->path);
    return rc;
}

/* The delta gives what it was made of: it is read as everybody reads it. */
static int read_back(struct make *make, struct dcp_error *err)
{
    struct dcp_store store;
    int rc = dcp_store_delta_dir(&store, make->target.dir, false, err);

    if (rc)
        return rc;
    rc = dcp_delta_making_prove(
        &make->making, &(struct dcp_source){ &store, make->target.publish.tmp, true },
        err);
    dcp_store_free(&store);
    return rc;
}

static int make_all(struct make *make, struct dcp_error *err)
{
    DCP_TRY(dcp_delta_making_run(&make->making, err));
    if (make->options->dry_run)
        return DCP_OK;
    DCP_TRY(read_back(make, err));
    return dcp_delta_target_commit(&make->target, err);
}

int dcp_delta_make(struct dcp_location *base, struct dcp_location *target,
                   const char *path, const struct dcp_delta_options *options,
                   struct dcp_delta_result *out_result, struct dcp_error *err)
{
    struct make make = { .base = base,
                         .source = target,
                         .options = options,
                         .making = { .base = base->source,
                                     .source = target->source,
                                     .threads = options->threads,
                                     .progress = options->progress,
                                     .result = out_result,
                                     .prove = prove,
                                     .self = &make } };

    *out_result = (struct dcp_delta_result){ 0 };
    int rc = get_ready(&make, path, err);
    if (!rc)
        rc = make_all(&make, err);
    dcp_delta_target_end(&make.target, options->log);
    dcp_delta_making_fini(&make.making);
    dcp_catalog_free(make.base_catalog);
    dcp_catalog_free(make.catalog);
    return rc;
}
