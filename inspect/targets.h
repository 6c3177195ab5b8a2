/* targets: the checkpoints that the operands of a verb name. A run folder stands for all
 * its steps. */
#ifndef INSPECT_TARGETS_H
#define INSPECT_TARGETS_H

#include "cli/main.h"
#include <dcp/error.h>

struct inspect_targets {
    struct inspect_target {
        const char *run; /* the operand */
        char *path;      /* of the checkpoint: the same, or a step in it */
        char *step;      /* its name; NULL: the operand is no run folder */
    } * items;           /* operand by operand, the steps of a run newest first */
    size_t n, cap;
};

/* With `newest` an operand is what dcp_location_open makes of it. Borrows the operands.
 * Freed with inspect_targets_fini, also after a failure. Errors: IO, MEMORY. */
int inspect_targets_find(const struct dcp_main *m, bool newest,
                         struct inspect_targets *out, struct dcp_error *err);
void inspect_targets_fini(struct inspect_targets *targets);

#endif
