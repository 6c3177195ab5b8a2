/* whole: the digest of a file of which the pieces were read and found sound: only what
 * lies between them is read again. */
#ifndef DCP_CORE_VERIFY_WHOLE_H
#define DCP_CORE_VERIFY_WHOLE_H

#include <dcp/format.h>

#define DCP_VERIFY_WHOLE_BYTES ((size_t)1 << 20) /* of the buffer */

/* order: the n pieces of the file as they lie in it. buffer: DCP_VERIFY_WHOLE_BYTES of
 * scratch. Errors: CORRUPT (the digest differs, or the file is too short), MEMORY, IO. */
int dcp_verify_whole(const struct dcp_source *source, const struct dcp_catalog *catalog,
                     size_t file, const size_t *order, size_t n, unsigned char *buffer,
                     struct dcp_error *err);

#endif
