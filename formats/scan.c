/* scan: the files of a source that hold pickles, whatever format it is of. */
#include "scan.h"
#include "base/mem.h"
#include "base/str.h"
#include "dcp_item.h"
#include "dcp_meta.h"
#include "formats.h"
#include "pickle.h"
#include "tar.h"
#include "torch_form.h"
#include "unzstd.h"
#include <stdio.h>
#include <string.h>

enum {
    MAX_DEPTH = 16,
    MAX_PICKLES = 64,      /* in a row in one file */
    FIRST_READ = 64 << 10, /* of a pickle whose end is not known */
    MAX_TEXT = 16 << 20    /* of one of protocol 0 */
};

struct searcher {
    struct dcp_scan scan;
};

static int unreadable(struct searcher *s, const char *where, struct dcp_error *err)
{
    const struct dcp_global global = { .file = s->scan.file,
                                       .where = where,
                                       .name = DCP_GLOBAL_UNREADABLE,
                                       .kind = DCP_GLOBAL_DANGEROUS };

    s->scan.n_pickles++;
    return s->scan.visit->take(s->scan.visit->self, &global, err);
}

/* -- files of pickles ---------------------------------------------------------------- */

struct counter {
    size_t n;
};

static int count(void *self, const char *name, struct dcp_error *err)
{
    (void)name;
    (void)err;
    ((struct counter *)self)->n++;
    return DCP_OK;
}

/* Reads as much as holds the pickle at `at`, or all there is up to max_bytes. *out_whole:
 * it ends in that; *out_named: it names something. */
static int read_pickle(const struct dcp_input *in, uint64_t at, size_t max_bytes,
                       void **out, size_t *out_n, bool *out_whole, bool *out_named,
                       struct dcp_error *err)
{
    uint64_t left = in->size_bytes - at;
    size_t room = left < max_bytes ? (size_t)left : max_bytes;

    for (size_t n = FIRST_READ;; n *= 2) {
        struct counter counter = { 0 };
        const struct dcp_pickle_names names = { .take = count, .self = &counter };
        size_t used;
        n = n < room ? n : room;
        free(*out);
        *out = NULL;
        int rc = dcp_input_read_new(in, at, n, out, err);
        if (rc)
            return rc;
        rc = dcp_pickle_names(*out, n, &names, &used, NULL);
        *out_n = n;
        *out_whole = !rc;
        *out_named = counter.n > 0;
        if (!rc || n == room || rc == DCP_E_MEMORY)
            return rc == DCP_E_MEMORY ? dcp_error_memory(err, "a pickle") : DCP_OK;
    }
}

/* Pickles in a row, as streams of torch.save begin with five. */
static int scan_pickles(struct searcher *s, const struct dcp_input *in,
                        struct dcp_error *err)
{
    unsigned char head[DCP_TORCH_HEAD_BYTES] = { 0 };
    size_t n = in->size_bytes < sizeof head ? (size_t)in->size_bytes : sizeof head;
    uint64_t at = 0;
    int rc = dcp_input_read(in, 0, head, n, err);
    int most = !rc && dcp_torch_stream_probe(head, n) ? 5 : MAX_PICKLES;

    for (int i = 0; i < most && !rc && at < in->size_bytes; i++) {
        DCP_CLEANUP_FREE void *data = NULL;
        char where[24] = "";
        bool whole, named;
        size_t used;
        rc = dcp_input_read(in, at, head, 1, err);
        if (rc || (i && head[0] != 0x80))
            return rc;
        if (i)
            snprintf(where, sizeof where, "pickle %d", i + 1);
        rc = read_pickle(in, at, DCP_PICKLE_MAX_BYTES, &data, &n, &whole, &named, err);
        if (!rc)
            rc = dcp_scan_pickle(&s->scan, where, data, n, &used, err);
        if (rc || !used)
            return rc;
        at += used;
    }
    return rc;
}

/* A pickle of protocol 0 begins as any text may: it counts when it ends, or names
 * something. */
static int scan_text(struct searcher *s, const struct dcp_input *in,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *data = NULL;
    bool whole, named;
    size_t n;
    int rc = read_pickle(in, 0, MAX_TEXT, &data, &n, &whole, &named, err);

    return rc || (!whole && !named) ? rc
                                    : dcp_scan_pickle(&s->scan, "", data, n, NULL, err);
}

static int scan_npy(struct searcher *s, const struct dcp_input *in, struct dcp_error *err)
{
    char head[DCP_TORCH_HEAD_BYTES];
    size_t n = in->size_bytes < sizeof head ? (size_t)in->size_bytes : sizeof head;
    int rc = dcp_input_read(in, 0, head, n, err);
    const char *end = rc ? NULL : memchr(head, '\n', n);

    if (!end || !memmem(head, (size_t)(end - head), "'|O'", 4))
        return rc;
    DCP_CLEANUP_FREE void *data = NULL;
    bool whole, named;
    uint64_t at = (uint64_t)(end + 1 - head);
    rc = read_pickle(in, at, DCP_PICKLE_MAX_BYTES, &data, &n, &whole, &named, err);
    return rc ? rc : dcp_scan_pickle(&s->scan, "", data, n, NULL, err);
}

