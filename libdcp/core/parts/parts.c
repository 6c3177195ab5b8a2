#include "parts.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "own.h"
#include <stdio.h>
#include <string.h>

#define JOB_MOST_BYTES 4096

static int read_job(const struct dcp_staging *staging, char **out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_staging_path(staging, "job", -1);
    void *text = NULL;
    size_t n;

    if (!path)
        return dcp_error_memory(err, "the parts of a reshard");
    int rc = dcp_store_read_file(staging->store, path, JOB_MOST_BYTES, &text, &n, err);
    *out = text;
    return rc;
}

int dcp_parts_find(const struct dcp_store *store, const char *name, int *out_n,
                   enum dcp_staging_state *out_state, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = NULL;
    struct dcp_staging staging;
    int rc = dcp_staging_init(&staging, store, name, err);

    *out_n = 0;
    if (!rc)
        rc = dcp_staging_look(&staging, out_state, err);
    if (!rc && *out_state != DCP_STAGING_NONE) {
        struct dcp_error why = { 0 };
        rc = read_job(&staging, &text, &why);
        if (!rc)
            *out_n = dcp_job_parts(text);
        else if (rc == DCP_E_NOT_FOUND) /* the first part has just begun */
            rc = DCP_OK;
        else if (err)
            *err = why;
    }
    dcp_staging_fini(&staging);
    return rc;
}

int dcp_parts_new(struct dcp_parts *parts, struct dcp_target *target,
                  struct dcp_identity_of_job *job, struct dcp_error *err)
{
    struct dcp_buf text = { 0 };

    *parts = (struct dcp_parts){ 0 };
    DCP_TRY(dcp_deal(target, job->n, &parts->deal, err));
    int rc = dcp_job_identify(job, &text, err);
    parts->identity = (char *)text.data;
    if (!rc)
        parts->job = dcp_hash_xxh3(text.data, text.size_bytes);
    return rc;
}

void dcp_parts_fini(struct dcp_parts *parts)
{
    dcp_deal_fini(&parts->deal);
    free(parts->identity);
    *parts = (struct dcp_parts){ 0 };
}

int dcp_parts_check_job(const struct dcp_parts *parts, const struct dcp_staging *staging,
                        struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = NULL;
    DCP_CLEANUP_FREE char *where =
        dcp_str_join(staging->store->root, "/", staging->folder);

    if (!where)
        return dcp_error_memory(err, "the parts of a reshard");
    DCP_TRY(read_job(staging, &text, err));
    return dcp_job_compare(text, parts->identity, where, err);
}

/* Another part may tell it at the same time; its own name is this part's alone. */
static int tell_job(const struct dcp_parts *parts, const struct dcp_staging *staging,
                    int part, struct dcp_error *err)
{
    const struct dcp_store *store = staging->store;
    DCP_CLEANUP_FREE char *mine = dcp_staging_path(staging, "job", part);
    DCP_CLEANUP_FREE char *job = dcp_staging_path(staging, "job", -1);
    struct dcp_error why = { 0 };
    int rc = dcp_parts_check_job(parts, staging, &why);

    if (rc != DCP_E_NOT_FOUND) {
        if (rc && err)
            *err = why;
        return rc;
    }
    if (!mine || !job)
        return dcp_error_memory(err, "the parts of a reshard");
    DCP_TRY(dcp_store_clear(store, mine, err));
    DCP_TRY(
        dcp_store_write_file(store, mine, parts->identity, strlen(parts->identity), err));
    why = (struct dcp_error){ 0 };
    rc = store->ops->publish(store->self, mine, job, &why);
    if (rc == DCP_E_EXISTS) {
        store->ops->remove(store->self, mine, NULL);
        return dcp_parts_check_job(parts, staging, err);
    }
    if (rc && err)
        *err = why;
    return rc;
}

int dcp_parts_receipt(const struct dcp_parts *parts, const struct dcp_staging *staging,
                      int part, struct dcp_receipt *out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_staging_path(staging, "part", part);
    const char *other = NULL;
    void *data = NULL;
    size_t n;

    *out = (struct dcp_receipt){ 0 };
    if (!path)
        return dcp_error_memory(err, "a receipt");
    DCP_TRY(dcp_store_read_file(staging->store, path, DCP_RECEIPT_MOST_BYTES, &data, &n,
                                err));
    int rc = dcp_receipt_parse(data, n, parts->job, part, out, err);
    if (!rc)
        rc = dcp_receipt_look(out, staging->store, staging->prefix, &other, err);
    if (!rc && other)
        rc = dcp_error_set(err, DCP_E_NOT_FOUND, "'%s' is not as part %d wrote it",
                           DCP_SHOWN(other), part + 1);
    if (rc)
        dcp_receipt_fini(out);
    if (rc == DCP_E_CORRUPT || rc == DCP_E_MISMATCH) /* it is made again */
        rc = DCP_E_NOT_FOUND;
    return rc;
}

