/* publish: the temporary folder in which a target is made, and the one act that makes it
 * exist. */
#ifndef DCP_CORE_RUN_PUBLISH_H
#define DCP_CORE_RUN_PUBLISH_H

#include <dcp/store.h>

/* A target being made: ".tmp-<name>/" beside the final name. */
struct dcp_publication {
    const struct dcp_store *store; /* of the folder both live in */
    char *name;                    /* final */
    char *tmp;                     /* ".tmp-<name>"; see dcp_leftover_make */
    char *prefix;                  /* ".tmp-<name>/" */
    char *trash; /* what was replaced, where names cannot be exchanged */
    bool made;
    struct dcp_store_file *held; /* the folder, while its maker lives: see leftover.h */
};

/* Makes the temporary folder; one that a dead process left is removed first, or stays and
 * is not in the way, as does one of a living process. Of two that make one target the
 * first to commit has the name. Errors: EXISTS (the final name, unless replace), IO,
 * MEMORY. */
int dcp_publish_begin(struct dcp_publication *publish, const struct dcp_store *store,
                      const char *name, bool replace, struct dcp_error *err);
/* The same for a folder `tmp` that others have filled and keep for this process. */
int dcp_publish_adopt(struct dcp_publication *publish, const struct dcp_store *store,
                      const char *name, const char *tmp, bool replace,
                      struct dcp_error *err);
/* Every file is written, synced and closed: syncs the folder and gives it its name (file
 * NULL), or gives one file of it its name and removes the folder. What stood there is
 * replaced, in one step where the store can, when `replaces` is set. The step exists when
 * this returns 0. */
int dcp_publish_commit(struct dcp_publication *publish, const char *file, bool replaces,
                       struct dcp_error *err);
/* The same of a folder for what has its name now, in one act alone: only in a store that
 * can exchange names. Errors: UNSUPPORTED (it cannot do it there), IO. */
int dcp_publish_exchange(struct dcp_publication *publish, struct dcp_error *err);
/* Removes what is left: of a target that was not committed, or of what was replaced.
 * Errors: IO, it stays. */
int dcp_publish_clear(struct dcp_publication *publish, struct dcp_error *err);
/* The same, and frees. */
void dcp_publish_fini(struct dcp_publication *publish);

#endif
