/* delta: makes one. Every block is coded, written, and read back through the base. */
#include "base/buf.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/delta/folder.h"
#include "core/delta/listing.h"
#include "core/delta/pass.h"
#include "core/delta/table.h"
#include "delta_target.h"
#include <dcp/delta.h>
#include <inttypes.h>
#include <string.h>

#define LEAST_CODED 4096 /* smaller files stand in the delta as they are */
#define SIGNATURE "manifest.json.sig"

struct make {
    struct dcp_location *base, *source;
    const struct dcp_delta_options *options;
    struct dcp_delta_result *result;
    struct dcp_catalog *base_catalog, *catalog;
    struct dcp_delta_listing listing;
    struct dcp_delta_folder is; /* what the delta will say */
    struct dcp_delta_target target;
    struct dcp_delta_passes passes;
    struct dcp_delta_coder **coders; /* for each worker */
    unsigned char *bases;            /* a block for each worker */
    unsigned char *coded;            /* a block for each of a window */
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

/* -- what the delta will be of ------------------------------------------------------- */

static int check_names(const struct make *make, struct dcp_error *err)
{
    for (size_t i = 0; i < make->listing.n; i++) {
        const char *name = make->listing.files[i].name;
        if (!strcmp(name, SIGNATURE))
            return refuse(DCP_E_UNSUPPORTED, make->source,
                          "it is signed, and a signature is of files that a delta does "
                          "not have",
                          err);
        if (!dcp_delta_name_ok(name))
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "there is no delta of '%s': it has a file called '%s'",
                                 make->source->path, DCP_SHOWN(name));
    }
    return DCP_OK;
}

static int stat_base(const struct make *make, const char *name, bool *out_there,
                     uint64_t *out_size, struct dcp_error *err)
{
    const struct dcp_source *base = &make->base->source;
    DCP_CLEANUP_FREE char *path = dcp_str_join(base->name, *base->name ? "/" : "", name);
    struct dcp_error why = { 0 };
    bool is_dir;

    *out_there = false;
    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = base->store->ops->stat(base->store->self, path, &is_dir, out_size, &why);
    *out_there = !rc && !is_dir;
    if (!rc || rc == DCP_E_NOT_FOUND)
        return DCP_OK;
    if (err)
        *err = why;
    return rc;
}

/* All files, and those of the base that have their names, or say which base it is. */
static int choose_files(struct make *make, struct dcp_error *err)
{
    struct dcp_delta_folder *is = &make->is;
    const struct dcp_delta_listing *listing = &make->listing;
    bool any = false;

    is->files = dcp_mem_calloc(listing->n, sizeof *is->files);
    is->base = dcp_mem_calloc(listing->n, sizeof *is->base);
    if (!is->files || !is->base)
        return dcp_error_memory(err, "a delta");
    for (size_t i = 0; i < listing->n; i++) {
        struct dcp_delta_file *file = &is->files[is->n_files++];
        bool there = false,
             identity = !strcmp(listing->files[i].name, DCP_DELTA_IDENTITY);
        uint64_t size = 0;
        file->size_bytes = listing->files[i].size_bytes;
        file->coded = !identity && file->size_bytes >= LEAST_CODED;
        if (!(file->name = strdup(listing->files[i].name)))
            return dcp_error_memory(err, "a delta");
        if (file->coded || identity)
            DCP_TRY(stat_base(make, file->name, &there, &size, err));
        any |= file->coded && there;
        if (!there)
            continue;
        struct dcp_delta_base_file *base = &is->base[is->n_base++];
        base->size_bytes = size;
        if (!(base->name = strdup(file->name)))
            return dcp_error_memory(err, "a delta");
    }
    return any ? DCP_OK
               : dcp_error_set(err, DCP_E_MISMATCH,
                               "'%s' and '%s' have no file of one name that is worth a "
                               "delta",
                               make->base->path, make->source->path);
}

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
    make->is.chain = rc ? 1 : chain + 1;
    if (make->is.chain > longest) {
        dcp_error_set(err, DCP_E_MISMATCH,
                      "this would be delta number %d of a chain, over the limit of %d",
                      make->is.chain, longest);
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
        !(make->is.base_path = dcp_delta_path_between(from, to)))
        return dcp_error_memory(err, "a path");
    if (!dcp_delta_base_ok(make->is.base_path) ||
        !dcp_str_utf8_ok(make->is.base_path, strlen(make->is.base_path)))
        return refuse(DCP_E_UNSUPPORTED, make->base, "its path cannot be written down",
                      err);
    return DCP_OK;
}

