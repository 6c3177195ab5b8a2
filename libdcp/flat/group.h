/* group: ranks of callers that have no process group of their own. */
#ifndef DCP_FLAT_GROUP_H
#define DCP_FLAT_GROUP_H

#include <dcp/comm.h>
#include <dcp/flat.h>

/* How its ranks talk; belongs to the group. */
const struct dcp_comm *dcp_flat_group_comm(const struct dcp_flat_group *group);

#endif
