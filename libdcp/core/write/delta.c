#include "delta.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/delta/folder.h"
#include <string.h>

#define USUAL_IDENTITY_BYTES ((size_t)256 << 20)

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct dcp_coded_file *)a)->name,
                  ((const struct dcp_coded_file *)b)->name);
}

static int by_file_name(const void *a, const void *b)
{
    return strcmp(((const struct dcp_delta_file *)a)->name,
                  ((const struct dcp_delta_file *)b)->name);
}

static int by_base_name(const void *a, const void *b)
{
    return strcmp(((const struct dcp_delta_base_file *)a)->name,
                  ((const struct dcp_delta_base_file *)b)->name);
}

static int add_base(struct dcp_delta_folder *is, const char *name, uint64_t size_bytes,
                    uint64_t crc, struct dcp_error *err)
{
    struct dcp_delta_base_file *file = &is->base[is->n_base++];

    *file = (struct dcp_delta_base_file){ strdup(name), size_bytes, crc };
    return file->name ? DCP_OK : dcp_error_memory(err, "a delta");
}

/* The base's manifest binds all of it. */
static int add_identity(const struct dcp_write_delta *delta, struct dcp_delta_folder *is,
                        struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(delta->base, "/", DCP_DELTA_IDENTITY);
    DCP_CLEANUP_FREE void *text = NULL;
    size_t n;

    if (!path)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(
        dcp_store_read_header(delta->store, path, USUAL_IDENTITY_BYTES, &text, &n, err));
    return add_base(is, DCP_DELTA_IDENTITY, n, dcp_hash_crc64(0, text, n), err);
}

static const struct dcp_coded_file *find_coded(const struct dcp_write_delta *delta,
                                               const char *name)
{
    const struct dcp_coded_file key = { .name = name };

    return bsearch(&key, delta->coded, delta->n_coded, sizeof key, by_name);
}

/* The base's files that are read, which are those that were coded against them. */
static int list_base(const struct dcp_write_delta *delta, struct dcp_delta_folder *is,
                     struct dcp_error *err)
{
    const struct dcp_catalog *base = delta->base_files;

    is->base = dcp_mem_calloc(delta->n_coded + 1, sizeof *is->base);
    if (!is->base)
        return dcp_error_memory(err, "a delta");
    DCP_TRY(add_identity(delta, is, err));
    for (size_t f = 0; f < base->n_files; f++) {
        const struct dcp_file *file = &base->files[f];
        if (find_coded(delta, file->name) && is->n_base <= delta->n_coded)
            DCP_TRY(add_base(is, file->name, file->size_bytes, file->crc, err));
    }
    qsort(is->base, is->n_base, sizeof *is->base, by_base_name);
    return DCP_OK;
}

static int list_files(const struct dcp_write_delta *delta, struct dcp_delta_folder *is,
                      struct dcp_error *err)
{
    const struct dcp_catalog *catalog = delta->catalog;

    is->files = dcp_mem_calloc(catalog->n_files, sizeof *is->files);
    if (!is->files)
        return dcp_error_memory(err, "a delta");
    for (size_t f = 0; f < catalog->n_files; f++) {
        const struct dcp_file *from = &catalog->files[f];
        const struct dcp_coded_file *coded = find_coded(delta, from->name);
        struct dcp_delta_file *file = &is->files[is->n_files++];
        *file = (struct dcp_delta_file){ .name = strdup(from->name),
                                         .size_bytes = from->size_bytes,
                                         .crc = from->crc };
        if (!file->name)
            return dcp_error_memory(err, "a delta");
        if (!coded)
            continue;
        file->coded = true;
        file->delta_bytes = coded->coded.size_bytes;
        file->table_crc = coded->coded.table_crc;
    }
    qsort(is->files, is->n_files, sizeof *is->files, by_file_name);
    return DCP_OK;
}

static int describe(const struct dcp_write_delta *delta, struct dcp_delta_folder *is,
                    struct dcp_buf *text, struct dcp_error *err)
{
    if (delta->n_coded)
        qsort(delta->coded, delta->n_coded, sizeof *delta->coded, by_name);
    if (!(is->base_path = dcp_str_join("../", delta->base, "")))
        return dcp_error_memory(err, "a delta");
    DCP_TRY(list_base(delta, is, err));
    DCP_TRY(list_files(delta, is, err));
    dcp_delta_folder_format(text, is);
    return dcp_buf_check(text, err);
}

/* As any reader does. */
static int enter(const struct dcp_write_delta *delta, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = strndup(delta->prefix, strlen(delta->prefix) - 1);
    struct dcp_store_entry *entries;
    size_t n;

    if (!dir)
        return dcp_error_memory(err, "a delta");
    DCP_TRY(delta->store->ops->list(delta->store->self, dir, &entries, &n, err));
    dcp_store_list_free(entries, n);
    return DCP_OK;
}

int dcp_write_delta(const struct dcp_write_delta *delta, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(delta->prefix, DCP_DELTA_JSON, "");
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    struct dcp_delta_folder is = { .chain = 1, .number = delta->number };

    int rc = path ? describe(delta, &is, &text, err) : dcp_error_memory(err, "a delta");
    if (!rc)
        rc = dcp_store_clear(delta->store, path, err);
    if (!rc)
        rc = dcp_store_write_file(delta->store, path, text.data, text.size_bytes, err);
    dcp_delta_folder_fini(&is);
    return rc ? rc : enter(delta, err);
}