/* -- coding -------------------------------------------------------------------------- */

/* A file that is coded: what the workers share. */
struct coding {
    struct make *make;
    struct dcp_store_file *base; /* NULL: the base has none */
    uint64_t base_bytes;
    struct dcp_store_file *out; /* NULL: nothing is written */
    struct dcp_delta_table table;
    struct dcp_delta_coded *results; /* of a window; their data is in make->coded */
    uint64_t at;                     /* where the next block goes */
    size_t done;
};

static int code_block(void *self, int worker, size_t slot, size_t block,
                      const unsigned char *bytes, size_t n, struct dcp_error *err)
{
    struct coding *coding = self;
    struct make *make = coding->make;
    const struct dcp_store *store = make->base->source.store;
    unsigned char *base = make->bases + (size_t)worker * DCP_DELTA_BLOCK_BYTES;
    uint64_t offset = (uint64_t)block * DCP_DELTA_BLOCK_BYTES;
    uint64_t left = offset < coding->base_bytes ? coding->base_bytes - offset : 0;
    size_t base_n = left < n ? (size_t)left : n;
    struct dcp_delta_coded *result = &coding->results[slot];
    struct dcp_delta_entry *entry = &coding->table.entries[block];

    memset(base + base_n, 0, n - base_n);
    if (base_n)
        DCP_TRY(
            store->ops->read_at(store->self, coding->base, offset, base, base_n, err));
    DCP_TRY(dcp_delta_encode(make->coders[worker], base, bytes, n, 0, result, err));
    unsigned char *kept = make->coded + slot * DCP_DELTA_BLOCK_BYTES;
    if (result->size_bytes)
        memcpy(kept, result->data, result->size_bytes);
    result->data = kept;
    *entry = (struct dcp_delta_entry){
        .size_bytes = (uint32_t)result->size_bytes,
        .method = (uint8_t)result->method,
        .width = (uint8_t)result->width,
        .stored_xxh3 = dcp_hash_xxh3(kept, result->size_bytes),
        .target_xxh3 = dcp_hash_xxh3(bytes, n),
    };
    return DCP_OK;
}

static int put(struct coding *coding, const void *data, size_t n, struct dcp_error *err)
{
    const struct dcp_store *store = &coding->make->target.store;

    if (coding->out && n)
        DCP_TRY(store->ops->write_at(store->self, coding->out, coding->at, data, n, err));
    coding->at += n;
    return DCP_OK;
}

static int put_window(void *self, size_t n, struct dcp_error *err)
{
    struct coding *coding = self;
    struct dcp_delta_result *result = coding->make->result;

    for (size_t i = 0; i < n; i++) {
        const struct dcp_delta_coded *coded = &coding->results[i];
        DCP_TRY(put(coding, coded->data, coded->size_bytes, err));
        result->n_blocks[coded->method]++;
        result->n_elements += coded->n_elements;
        result->n_changed += coded->n_changed;
    }
    coding->done += n;
    return DCP_OK;
}

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

/* The base's file has a digest of its own, so that the base can be told from others. */
static int digest_base(struct make *make, struct dcp_delta_base_file *base,
                       struct dcp_store_file *file, struct dcp_error *err)
{
    const struct dcp_delta_use use = { 0 };

    DCP_TRY(dcp_delta_pass(&make->passes, make->base->source.store, file,
                           base->size_bytes, &use, &base->crc, err));
    return check_crc(make->base, make->base_catalog, base->name, base->crc, err);
}

static int code_file(struct make *make, struct coding *coding,
                     struct dcp_delta_file *file, struct dcp_store_file *in,
                     struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf table = { 0 };
    const struct dcp_delta_use use = { coding, code_block, put_window };
    unsigned char head[DCP_DELTA_HEAD_BYTES];

    dcp_delta_put_head(head);
    DCP_TRY(put(coding, head, sizeof head, err));
    DCP_TRY(dcp_delta_pass(&make->passes, make->source->source.store, in,
                           file->size_bytes, &use, &file->crc, err));
    DCP_TRY(check_crc(make->source, make->catalog, file->name, file->crc, err));
    dcp_delta_put_table(&table, &coding->table, &file->table_crc);
    DCP_TRY(dcp_buf_check(&table, err));
    DCP_TRY(put(coding, table.data, table.size_bytes, err));
    file->delta_bytes = coding->at;
    make->result->stored_bytes += coding->at;
    return DCP_OK;
}

