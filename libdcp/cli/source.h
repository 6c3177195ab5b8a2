/* source: the checkpoint that an operand names, opened as the common options say. Every
 * program opens checkpoints here. */
#ifndef DCP_CLI_SOURCE_H
#define DCP_CLI_SOURCE_H

#include "program.h"
#include <dcp/reshard.h>

/* As dcp_location_open; with --trusted-keys it is signed by one of them, and unchanged.
 * Errors besides: those of dcp_check_signature. */
int dcp_source_open(struct dcp_main *m, const char *path, struct dcp_location *out,
                    struct dcp_error *err);
/* The same, with the base of the delta that it is; NULL: where the delta says. */
int dcp_source_open_delta(struct dcp_main *m, const char *path, const char *base,
                          struct dcp_location *out, struct dcp_error *err);
/* A folder's store, as a run folder's, opened as the common options say. No signature is
 * checked: see dcp_source_trust. Errors: those of dcp_store_dir. */
int dcp_source_store(const struct dcp_main *m, const char *path, struct dcp_store *out,
                     struct dcp_error *err);
/* When a step of a run folder was saved: its manifest, its last file, was written, in
 * seconds since 1970; -1: unknown. */
int64_t dcp_source_saved_at(const char *run, const char *step);
/* The next act where a path is none: a name that is near, a folder that is not there, the
 * checkpoint of which the file is a part. */
void dcp_source_hint(const char *path, struct dcp_error *err);
/* The second half of it, for who opens checkpoints otherwise. */
int dcp_source_trust(struct dcp_main *m, const struct dcp_source *source,
                     const char *path, struct dcp_error *err);

#endif
