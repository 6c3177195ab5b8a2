/* save_base: the full step that the saves of one saver are deltas on. */
#ifndef DCP_CORE_SAVE_BASE_H
#define DCP_CORE_SAVE_BASE_H

#include <dcp/checkpoint.h>

struct dcp_save_base {
    char name[64]; /* of its folder; "": none is known */
    struct dcp_catalog
        *catalog;           /* its pieces, at least this rank's; on rank 0 its files */
    bool read;              /* this process has written or read all of it */
    int number;             /* of saves on it so far; rank 0's, as are: */
    bool looked;            /* whether the run has one was looked at */
    bool found;             /* by that, and other ranks do not know it yet */
    struct dcp_error unfit; /* why none is known */
};

/* Rank 0, with the lease: which step the next save is to be a delta on; base->name says
 * it, and base->unfit why there is none where there should be. Errors: MEMORY. */
int dcp_save_base_choose(struct dcp_save_base *base, const struct dcp_store *store,
                         const struct dcp_save_options *options, int world_size,
                         struct dcp_error *err);
/* What rank 0 tells the others of it. */
struct dcp_save_base_told {
    char name[64];
    int number;
    bool found;
};
struct dcp_save_base_told dcp_save_base_tell(const struct dcp_save_base *base);
/* Collective, when all have got that: all know it, in base->name, with its catalog.
 * Errors: COMM, MEMORY. */
int dcp_save_base_hear(struct dcp_save_base *base, const struct dcp_save_base_told *told,
                       struct dcp_comm *comm, struct dcp_error *err);
/* A full step was saved, which the next ones can be deltas on: takes its catalog. */
void dcp_save_base_take(struct dcp_save_base *base, const char *name,
                        struct dcp_catalog **catalog);
void dcp_save_base_fini(struct dcp_save_base *base);

#endif
