/* files: ranges of a source's files, with few of them open at once. Thread rule: one of
 * these, one thread. */
#ifndef DCP_CORE_FILES_FILES_H
#define DCP_CORE_FILES_FILES_H

#include <dcp/format.h>

struct dcp_files;

/* source and catalog are borrowed. memory_bytes bounds the windows (at least one). Caller
 * owns. Errors: MEMORY. */
int dcp_files_new(const struct dcp_source *source, const struct dcp_catalog *catalog,
                  uint64_t memory_bytes, struct dcp_files **out_files,
                  struct dcp_error *err);
void dcp_files_free(struct dcp_files *files);
/* From now on the same names are read in another store. */
void dcp_files_move(struct dcp_files *files, const struct dcp_store *store);

/* Exactly n bytes at offset of a file of the catalog. Errors: IO, NOT_FOUND, CORRUPT
 * (they are not all there), MEMORY. */
int dcp_files_read(struct dcp_files *files, int file, uint64_t offset, size_t n,
                   void *out, struct dcp_error *err);
/* The same; a small read also takes what follows it, so that small pieces that are
 * neighbours cost one. */
int dcp_files_read_ahead(struct dcp_files *files, int file, uint64_t offset, size_t n,
                         void *out, struct dcp_error *err);
/* Bytes read so far. */
uint64_t dcp_files_bytes(const struct dcp_files *files);

/* The store's name of a file of the checkpoint; caller frees. NULL: out of memory. */
char *dcp_source_file(const struct dcp_source *source, const char *file);

#endif
