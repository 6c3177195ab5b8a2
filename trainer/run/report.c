#include "report.h"

#include "base/fs.h"
#include "base/mem.h"
#include "cli/source.h"
#include "textfile.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEP_CAP = 32 }; /* of the name of a step */

static const char *name_of(int64_t step, char name[STEP_CAP])
{
    snprintf(name, STEP_CAP, "step-%08" PRId64, step);
    return name;
}

/* The real path of the run folder, or of a step in it; caller frees. NULL: no memory. */
static char *path_of(const struct run *run, int64_t step)
{
    const char *dir = run->settings.checkpoint_dir;
    DCP_CLEANUP_FREE char *real = realpath(dir, NULL);
    char name[STEP_CAP];
    if (step < 0)
        return strdup(real ? real : dir);
    return dcp_fs_join(real ? real : dir, name_of(step, name));
}

static void write_textfile(struct report *report)
{
    const struct run *run = report->run;
    const char *path = run->settings.metrics_textfile;
    struct dcp_error err = { 0 };
    if (!path || run->join->rank != 0)
        return;
    DCP_CLEANUP_FREE char *folder = path_of(run, -1);
    const struct textfile facts = { .run = folder ? folder : "",
                                    .step = report->last,
                                    .step_time_s = report->last_time_s,
                                    .n_saves = report->n_saves,
                                    .n_failed = report->n_failed,
                                    .n_failed_in_a_row = report->n_failed_in_a_row,
                                    .stall_s = report->stall_s };
    int rc = textfile_write(path, &facts, &err);
    if (rc && !report->warned)
        dcp_log_write(&run->log, DCP_LOG_WARN, "checkpoint.metrics_textfile: %s",
                      err.message);
    report->warned = rc != DCP_OK;
}

static void run_hook(struct report *report, const char *key, const char *command,
                     int64_t step, const char *message)
{
    if (!command || report->run->join->rank != 0)
        return;
    DCP_CLEANUP_FREE char *path = path_of(report->run, step);
    const struct hook_event event = { step, path ? path : "", message };
    hook_start(&report->hooks, key, command, &event);
}

/* When a step that is there already was complete; 0: unknown. */
static double time_of(const struct run *run, int64_t step)
{
    char name[STEP_CAP];
    int64_t at = dcp_source_saved_at(run->settings.checkpoint_dir, name_of(step, name));
    return at >= 0 ? (double)at : 0;
}

void report_init(struct report *out, const struct run *run, int64_t last)
{
    *out = (struct report){
        .run = run, .hooks = { .log = &run->log }, .last = last, .stall_s = -1
    };
    if (last >= 0)
        out->last_time_s = time_of(run, last);
    write_textfile(out);
}

void report_saved(struct report *report, const struct dcp_save_result *result)
{
    report->n_saves++;
    report->n_failed_in_a_row = 0;
    report->last = result->step;
    report->last_time_s = (double)time(NULL);
    report->stall_s = result->stall_s;
    write_textfile(report);
    run_hook(report, "checkpoint.on_save", report->run->settings.on_save, result->step,
             "the step is complete and durable");
}

int report_failed(struct report *report, int64_t step, const struct dcp_error *why,
                  struct dcp_error *err)
{
    const struct settings *s = &report->run->settings;
    report->n_saves++;
    report->n_failed++;
    report->n_failed_in_a_row++;
    write_textfile(report);
    run_hook(report, "checkpoint.on_failure", s->on_failure, step, why->message);
    if (!s->fail_after || report->n_failed_in_a_row < (uint64_t)s->fail_after)
        return DCP_OK;
    dcp_error_set(err, DCP_E_IO, "%" PRIu64 " saves in a row failed: %s",
                  report->n_failed_in_a_row, why->message);
    dcp_error_hint(err,
                   "checkpoint.fail_after is %d; with the cause gone --resume auto goes "
                   "on from the last complete step",
                   s->fail_after);
    return DCP_E_IO;
}

void report_poll(struct report *report)
{
    if (report->hooks.n)
        hook_reap(&report->hooks);
}

void report_fini(struct report *report)
{
    char left[64] = "no step is complete";
    if (!report->run)
        return;
    if (report->last >= 0)
        snprintf(left, sizeof left, "the last complete step is %" PRId64, report->last);
    if (report->n_failed)
        dcp_log_write(&report->run->log, DCP_LOG_WARN,
                      "%" PRIu64 " of %" PRIu64 " saves failed; %s", report->n_failed,
                      report->n_saves, left);
    hook_finish(&report->hooks, report->run->settings.timeout_s);
    *report = (struct report){ .run = NULL };
}
