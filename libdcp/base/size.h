/* size: numbers of bytes as people read them. */
#ifndef DCP_BASE_SIZE_H
#define DCP_BASE_SIZE_H

#include <stddef.h>
#include <stdint.h>

#define DCP_SIZE_CAP 32 /* enough for any */

/* "1.62 GiB": three digits; none after the point when it is exact: "64 MiB". Returns out.
 */
const char *dcp_size_format(char out[DCP_SIZE_CAP], uint64_t bytes);
/* "1.8 GiB": so many digits in all (2 or 3), but never fewer than stand before the point.
 * Returns out. */
const char *dcp_size_format_real(char out[DCP_SIZE_CAP], double bytes, int digits);

#endif
