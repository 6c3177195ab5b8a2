/* finish: all parts together, and the one rename. */
#include "base/mem.h"
#include "base/str.h"
#include "core/run/publish.h"
#include "own.h"
#include <string.h>

enum { NAMED_PARTS = 12 }; /* in a message; the others are counted */

struct finish {
    struct dcp_parts *parts;
    struct dcp_stream_setup *setup;
    const struct dcp_parts_finish *options;
    struct dcp_staging staging;
    struct dcp_receipt *receipts;
};

static int target_exists(const struct finish *f, bool *out, struct dcp_error *err)
{
    const struct dcp_store *store = f->setup->store;
    struct dcp_error why = { 0 };
    bool is_dir;
    uint64_t size;
    int rc = store->ops->stat(store->self, f->options->name, &is_dir, &size, &why);

    *out = rc != DCP_E_NOT_FOUND;
    if (!rc || rc == DCP_E_NOT_FOUND || rc == DCP_E_UNSUPPORTED)
        return DCP_OK;
    if (err)
        *err = why;
    return rc;
}

/* "2, 5 and 7" */
static void name_missing(const bool *missing, int n, struct dcp_buf *out)
{
    int total = 0, named = 0;

    for (int i = 0; i < n; i++)
        total += missing[i];
    for (int i = 0; i < n; i++) {
        if (!missing[i] || named++ >= NAMED_PARTS)
            continue;
        const char *between = named == 1 ? "" : named == total ? " and " : ", ";
        dcp_buf_add_fmt(out, "%s%d", between, i + 1);
    }
    if (total > NAMED_PARTS)
        dcp_buf_add_fmt(out, " and %d more", total - NAMED_PARTS);
}

static int read_receipts(struct finish *f, struct dcp_error *err)
{
    int n = f->parts->deal.n, first = -1, total = 0;
    DCP_CLEANUP_FREE bool *missing = dcp_mem_calloc((size_t)n, sizeof *missing);
    DCP_CLEANUP_BUF struct dcp_buf names = { 0 };
    struct dcp_error why = { 0 };

    f->receipts = dcp_mem_calloc((size_t)n, sizeof *f->receipts);
    if (!missing || !f->receipts)
        return dcp_error_memory(err, "the receipts of parts");
    for (int i = 0; i < n; i++) {
        int rc = dcp_parts_receipt(f->parts, &f->staging, i, &f->receipts[i], &why);
        missing[i] = rc != 0;
        if (rc && rc != DCP_E_NOT_FOUND) {
            if (err)
                *err = why;
            return rc;
        }
        first = missing[i] && first < 0 ? i : first;
        total += missing[i];
    }
    if (!total)
        return DCP_OK;
    name_missing(missing, n, &names);
    DCP_TRY(dcp_buf_check(&names, err));
    dcp_error_set(err, DCP_E_NOT_FOUND, "%s %s of %d of '%s' %s not made",
                  total > 1 ? "parts" : "part", (const char *)names.data, n,
                  f->options->name, total > 1 ? "are" : "is");
    dcp_error_hint(err,
                   "make %s by the same command with --part %d/%d in the place of "
                   "--finish%s; then --finish again",
                   total > 1 ? "them" : "it", first + 1, n,
                   total > 1 ? ", and so on" : "");
    return DCP_E_NOT_FOUND;
}

static bool is_of_parts(const struct finish *f, const char *name)
{
    const struct dcp_catalog *target = f->setup->target->catalog;

    for (int i = 0; i < f->parts->deal.n; i++)
        for (size_t k = 0; k < f->receipts[i].n_files; k++)
            if (!strcmp(f->receipts[i].files[k].name, name))
                return true;
    for (size_t k = 0; k < target->n_files; k++)
        if (!strcmp(target->files[k].name, name))
            return true;
    return false;
}

/* What an earlier finish wrote before it died: no part's file, so it is written again. */
static int sweep(const struct finish *f, struct dcp_error *err)
{
    const struct dcp_store *store = f->setup->store;
    struct dcp_store_entry *entries;
    size_t n;
    int rc = store->ops->list(store->self, f->staging.files, &entries, &n, err);

    if (rc)
        return rc;
    for (size_t i = 0; i < n && !rc; i++) {
        DCP_CLEANUP_FREE char *path =
            dcp_str_join(f->staging.prefix, entries[i].name, "");
        if (!path)
            rc = dcp_error_memory(err, "a file name");
        else if (!entries[i].is_dir && !is_of_parts(f, entries[i].name))
            rc = dcp_store_clear(store, path, err);
    }
    dcp_store_list_free(entries, n);
    return rc;
}

static int join(struct finish *f, struct dcp_error *err)
{
    int n = f->parts->deal.n;
    DCP_CLEANUP_FREE struct dcp_cursor *told = dcp_mem_calloc((size_t)n, sizeof *told);

    if (!told)
        return dcp_error_memory(err, "the receipts of parts");
    for (int i = 0; i < n; i++)
        told[i] = f->receipts[i].told;
    f->setup->prefix = f->staging.prefix;
    return dcp_stream_join(f->setup, &f->parts->deal.shares, told, n, err);
}

/* -- taking another target's place -------------------------------------------------- */

/* To exchange two folders is one step, but behind it nothing tells which is which: so all
 * files of the new one are noted before, with their digests. */
