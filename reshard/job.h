/* job: one reshard, from the path of the source to the line that says it is done. */
#ifndef RESHARD_JOB_H
#define RESHARD_JOB_H

#include "cli/main.h"
#include "settings.h"
#include <dcp/reshard.h>
#include <dcp/training.h>

struct reshard_job {
    struct dcp_main *m;
    const char *verb; /* of the document: "reshard", "export" */
    const char *source_path, *target_path;
    struct dcp_reshard_options options;
    const char *config_path; /* of the model, or NULL */
    const char *key;         /* to sign the target with, or NULL */
    bool dry_run;

    struct dcp_location location;
    struct dcp_catalog *source; /* for people: who saved it, how */
    struct dcp_reshard *reshard;
    bool sign_failed; /* that is why nothing was published */
    double seconds;
};

/* The format of a target of which only the path is known; NULL: the default. */
typedef int reshard_choose(const char *path, const char **out_format,
                           struct dcp_error *err);
/* What both verbs do with their operands and settings: plans, prints the plan with
 * --dry-run, else runs and says what was made. `choose` is asked where --to is not given.
 */
int reshard_job_start(struct dcp_main *m, const char *verb,
                      const struct reshard_settings *settings, reshard_choose *choose,
                      struct dcp_error *err);

/* Printing, see plan_print.c. */
void reshard_print_plan(struct dcp_main *m, const struct reshard_job *job);
/* Of one part; or that there was nothing to do. */
void reshard_print_part(struct dcp_main *m, const struct reshard_job *job);
void reshard_print_result(struct dcp_main *m, const struct reshard_job *job);
int reshard_print_json(struct dcp_main *m, const struct reshard_job *job,
                       struct dcp_error *err);

#endif
