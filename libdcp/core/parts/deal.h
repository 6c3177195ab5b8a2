/* deal: which part writes which files of a target. */
#ifndef DCP_CORE_PARTS_DEAL_H
#define DCP_CORE_PARTS_DEAL_H

#include "core/write/share.h"
#include <dcp/reshard.h>

struct dcp_deal {
    struct dcp_shares shares;
    int *part_of; /* what shares.part_of is; owned */
    int n;
    struct dcp_reshard_part *parts; /* of each, what of it is known before it is made */
};

/* Deals the writers of an open target to n parts: neighbours to one part, for they read
 * neighbouring bytes, and as many bytes to each as whole writers allow; the same on every
 * machine. Where nothing in a file depends on another one's bytes each file becomes a
 * writer of its own. dcp_deal_fini also after a failure. Errors: MEMORY. */
int dcp_deal(struct dcp_target *target, int n, struct dcp_deal *out,
             struct dcp_error *err);
void dcp_deal_fini(struct dcp_deal *deal);

#endif
