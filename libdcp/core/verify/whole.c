#include "whole.h"
#include "base/hash.h"
#include "base/mem.h"
#include "core/files/files.h"
#include <dcp/store.h>

/* Whether the digest of a sound piece is that of its bytes in the file. */
static bool is_plain(const struct dcp_catalog *catalog, const struct dcp_piece *piece)
{
    return piece->codec == DCP_CODEC_NONE && piece->has_crc && !piece->stride &&
           !piece->swap_bytes && piece->stored_size == dcp_piece_span(catalog, piece);
}

/* Continues a digest by what lies from `at` to `end`. */
static int read_to(const struct dcp_store *store, struct dcp_store_file *file,
                   uint64_t at, uint64_t end, unsigned char *buffer, uint64_t *crc,
                   struct dcp_error *err)
{
    for (size_t n; at < end; at += n) {
        n = end - at < DCP_VERIFY_WHOLE_BYTES ? (size_t)(end - at)
                                              : DCP_VERIFY_WHOLE_BYTES;
        DCP_TRY(store->ops->read_at(store->self, file, at, buffer, n, err));
        *crc = dcp_hash_crc64(*crc, buffer, n);
    }
    return DCP_OK;
}

int dcp_verify_whole(const struct dcp_source *source, const struct dcp_catalog *catalog,
                     size_t file, const size_t *order, size_t n, unsigned char *buffer,
                     struct dcp_error *err)
{
    const struct dcp_store *store = source->store;
    const struct dcp_file *entry = &catalog->files[file];
    DCP_CLEANUP_FREE char *path = dcp_source_file(source, entry->name);
    struct dcp_store_file *handle;
    uint64_t crc = 0, at = 0;
    int rc = DCP_OK;

    if (!path)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(store->ops->open(store->self, path, &handle, err));
    for (size_t i = 0; i < n && !rc; i++) {
        const struct dcp_piece *piece = &catalog->pieces[order[i]];
        if (!is_plain(catalog, piece) || piece->offset < at)
            continue; /* it is read below, with what lies around it */
        rc = read_to(store, handle, at, piece->offset, buffer, &crc, err);
        crc = dcp_hash_crc64_combine(crc, piece->crc, piece->stored_size);
        at = piece->offset + piece->stored_size;
    }
    if (!rc)
        rc = read_to(store, handle, at, entry->size_bytes, buffer, &crc, err);
    store->ops->close(store->self, handle, NULL);
    if (!rc && (at > entry->size_bytes || crc != entry->crc))
        rc = DCP_E_CORRUPT;
    return rc;
}
