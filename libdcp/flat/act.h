/* act: what an act of all ranks works with: how they talk, the run folder, a log. */
#ifndef DCP_FLAT_ACT_H
#define DCP_FLAT_ACT_H

#include "state.h"

struct dcp_flat_act_options {
    const struct dcp_flat_comm *comm; /* NULL: a single rank */
    const char *path;                 /* the run folder */
    bool create;
    int threads;
    void (*log)(void *self, int32_t level, const char *message); /* or NULL */
    void *self;
};
struct dcp_flat_act {
    struct dcp_flat_talk talk;
    struct dcp_flat_act_options options;
    struct dcp_log log;
    struct dcp_store store;
    struct dcp_context ctx;
};

/* This rank's beginning; all then agree on how each has begun. The act stays where it is;
 * end it also after an error. Errors: USAGE, IO, MEMORY. */
int dcp_flat_act_begin(struct dcp_flat_act *act,
                       const struct dcp_flat_act_options *options, struct dcp_error *err);
/* As dcp_agree; but `rc` where the comm is none, and there is nobody to agree with. */
int dcp_flat_act_agree(struct dcp_flat_act *act, int rc, struct dcp_error *err);
void dcp_flat_act_end(struct dcp_flat_act *act);

#endif
