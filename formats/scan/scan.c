/* scan: the files of a source that hold pickles, whatever format it is of. */
#include "scan.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/archive/tar.h"
#include "formats/archive/unzstd.h"
#include "formats/native/native.h"
#include "formats/pickle/pickle.h"
#include "formats/torch/form.h"
#include "formats/torch_dist/item.h"
#include "formats/torch_dist/metadata.h"
#include <stdio.h>
#include <string.h>

enum {
    MAX_DEPTH = 16,
    MAX_PICKLES = 64,   /* in a row in one file */
    STREAM_PICKLES = 5, /* with which a stream of torch.save begins */
    MAX_UNPACKED_BYTES = 256 << 20,
};

struct searcher {
    struct dcp_scan scan;
};

/* -- files of pickles ---------------------------------------------------------------- */

/* From protocol 2 on; those before begin as any text may. */
static bool begins_pickle(const unsigned char *head, size_t n)
{
    return n >= 2 && head[0] == 0x80 && head[1] <= 5;
}

/* Pickles in a row. Those of a stream of torch.save are loaded whatever they begin with;
 * what follows one in another file may be anything. */
static int scan_pickles(struct searcher *s, const struct dcp_input *in, bool is_sure,
                        struct dcp_error *err)
{
    unsigned char head[DCP_TORCH_HEAD_BYTES] = { 0 };
    size_t n = in->size_bytes < sizeof head ? (size_t)in->size_bytes : sizeof head, used;
    uint64_t at = 0;
    int rc = dcp_input_read(in, 0, head, n, err);
    bool stream = !rc && dcp_torch_stream_probe(head, n);

    for (int i = 0; !rc && at < in->size_bytes; i++) {
        char where[24] = "";
        if (stream && i == STREAM_PICKLES)
            return DCP_OK;
        if (i)
            snprintf(where, sizeof where, "pickle %d", i + 1);
        if (i == MAX_PICKLES)
            return dcp_scan_unreadable(&s->scan, where, err);
        n = in->size_bytes - at > 1 ? 2 : 1;
        rc = dcp_input_read(in, at, head, n, err);
        if (rc)
            return rc;
        bool begins = begins_pickle(head, n);
        rc = dcp_scan_pickle_at(&s->scan, where, in, at,
                                begins || stream || (!i && is_sure), &used, err);
        if (!used)
            return rc;
        at += used;
    }
    return rc;
}

static int scan_npy(struct searcher *s, const struct dcp_input *in, uint64_t head_bytes,
                    struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *head = NULL;
    size_t used;

    if (head_bytes >= in->size_bytes)
        return DCP_OK;
    if (head_bytes > DCP_SCAN_MAX_HEAD)
        return dcp_scan_unreadable(&s->scan, "", err);
    int rc = dcp_input_read_new(in, 0, (size_t)head_bytes, &head, err);
    return rc || !dcp_scan_npy_objects(head, (size_t)head_bytes)
               ? rc
               : dcp_scan_pickle_at(&s->scan, "", in, head_bytes, true, &used, err);
}

/* The pickles of a tar file, in each of its members, as they are met. */
struct meeting {
    struct searcher *s;
    const struct dcp_tar *tar;
    int rc; /* of the search */
};

static int meet_pickle(void *self, uint64_t at, const void *data, size_t n,
                       struct dcp_error *err)
{
    struct meeting *m = self;
    const char *where = "";

    for (size_t i = 0; i < m->tar->n_members; i++)
        if (at - m->tar->members[i].offset < m->tar->members[i].size_bytes)
            where = m->tar->members[i].name;
    m->rc = dcp_scan_pickle(&m->s->scan, where, data, n, err);
    return m->rc;
}

static int scan_tar(struct searcher *s, const struct dcp_source *file,
                    struct dcp_error *err)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file torch = { 0 };
    struct meeting meeting = { .s = s };
    struct dcp_error why = { 0 };
    int rc = dcp_torch_open(&torch, file, NULL, &why);

    if (!rc) {
        meeting.tar = torch.tar;
        torch.meet = meet_pickle;
        torch.self = &meeting;
        rc = dcp_torch_read_tree(&torch, &why);
    }
    if (rc && !meeting.rc && rc != DCP_E_MEMORY && rc != DCP_E_IO)
        return dcp_scan_unreadable(&s->scan, "", err);
    if (rc && err)
        *err = why;
    return rc;
}