int dcp_parts_look(struct dcp_parts *parts, const struct dcp_store *store,
                   const char *name, struct dcp_error *err)
{
    struct dcp_staging staging;
    struct dcp_error why = { 0 };
    int rc = dcp_staging_init(&staging, store, name, err);

    if (!rc)
        rc = dcp_parts_check_job(parts, &staging, &why);
    bool none = rc == DCP_E_NOT_FOUND;
    if (rc && !none && err && why.code)
        *err = why;
    for (int i = 0; i < parts->deal.n && !rc; i++) {
        struct dcp_receipt receipt;
        rc = dcp_parts_receipt(parts, &staging, i, &receipt, &why);
        parts->deal.parts[i].made = !rc;
        if (!rc)
            dcp_receipt_fini(&receipt);
        else if (rc == DCP_E_NOT_FOUND)
            rc = DCP_OK;
        else if (err)
            *err = why;
    }
    dcp_staging_fini(&staging);
    return none ? DCP_OK : rc;
}

/* -- one part ------------------------------------------------------------------------ */

static int write_receipt(const struct dcp_parts *parts, const struct dcp_staging *staging,
                         const struct dcp_catalog *target, int part,
                         const struct dcp_buf *told, struct dcp_error *err)
{
    const struct dcp_store *store = staging->store;
    DCP_CLEANUP_FREE char *path = dcp_staging_path(staging, "part", part);
    DCP_CLEANUP_FREE struct dcp_receipt_file *files =
        dcp_mem_calloc(target->n_files, sizeof *files);
    DCP_CLEANUP_BUF struct dcp_buf receipt = { 0 };
    size_t n = 0;

    if (!path || !files)
        return dcp_error_memory(err, "a receipt");
    for (size_t f = 0; f < target->n_files; f++) {
        const struct dcp_file *file = &target->files[f];
        if (parts->deal.part_of[file->rank] == part)
            files[n++] =
                (struct dcp_receipt_file){ file->name, file->size_bytes, file->crc };
    }
    dcp_receipt_pack(parts->job, part, files, n, told, &receipt);
    DCP_TRY(dcp_buf_check(&receipt, err));
    DCP_TRY(store->ops->sync_dir(store->self, staging->files, err));
    return store->ops->replace(store->self, path, receipt.data, receipt.size_bytes, err);
}

/* What was there is worth nothing from now on: its files are about to be replaced. */
static int begin_part(const struct dcp_parts *parts, const struct dcp_staging *staging,
                      int part, bool *out_was_made, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_staging_path(staging, "part", part);
    struct dcp_receipt receipt;
    struct dcp_error why = { 0 };

    if (!path)
        return dcp_error_memory(err, "a receipt");
    int rc = dcp_parts_receipt(parts, staging, part, &receipt, &why);
    *out_was_made = !rc;
    if (!rc) {
        dcp_receipt_fini(&receipt);
        return DCP_OK;
    }
    if (rc == DCP_E_NOT_FOUND)
        return dcp_store_clear(staging->store, path, err);
    if (err)
        *err = why;
    return rc;
}

int dcp_parts_make(struct dcp_parts *parts, struct dcp_stream_setup *setup,
                   const char *name, int part, bool *out_was_made, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf told = { 0 };
    struct dcp_staging staging;
    int rc = dcp_staging_init(&staging, setup->store, name, err);

    *out_was_made = false;
    setup->prefix = staging.prefix;
    if (!rc)
        rc = dcp_staging_enter(&staging, part, err);
    if (!rc)
        rc = tell_job(parts, &staging, part, err);
    if (!rc)
        rc = begin_part(parts, &staging, part, out_was_made, err);
    if (!rc && !*out_was_made) {
        rc = dcp_stream_part(setup, &parts->deal.shares, part, &told, err);
        if (!rc)
            rc = write_receipt(parts, &staging, setup->target->catalog, part, &told, err);
    }
    dcp_staging_fini(&staging);
    return rc;
}
