/* repair: lost or damaged shards from parity. */
#include "cli/main.h"
#include "verbs.h"
#include <dcp/reshard.h>

/* A step of this version has no parity shards, so there is nothing to repair it from: the
 * source is still looked at, because a wrong path is the nearer error. */
static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    (void)settings;
    struct dcp_place place;
    int rc = dcp_place_open(m->operands.items[0], &place, err);
    if (rc)
        return rc;
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "'%s' has no parity shards to repair it from; parity is not in this "
                  "version",
                  place.path);
    dcp_error_hint(err, "'dcp-inspect verify %s' names what is damaged", place.path);
    dcp_place_close(&place);
    return DCP_E_UNSUPPORTED;
}

static const struct dcp_exit exits[] = {
    { 2, "used wrongly" },
    { 3, "not found" },
    { 4, "damaged" },
    { 6, "input or output failed" },
    { 8, "the step has no parity shards" },
    { 9, "out of memory" },
    { 130, "interrupted" },
    { 0 },
};

const struct dcp_command reshard_repair = {
    .name = "repair",
    .operands = "STEP",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "rebuild lost or damaged shards from parity (not in this version)",
    .about = "Steps of this version have no parity shards; 'dcp-inspect verify' names "
             "what is damaged, and an older step can be resumed from.",
    .settings_size_bytes = 1,
    .exits = exits,
    .run = run,
};
