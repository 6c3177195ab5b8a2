/* staging: the folder that the parts of a reshard share, ".parts-NAME" beside the target:
 *
 *   job         what they are parts of (identity.h)
 *   files/      the target's files, which become the target by one rename
 *   part-00003  the receipt of a part that is done
 *   lock        held shared by who makes a part, exclusively by who finishes or removes
 *   lock-00003  held by who makes that part
 *   replaces    all files of the target, once it is about to take the place of another
 *
 * Leases end with their process. Where a store has none nobody is kept away. */
#ifndef DCP_CORE_PARTS_STAGING_H
#define DCP_CORE_PARTS_STAGING_H

#include <dcp/store.h>

struct dcp_staging {
    const struct dcp_store *store; /* of the folder in which the target appears */
    char *folder;                  /* ".parts-NAME" */
    char *files;                   /* ".parts-NAME/files" */
    char *prefix;                  /* ".parts-NAME/files/" */
    struct dcp_store_file *held, *part;
};

enum dcp_staging_state {
    DCP_STAGING_NONE,
    DCP_STAGING_OPEN, /* parts are made in it */
    DCP_STAGING_DONE  /* its files have become the target, and the rest stayed */
};

/* Makes nothing. dcp_staging_fini also after a failure. Errors: MEMORY. */
int dcp_staging_init(struct dcp_staging *staging, const struct dcp_store *store,
                     const char *name, struct dcp_error *err);
/* Gives the leases back. */
void dcp_staging_fini(struct dcp_staging *staging);
/* Errors: IO. */
int dcp_staging_look(const struct dcp_staging *staging, enum dcp_staging_state *out,
                     struct dcp_error *err);
/* A name in it; caller frees. part < 0: the word alone. NULL: out of memory. */
char *dcp_staging_path(const struct dcp_staging *staging, const char *word, int part);

/* For who makes part `part`: makes the folders that are missing, and takes the leases.
 * Errors: BUSY (somebody finishes it, or makes that part), IO, MEMORY. */
int dcp_staging_enter(struct dcp_staging *staging, int part, struct dcp_error *err);
/* For who finishes: nobody makes a part until dcp_staging_fini. Errors: BUSY. */
int dcp_staging_close(struct dcp_staging *staging, struct dcp_error *err);
/* Removes all of it; after dcp_staging_close. */
int dcp_staging_remove(struct dcp_staging *staging, struct dcp_error *err);

#endif