/* A tar file of torch: only what is read as one by its law is trusted further. */
static int scan_tar(struct searcher *s, const struct dcp_source *file,
                    struct dcp_error *err)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file torch = { 0 };
    DCP_CLEANUP_FREE void *data = NULL;
    struct dcp_error why = { 0 };
    int rc = dcp_torch_open(&torch, file, NULL, &why);

    if (!rc)
        rc = dcp_torch_read_tree(&torch, &why);
    if (rc && rc != DCP_E_MEMORY && rc != DCP_E_IO)
        return unreadable(s, "", err);
    if (rc && err)
        *err = why;
    if (rc)
        return rc;
    const struct dcp_tar_member *member = dcp_tar_find(torch.tar, "pickle");
    if (!member || member->size_bytes > DCP_PICKLE_MAX_BYTES)
        return unreadable(s, "pickle", err);
    rc = dcp_input_read_new(&torch.in, member->offset, (size_t)member->size_bytes, &data,
                            err);
    return rc ? rc
              : dcp_scan_pickle(&s->scan, "pickle", data, (size_t)member->size_bytes,
                                NULL, err);
}

static int scan_file(struct searcher *s, const struct dcp_source *file,
                     struct dcp_error *err)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    unsigned char head[DCP_TORCH_HEAD_BYTES] = { 0 };
    int rc = dcp_input_open(&in, file, NULL, err);
    size_t n = in.size_bytes < sizeof head ? (size_t)in.size_bytes : sizeof head;

    if (!rc)
        rc = dcp_input_read(&in, 0, head, n, err);
    if (rc || n < 2)
        return rc;
    if (!memcmp(head, "PK", 2))
        return dcp_scan_zip(&s->scan, "", &in, 0, in.size_bytes, err);
    if (head[0] == 0x80 && head[1] <= 5)
        return scan_pickles(s, &in, err);
    if (head[0] == 0x93 && n > 5 && !memcmp(head + 1, "NUMPY", 5))
        return scan_npy(s, &in, err);
    if (dcp_torch_tar_probe(head, n))
        return scan_tar(s, file, err);
    if (dcp_scan_is_packed(head, n, file->name) ||
        dcp_bundle_probe(file->store, file->name))
        return dcp_scan_pass_over(&s->scan, "", err);
    return dcp_scan_is_named_pickle(file->name) ? scan_text(s, &in, err) : DCP_OK;
}

/* -- distributed checkpoints --------------------------------------------------------- */

/* An item is an archive. A compressed one of a tensor is what PyTorch writes when it can
 * be located; others are decoded. */
static int scan_part(struct searcher *s, struct dcp_items *items,
                     const struct dcp_meta_part *part, const char *name,
                     struct dcp_error *err)
{
    DCP_CLEANUP_UNZSTD struct dcp_unzstd_file whole = { 0 };
    struct dcp_item_place place;
    struct dcp_error why = { 0 };
    int rc = dcp_items_open(items, part, &why);

    if (!rc && !part->zstd)
        return dcp_scan_zip(&s->scan, name, &items->in, part->offset,
                            part->offset + part->size_bytes, err);
    if (!rc && part->tensor >= 0) {
        rc = dcp_items_locate(items, part, &place, &why);
    } else if (!rc) {
        rc = dcp_unzstd_open(&whole, &items->in, part->offset, part->size_bytes,
                             DCP_ITEM_MAX_OBJECT_BYTES, &why);
        if (!rc)
            return dcp_scan_zip(&s->scan, name, &whole.in, 0, whole.in.size_bytes, err);
    }
    if (rc == DCP_E_MEMORY || rc == DCP_E_IO) {
        if (err)
            *err = why;
        return rc;
    }
    return rc ? unreadable(s, name, err) : DCP_OK;
}

/* The items of .metadata, which itself is a file of one pickle. False in *out_is: it is
 * no such folder. */
static int scan_items(struct searcher *s, const struct dcp_source *folder, bool *out_is,
                      struct dcp_error *err)
{
    DCP_CLEANUP_META struct dcp_meta meta = { 0 };
    struct dcp_items items;
    int rc = dcp_meta_read(folder, &meta, NULL);

