/* names: what is in a folder that a delta stands for. */
#ifndef DCP_CORE_DELTA_NAMES_H
#define DCP_CORE_DELTA_NAMES_H

#include "view.h"

/* A name of the store without the folder of its delta. */
const char *dcp_delta_inside(const struct dcp_delta_view *view, const char *name);
/* There is none of that name: returns NOT_FOUND. */
int dcp_delta_is_missing(const char *name, struct dcp_error *err);

/* Whether every file that is needed for one is there, with its size; `inner` is the store
 * below. Errors: CORRUPT, IO, MEMORY. */
int dcp_delta_check_file(const struct dcp_store *inner, const struct dcp_delta_view *view,
                         const struct dcp_delta_file *file, struct dcp_error *err);
/* As stat and list of a store. */
int dcp_delta_stat_in(const struct dcp_store *inner, const struct dcp_delta_view *view,
                      const char *name, bool *out_is_dir, uint64_t *out_size_bytes,
                      struct dcp_error *err);
int dcp_delta_list_in(const struct dcp_delta_view *view, const char *name,
                      struct dcp_store_entry **out, size_t *out_n, struct dcp_error *err);

#endif
