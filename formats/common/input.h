/* input: a file of a source, open for reading, that knows its size. */
#ifndef DCP_FORMATS_COMMON_INPUT_H
#define DCP_FORMATS_COMMON_INPUT_H

#include "base/mem.h"
#include <dcp/format.h>

/* A folder's index or configuration is never longer than this. */
#define DCP_FORMAT_JSON_MAX_BYTES (64u << 20)

struct dcp_input {
    const struct dcp_store *store; /* borrowed from the source */
    struct dcp_store_file *file;
    char *name;  /* in the store; owned */
    char *shown; /* the same, escaped for messages; owned */
    uint64_t size_bytes;
};

/* Opens `name` in the source's folder; NULL: the source itself, which then is a file.
 * Closed with dcp_input_close, also after a failure. Errors: NOT_FOUND, IO, UNSUPPORTED
 * (not a file), MEMORY. */
int dcp_input_open(struct dcp_input *out, const struct dcp_source *source,
                   const char *name, struct dcp_error *err);
void dcp_input_close(struct dcp_input *in);
#define DCP_CLEANUP_INPUT DCP_CLEANUP(dcp_input_close)

/* Exactly size_bytes at offset. Errors: CORRUPT when they are not all in the file, IO. */
int dcp_input_read(const struct dcp_input *in, uint64_t offset, void *out,
                   size_t size_bytes, struct dcp_error *err);
/* The same into new memory with a NUL behind its end; caller frees. */
int dcp_input_read_new(const struct dcp_input *in, uint64_t offset, size_t size_bytes,
                       void **out, struct dcp_error *err);

/* Whether the CRC-32 of n bytes at offset is that. Errors: those of reading them,
 * MEMORY. */
int dcp_input_crc32(const struct dcp_input *in, uint64_t offset, uint64_t n,
                    uint32_t crc32, bool *out_holds, struct dcp_error *err);

/* The file's name in the source's folder, as a catalog holds it. Points into in. */
const char *dcp_input_base(const struct dcp_input *in, const struct dcp_source *source);

/* The name in the store of `name` in the source's folder; caller frees, NULL: out of
 * memory. */
char *dcp_source_path(const struct dcp_source *source, const char *name);
/* What a source's folder is called, without its path; "" when nothing tells. Caller
 * frees, NULL: out of memory. */
char *dcp_source_folder(const struct dcp_source *source);
/* Whether that is a file. */
bool dcp_source_has(const struct dcp_source *source, const char *name);
/* Reads a small file of the source's folder; see dcp_store_read_header. */
int dcp_source_read(const struct dcp_source *source, const char *name, size_t max_bytes,
                    void **out, size_t *out_size_bytes, struct dcp_error *err);

#endif
