/* unzstd: extents that are one frame of zstd, decoded from their beginning. */
#ifndef DCP_FORMATS_ARCHIVE_UNZSTD_H
#define DCP_FORMATS_ARCHIVE_UNZSTD_H

#include "base/buf.h"
#include "formats/common/input.h"

/* Appends the first max_bytes of what an extent decodes to, or all when it is shorter;
 * *out_ended (may be NULL): that was all. Errors: CORRUPT, IO, MEMORY. */
int dcp_unzstd(const struct dcp_input *in, uint64_t offset, uint64_t size_bytes,
               size_t max_bytes, struct dcp_buf *out, bool *out_ended,
               struct dcp_error *err);

/* All of it as a file in memory. */
struct dcp_unzstd_file {
    struct dcp_store store;
    struct dcp_input in;
};
/* dcp_unzstd_close also after a failure. Errors: as above, UNSUPPORTED (it is longer than
 * max_bytes). */
int dcp_unzstd_open(struct dcp_unzstd_file *out, const struct dcp_input *in,
                    uint64_t offset, uint64_t size_bytes, size_t max_bytes,
                    struct dcp_error *err);
void dcp_unzstd_close(struct dcp_unzstd_file *file);
#define DCP_CLEANUP_UNZSTD DCP_CLEANUP(dcp_unzstd_close)

#endif
