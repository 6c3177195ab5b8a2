/* archive: the zip archive that torch.save writes around a pickle and the storages
 * that the pickle refers to as "0", "1", … */
#ifndef DCP_FORMATS_TORCH_ARCHIVE_H
#define DCP_FORMATS_TORCH_ARCHIVE_H

#include "base/buf.h"
#include "formats/archive/zip.h"
#include <dcp/format.h>

/* Its records and where they lie; everything belongs to the catalog. */
struct dcp_torch_archive {
    int file; /* in the catalog; set by the caller */
    struct dcp_zip_out *records;
    size_t n_records;
    struct dcp_zip_out *storages; /* those among them, in order */
    size_t n_storages;
    uint64_t directory, size_bytes; /* of the file */
};

/* Decides all records of the file `name`. A storage whose bytes are known gets its data
 * from the caller before the headers are written. The pickle, the first record, is longer
 * by hole_bytes than what is given; then the caller writes it, and sets its crc32 in the
 * end. Errors: MEMORY. */
int dcp_torch_archive_plan(struct dcp_catalog *catalog, const char *name,
                           const struct dcp_buf *pickle, uint64_t hole_bytes,
                           const uint64_t *storage_bytes, size_t n_storages,
                           struct dcp_torch_archive *out, struct dcp_error *err);
/* What does not depend on the storages: headers, and records with data. */
int dcp_torch_archive_headers(const struct dcp_torch_archive *archive,
                              struct dcp_target *target, struct dcp_error *err);
/* The rest, once each storage has its crc32. */
int dcp_torch_archive_tail(struct dcp_torch_archive *archive, struct dcp_target *target,
                           struct dcp_error *err);

#endif
