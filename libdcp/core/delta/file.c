#include "file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "names.h"

/* A file that stands in the delta as it is, from its first byte to its last. */
static int check_whole(const struct dcp_store *store, struct dcp_store_file *open,
                       const struct dcp_delta_file *file, const char *path,
                       struct dcp_error *err)
{
    size_t cap = file->size_bytes < DCP_DELTA_BLOCK_BYTES ? (size_t)file->size_bytes
                                                          : DCP_DELTA_BLOCK_BYTES;
    DCP_CLEANUP_FREE unsigned char *bytes = malloc(cap + 1);
    uint64_t crc = 0;

    if (!bytes)
        return dcp_error_memory(err, "a file of a delta");
    for (uint64_t at = 0; at < file->size_bytes;) {
        size_t n = file->size_bytes - at < cap ? (size_t)(file->size_bytes - at) : cap;
        DCP_TRY(store->ops->read_at(store->self, open, at, bytes, n, err));
        crc = dcp_hash_crc64(crc, bytes, n);
        at += n;
    }
    return crc == file->crc
               ? DCP_OK
               : dcp_error_set(err, DCP_E_CORRUPT, "'%s' is corrupt: its digest differs",
                               DCP_SHOWN(path));
}

static int open_whole(const struct dcp_store *inner, const struct dcp_delta_view *view,
                      const struct dcp_delta_file *file, struct dcp_store_file *out,
                      struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(view->prefix, file->name, "");

    if (!path)
        return dcp_error_memory(err, "a name");
    DCP_TRY(inner->ops->open(inner->self, path, &out->inner, err));
    int rc = check_whole(inner, out->inner, file, path, err);
    if (rc) {
        inner->ops->close(inner->self, out->inner, NULL);
        out->inner = NULL;
    }
    return rc;
}

static int open_coded(const struct dcp_store *inner, struct dcp_delta_coders *coders,
                      const struct dcp_delta_view *view,
                      const struct dcp_delta_file *file, struct dcp_store_file *out,
                      struct dcp_error *err)
{
    const struct dcp_delta_base_file *base = dcp_delta_find_base(&view->is, file->name);
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(view->prefix, file->name, DCP_DELTA_SUFFIX);
    DCP_CLEANUP_FREE char *base_path = dcp_str_join(view->base_prefix, file->name, "");
    struct dcp_delta_origin origin = { .store = inner,
                                       .path = path,
                                       .file = file,
                                       .base = view->base,
                                       .base_bytes = base ? base->size_bytes : 0,
                                       .coders = coders };

    if (!path || !base_path)
        return dcp_error_memory(err, "a name");
    int rc =
        base ? view->base->ops->open(view->base->self, base_path, &origin.base_file, err)
             : DCP_OK;
    if (!rc)
        rc = dcp_delta_coded_open(&origin, &out->coded, err);
    if (rc && origin.base_file)
        view->base->ops->close(view->base->self, origin.base_file, NULL);
    return rc;
}

int dcp_delta_file_open(const struct dcp_store *inner, struct dcp_delta_coders *coders,
                        const struct dcp_delta_view *view, const char *name,
                        struct dcp_store_file *out, struct dcp_error *err)
{
    const struct dcp_delta_file *file =
        dcp_delta_find(&view->is, dcp_delta_inside(view, name));

    if (!file)
        return dcp_delta_is_missing(name, err);
    DCP_TRY(dcp_delta_check_file(inner, view, file, err));
    return file->coded ? open_coded(inner, coders, view, file, out, err)
                       : open_whole(inner, view, file, out, err);
}

int dcp_delta_file_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                           void *out, size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;

    return file->coded ? dcp_delta_coded_read(file->coded, offset, out, size_bytes, err)
                       : inner->ops->read_at(inner->self, file->inner, offset, out,
                                             size_bytes, err);
}

bool dcp_delta_file_direct(void *self, struct dcp_store_file *file)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;

    return !file->coded && inner->ops->direct(inner->self, file->inner);
}

int dcp_delta_file_descriptor(void *self, struct dcp_store_file *file)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;

    return file->coded ? -1 : inner->ops->descriptor(inner->self, file->inner);
}

void dcp_delta_file_drop_cache(void *self, struct dcp_store_file *file)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;

    if (file->coded)
        dcp_delta_coded_drop_cache(file->coded);
    else
        inner->ops->drop_cache(inner->self, file->inner);
}

int dcp_delta_file_close(const struct dcp_store *inner, struct dcp_store_file *file,
                         struct dcp_error *err)
{
    int rc = file->coded ? dcp_delta_coded_close(file->coded, err)
                         : inner->ops->close(inner->self, file->inner, err);

    free(file);
    return rc;
}

/* -- a file of the store below, in one of ours --------------------------------------- */

static int wrapped(int rc, struct dcp_store_file *file, struct dcp_store_file **out)
{
    *out = rc ? NULL : file;
    if (rc)
        free(file);
    return rc;
}

int dcp_delta_file_create(void *self, const char *name, uint64_t size_bytes,
                          struct dcp_store_file **out, struct dcp_error *err)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;
    struct dcp_store_file *file = calloc(1, sizeof *file);

    *out = NULL;
    return file ? wrapped(inner->ops->create(inner->self, name, size_bytes, &file->inner,
                                             err),
                          file, out)
                : dcp_error_memory(err, name);
}

int dcp_delta_file_reopen(void *self, const char *name, struct dcp_store_file **out,
                          struct dcp_error *err)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;
    struct dcp_store_file *file = calloc(1, sizeof *file);

    *out = NULL;
    return file ? wrapped(inner->ops->reopen(inner->self, name, &file->inner, err), file,
                          out)
                : dcp_error_memory(err, name);
}

int dcp_delta_file_hold(void *self, const char *name, bool exclusive,
                        struct dcp_store_file **out, struct dcp_error *err)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;
    struct dcp_store_file *file = calloc(1, sizeof *file);

    *out = NULL;
    return file ? wrapped(
                      inner->ops->hold(inner->self, name, exclusive, &file->inner, err),
                      file, out)
                : dcp_error_memory(err, name);
}

int dcp_delta_file_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                            const void *data, size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;

    return inner->ops->write_at(inner->self, file->inner, offset, data, size_bytes, err);
}

void dcp_delta_file_flush_hint(void *self, struct dcp_store_file *file, uint64_t offset,
                               uint64_t size_bytes)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;

    inner->ops->flush_hint(inner->self, file->inner, offset, size_bytes);
}

int dcp_delta_file_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                        struct dcp_error *err)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;

    return inner->ops->sync(inner->self, file->inner, size_bytes, err);
}
