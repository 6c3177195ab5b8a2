/* literals: bytes of headers and tables, made in a buffer. */
#ifndef DCP_FORMATS_COMMON_LITERALS_H
#define DCP_FORMATS_COMMON_LITERALS_H

#include "base/buf.h"
#include <dcp/format.h>

/* Appends a copy of what a buffer holds, if anything, to the literals of a target.
 * Errors: MEMORY, also of the buffer. */
int dcp_literals_take(struct dcp_target *target, int file, uint64_t offset,
                      const struct dcp_buf *buf, struct dcp_error *err);
/* Appends n zeros. Errors: MEMORY. */
int dcp_literals_zeros(struct dcp_target *target, int file, uint64_t offset, uint64_t n,
                       struct dcp_error *err);

#endif
