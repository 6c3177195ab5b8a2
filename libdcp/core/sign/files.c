/* The files that a signature is made of: found, held against the manifest, hashed. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/str.h"
#include "core/parity/parity.h"
#include "signature.h"
#include <stdio.h>
#include <string.h>

#define READ_BYTES ((size_t)1 << 20)
#define MAX_PATH_BYTES 4096 /* of a file below the step */
#define MANIFEST "manifest.json"

struct found {
    char *path; /* below the step */
    bool is_dir;
    uint64_t size_bytes;
};

struct list {
    const struct dcp_source *source;
    const struct dcp_progress *progress;
    struct dcp_buf *out;
    struct dcp_signature *facts;
    struct dcp_sha256 *sha256;
    unsigned char *buffer;
    uint64_t total_bytes;
    struct found *found;
    size_t n_found, cap;
    struct dcp_file *named; /* what the step has; NULL: whatever lies there */
    size_t n_named;
};

static int count(struct list *list, size_t n, struct dcp_error *err)
{
    const struct dcp_progress *progress = list->progress;
    list->facts->size_bytes += n;
    if (progress && progress->report &&
        progress->report(progress->self, list->facts->size_bytes, list->total_bytes))
        return dcp_error_set(err, DCP_E_INTERRUPTED, "interrupted");
    return DCP_OK;
}

/* The signature and what an interrupted one left are no files of a step. */
static bool is_own(const char *path)
{
    return !strcmp(path, SIGNATURE_FILE) || !strcmp(path, SIGNATURE_TEMPORARY);
}

static int add_found(struct list *list, const char *dir,
                     const struct dcp_store_entry *entry, struct dcp_error *err)
{
    char *path = dcp_str_join(dir, dir[0] ? "/" : "", entry->name);
    struct found *grown =
        dcp_mem_grow(list->found, &list->cap, list->n_found + 1, sizeof *list->found);
    list->found = grown ? grown : list->found;
    if (!path || !grown || strlen(path) > MAX_PATH_BYTES ||
        (!entry->is_dir && is_own(path))) {
        int rc = !path || !grown ? dcp_error_memory(err, "a signature")
                 : strlen(path) > MAX_PATH_BYTES
                     ? dcp_error_set(err, DCP_E_CORRUPT,
                                     "the step has folders that are nested too deep")
                     : DCP_OK;
        free(path);
        return rc;
    }
    grown[list->n_found++] = (struct found){ path, entry->is_dir, entry->size_bytes };
    list->total_bytes += entry->is_dir ? 0 : entry->size_bytes;
    return DCP_OK;
}

static int add_folder(struct list *list, const char *below, struct dcp_error *err)
{
    const struct dcp_source *source = list->source;
    DCP_CLEANUP_FREE char *dir =
        dcp_str_join(source->name, source->name[0] && below[0] ? "/" : "", below);
    struct dcp_store_entry *entries;
    size_t n;
    int rc = dir ? source->store->ops->list(source->store->self, dir, &entries, &n, err)
                 : dcp_error_memory(err, "a signature");
    if (rc)
        return rc;
    for (size_t i = 0; i < n && !rc; i++)
        rc = add_found(list, below, &entries[i], err);
    dcp_store_list_free(entries, n);
    return rc;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct found *)a)->path, ((const struct found *)b)->path);
}

/* All files, those of folders by their path, in byte order. */
static int find_files(struct list *list, struct dcp_error *err)
{
    int rc = add_folder(list, "", err);
    for (size_t i = 0; i < list->n_found && !rc; i++) /* it grows */
        if (list->found[i].is_dir)
            rc = add_folder(list, list->found[i].path, err);
    if (!rc && list->n_found)
        qsort(list->found, list->n_found, sizeof *list->found, by_path);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct dcp_file *)a)->name, ((const struct dcp_file *)b)->name);
}

static int check_names(const struct list *list, struct dcp_error *err)
{
    for (size_t i = 0; i < list->n_named; i++) {
        const char *name = list->named[i].name;
        if (is_own(name))
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "the manifest names '%s', which is no file of a step",
                                 name);
        if (i && !strcmp(name, list->named[i - 1].name))
            return dcp_error_set(err, DCP_E_CORRUPT, "the manifest names '%s' twice",
                                 DCP_SHOWN(name));
    }
    return DCP_OK;
}

