#include "signature.h"

#include "base/mem.h"
#include "base/sha256.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

#define READ_BYTES ((size_t)1 << 20)

struct list {
    const struct dcp_source *source;
    const struct dcp_progress *progress;
    struct dcp_buf *out;
    struct dcp_signature *facts;
    struct dcp_sha256 *sha256;
    unsigned char *buffer;
    uint64_t total_bytes;
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

static int hash_file(struct list *list, const char *path, uint64_t size_bytes,
                     struct dcp_error *err)
{
    const struct dcp_store *store = list->source->store;
    struct dcp_store_file *file;
    unsigned char digest[DCP_SHA256_BYTES];
    char text[DCP_SHA256_HEX];
    int rc = store->ops->open(store->self, path, &file, err);
    if (rc)
        return rc;
    for (uint64_t at = 0; at < size_bytes && !rc; at += READ_BYTES) {
        size_t n = size_bytes - at < READ_BYTES ? (size_t)(size_bytes - at) : READ_BYTES;
        rc = store->ops->read_at(store->self, file, at, list->buffer, n, err);
        if (!rc) {
            dcp_sha256_add(list->sha256, list->buffer, n);
            rc = count(list, n, err);
        }
    }
    store->ops->close(store->self, file, NULL);
    if (!dcp_sha256_end(list->sha256, digest) && !rc)
        rc = dcp_error_memory(err, "a signature");
    dcp_sha256_text(digest, text);
    dcp_buf_add_text(list->out, text);
    return rc;
}

/* One line a file; those of folders (which only other programs' files have) too. */
static int add_folder(struct list *list, const char *below, bool counts_only,
                      struct dcp_error *err)
{
    const struct dcp_source *source = list->source;
    const struct dcp_store_ops *ops = source->store->ops;
    DCP_CLEANUP_FREE char *dir =
        dcp_str_join(source->name, source->name[0] && below[0] ? "/" : "", below);
    struct dcp_store_entry *entries;
    size_t n;
    int rc = dir ? ops->list(source->store->self, dir, &entries, &n, err)
                 : dcp_error_memory(err, "a signature");
    if (rc)
        return rc;
    for (size_t i = 0; i < n && !rc; i++) {
        const struct dcp_store_entry *entry = &entries[i];
        DCP_CLEANUP_FREE char *name =
            dcp_str_join(below, below[0] ? "/" : "", entry->name);
        DCP_CLEANUP_FREE char *path = dcp_str_join(dir, dir[0] ? "/" : "", entry->name);
        char shown[160];
        if (!name || !path)
            rc = dcp_error_memory(err, "a signature");
        else if (entry->is_dir)
            rc = add_folder(list, name, counts_only, err);
        else if (!strcmp(name, SIGNATURE_FILE))
            continue;
        else if (counts_only)
            list->total_bytes += entry->size_bytes;
        else if (strpbrk(name, "\n\r\\"))
            rc = dcp_error_set(err, DCP_E_UNSUPPORTED,
                               "the name of '%s' does not fit into a line",
                               dcp_str_escape(shown, sizeof shown, name));
        else {
            rc = hash_file(list, path, entry->size_bytes, err);
            dcp_buf_add_fmt(list->out, "  %s\n", name);
            list->facts->n_files++;
        }
    }
    dcp_store_list_free(entries, n);
    return rc;
}

int dcp_signature_list(const struct dcp_source *source,
                       const struct dcp_progress *progress, struct dcp_buf *out,
                       struct dcp_signature *out_facts, struct dcp_error *err)
{
    DCP_CLEANUP_FREE unsigned char *buffer = malloc(READ_BYTES);
    struct list list = { .source = source,
                         .progress = progress,
                         .out = out,
                         .facts = out_facts,
                         .sha256 = dcp_sha256_new(),
                         .buffer = buffer };
    *out_facts = (struct dcp_signature){ 0 };
    dcp_buf_add_text(out, SIGNATURE_FIRST);
    int rc = buffer && list.sha256 ? DCP_OK : dcp_error_memory(err, "a signature");
    if (!rc)
        rc = add_folder(&list, "", true, err);
    if (!rc)
        rc = add_folder(&list, "", false, err);
    if (!rc)
        rc = dcp_buf_check(out, err);
    dcp_sha256_free(list.sha256);
    return rc;
}

int dcp_signature_read(const struct dcp_source *source, char **out, size_t *out_signed,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(source->name, source->name[0] ? "/" : "", SIGNATURE_FILE);
    void *text = NULL;
    size_t n = 0;
    *out = NULL;
    int rc = path ? dcp_store_read_file(source->store, path, SIGNATURE_MAX_BYTES, &text,
                                        &n, err)
                  : dcp_error_memory(err, "a signature");
    if (rc)
        return rc;
    const char *mark = n ? strstr(text, "\n" SIGNATURE_MARK) : NULL;
    if (strlen(text) != n || !mark || !dcp_str_starts(text, SIGNATURE_FIRST)) {
        free(text);
        return dcp_error_set(err, DCP_E_CORRUPT,
                             SIGNATURE_FILE " is damaged, or of another version");
    }
    *out = text;
    *out_signed = (size_t)(mark + 1 - (char *)text);
    return DCP_OK;
}

char *dcp_signers(const struct dcp_source *source)
{
    DCP_CLEANUP_FREE char *text = NULL;
    struct dcp_buf out = { 0 };
    size_t n;
    if (dcp_signature_read(source, &text, &n, NULL))
        return NULL;
    for (const char *line = text + n; *line; line += strcspn(line, "\n") + 1) {
        char id[DCP_ED25519_ID];
        if (sscanf(line, SIGNATURE_MARK "%16[0-9a-f] ", id) == 1)
            dcp_buf_add_fmt(&out, "%s%s", out.size_bytes ? "\n" : "", id);
        if (!line[strcspn(line, "\n")])
            break;
    }
    return (char *)out.data;
}