/* Copies a small file. */
static int copy_block(void *self, int worker, size_t slot, size_t block,
                      const unsigned char *bytes, size_t n, struct dcp_error *err)
{
    struct coding *coding = self;
    const struct dcp_store *store = &coding->make->target.store;

    (void)worker, (void)slot;
    return coding->out ? store->ops->write_at(store->self, coding->out,
                                              (uint64_t)block * DCP_DELTA_BLOCK_BYTES,
                                              bytes, n, err)
                       : DCP_OK;
}

static int copy_file(struct make *make, struct coding *coding,
                     struct dcp_delta_file *file, struct dcp_store_file *in,
                     struct dcp_error *err)
{
    const struct dcp_delta_use use = { coding, copy_block, NULL };

    coding->at = file->size_bytes;
    make->result->stored_bytes += file->size_bytes;
    DCP_TRY(dcp_delta_pass(&make->passes, make->source->source.store, in,
                           file->size_bytes, &use, &file->crc, err));
    return check_crc(make->source, make->catalog, file->name, file->crc, err);
}

static int open_in(const struct dcp_source *source, const char *name,
                   struct dcp_store_file **out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(source->name, *source->name ? "/" : "", name);

    *out = NULL;
    return path ? source->store->ops->open(source->store->self, path, out, err)
                : dcp_error_memory(err, "a file name");
}

static void close_in(const struct dcp_source *source, struct dcp_store_file *file)
{
    if (file)
        source->store->ops->close(source->store->self, file, NULL);
}

/* One file, from what is read to what is on disk. */
static int make_file(struct make *make, struct dcp_delta_file *file,
                     struct dcp_error *err)
{
    struct dcp_delta_base_file *base = dcp_delta_find_base(&make->is, file->name);
    size_t n_blocks = file->coded ? dcp_delta_n_blocks(file->size_bytes) : 0;
    DCP_CLEANUP_FREE struct dcp_delta_entry *entries =
        dcp_mem_calloc(n_blocks, sizeof *entries);
    DCP_CLEANUP_FREE struct dcp_delta_coded *results =
        dcp_mem_calloc(make->passes.window, sizeof *results);
    struct coding coding = { .make = make,
                             .base_bytes = base ? base->size_bytes : 0,
                             .table = { file->size_bytes, n_blocks, entries },
                             .results = results };
    struct dcp_store_file *in = NULL;

    int rc = entries && results ? DCP_OK : dcp_error_memory(err, "a delta");
    if (!rc)
        rc = open_in(&make->source->source, file->name, &in, err);
    if (!rc && base)
        rc = open_in(&make->base->source, base->name, &coding.base, err);
    if (!rc && base)
        rc = digest_base(make, base, coding.base, err);
    if (!rc && !make->options->dry_run)
        rc = dcp_delta_target_create(
            &make->target, file->name, file->coded ? DCP_DELTA_SUFFIX : "",
            file->coded ? 0 : file->size_bytes, &coding.out, err);
    if (!rc)
        rc = file->coded ? code_file(make, &coding, file, in, err)
                         : copy_file(make, &coding, file, in, err);
    if (coding.out) {
        struct dcp_error why = { 0 };
        int closed =
            rc ? make->target.store.ops->close(make->target.store.self, coding.out, NULL)
               : dcp_delta_target_close(&make->target, coding.out, coding.at, &why);
        if (!rc && closed && err)
            *err = why;
        rc = rc ? rc : closed;
    }
    close_in(&make->source->source, in);
    close_in(&make->base->source, coding.base);
    if (!rc && !make->options->dry_run)
        rc = dcp_delta_target_sync_folders(&make->target, file->name, err);
    return rc;
}

/* -- what was written ---------------------------------------------------------------- */

static int write_json(struct make *make, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    const struct dcp_store *store = &make->target.store;
    struct dcp_store_file *file;

    dcp_delta_folder_format(&text, &make->is);
    DCP_TRY(dcp_buf_check(&text, err));
    make->result->stored_bytes += text.size_bytes;
    if (make->options->dry_run)
        return DCP_OK;
    DCP_TRY(dcp_delta_target_create(&make->target, DCP_DELTA_JSON, "", text.size_bytes,
                                    &file, err));
    int rc = store->ops->write_at(store->self, file, 0, text.data, text.size_bytes, err);
    if (!rc)
        return dcp_delta_target_close(&make->target, file, text.size_bytes, err);
    store->ops->close(store->self, file, NULL);
    return rc;
}

/* The delta gives what it was made of: read as everybody reads it. */
static int read_back_from(struct make *make, const struct dcp_store *store,
                          struct dcp_error *err)
{
    const struct dcp_source made = { store, make->target.publish.tmp, true };
    const struct dcp_delta_use use = { 0 };

