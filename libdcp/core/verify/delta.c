#include "delta.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/delta/folder.h"
#include "lost.h"
#include <string.h>

/* All of a file, held against what delta.json says. */
static int read_file(const struct dcp_source *source, const struct dcp_delta_file *file,
                     unsigned char *buffer, struct dcp_error *err)
{
    const struct dcp_store *store = source->store;
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(source->name, *source->name ? "/" : "", file->name);
    struct dcp_store_file *in;
    uint64_t crc = 0;

    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = store->ops->open(store->self, path, &in, err);
    if (rc)
        return rc;
    for (uint64_t at = 0; at < file->size_bytes && !rc; at += DCP_BLOCK_BYTES) {
        uint64_t left = file->size_bytes - at;
        size_t n = left < DCP_BLOCK_BYTES ? (size_t)left : DCP_BLOCK_BYTES;
        rc = store->ops->read_at(store->self, in, at, buffer, n, err);
        crc = rc ? crc : dcp_hash_crc64(crc, buffer, n);
    }
    store->ops->close(store->self, in, NULL);
    if (!rc && crc != file->crc)
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           "it has not the digest that " DCP_DELTA_JSON " says");
    return rc;
}

int dcp_verify_delta(const struct dcp_source *source, struct dcp_catalog *catalog,
                     int (*add)(void *self, const struct dcp_finding *finding,
                                struct dcp_error *err),
                     void *self, bool *out_proved, uint64_t *out_bytes,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE unsigned char *buffer = NULL;
    struct dcp_delta_folder folder = { 0 };
    char text[DCP_VERIFY_WHY_CAP];
    int rc = DCP_OK;

    *out_proved = false;
    *out_bytes = 0;
    if (!source->is_dir || !strcmp(catalog->format, dcp_format_of_steps()->name) ||
        dcp_delta_folder_read(source->store, source->name, &folder, NULL)) {
        dcp_delta_folder_fini(&folder);
        return DCP_OK;
    }
    if (!(buffer = malloc(DCP_BLOCK_BYTES)))
        rc = dcp_error_memory(err, "a verification");
    *out_proved = true;
    for (size_t i = 0; i < folder.n_files && !rc; i++) {
        struct dcp_error why = { 0 };
        *out_bytes += folder.files[i].size_bytes;
        if (!read_file(source, &folder.files[i], buffer, &why))
            continue;
        dcp_verify_why(&why, text);
        const struct dcp_finding finding = {
            .code = why.code,
            .file = dcp_catalog_text(catalog, folder.files[i].name),
            .what = dcp_catalog_text(catalog, text),
        };
        rc = finding.file && finding.what && why.code != DCP_E_MEMORY
                 ? add(self, &finding, err)
                 : dcp_error_memory(err, "the list of findings");
    }
    dcp_delta_folder_fini(&folder);
    return rc;
}
