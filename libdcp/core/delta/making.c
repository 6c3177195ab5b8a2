#include "making.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "table.h"
#include <string.h>

#define LEAST_CODED 4096 /* smaller files stand in the delta as they are */

/* -- what the delta will be of ------------------------------------------------------- */

static int refuse(const char *why, const char *name, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_UNSUPPORTED, "there is no delta of it: %s%s", why,
                         DCP_SHOWN(name));
}

static int check_names(const struct dcp_delta_making *making, struct dcp_error *err)
{
    for (size_t i = 0; i < making->listing.n; i++) {
        const char *name = making->listing.files[i].name;
        if (!strcmp(name, DCP_DELTA_SIGNATURE))
            return refuse("it is signed, and a signature is of files that a delta does "
                          "not have: ",
                          name, err);
        if (!dcp_delta_name_ok(name))
            return refuse("no file of one is called ", name, err);
    }
    return DCP_OK;
}

static int stat_base(const struct dcp_delta_making *making, const char *name,
                     bool *out_there, uint64_t *out_size, struct dcp_error *err)
{
    const struct dcp_source *base = &making->base;
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
static int choose_files(struct dcp_delta_making *making, struct dcp_error *err)
{
    struct dcp_delta_folder *is = &making->is;
    const struct dcp_delta_listing *listing = &making->listing;
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
            DCP_TRY(stat_base(making, file->name, &there, &size, err));
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
                               "no file of it has the name of one of the base's, and is "
                               "worth a delta");
}

/* -- coding -------------------------------------------------------------------------- */

/* A file that is coded: what the workers share. */
struct coding {
    struct dcp_delta_making *making;
    struct dcp_store_file *base; /* NULL: the base has none */
    uint64_t base_bytes;
    struct dcp_store_file *out; /* NULL: nothing is written */
    struct dcp_delta_table table;
    struct dcp_delta_coded *results; /* of a window; their data is in making->coded */
    uint64_t at;                     /* where the next block goes */
};

static int code_block(void *self, int worker, size_t slot, size_t block,
                      const unsigned char *bytes, size_t n, struct dcp_error *err)
{
    struct coding *coding = self;
    struct dcp_delta_making *making = coding->making;
    const struct dcp_store *store = making->base.store;
    unsigned char *base = making->bases + (size_t)worker * DCP_DELTA_BLOCK_BYTES;
    uint64_t offset = (uint64_t)block * DCP_DELTA_BLOCK_BYTES;
    uint64_t left = offset < coding->base_bytes ? coding->base_bytes - offset : 0;
    size_t base_n = left < n ? (size_t)left : n;
    struct dcp_delta_coded *result = &coding->results[slot];
    struct dcp_delta_entry *entry = &coding->table.entries[block];

    memset(base + base_n, 0, n - base_n);
    if (base_n)
        DCP_TRY(
            store->ops->read_at(store->self, coding->base, offset, base, base_n, err));
    DCP_TRY(dcp_delta_encode(making->coders[worker], base, bytes, n, 0, result, err));
    unsigned char *kept = making->coded + slot * DCP_DELTA_BLOCK_BYTES;
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
    const struct dcp_store *store = coding->making->output.store;

    if (coding->out && n)
        DCP_TRY(store->ops->write_at(store->self, coding->out, coding->at, data, n, err));
    coding->at += n;
    return DCP_OK;
}

static int put_window(void *self, size_t n, struct dcp_error *err)
{
    struct coding *coding = self;
    struct dcp_delta_result *result = coding->making->result;

    for (size_t i = 0; i < n; i++) {
        const struct dcp_delta_coded *coded = &coding->results[i];
        DCP_TRY(put(coding, coded->data, coded->size_bytes, err));
        result->n_blocks[coded->method]++;
        result->n_elements += coded->n_elements;
        result->n_changed += coded->n_changed;
    }
    return DCP_OK;
}

static int prove(const struct dcp_delta_making *making, bool of_base, const char *name,
                 uint64_t crc, struct dcp_error *err)
{
    return making->prove ? making->prove(making->self, of_base, name, crc, err) : DCP_OK;
}