    for (size_t i = 0; i < make->is.n_files; i++) {
        const struct dcp_delta_file *file = &make->is.files[i];
        struct dcp_store_file *in;
        uint64_t crc;
        DCP_TRY(open_in(&made, file->name, &in, err));
        int rc =
            dcp_delta_pass(&make->passes, store, in, file->size_bytes, &use, &crc, err);
        close_in(&made, in);
        if (!rc && crc != file->crc)
            rc = dcp_error_set(err, DCP_E_CORRUPT,
                               "'%s' does not come back as it was: what was written is "
                               "not what was to be written",
                               DCP_SHOWN(file->name));
        if (rc)
            return rc;
    }
    return DCP_OK;
}

static int read_back(struct make *make, struct dcp_error *err)
{
    struct dcp_store store;
    int rc = dcp_store_delta_dir(&store, make->target.dir, false, err);

    if (rc)
        return rc;
    rc = read_back_from(make, &store, err);
    dcp_store_free(&store);
    return rc;
}

/* -- the act ------------------------------------------------------------------------- */

static int get_ready(struct make *make, const char *path, struct dcp_error *err)
{
    const struct dcp_source *source = &make->source->source;

    make->target.replaces = make->options->force;
    DCP_TRY(dcp_delta_target_check(&make->target, make->base, path, err));
    DCP_TRY(dcp_delta_target_check(&make->target, make->source, path, err));
    DCP_TRY(dcp_location_index(make->base, &make->base_catalog, err));
    DCP_TRY(dcp_location_index(make->source, &make->catalog, err));
    DCP_TRY(check_pair(make, err));
    DCP_TRY(dcp_delta_list(source->store, source->name, &make->listing, err));
    DCP_TRY(check_names(make, err));
    DCP_TRY(choose_base(make, err));
    DCP_TRY(choose_files(make, err));
    DCP_TRY(dcp_delta_passes_init(&make->passes, make->options->threads, err));
    make->coders = dcp_mem_calloc((size_t)make->passes.workers, sizeof(void *));
    make->bases = dcp_mem_calloc((size_t)make->passes.workers, DCP_DELTA_BLOCK_BYTES);
    make->coded = dcp_mem_calloc(make->passes.window, DCP_DELTA_BLOCK_BYTES);
    if (!make->coders || !make->bases || !make->coded)
        return dcp_error_memory(err, "a delta");
    for (int i = 0; i < make->passes.workers; i++)
        DCP_TRY(dcp_delta_coder_new(&make->coders[i], err));
    make->passes.progress = make->options->progress;
    make->passes.total_bytes =
        make->listing.size_bytes * (make->options->dry_run ? 1 : 2);
    for (size_t i = 0; i < make->is.n_base; i++)
        make->passes.total_bytes += make->is.base[i].size_bytes;
    make->result->chain = make->is.chain;
    make->result->n_files = make->is.n_files;
    make->result->full_bytes = make->listing.size_bytes;
    return DCP_OK;
}

static int write_all(struct make *make, struct dcp_error *err)
{
    bool dry = make->options->dry_run;

    if (!dry) /* how small it gets is not known before */
        DCP_TRY(dcp_delta_target_begin(&make->target, 0, err));
    for (size_t i = 0; i < make->is.n_files; i++)
        DCP_TRY(make_file(make, &make->is.files[i], err));
    DCP_TRY(write_json(make, err));
    if (dry)
        return DCP_OK;
    DCP_TRY(read_back(make, err));
    return dcp_delta_target_commit(&make->target, err);
}

int dcp_delta_make(struct dcp_location *base, struct dcp_location *target,
                   const char *path, const struct dcp_delta_options *options,
                   struct dcp_delta_result *out_result, struct dcp_error *err)
{
    struct make make = {
        .base = base, .source = target, .options = options, .result = out_result
    };

    *out_result = (struct dcp_delta_result){ 0 };
    int rc = get_ready(&make, path, err);
    if (!rc)
        rc = write_all(&make, err);
    dcp_delta_target_end(&make.target, options->log);
    for (int i = 0; make.coders && i < make.passes.workers; i++)
        dcp_delta_coder_free(make.coders[i]);
    free(make.coders);
    free(make.bases);
    free(make.coded);
    dcp_delta_passes_fini(&make.passes);
    dcp_delta_folder_fini(&make.is);
    dcp_delta_listing_fini(&make.listing);
    dcp_catalog_free(make.base_catalog);
    dcp_catalog_free(make.catalog);
    return rc;
}
