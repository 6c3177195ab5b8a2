/* output: files that are made in a folder that has no name yet: `prefix` is that folder,
 * with a final '/'. */
#ifndef DCP_CORE_DELTA_OUTPUT_H
#define DCP_CORE_DELTA_OUTPUT_H

#include <dcp/store.h>

struct dcp_delta_output {
    const struct dcp_store *store;
    const char *prefix;
};

/* Creates a file, and the folders that it is in; closed by the caller. */
int dcp_delta_output_create(const struct dcp_delta_output *output, const char *name,
                            const char *suffix, uint64_t size_bytes,
                            struct dcp_store_file **out, struct dcp_error *err);
/* Syncs and closes a file of size_bytes. */
int dcp_delta_output_close(const struct dcp_delta_output *output,
                           struct dcp_store_file *file, uint64_t size_bytes,
                           struct dcp_error *err);
/* Makes the names in the folders of a file durable, but in the first one. */
int dcp_delta_output_sync_folders(const struct dcp_delta_output *output, const char *file,
                                  struct dcp_error *err);

#endif