/* The base's file has a digest of its own, so that the base can be told from others. */
static int digest_base(struct dcp_delta_making *making, struct dcp_delta_base_file *base,
                       struct dcp_store_file *file, struct dcp_error *err)
{
    const struct dcp_delta_use use = { 0 };

    DCP_TRY(dcp_delta_pass(&making->passes, making->base.store, file, base->size_bytes,
                           &use, &base->crc, err));
    return prove(making, true, base->name, base->crc, err);
}

static int code_file(struct dcp_delta_making *making, struct coding *coding,
                     struct dcp_delta_file *file, struct dcp_store_file *in,
                     struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf table = { 0 };
    const struct dcp_delta_use use = { coding, code_block, put_window };
    unsigned char head[DCP_DELTA_HEAD_BYTES];

    dcp_delta_put_head(head);
    DCP_TRY(put(coding, head, sizeof head, err));
    DCP_TRY(dcp_delta_pass(&making->passes, making->source.store, in, file->size_bytes,
                           &use, &file->crc, err));
    DCP_TRY(prove(making, false, file->name, file->crc, err));
    dcp_delta_put_table(&table, &coding->table, &file->table_crc);
    DCP_TRY(dcp_buf_check(&table, err));
    DCP_TRY(put(coding, table.data, table.size_bytes, err));
    file->delta_bytes = coding->at;
    making->result->stored_bytes += coding->at;
    return DCP_OK;
}

/* Copies a file that stands in the delta as it is. */
static int copy_block(void *self, int worker, size_t slot, size_t block,
                      const unsigned char *bytes, size_t n, struct dcp_error *err)
{
    struct coding *coding = self;
    const struct dcp_store *store = coding->making->output.store;

    (void)worker, (void)slot;
    return coding->out ? store->ops->write_at(store->self, coding->out,
                                              (uint64_t)block * DCP_DELTA_BLOCK_BYTES,
                                              bytes, n, err)
                       : DCP_OK;
}

static int copy_file(struct dcp_delta_making *making, struct coding *coding,
                     struct dcp_delta_file *file, struct dcp_store_file *in,
                     struct dcp_error *err)
{
    const struct dcp_delta_use use = { coding, copy_block, NULL };

    coding->at = file->size_bytes;
    making->result->stored_bytes += file->size_bytes;
    DCP_TRY(dcp_delta_pass(&making->passes, making->source.store, in, file->size_bytes,
                           &use, &file->crc, err));
    return prove(making, false, file->name, file->crc, err);
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

/* Ends a file that was begun, as rc says. */
static int close_out(const struct dcp_delta_making *making, const struct coding *coding,
                     const char *name, int rc, struct dcp_error *err)
{
    const struct dcp_store *store = making->output.store;

    if (!coding->out)
        return rc;
    if (rc) {
        store->ops->close(store->self, coding->out, NULL);
        return rc;
    }
    DCP_TRY(dcp_delta_output_close(&making->output, coding->out, coding->at, err));
    return dcp_delta_output_sync_folders(&making->output, name, err);
}

/* One file, from what is read to what is on disk. */
static int make_file(struct dcp_delta_making *making, struct dcp_delta_file *file,
                     struct dcp_error *err)
{
    struct dcp_delta_base_file *base = dcp_delta_find_base(&making->is, file->name);
    size_t n_blocks = file->coded ? dcp_delta_n_blocks(file->size_bytes) : 0;
    DCP_CLEANUP_FREE struct dcp_delta_entry *entries =
        dcp_mem_calloc(n_blocks, sizeof *entries);
    DCP_CLEANUP_FREE struct dcp_delta_coded *results =
        dcp_mem_calloc(making->passes.window, sizeof *results);
    struct coding coding = { .making = making,
                             .base_bytes = base ? base->size_bytes : 0,
                             .table = { file->size_bytes, n_blocks, entries },
                             .results = results };
    struct dcp_store_file *in = NULL;

