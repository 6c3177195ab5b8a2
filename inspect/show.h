/* show: what was found out about a checkpoint, and the two ways to say it. */
#ifndef INSPECT_SHOW_H
#define INSPECT_SHOW_H

#include "checkpoint.h"
#include "facts.h"

struct inspect_shown {
    const char *path;                     /* of the checkpoint that is shown */
    struct inspect_checkpoint checkpoint; /* without a catalog: no step is whole */
    struct inspect_facts facts;
    struct dcp_error hole; /* what is missing or held twice; code 0: nothing */
    struct dcp_step *steps;
    size_t n_steps, n_unfinished;
};

int inspect_show_text(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err);
int inspect_show_json(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err);

#endif
