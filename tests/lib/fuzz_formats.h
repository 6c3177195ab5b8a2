/* fuzz_formats: what the fuzz targets of formats do with the bytes they are given. */
#ifndef TESTS_LIB_FUZZ_FORMATS_H
#define TESTS_LIB_FUZZ_FORMATS_H

#include <dcp/format.h>

/* A store in memory that holds one file; aborts when memory runs out. */
void fuzz_store(struct dcp_store *out, const char *name, const void *data,
                size_t size_bytes);
/* Reads every tensor up to 1 MiB, as a program does: it succeeds or says why not. */
void fuzz_read(const struct dcp_source *source, const struct dcp_catalog *catalog);
/* Reads the source in a format. When that succeeds: every extent must lie in its file,
 * every tensor up to 1 MiB must be readable, and what is written in each of the formats
 * must be readable again with the same tensors. Aborts when one of this is not so. */
void fuzz_format(const struct dcp_source *source, const struct dcp_format *format);
/* The same with the bytes as the one file of a store. */
void fuzz_file(const struct dcp_format *format, const void *data, size_t size_bytes);

#endif
