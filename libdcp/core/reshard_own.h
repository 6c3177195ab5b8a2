/* own: the inside of a reshard: what was decided, and what it counts up to. Included by
 * reshard.c and reshard_facts.c only. */
#ifndef DCP_CORE_RESHARD_OWN_H
#define DCP_CORE_RESHARD_OWN_H

#include "core/parts/parts.h"
#include "core/plan/plan.h"
#include <dcp/reshard.h>
#include <stdatomic.h>

struct dcp_reshard {
    struct dcp_location *location; /* borrowed */
    struct dcp_reshard_options options;
    const struct dcp_format *format;
    bool packs; /* the files of that format become one archive */
    const struct dcp_catalog *src;
    struct dcp_catalog *own_src, *target; /* own_src: what src is, unless it was given */
    struct dcp_target open;               /* of target */
    int *src_tensor;
    struct dcp_plan *plan;
    struct dcp_reshard_plan facts;
    char *dir, *name;            /* of the target */
    _Atomic uint64_t *overflows; /* by tensor of the target; NULL: nothing is cast */
    struct dcp_parts parts;      /* of options.n_parts, when these are not 0 */
    bool was_done;
};

/* Fills the facts, once everything is planned but parts. */
int dcp_reshard_count(struct dcp_reshard *reshard, struct dcp_error *err);

#endif