/* What the format and the manifest name: FORMAT.md §1. */
static int name_files(struct list *list, struct dcp_catalog *catalog,
                      struct dcp_error *err)
{
    struct dcp_parity *parity = NULL;
    int rc = catalog->parity ? dcp_parity_parse(catalog->parity, strlen(catalog->parity),
                                                &parity, err)
                             : DCP_OK;
    if (rc)
        return rc;
    size_t n_rows = parity ? dcp_parity_n_rows(parity) : 0;
    list->named = dcp_mem_calloc(catalog->n_files + 1 + n_rows, sizeof *list->named);
    if (!list->named)
        rc = dcp_error_memory(err, "a signature");
    for (size_t i = 0; i < catalog->n_files && !rc; i++)
        list->named[list->n_named++] = catalog->files[i];
    if (!rc) /* its own digest was checked, and that of parity stands in it */
        list->named[list->n_named++] = (struct dcp_file){ .name = MANIFEST };
    for (size_t i = 0; i < n_rows && !rc; i++) {
        char name[64];
        dcp_parity_name(parity, (int)i / parity->rows, (int)i % parity->rows, name);
        struct dcp_file *file = &list->named[list->n_named++];
        file->name = dcp_catalog_text(catalog, name);
        rc = file->name ? DCP_OK : dcp_error_memory(err, "a signature");
    }
    dcp_parity_free(parity);
    if (rc)
        return rc;
    qsort(list->named, list->n_named, sizeof *list->named, by_name);
    return check_names(list, err);
}

/* Whether a file may stand in the list, and what the manifest says of it. */
static int check_found(const struct list *list, const struct found *found,
                       const struct dcp_file **out, struct dcp_error *err)
{
    const struct dcp_file key = { .name = found->path };
    bool fits = !strpbrk(found->path, "\n\r\\");
    const char *shown = DCP_SHOWN(found->path);
    *out = NULL;
    if (!list->named)
        return fits ? DCP_OK
                    : dcp_error_set(err, DCP_E_CORRUPT,
                                    "'%s' was added after the step was signed", shown);
    *out = bsearch(&key, list->named, list->n_named, sizeof key, by_name);
    if (!*out) {
        dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' is no file of the step", shown);
        dcp_error_hint(err, "only what the manifest names is signed: move it away");
        return DCP_E_UNSUPPORTED;
    }
    if (!fits)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "the name of '%s' does not fit into a line", shown);
    return DCP_OK;
}

static int hash_file(struct list *list, const struct found *found,
                     const struct dcp_file *named, struct dcp_error *err)
{
    const struct dcp_source *source = list->source;
    const struct dcp_store *store = source->store;
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(source->name, source->name[0] ? "/" : "", found->path);
    struct dcp_store_file *file;
    unsigned char digest[DCP_SHA256_BYTES];
    char text[DCP_SHA256_HEX];
    uint64_t size_bytes = found->size_bytes, crc = 0;
    int rc = path ? store->ops->open(store->self, path, &file, err)
                  : dcp_error_memory(err, "a signature");
    if (rc)
        return rc;
    for (uint64_t at = 0; at < size_bytes && !rc; at += READ_BYTES) {
        size_t n = size_bytes - at < READ_BYTES ? (size_t)(size_bytes - at) : READ_BYTES;
        rc = store->ops->read_at(store->self, file, at, list->buffer, n, err);
        if (rc)
            break;
        dcp_sha256_add(list->sha256, list->buffer, n);
        if (named && named->has_crc)
            crc = dcp_hash_crc64(crc, list->buffer, n);
        rc = count(list, n, err);
    }
    store->ops->close(store->self, file, NULL);
    if (!dcp_sha256_end(list->sha256, digest) && !rc)
        rc = dcp_error_memory(err, "a signature");
    if (!rc && named && named->has_crc && crc != named->crc)
        rc = dcp_error_set(err, DCP_E_CORRUPT, "'%s' is corrupt: its digest differs",
                           DCP_SHOWN(found->path));
    dcp_sha256_text(digest, text);
    dcp_buf_add_fmt(list->out, "%s  %s\n", text, found->path);
    return rc;
}

static int hash_files(struct list *list, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (size_t i = 0; i < list->n_found && !rc; i++) {
        const struct found *found = &list->found[i];
        const struct dcp_file *named;
        if (found->is_dir)
            continue;
        rc = check_found(list, found, &named, err);
        if (!rc)
            rc = hash_file(list, found, named, err);
        list->facts->n_files++;
    }
    return rc;
}

static void list_fini(struct list *list)
{
    for (size_t i = 0; i < list->n_found; i++)
        free(list->found[i].path);
    free(list->found);
    free(list->named);
    free(list->buffer);
    dcp_sha256_free(list->sha256);
}

int dcp_signature_list(const struct dcp_source *source, struct dcp_catalog *catalog,
                       const struct dcp_progress *progress, struct dcp_buf *out,
                       struct dcp_signature *out_facts, struct dcp_error *err)
{
    struct list list = { .source = source,
                         .progress = progress,
                         .out = out,
                         .facts = out_facts,
                         .sha256 = dcp_sha256_new(),
                         .buffer = malloc(READ_BYTES) };
    *out_facts = (struct dcp_signature){ 0 };
    dcp_buf_add_text(out, SIGNATURE_FIRST);
    int rc = list.buffer && list.sha256 ? DCP_OK : dcp_error_memory(err, "a signature");
    if (!rc && catalog)
        rc = name_files(&list, catalog, err);
    if (!rc)
        rc = find_files(&list, err);
    if (!rc)
        rc = hash_files(&list, err);
    if (!rc)
        rc = dcp_buf_check(out, err);
    list_fini(&list);
    return rc;
}