    int rc = entries && results ? DCP_OK : dcp_error_memory(err, "a delta");
    if (!rc)
        rc = open_in(&making->source, file->name, &in, err);
    if (!rc && base)
        rc = open_in(&making->base, base->name, &coding.base, err);
    if (!rc && base)
        rc = digest_base(making, base, coding.base, err);
    if (!rc && making->output.store)
        rc = dcp_delta_output_create(
            &making->output, file->name, file->coded ? DCP_DELTA_SUFFIX : "",
            file->coded ? 0 : file->size_bytes, &coding.out, err);
    if (!rc)
        rc = file->coded ? code_file(making, &coding, file, in, err)
                         : copy_file(making, &coding, file, in, err);
    rc = close_out(making, &coding, file->name, rc, err);
    close_in(&making->source, in);
    close_in(&making->base, coding.base);
    return rc;
}

static int write_json(struct dcp_delta_making *making, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    const struct dcp_store *store = making->output.store;
    struct dcp_store_file *file;

    dcp_delta_folder_format(&text, &making->is);
    DCP_TRY(dcp_buf_check(&text, err));
    making->result->stored_bytes += text.size_bytes;
    if (!store)
        return DCP_OK;
    DCP_TRY(dcp_delta_output_create(&making->output, DCP_DELTA_JSON, "", text.size_bytes,
                                    &file, err));
    int rc = store->ops->write_at(store->self, file, 0, text.data, text.size_bytes, err);
    if (!rc)
        return dcp_delta_output_close(&making->output, file, text.size_bytes, err);
    store->ops->close(store->self, file, NULL);
    return rc;
}

/* -- the acts ------------------------------------------------------------------------ */

int dcp_delta_making_init(struct dcp_delta_making *making, struct dcp_error *err)
{
    DCP_TRY(
        dcp_delta_list(making->source.store, making->source.name, &making->listing, err));
    DCP_TRY(check_names(making, err));
    DCP_TRY(choose_files(making, err));
    DCP_TRY(dcp_delta_passes_init(&making->passes, making->threads, err));
    making->coders = dcp_mem_calloc((size_t)making->passes.workers, sizeof(void *));
    making->bases = dcp_mem_calloc((size_t)making->passes.workers, DCP_DELTA_BLOCK_BYTES);
    making->coded = dcp_mem_calloc(making->passes.window, DCP_DELTA_BLOCK_BYTES);
    if (!making->coders || !making->bases || !making->coded)
        return dcp_error_memory(err, "a delta");
    for (int i = 0; i < making->passes.workers; i++)
        DCP_TRY(dcp_delta_coder_new(&making->coders[i], err));
    making->passes.progress = making->progress;
    making->passes.total_bytes =
        making->listing.size_bytes * (making->output.store ? 2 : 1);
    for (size_t i = 0; i < making->is.n_base; i++)
        making->passes.total_bytes += making->is.base[i].size_bytes;
    making->result->chain = making->is.chain;
    making->result->n_files = making->is.n_files;
    making->result->full_bytes = making->listing.size_bytes;
    return DCP_OK;
}

int dcp_delta_making_run(struct dcp_delta_making *making, struct dcp_error *err)
{
    for (size_t i = 0; i < making->is.n_files; i++)
        DCP_TRY(make_file(making, &making->is.files[i], err));
    return write_json(making, err);
}

int dcp_delta_making_prove(struct dcp_delta_making *making, const struct dcp_source *made,
                           struct dcp_error *err)
{
    const struct dcp_delta_use use = { 0 };

    for (size_t i = 0; i < making->is.n_files; i++) {
        const struct dcp_delta_file *file = &making->is.files[i];
        struct dcp_store_file *in;
        uint64_t crc;
        int rc = open_in(made, file->name, &in, err);
        if (rc)
            return rc;
        rc = dcp_delta_pass(&making->passes, made->store, in, file->size_bytes, &use,
                            &crc, err);
        close_in(made, in);
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

void dcp_delta_making_fini(struct dcp_delta_making *making)
{
    for (int i = 0; making->coders && i < making->passes.workers; i++)
        dcp_delta_coder_free(making->coders[i]);
    free(making->coders);
    free(making->bases);
    free(making->coded);
    dcp_delta_passes_fini(&making->passes);
    dcp_delta_folder_fini(&making->is);
    dcp_delta_listing_fini(&making->listing);
}
