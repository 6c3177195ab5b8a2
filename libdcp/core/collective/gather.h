/* gather: what ranks tell, each as much as it has. */
#ifndef DCP_CORE_COLLECTIVE_GATHER_H
#define DCP_CORE_COLLECTIVE_GATHER_H

#include "base/buf.h"
#include <dcp/comm.h>

/* The parts of all ranks, one behind the other; NULL where they do not go. */
struct dcp_gathered {
    void *all;
    size_t *sizes;
};

/* Collective. What each rank has in buf goes to rank 0, or to all. It begins as dcp_agree
 * does: rc and err are how each rank came here, and nothing is gathered if one failed.
 * What
 * all agreed on may be agreed on once more: it stays the same. */
int dcp_gather_buf(struct dcp_comm *comm, bool to_all, const struct dcp_buf *buf, int rc,
                   struct dcp_gathered *out, struct dcp_error *err);

void dcp_gathered_fini(struct dcp_gathered *gathered);
#define DCP_CLEANUP_GATHERED __attribute__((cleanup(dcp_gathered_fini)))

#endif
