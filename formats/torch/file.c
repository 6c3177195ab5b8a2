/* file: opening a PyTorch file of any container, and its table of storages. */
#include "base/mem.h"
#include "base/str.h"
#include "form.h"
#include "formats/archive/tar.h"
#include "formats/foreign/foreign.h"
#include <stdio.h>
#include <string.h>

enum { MAX_DEFLATED_BYTES = 1 << 20 };

static const struct {
    bool (*probe)(const unsigned char *head, size_t n);
    int (*open)(struct dcp_torch_file *file, struct dcp_error *err);
    int (*tree)(struct dcp_torch_file *file, struct dcp_error *err);
} forms[] = {
    [DCP_TORCH_ZIP] = { dcp_torch_zip_probe, dcp_torch_zip_open, dcp_torch_zip_tree },
    [DCP_TORCH_STREAM] = { dcp_torch_stream_probe, dcp_torch_stream_open,
                           dcp_torch_stream_tree },
    [DCP_TORCH_TAR] = { dcp_torch_tar_probe, dcp_torch_tar_open, dcp_torch_tar_tree },
};

/* No container begins so. */
static int refuse(const struct dcp_torch_file *file, const struct dcp_source *source,
                  struct dcp_error *err)
{
    const struct dcp_source whole = { .store = source->store, .name = file->in.name };
    const char *kind = dcp_foreign_kind(&whole);

    return dcp_error_set(err, kind ? DCP_E_UNSUPPORTED : DCP_E_CORRUPT, "'%s' %s",
                         file->in.shown,
                         kind ? kind : "does not have the magic bytes of a PyTorch file");
}

int dcp_torch_open(struct dcp_torch_file *file, const struct dcp_source *source,
                   const char *name, struct dcp_error *err)
{
    unsigned char head[DCP_TORCH_HEAD_BYTES];

    *file = (struct dcp_torch_file){ 0 };
    file->arena = dcp_arena_new();
    if (!file->arena)
        return dcp_error_memory(err, "a PyTorch file");
    DCP_TRY(dcp_input_open(&file->in, source, name, err));
    size_t n =
        file->in.size_bytes < sizeof head ? (size_t)file->in.size_bytes : sizeof head;
    file->end = file->in.size_bytes;
    DCP_TRY(dcp_input_read(&file->in, 0, head, n, err));
    for (size_t form = 0; form < DCP_ARRAY_LEN(forms); form++)
        if (forms[form].probe(head, n)) {
            file->form = (enum dcp_torch_form)form;
            return forms[form].open(file, err);
        }
    return refuse(file, source, err);
}

int dcp_torch_open_part(struct dcp_torch_file *file, const struct dcp_input *in,
                        uint64_t begin, uint64_t end, struct dcp_error *err)
{
    *file = (struct dcp_torch_file){
        .in = *in, .in_borrowed = true, .begin = begin, .end = end
    };
    file->arena = dcp_arena_new();
    return file->arena ? dcp_torch_zip_open(file, err)
                       : dcp_error_memory(err, "a PyTorch file");
}

int dcp_torch_read_tree(struct dcp_torch_file *file, struct dcp_error *err)
{
    return forms[file->form].tree(file, err);
}

void dcp_torch_close(struct dcp_torch_file *file)
{
    if (!file->in_borrowed)
        dcp_input_close(&file->in);
    dcp_arena_free(file->arena);
    free(file->pickle);
    *file = (struct dcp_torch_file){ 0 };
}

int dcp_torch_add_file(const struct dcp_torch_file *file, const char *name, int rank,
                       struct dcp_catalog *catalog, int *out_index, struct dcp_error *err)
{
    const struct dcp_file entry = { .name = name,
                                    .rank = rank,
                                    .size_bytes = file->in.size_bytes };
    int rc = dcp_catalog_add_file(catalog, &entry, out_index, err);

    return rc || file->form != DCP_TORCH_ZIP
               ? rc
               : dcp_zip_add_records(&file->zip, catalog, *out_index, err);
}

/* A number in a deflated record: all of it is decoded. */
static int read_deflated(struct dcp_torch_file *file, uint64_t offset, uint64_t skip,
                         void *out, size_t n, struct dcp_error *err)
{
    const struct dcp_zip_record *record = dcp_zip_at(&file->zip, offset, 1);
    DCP_CLEANUP_FREE void *data = NULL;
    size_t size_bytes;

    if (!record || record->size_bytes < n || record->size_bytes - n < skip)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s': a storage ends before its tensor",
                             file->in.shown);
    if (record->size_bytes > MAX_DEFLATED_BYTES)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' has a number in a compressed storage of over %d bytes",
                             file->in.shown, MAX_DEFLATED_BYTES);
    DCP_TRY(dcp_zip_read(&file->in, record, MAX_DEFLATED_BYTES, &data, &size_bytes, err));
    memcpy(out, (const char *)data + skip, n);
    return DCP_OK;
}

