/* own: the inside of a reshard: what was decided, and what it counts up to. Included by
 * reshard.c, reshard_clones.c and reshard_facts.c only. */
#ifndef DCP_CORE_RESHARD_OWN_H
#define DCP_CORE_RESHARD_OWN_H

#include "core/parts/parts.h"
#include "core/plan/clones.h"
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
    struct dcp_clones clones; /* with options.reflink: what is shared, */
    uint64_t block_bytes;     /* in whole blocks */
    uint64_t shared_bytes;    /* that were, by now */
};

/* Whether what was asked for can share blocks at all: before anything is opened, and,
 * once the source is indexed, by doing it, which tells the block of the file system. */
int dcp_reshard_check_reflink(const struct dcp_reshard *reshard, struct dcp_error *err);
int dcp_reshard_try_reflink(struct dcp_reshard *reshard, struct dcp_error *err);
/* Which blocks, of a plan. */
int dcp_reshard_find_clones(struct dcp_reshard *reshard, struct dcp_error *err);
/* Bytes that files of a part, or, -1, of all parts, are not to need room for. */
uint64_t dcp_reshard_spared(const struct dcp_reshard *reshard, int part);

/* Fills the facts, once everything is planned but parts. */
int dcp_reshard_count(struct dcp_reshard *reshard, struct dcp_error *err);

#endif
