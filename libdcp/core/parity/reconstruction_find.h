/* reconstruction_find: what protects a step, and its manifest, found in whatever is left
 * of it. */
#ifndef DCP_CORE_PARITY_RECONSTRUCTION_FIND_H
#define DCP_CORE_PARITY_RECONSTRUCTION_FIND_H

#include "parity.h"

/* Every parity file has the description at its beginning, and in its copy of the manifest
 * at its end; the manifest has it too. What most of them say counts. prefix: the folder,
 * with a slash behind it. Caller owns. Errors: NOT_FOUND (none is left), CORRUPT (they do
 * not agree), IO, MEMORY. */
int dcp_reconstruction_find_parity(const struct dcp_store *store, const char *folder,
                                   const char *prefix, struct dcp_parity **out_parity,
                                   struct dcp_error *err);

struct dcp_reconstruction_manifest {
    void *data; /* freed with free */
    size_t size_bytes;
    bool intact; /* manifest.json is that */
};
/* The manifest as the end of a parity file of this step has it; manifest.json itself
 * where none is left. Errors: NOT_FOUND, IO, MEMORY. */
int dcp_reconstruction_find_manifest(const struct dcp_store *store, const char *prefix,
                                     const struct dcp_parity *parity,
                                     struct dcp_reconstruction_manifest *out,
                                     struct dcp_error *err);

#endif