int dcp_torch_read(struct dcp_torch_file *file, uint64_t offset, enum dcp_codec codec,
                   uint64_t skip, void *out, size_t n, struct dcp_error *err)
{
    if (codec != DCP_CODEC_NONE)
        return read_deflated(file, offset, skip, out, n, err);
    return file->form == DCP_TORCH_ZIP
               ? dcp_zip_read_at(&file->in, &file->zip, offset, out, n, err)
               : dcp_input_read(&file->in, offset, out, n, err);
}

/* -- pickles between other things ---------------------------------------------------- */

enum { FIRST_READ = 4096 };

/* Reads as much as is needed to see where the pickle at `at` ends. */
static int read_whole(const struct dcp_input *in, uint64_t at, uint64_t end,
                      unsigned char **data, size_t *out_n, struct dcp_error *err)
{
    size_t room =
        end - at < DCP_PICKLE_MAX_BYTES ? (size_t)(end - at) : DCP_PICKLE_MAX_BYTES;
    size_t n = 0, want = FIRST_READ, seen = 0;
    bool whole = false;

    while (!whole) {
        if (n == room)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "'%s': a pickle at byte %llu has no "
                                 "end",
                                 in->shown, (unsigned long long)at);
        want = want < room ? want : room;
        unsigned char *grown = realloc(*data, want);
        if (!grown)
            return dcp_error_memory(err, "a pickle");
        *data = grown;
        DCP_TRY(dcp_input_read(in, at + n, grown + n, want - n, err));
        DCP_TRY(dcp_pickle_find_end(grown, want, &seen, &whole, err));
        n = want;
        want *= 2;
    }
    *out_n = seen;
    return DCP_OK;
}

int dcp_torch_read_pickle(struct dcp_torch_file *file, uint64_t *at, uint64_t end,
                          struct dcp_pickle_ids *ids, struct dcp_torch_pickled *out,
                          struct dcp_error *err)
{
    unsigned char *data = NULL;
    size_t n = 0;

    *out = (struct dcp_torch_pickled){ 0 };
    if (*at > end || end > file->in.size_bytes)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is incomplete", file->in.shown);
    int rc = read_whole(&file->in, *at, end, &data, &n, err);
    if (!rc && file->meet)
        rc = file->meet(file->self, *at, data, n, err);
    if (!rc)
        rc = dcp_pickle_parse_ids(data, n, file->arena, ids, &out->root, NULL, err);
    if (rc) {
        dcp_error_prefix(err, "'%s'", file->in.shown);
        free(data);
        return rc;
    }
    out->data = data;
    *at += n;
    return DCP_OK;
}

/* -- storages ------------------------------------------------------------------------ */

bool dcp_torch_key(const struct dcp_pickle_node *node, char out[DCP_TORCH_KEY_CAP])
{
    if (!node || (node->kind != DCP_PICKLE_INT && node->kind != DCP_PICKLE_STR))
        return false;
    if (node->kind == DCP_PICKLE_INT) {
        snprintf(out, DCP_TORCH_KEY_CAP, "%lld", (long long)node->number);
        return true;
    }
    size_t n = node->text.size_bytes;
    if (!n || n > DCP_TORCH_MAX_KEY_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if (node->text.data[i] < '0' || node->text.data[i] > '9')
            return false;
    memcpy(out, node->text.data, n);
    out[n] = '\0';
    return true;
}

static int by_key(const void *p, const void *q)
{
    const struct dcp_torch_storage *a = p, *b = q;

    return strcmp(a->key, b->key);
}

int dcp_torch_sort_storages(struct dcp_torch_file *file, struct dcp_error *err)
{
    struct dcp_torch_storage *s = file->storages;

    if (file->n_storages)
        qsort(s, file->n_storages, sizeof *s, by_key);
    for (size_t i = 1; i < file->n_storages; i++)
        if (!strcmp(s[i - 1].key, s[i].key))
            return dcp_error_set(err, DCP_E_CORRUPT, "'%s' has two storages named '%s'",
                                 file->in.shown, s[i].key);
    return DCP_OK;
}

struct dcp_torch_storage *dcp_torch_find_storage(const struct dcp_torch_file *file,
                                                 const char *key)
{
    const struct dcp_torch_storage wanted = { .key = key };

    return file->n_storages
               ? bsearch(&wanted, file->storages, file->n_storages, sizeof wanted, by_key)
               : NULL;
}
