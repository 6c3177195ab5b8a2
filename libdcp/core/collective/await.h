/* await: work that takes its time inside a collective. A rank that only reads or removes
 * files for long must not be taken for dead, so all ranks keep coming back to the comm
 * while a thread works. */
#ifndef DCP_CORE_COLLECTIVE_AWAIT_H
#define DCP_CORE_COLLECTIVE_AWAIT_H

#include "base/pool.h"
#include <dcp/comm.h>

/* Collective. Runs work(arg) on every rank that gives one (NULL: nothing to do here), on
 * a thread of its own, which must not use the comm. Ends as dcp_agree does: all ranks
 * return the same code, with the sentence of the lowest rank that failed. */
int dcp_await(struct dcp_comm *comm, int (*work)(void *arg, struct dcp_error *err),
              void *arg, struct dcp_error *err);

/* Collective: whether the jobs of a group (NULL: none here) are done on all ranks. Once
 * they are it ends as dcp_agree does, and the group has been waited for. `rc` and err:
 * what this rank failed with before there were jobs. */
int dcp_all_done(struct dcp_comm *comm, struct dcp_group *group, int rc, bool *out_done,
                 struct dcp_error *err);
/* Before each of these: until this rank's work is done, but not long. A rank that is done
 * does not wait here, but in the call, for those that are not: so all go on as soon as
 * the last one is done, and work that does not take long costs one call. */
void dcp_pause(struct dcp_group *group);

#endif
