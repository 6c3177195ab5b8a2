#include <dcp/store.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include <inttypes.h>
#include <string.h>

bool dcp_store_name_ok(const char *name)
{
    if (!name || !*name)
        return false;
    while (true) {
        size_t n = strcspn(name, "/");
        bool dots = n <= 2 && strncmp(name, "..", n) == 0; /* "", "." and ".." */
        if (dots)
            return false;
        if (!name[n])
            return true;
        name += n + 1;
    }
}

void dcp_store_free(struct dcp_store *store)
{
    if (store && store->ops && store->ops->free)
        store->ops->free(store->self);
    if (store)
        *store = (struct dcp_store){ 0 };
}

void dcp_store_list_free(struct dcp_store_entry *entries, size_t n)
{
    for (size_t i = 0; entries && i < n; i++)
        free(entries[i].name);
    free(entries);
}

/* What is in an archive cannot be much more than the archive. */
#define ARCHIVE_FREE_BYTES (UINT64_C(16) << 20)
#define ARCHIVE_TIMES 64

static uint64_t header_limit(const struct dcp_store *store, uint64_t usual)
{
    uint64_t packed = ARCHIVE_FREE_BYTES + ARCHIVE_TIMES * store->packed_bytes;
    if (store->max_header_bytes)
        return store->max_header_bytes;
    return store->packed_bytes && packed < usual ? packed : usual;
}

int dcp_store_check_header(const struct dcp_store *store, const char *name,
                           uint64_t size_bytes, uint64_t usual, struct dcp_error *err)
{
    uint64_t limit = header_limit(store, usual);
    if (size_bytes <= limit)
        return DCP_OK;
    dcp_error_set(err, DCP_E_CORRUPT,
                  "'%s' has %" PRIu64 " bytes that are no tensors, over the limit of "
                  "%" PRIu64 "%s",
                  DCP_SHOWN(name), size_bytes, limit,
                  limit < usual && store->packed_bytes ? " for so small an archive" : "");
    dcp_error_hint(err, "--limit-header SIZE allows more");
    return DCP_E_CORRUPT;
}

static int check_size(const char *name, uint64_t size_bytes, uint64_t max_bytes,
                      struct dcp_error *err)
{
    if (size_bytes <= max_bytes)
        return DCP_OK;
    return dcp_error_set(err, DCP_E_CORRUPT,
                         "'%s' has %" PRIu64 " bytes; such a file has %" PRIu64
                         " at most",
                         DCP_SHOWN(name), size_bytes, max_bytes);
}

static int read_whole(const struct dcp_store *store, const char *name, size_t max_bytes,
                      bool is_header, void **out, size_t *out_size_bytes,
                      struct dcp_error *err)
{
    bool is_dir;
    uint64_t size;
    *out = NULL;
    int rc = store->ops->stat(store->self, name, &is_dir, &size, err);
    if (rc)
        return rc;
    if (is_dir)
        return dcp_error_set(err, DCP_E_IO, "cannot read '%s': it is a folder", name);
    DCP_TRY(is_header ? dcp_store_check_header(store, name, size, max_bytes, err)
                      : check_size(name, size, max_bytes, err));
    struct dcp_store_file *file;
    DCP_TRY(store->ops->open(store->self, name, &file, err));
    char *data = size < SIZE_MAX ? malloc((size_t)size + 1) : NULL;
    if (!data)
        rc = dcp_error_memory(err, name);
    else if (size)
        rc = store->ops->read_at(store->self, file, 0, data, (size_t)size, err);
    int close_rc = store->ops->close(store->self, file, err);
    if (!rc)
        rc = close_rc;
    if (rc) {
        free(data);
        return rc;
    }
    data[size] = '\0';
    *out = data;
    *out_size_bytes = (size_t)size;
    return DCP_OK;
}

int dcp_store_read_file(const struct dcp_store *store, const char *name, size_t max_bytes,
                        void **out, size_t *out_size_bytes, struct dcp_error *err)
{
    return read_whole(store, name, max_bytes, false, out, out_size_bytes, err);
}

int dcp_store_read_header(const struct dcp_store *store, const char *name,
                          size_t usual_bytes, void **out, size_t *out_size_bytes,
                          struct dcp_error *err)
{
    return read_whole(store, name, usual_bytes, true, out, out_size_bytes, err);
}

#define BACK_BYTES ((size_t)1 << 20)

int dcp_store_read_back(const struct dcp_store *store, struct dcp_store_file *file,
                        const char *name, uint64_t size_bytes, uint64_t crc,
                        struct dcp_error *err)
{
    DCP_CLEANUP_FREE unsigned char *there = malloc(BACK_BYTES);
    uint64_t got = 0;
    if (!there)
        return dcp_error_memory(err, name);
    for (uint64_t at = 0; at < size_bytes; at += BACK_BYTES) {
        uint64_t left = size_bytes - at;
        size_t n = left < BACK_BYTES ? (size_t)left : BACK_BYTES;
        DCP_TRY(store->ops->read_at(store->self, file, at, there, n, err));
        got = dcp_hash_crc64(got, there, n);
    }
    return got == crc ? DCP_OK : dcp_fs_not_written(name, err);
}

int dcp_store_write_file(const struct dcp_store *store, const char *name,
                         const void *data, size_t size_bytes, struct dcp_error *err)
{
    struct dcp_store_file *file;
    int rc = store->ops->create(store->self, name, size_bytes, &file, err);
    if (rc)
        return rc;
    if (size_bytes)
        rc = store->ops->write_at(store->self, file, 0, data, size_bytes, err);
    if (!rc)
        rc = store->ops->sync(store->self, file, size_bytes, err);
    if (!rc)
        rc = dcp_store_read_back(store, file, name, size_bytes,
                                 dcp_hash_crc64(0, data, size_bytes), err);
    int close_rc = store->ops->close(store->self, file, err);
    if (!rc)
        rc = close_rc;
    if (rc) /* half a file helps nobody; that it failed is known already */
        store->ops->remove(store->self, name, NULL);
    return rc;
}

int dcp_store_clear(const struct dcp_store *store, const char *name,
                    struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    int rc = store->ops->remove(store->self, name, &why);
    if (!rc || rc == DCP_E_NOT_FOUND)
        return DCP_OK;
    if (err)
        *err = why;
    return rc;
}
