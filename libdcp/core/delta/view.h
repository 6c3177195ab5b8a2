/* view: one folder that holds a delta, with its base found and looked at. */
#ifndef DCP_CORE_DELTA_VIEW_H
#define DCP_CORE_DELTA_VIEW_H

#include "folder.h"

/* Where deltas are, and their bases may be; borrowed. */
struct dcp_delta_place {
    const struct dcp_store *inner; /* that has the deltas */
    const struct dcp_store *outer; /* in which they read as what they stand for */
    const char *path;              /* of the root on the file system, or NULL */
    const char *base;              /* of the delta that is the root, or NULL */
};

struct dcp_delta_view {
    char *prefix; /* of the folder: "step-00001200/", "" */
    struct dcp_delta_folder is;
    const struct dcp_store *base; /* that has the base's files, */
    char *base_prefix;            /* under these names */
    char *shown, *base_shown;     /* the two folders in messages */
    struct dcp_store own_base;    /* private */
    uint64_t json_bytes;          /* private: of which delta.json it was made */
    char digest[DCP_DELTA_DIGEST_BYTES];
    struct dcp_delta_view *next; /* of the store's */
    int users;
};

/* The size of a folder's delta.json and its last bytes, which are its digest: as long as
 * they stay so does the view. Errors: NOT_FOUND (it is no delta, or no folder), CORRUPT,
 * IO, MEMORY. */
int dcp_delta_look(const struct dcp_store *store, const char *dir, uint64_t *out_bytes,
                   char out_digest[DCP_DELTA_DIGEST_BYTES], struct dcp_error *err);
/* Caller owns. The base is what the delta was made against as far as its sizes and its
 * manifest tell. Errors: NOT_FOUND (the folder is no delta), CORRUPT (the base is gone,
 * or another one, too), UNSUPPORTED, IO, MEMORY. */
int dcp_delta_view_new(const struct dcp_delta_place *place, const char *dir,
                       struct dcp_delta_view **out, struct dcp_error *err);
void dcp_delta_view_free(struct dcp_delta_view *view);

#endif
