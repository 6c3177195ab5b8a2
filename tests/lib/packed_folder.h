/* packed_folder: a folder of PyTorch files packed into one, without their zip archives,
 * so that no checksum stands between a change and the pickles.
 *
 * Entries, one behind the other: a name and '\n'; the length of a pickle (32 bits), the
 * pickle; the number of storages (16 bits), the bytes of each (32 bits), all
 * little-endian. A name without ".pt" is a plain file whose content the "pickle" is.
 * Storages hold zeros.
 */
#ifndef TESTS_LIB_PACKED_FOLDER_H
#define TESTS_LIB_PACKED_FOLDER_H

#include <dcp/store.h>

/* A store in memory with the files; what is incomplete or malformed ends the list. */
void packed_folder_open(struct dcp_store *out, const void *data, size_t size_bytes);

#endif
