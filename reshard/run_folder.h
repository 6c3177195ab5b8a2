/* run_folder: what the verbs that keep house in a run folder share. */
#ifndef RESHARD_RUN_FOLDER_H
#define RESHARD_RUN_FOLDER_H

#include "cli/main.h"
#include <dcp/checkpoint.h>

/* The folder as a store, opened as the common options say; freed with dcp_store_free.
 * Errors: NOT_FOUND, IO, MEMORY. */
int reshard_open_folder(const struct dcp_main *m, const char *path,
                        struct dcp_store *out_store, struct dcp_error *err);
/* Says, behind a list of what would go, that nothing went yet. */
void reshard_tell_dry(struct dcp_main *m, bool yes, size_t n);

extern const struct dcp_exit reshard_keeping_exits[];

#endif