static int scan_file(struct searcher *s, const struct dcp_source *file,
                     struct dcp_error *err)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    unsigned char head[DCP_TORCH_HEAD_BYTES] = { 0 };
    bool is_sure = dcp_scan_is_named_pickle(file->name);
    DCP_TRY(dcp_input_open(&in, file, NULL, err));
    size_t n = in.size_bytes < sizeof head ? (size_t)in.size_bytes : sizeof head;

    DCP_TRY(dcp_input_read(&in, 0, head, n, err));
    if (n < 2)
        return DCP_OK;
    if (!memcmp(head, "PK", 2))
        return dcp_scan_zip(&s->scan, "", &in, 0, in.size_bytes, err);
    uint64_t npy_bytes = dcp_scan_npy_head(head, n);
    if (npy_bytes)
        return scan_npy(s, &in, npy_bytes, err);
    if (dcp_torch_tar_probe(head, n))
        return scan_tar(s, file, err);
    bool begins = begins_pickle(head, n);
    if (!begins && (dcp_scan_is_packed(head, n, file->name) ||
                    dcp_bundle_probe(file->store, file->name)))
        return dcp_scan_pass_over(&s->scan, "", err);
    return begins || is_sure || dcp_str_ends(file->name, ".bin")
               ? scan_pickles(s, &in, is_sure, err)
               : DCP_OK;
}

/* -- distributed checkpoints --------------------------------------------------------- */

/* An item is an archive. */
static int scan_part(struct searcher *s, struct dcp_torch_dist_items *items,
                     const struct dcp_torch_dist_part *part, const char *name,
                     struct dcp_error *err)
{
    DCP_CLEANUP_UNZSTD struct dcp_unzstd_file whole = { 0 };
    struct dcp_error why = { 0 };
    int rc = dcp_torch_dist_items_open(items, part, &why);

    if (!rc && !part->zstd)
        return dcp_scan_zip(&s->scan, name, &items->in, part->offset,
                            part->offset + part->size_bytes, err);
    if (!rc) {
        rc = dcp_unzstd_open(&whole, &items->in, part->offset, part->size_bytes,
                             MAX_UNPACKED_BYTES, &why);
        if (!rc)
            return dcp_scan_zip(&s->scan, name, &whole.in, 0, whole.in.size_bytes, err);
    }
    if (rc == DCP_E_UNSUPPORTED)
        return dcp_scan_pass_over(&s->scan, name, err);
    if (rc == DCP_E_MEMORY || rc == DCP_E_IO) {
        if (err)
            *err = why;
        return rc;
    }
    return rc ? dcp_scan_unreadable(&s->scan, name, err) : DCP_OK;
}

/* The items of .metadata, which itself is a file of one pickle. False in *out_is: it is
 * no such folder. */
static int scan_items(struct searcher *s, const struct dcp_source *folder, bool *out_is,
                      struct dcp_error *err)
{
    DCP_CLEANUP_TORCH_DIST_METADATA struct dcp_torch_dist_metadata meta = { 0 };
    struct dcp_torch_dist_items items;
    int rc = dcp_torch_dist_metadata_read(folder, &meta, NULL);

    *out_is = !rc;
    if (rc)
        return rc == DCP_E_MEMORY ? dcp_error_memory(err, "a checkpoint") : DCP_OK;
    dcp_torch_dist_items_init(&items, folder, &meta);
    const char *shown = s->scan.file;
    DCP_CLEANUP_FREE const char **names = dcp_mem_calloc(meta.n_parts, sizeof *names);
    if (!names)
        rc = dcp_error_memory(err, "a checkpoint");
    for (size_t o = 0; o < meta.n_objects && !rc; o++)
        names[meta.objects[o].part] = meta.objects[o].name;
    for (size_t p = 0; p < meta.n_parts && !rc; p++) {
        const struct dcp_torch_dist_part *part = &meta.parts[p];
        const char *name = part->tensor >= 0 ? meta.tensors[part->tensor].name : names[p];
        if (part->file < 0)
            continue;
        char *file = dcp_str_join(shown, shown[0] ? "/" : "", meta.files[part->file]);
        s->scan.file = file;
        rc = file ? scan_part(s, &items, part, name ? name : "", err)
                  : dcp_error_memory(err, "a checkpoint");
        s->scan.file = shown;
        free(file);
    }
    dcp_torch_dist_items_fini(&items);
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
        const struct dcp_object *object = &catalog->objects[o];
        struct dcp_scan inner = { .visit = &visit };
        rc = object->kind == DCP_OBJECT_BYTES
                 ? dcp_scan_memory(&inner, object->data, object->size_bytes, err)
                 : dcp_object_globals(object, &visit, err);
        s->scan.n_pickles += inner.n_pickles;
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
    int rc = dcp_format_native.probe(folder) > 0 ? scan_objects(s, folder, err) : DCP_OK;
    if (!rc)
        rc = scan_items(s, folder, &is_dcp, err);
    if (!rc)
        rc = folder->store->ops->list(folder->store->self, folder->name, &entries, &n,
                                      err);
    for (size_t i = 0; i < n && !rc; i++)
        if (!is_dcp || !dcp_str_ends(entries[i].name, DCP_TORCH_DIST_FILE_SUFFIX))
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
