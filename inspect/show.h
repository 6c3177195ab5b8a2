/* show: what was found out about a checkpoint, and the two ways to say it. */
#ifndef INSPECT_SHOW_H
#define INSPECT_SHOW_H

#include "base/buf.h"
#include "checkpoint.h"
#include "facts.h"
#include <dcp/checkpoint.h>
#include <jansson.h>

struct inspect_shown {
    const char *path;                     /* of the checkpoint that is shown */
    struct inspect_checkpoint checkpoint; /* without a catalog: no step is complete */
    struct inspect_facts facts;
    struct dcp_error hole; /* what is missing or held twice; code 0: nothing */
    struct dcp_step *steps;
    size_t n_steps, n_unfinished;
};

/* Where the step that is shown comes from; nothing and null where it does not say. */
void inspect_lineage_text(const struct inspect_shown *shown, struct dcp_buf *text);
json_t *inspect_lineage_json(const struct inspect_shown *shown);

int inspect_show_text(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err);
int inspect_show_json(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err);

#endif