static int note_files(const struct finish *f, struct dcp_error *err)
{
    const struct dcp_catalog *target = f->setup->target->catalog;
    const struct dcp_store *store = f->setup->store;
    DCP_CLEANUP_FREE char *path = dcp_staging_path(&f->staging, "replaces", -1);
    DCP_CLEANUP_FREE struct dcp_receipt_file *files =
        dcp_mem_calloc(target->n_files, sizeof *files);
    DCP_CLEANUP_BUF struct dcp_buf note = { 0 };

    if (!path || !files)
        return dcp_error_memory(err, "a receipt");
    for (size_t i = 0; i < target->n_files; i++)
        files[i] =
            (struct dcp_receipt_file){ target->files[i].name, target->files[i].size_bytes,
                                       target->files[i].crc };
    dcp_receipt_pack(f->parts->job, f->parts->deal.n, files, target->n_files, NULL,
                     &note);
    DCP_TRY(dcp_buf_check(&note, err));
    return store->ops->replace(store->self, path, note.data, note.size_bytes, err);
}

/* Whether what an earlier finish noted is the target now. */
static int was_replaced(const struct finish *f, bool *out, struct dcp_error *err)
{
    const struct dcp_store *store = f->setup->store;
    DCP_CLEANUP_FREE char *path = dcp_staging_path(&f->staging, "replaces", -1);
    DCP_CLEANUP_FREE char *prefix = dcp_str_join(f->options->name, "/", "");
    struct dcp_receipt note;
    struct dcp_error why = { 0 };
    void *data = NULL;
    size_t n;

    *out = false;
    if (!path || !prefix)
        return dcp_error_memory(err, "a receipt");
    int rc = dcp_store_read_file(store, path, DCP_RECEIPT_MOST_BYTES, &data, &n, &why);
    if (!rc)
        rc = dcp_receipt_parse(data, n, f->parts->job, f->parts->deal.n, &note, &why);
    if (rc == DCP_E_NOT_FOUND || rc == DCP_E_CORRUPT || rc == DCP_E_MISMATCH)
        return DCP_OK;
    if (!rc) {
        rc = dcp_receipt_compare(&note, store, prefix, out, &why);
        dcp_receipt_fini(&note);
    }
    if (rc && err)
        *err = why;
    return rc;
}

/* ------------------------------------------------------------------------------------ */

/* The sizes that files have now, which others may have changed meanwhile. */
static int check_sizes(const struct finish *f, struct dcp_error *err)
{
    const struct dcp_store *store = f->setup->store;
    const char *other = NULL;

    for (int i = 0; i < f->parts->deal.n && !other; i++)
        DCP_TRY(dcp_receipt_look(&f->receipts[i], store, f->staging.prefix, &other, err));
    if (!other)
        return DCP_OK;
    return dcp_error_set(err, DCP_E_BUSY,
                         "'%s/%s%s' was changed by another process while the parts were "
                         "put together; nothing was published",
                         store->root, f->staging.prefix, DCP_SHOWN(other));
}

static int publish(const struct finish *f, bool taken, struct dcp_error *err)
{
    const struct dcp_parts_finish *options = f->options;
    const struct dcp_store *store = f->setup->store;
    const struct dcp_source made = { store, f->staging.files, true };
    struct dcp_publication publication = { 0 };
    int rc = options->made ? options->made(options->self, &made, err) : DCP_OK;

    if (!rc)
        rc = check_sizes(f, err);
    if (!rc && taken)
        rc = note_files(f, err);
    if (!rc)
        rc = dcp_publish_adopt(&publication, store, options->name, f->staging.files,
                               options->force, err);
    if (!rc)
        rc = dcp_publish_commit(&publication, NULL, options->force, err);
    if (publication.store)
        dcp_publish_fini(&publication);
    return rc;
}

/* What is left when the target is there is no longer needed, and stops nothing. */
static void remove_staging(struct finish *f)
{
    struct dcp_error why = { 0 };

    if (dcp_staging_remove(&f->staging, &why))
        dcp_log_write(f->options->log, DCP_LOG_WARN, "%s; it is no longer needed",
                      why.message);
}

static int run(struct finish *f, bool *out_was_published, struct dcp_error *err)
{
    enum dcp_staging_state state;
    bool taken = false;

    DCP_TRY(dcp_staging_close(&f->staging, err));
    DCP_TRY(dcp_staging_look(&f->staging, &state, err));
    DCP_TRY(target_exists(f, &taken, err));
    *out_was_published = taken && state == DCP_STAGING_DONE;
    if (!*out_was_published && taken)
        DCP_TRY(was_replaced(f, out_was_published, err));
    if (*out_was_published)
        return DCP_OK;
    if (taken && !f->options->force)
        return dcp_error_set(err, DCP_E_EXISTS, "'%s' already exists in '%s'",
                             f->options->name, f->setup->store->root);
    DCP_TRY(dcp_parts_check_job(f->parts, &f->staging, err));
    DCP_TRY(read_receipts(f, err));
    DCP_TRY(sweep(f, err));
    DCP_TRY(join(f, err));
    return publish(f, taken, err);
}

int dcp_parts_finish(struct dcp_parts *parts, struct dcp_stream_setup *setup,
                     const struct dcp_parts_finish *options, bool *out_was_published,
                     struct dcp_error *err)
{
    struct finish f = { .parts = parts, .setup = setup, .options = options };
    int rc = dcp_staging_init(&f.staging, setup->store, options->name, err);

    *out_was_published = false;
    if (!rc)
        rc = run(&f, out_was_published, err);
    if (!rc)
        remove_staging(&f);
    for (int i = 0; f.receipts && i < parts->deal.n; i++)
        dcp_receipt_fini(&f.receipts[i]);
    free(f.receipts);
    dcp_staging_fini(&f.staging);
    return rc;
}