    *out_is = !rc;
    if (rc)
        return rc == DCP_E_MEMORY ? dcp_error_memory(err, "a checkpoint") : DCP_OK;
    dcp_items_init(&items, folder, &meta);
    const char *shown = s->scan.file;
    DCP_CLEANUP_FREE const char **names = dcp_mem_calloc(meta.n_parts, sizeof *names);
    if (!names)
        rc = dcp_error_memory(err, "a checkpoint");
    for (size_t o = 0; o < meta.n_objects && !rc; o++)
        names[meta.objects[o].part] = meta.objects[o].name;
    for (size_t p = 0; p < meta.n_parts && !rc; p++) {
        const struct dcp_meta_part *part = &meta.parts[p];
        const char *name =
            part->tensor >= 0 ? meta.tensors[part->tensor].name : names[p];
        if (part->file < 0)
            continue;
        char *file = dcp_str_join(shown, shown[0] ? "/" : "", meta.files[part->file]);
        s->scan.file = file;
        rc = file ? scan_part(s, &items, part, name ? name : "", err)
                  : dcp_error_memory(err, "a checkpoint");
        s->scan.file = shown;
        free(file);
    }
    dcp_items_fini(&items);
    return rc;
}

/* -- native steps -------------------------------------------------------------------- */

struct named {
    struct searcher *s;
    const char *name;
};

static int take_object(void *self, const struct dcp_global *global, struct dcp_error *err)
{
    const struct named *n = self;
    char *where = dcp_str_join(n->name, global->where[0] ? ": " : "", global->where);
    struct dcp_global own = *global;

    if (!where)
        return dcp_error_memory(err, "an object");
    own.file = NULL;
    own.where = where;
    int rc = n->s->scan.visit->take(n->s->scan.visit->self, &own, err);
    free(where);
    return rc;
}

static int scan_objects(struct searcher *s, const struct dcp_source *step,
                        struct dcp_error *err)
{
    struct dcp_catalog *catalog = NULL;
    int rc = dcp_catalog_new(&catalog, err);

    if (!rc)
        rc = dcp_format_native.index(step, catalog, err);
    for (size_t o = 0; !rc && o < catalog->n_objects; o++) {
        struct named named = { s, catalog->objects[o].name };
        const struct dcp_global_visit visit = { .take = take_object, .self = &named };
        rc = dcp_object_globals(&catalog->objects[o], &visit, err);
    }
    dcp_catalog_free(catalog);
    return rc;
}

/* -- folders ------------------------------------------------------------------------- */

static int scan_folder(struct searcher *s, const struct dcp_source *folder,
                       const char *shown, int depth, struct dcp_error *err);

static int scan_entry(struct searcher *s, const struct dcp_source *folder,
                      const char *shown, const struct dcp_store_entry *entry, int depth,
                      struct dcp_error *err)
{
    const char *slash = folder->name[0] ? "/" : "";
    DCP_CLEANUP_FREE char *name = dcp_str_join(folder->name, slash, entry->name);
    DCP_CLEANUP_FREE char *path = dcp_str_join(shown, shown[0] ? "/" : "", entry->name);
    struct dcp_source inner = { .store = folder->store,
                                .name = name,
                                .is_dir = entry->is_dir };

    if (!name || !path)
        return dcp_error_memory(err, "a folder");
    if (entry->is_dir)
        return scan_folder(s, &inner, path, depth + 1, err);
    s->scan.file = path;
    int rc = scan_file(s, &inner, err);
    return rc == DCP_E_NOT_FOUND ? DCP_OK : rc; /* a link that leads nowhere */
}

static int scan_folder(struct searcher *s, const struct dcp_source *folder,
                       const char *shown, int depth, struct dcp_error *err)
{
    struct dcp_store_entry *entries = NULL;
    bool is_dcp = false;
    size_t n = 0;

    s->scan.file = shown;
    if (depth > MAX_DEPTH)
        return dcp_scan_pass_over(&s->scan, "", err);
    if (dcp_format_native.probe(folder) > 0)
        return scan_objects(s, folder, err);
    int rc = scan_items(s, folder, &is_dcp, err);
    if (!rc)
        rc = folder->store->ops->list(folder->store->self, folder->name, &entries, &n,
                                      err);
    for (size_t i = 0; i < n && !rc; i++)
        if (!is_dcp || !dcp_str_ends(entries[i].name, DCP_META_FILE_SUFFIX))
            rc = scan_entry(s, folder, shown, &entries[i], depth, err);
    dcp_store_list_free(entries, n);
    return rc;
}

int dcp_source_globals(const struct dcp_source *source,
                       const struct dcp_global_visit *visit, uint64_t *out_pickles,
                       struct dcp_error *err)
{
    struct searcher s = { .scan = { .visit = visit, .file = "" } };
    int rc =
        source->is_dir ? scan_folder(&s, source, "", 0, err) : scan_file(&s, source, err);

    if (out_pickles)
        *out_pickles = s.scan.n_pickles;
    return rc;
}
