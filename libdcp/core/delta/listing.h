/* listing: all files of a folder and the folders in it. */
#ifndef DCP_CORE_DELTA_LISTING_H
#define DCP_CORE_DELTA_LISTING_H

#include <dcp/store.h>

struct dcp_delta_listing {
    struct dcp_store_entry *files; /* names from the folder on, sorted; no folders */
    size_t n, cap;
    uint64_t size_bytes; /* in all */
};
/* Of `dir`, "" being the root. Release with fini, after a failure too. Errors: those of
 * list; UNSUPPORTED (nested too deep), MEMORY. */
int dcp_delta_list(const struct dcp_store *store, const char *dir,
                   struct dcp_delta_listing *out, struct dcp_error *err);
void dcp_delta_listing_fini(struct dcp_delta_listing *listing);

/* How a path is written from a folder: "../b" from "/x/a" to "/x/b". Both are absolute
 * and real. Caller frees; NULL: out of memory. */
char *dcp_delta_path_between(const char *from, const char *to);

#endif
