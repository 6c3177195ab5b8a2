/* tar_header: what stands before a file in a tar archive, as POSIX 2008 says ("pax
 * Interchange Format"). No clock, no user: the same file has the same header. */
#ifndef DCP_PORT_STORE_TAR_HEADER_H
#define DCP_PORT_STORE_TAR_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TAR_RECORD 512
#define TAR_MAX_HEADER (3 * TAR_RECORD)
#define TAR_MAX_NAME 100 /* bytes; longer ones are not needed */

/* Fills out and returns how many bytes of it count: a multiple of TAR_RECORD. The name
 * has 1 to TAR_MAX_NAME bytes, for a folder without a '/' at its end. */
size_t dcp_tar_header(unsigned char out[TAR_MAX_HEADER], const char *name, bool is_dir,
                      uint64_t size_bytes);
/* Zeros from the end of a file of that size to the next header. */
size_t dcp_tar_padding(uint64_t size_bytes);

#endif
