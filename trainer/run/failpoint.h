/* failpoint: where tests and the demo make a rank die. The environment variable
 *
 *     DCP_TEST_KILL=rank:step:where
 *
 * makes that rank of the dcp-train of tests send SIGKILL to itself (the one that is
 * installed does not read it): where is "step", in the middle of training that
 * step; "save-write", in the middle of writing its shard of that step; "save-publish",
 * when all is written but not published (rank 0 alone comes there). */
#ifndef TRAINER_RUN_FAILPOINT_H
#define TRAINER_RUN_FAILPOINT_H

#include <dcp/store.h>
#include <stdatomic.h>

enum failpoint_where {
    FAILPOINT_NOWHERE,
    FAILPOINT_STEP,
    FAILPOINT_SAVE_WRITE,
    FAILPOINT_SAVE_PUBLISH
};

struct failpoint {
    struct dcp_store_forward forward; /* the store made by failpoint_store... */
    struct dcp_store inner;           /* ... of this one */
    enum failpoint_where where;       /* FAILPOINT_NOWHERE also for the ranks not meant */
    int64_t step;
    atomic_llong saving; /* the step that is saved now; pool threads read it */
};

/* Reads the environment. Errors: USAGE (not understood). */
int failpoint_read(struct failpoint *out_point, int rank, struct dcp_error *err);
/* The rank is in the middle of a step. */
void failpoint_step(const struct failpoint *point, int64_t step);
/* Puts a store that watches for the failpoint in the place of *store, which it owns
 * then; leaves it alone when nothing is to be watched. `point` is borrowed. */
void failpoint_store(struct failpoint *point, struct dcp_store *store);

#endif
