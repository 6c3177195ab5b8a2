/* torch_zip: a PyTorch file around a pickle that a test wrote by hand. */
#ifndef TESTS_LIB_TORCH_ZIP_H
#define TESTS_LIB_TORCH_ZIP_H

#include <stddef.h>
#include <stdint.h>

enum { TORCH_ZIP_STORAGE_BYTES = 64 };

/* The records data.pkl, version, byteorder (when not NULL), and the storages "0", "1",
 * "2" of 64 bytes (byte i is i) and "3" of none. Caller frees; aborts when there is no
 * memory.
 */
unsigned char *torch_zip_make(const void *pickle, size_t size_bytes, const char *version,
                              const char *byteorder, size_t *out_size_bytes);

/* The same with storages "0", "1", … of those sizes, all of zeros; they may be 4 MiB
 * together, else NULL. */
unsigned char *torch_zip_storages(const void *pickle, size_t size_bytes,
                                  const uint32_t *sizes, size_t n_sizes,
                                  size_t *out_size_bytes);

#endif
