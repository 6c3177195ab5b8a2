/* await: work that takes its time inside a collective. A rank that only reads or removes
 * files for long must not be taken for dead, so all ranks keep coming back to the comm
 * while a thread works. */
#ifndef DCP_CORE_COLLECTIVE_AWAIT_H
#define DCP_CORE_COLLECTIVE_AWAIT_H

#include <dcp/comm.h>
#include <stdbool.h>

/* Collective. Runs work(arg) on every rank that gives one (NULL: nothing to do here), on
 * a thread of its own, which must not use the comm. Ends as dcp_agree does: all ranks
 * return the same code, with the sentence of the lowest rank that failed. */
int dcp_await(struct dcp_comm *comm, int (*work)(void *arg, struct dcp_error *err),
              void *arg, struct dcp_error *err);

/* Collective: whether it is done on all ranks. */
int dcp_all_done(struct dcp_comm *comm, bool mine, bool *out_done, struct dcp_error *err);

#endif
