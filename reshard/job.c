#include "job.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/corruption.h"
#include "cli/source.h"
#include "signature.h"
#include <dcp/family.h>
#include <string.h>

#define MAX_CONFIG_BYTES ((size_t)64 << 20)

/* The description of the model, for formats that carry one in a file of its own: the one
 * that was given, or the source's. */
static int find_config(struct reshard_job *job, char **out, struct dcp_error *err)
{
    void *text = NULL;
    size_t n;
    if (!job->config_path)
        return dcp_location_config(&job->location, job->source, out, err);
    int rc = dcp_fs_read_file(job->config_path, MAX_CONFIG_BYTES, &text, &n, err);
    *out = text;
    return rc;
}

/* Signs the target before it is published. */
static int sign(void *self, const struct dcp_source *target, struct dcp_error *err)
{
    struct reshard_job *job = self;
    struct dcp_main *m = job->m;
    struct dcp_signature by;
    dcp_main_progress_end(m);
    int rc = reshard_sign(m, target, job->target_path, job->key, &by, err);
    job->sign_failed = rc != DCP_OK;
    return rc;
}

/* What nobody asked to leave out: no failure, as the weights may be all that there are,
 * but never silent. */
static void warn_lacks(struct dcp_main *m, const struct dcp_catalog *source)
{
    char weight[64];

    if (dcp_family_lacks_weight(source, weight, sizeof weight))
        dcp_log_write(&m->log, DCP_LOG_WARN, DCP_FAMILY_LACKS, DCP_SHOWN(weight));
}

static int plan_and_run(struct dcp_main *m, struct reshard_job *job,
                        struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *config = NULL;
    int rc = dcp_location_index(&job->location, &job->source, err);
    bool told = !rc && job->location.corruption.code;
    if (told)
        dcp_corruption_tell_reconstructed(m, &job->location);
    if (rc == DCP_OK)
        rc = find_config(job, &config, err);
    if (rc)
        return rc;
    warn_lacks(m, job->source);
    double begin = dcp_clock_s();
    job->options.source = job->source;
    job->options.target.config_json = config;
    job->options.threads = m->threads;
    job->options.log = &m->log;
    job->options.made = job->key ? sign : NULL;
    job->options.self = job;
    job->options.progress =
        dcp_main_progress(m, job->options.finish ? "finishing" : "resharding");
    rc = dcp_reshard_plan(&job->location, job->target_path, &job->options, &job->reshard,
                          err);
    if (rc)
        return dcp_location_failed(&job->location, rc, err);
    if (!m->json && (job->dry_run || m->verbose > 0)) {
        reshard_print_plan(m, job);
        fflush(m->out.file);
    }
    if (!job->dry_run)
        rc = dcp_reshard_run(job->reshard, err);
    job->seconds = dcp_clock_s() - begin;
    dcp_main_progress_end(m);
    if (!rc && !told && job->location.corruption.code)
        dcp_corruption_tell_reconstructed(m, &job->location);
    if (rc && job->sign_failed) /* it says nothing of the source */
        return rc;
    if (rc)
        rc = dcp_location_failed(&job->location, rc, err);
    if (rc == DCP_E_CORRUPT) {
        dcp_error_prefix(err, "cannot reshard '%s'", job->location.path);
        dcp_corruption_hint(&job->location, false, err);
    }
    if (rc)
        return rc;
    if (m->json)
        return reshard_print_json(m, job, err);
    if (job->dry_run)
        dcp_term_put(&m->out, "nothing was written (--dry-run)\n");
    else if (job->options.part || dcp_reshard_was_done(job->reshard))
        reshard_print_part(m, job);
    else
        reshard_print_result(m, job);
    return DCP_OK;
}

static int run(struct dcp_main *m, struct reshard_job *job, struct dcp_error *err)
{
    DCP_TRY(dcp_source_open(m, job->source_path, &job->location, err));
    dcp_corruption_passed_over(&job->location, &m->log);
    int rc = plan_and_run(m, job, err);
    dcp_reshard_free(job->reshard);
    dcp_catalog_free(job->source);
    dcp_location_close(&job->location);
    return rc;
}

int reshard_job_start(struct dcp_main *m, const char *verb,
                      const struct reshard_settings *settings, reshard_choose *choose,
                      struct dcp_error *err)
{
    struct reshard_job job = {
        .m = m,
        .verb = verb,
        .source_path = m->operands.items[0],
        .target_path = m->operands.items[1],
        .config_path = settings->model_config,
        .key = settings->key,
        .dry_run = settings->dry_run,
    };
    int rc = reshard_settings_check(settings, &job.options, err);
    if (rc == DCP_OK && !settings->to)
        rc = choose(job.target_path, &job.options.format, err);
    const char *format = job.options.format;
    if (rc == DCP_OK && job.key && format && strcmp(format, "native") != 0)
        rc = dcp_error_set(err, DCP_E_USAGE, "--key signs native steps only, not '%s'",
                           format);
    if (rc == DCP_OK && job.key)
        rc = dcp_keys_check(job.key, err);
    if (rc == DCP_OK)
        rc = run(m, &job, err);
    dcp_rename_free(job.options.rename);
    return rc;
}
