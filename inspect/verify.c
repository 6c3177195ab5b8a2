/* verify: reads everything and names what is corrupt, of as many checkpoints as are
 * named.
 */
#include "verbs.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "checkpoint.h"
#include "cli/corruption.h"
#include "cli/doc.h"
#include "cli/source.h"
#include "scrub.h"
#include "slow.h"
#include "targets.h"
#include "verify_print.h"
#include <string.h>

#define ROUNDED 1e-9 /* a part of 1 that sums of parts miss by */

/* What is read, and how. */
struct settings {
    uint64_t rate;
    const char *subset, *state;
    bool newest;
};

/* The whole act. */
struct act {
    struct dcp_main *m;
    const struct settings *settings;
    json_t *docs; /* with --json: one for each checkpoint that was read */
    size_t n_bad; /* checkpoints */
    struct dcp_error worst;
    double seconds;
};

/* Corruption counts most; else the first error does. What is not said at the end, and was
 * not listed, is said now. */
static void note(struct act *act, const struct dcp_error *err)
{
    bool worse = !act->worst.code ||
                 (err->code == DCP_E_CORRUPT && act->worst.code != DCP_E_CORRUPT);
    const struct dcp_error *lesser = worse ? &act->worst : err;
    if (lesser->code && lesser->code != DCP_E_CORRUPT)
        dcp_log_write(&act->m->log, DCP_LOG_WARN, "%s", lesser->message);
    act->n_bad++;
    if (worse)
        act->worst = *err;
}

/* Errors that say nothing about a checkpoint end the act. */
static bool is_final(int rc)
{
    return rc == DCP_E_MEMORY || rc == DCP_E_INTERRUPTED || rc == DCP_E_USAGE;
}

/* A step that retention removed under its reader is no corruption. */
static int tell_retired(struct act *act, const char *path, struct dcp_error *err)
{
    const struct dcp_term *out = &act->m->out;
    char shown[512];
    if (!act->m->json)
        dcp_term_printf(out, "retired   %s: it was removed from the run meanwhile\n",
                        dcp_str_escape(shown, sizeof shown, path));
    else if (dcp_doc_add(act->docs, json_pack("{s:o, s:b}", "path", dcp_doc_text(path),
                                              "retired", 1)))
        return dcp_error_memory(err, "the JSON document");
    return DCP_OK;
}

static int verify_location(struct act *act, const struct dcp_location *location,
                           const struct inspect_part *part, struct dcp_error *err)
{
    struct dcp_main *m = act->m;
    struct dcp_source source = dcp_location_plain(location);
    struct inspect_findings findings = { .m = m, .path = location->path };
    struct dcp_verify_result result = { 0 };
    struct inspect_slow slow;
    struct dcp_error why = { 0 };
    uint64_t rate = act->settings->rate;
    struct dcp_verify_options options = { .begin = inspect_findings_begin,
                                          .finding = inspect_findings_add,
                                          .self = &findings,
                                          .progress = dcp_main_progress(m, "verifying"),
                                          .threads = m->threads,
                                          .from = part->from,
                                          .to = part->to };
    findings.list = m->json ? json_array() : NULL;
    inspect_slow_init(&slow, source.store, rate ? rate : 1);
    if (rate)
        source.store = &slow.store;
    double begin = dcp_clock_s();
    int rc = dcp_verify(&source, &options, &result, &why), failed = DCP_OK;
    double seconds = dcp_clock_s() - begin;
    inspect_slow_fini(&slow);
    dcp_main_progress_end(m);
    act->seconds += seconds;
    bool gone = rc && !dcp_fs_exists(location->path);
    bool found = !gone && result.n_findings && (rc == DCP_E_CORRUPT || rc == DCP_E_IO);
    if (!rc || found) {
        if (m->json && dcp_doc_add(act->docs, inspect_findings_json(
                                                  &findings, rc, &result, part, seconds)))
            failed = dcp_error_memory(err, "the JSON document");
        else if (!m->json)
            inspect_findings_print(&findings, rc, &result, part, seconds);
    }
    inspect_findings_fini(&findings);
    if (rc && !found) {
        dcp_location_name_error(location, &why);
    } else if (rc == DCP_E_CORRUPT) {
        dcp_error_prefix(&why, "'%s' is corrupt", location->path);
        dcp_corruption_hint(location, true, &why);
    } else if (rc) {
        dcp_error_prefix(&why, "'%s' is not proved", location->path);
    }
    if (!failed && rc && err)
        *err = why;
    return failed ? failed : rc;
}

/* One checkpoint. Returns only errors that end the act; others are noted. */
static int verify(struct act *act, const struct inspect_target *target,
                  const struct inspect_part *part, struct dcp_error *err)
{
    struct dcp_location location;
    struct dcp_error why = { 0 };
    DCP_CLEANUP_FREE char *path =
        strdup(target->path); /* of the step, once it is known */
    int rc = dcp_source_open(act->m, target->path, &location, &why);
    if (!rc) {
        free(path);
        path = strdup(location.path);
        if (inspect_is_run(&location))
            dcp_corruption_passed_over(&location, &act->m->log);
        rc = path ? verify_location(act, &location, part, &why) : DCP_E_MEMORY;
        dcp_location_close(&location);
    }
    if (rc && is_final(rc)) {
        *err = why;
        return rc;
    }
    bool of_run = target->step || (path && strcmp(path, target->path) != 0);
    if (rc && of_run && !dcp_fs_exists(path)) {
        rc = tell_retired(act, path, err);
        return rc || target->step ? rc : verify(act, target, part, err);
    }
    if (rc)
        note(act, &why);
    return DCP_OK;
}

/* With --newest all steps of a run are done but the newest complete one; when none is,
 * but the newest, which tells why. */
static int leave_newest(const struct act *act, const struct inspect_target *targets,
                        size_t n, bool *done, struct dcp_error *err)
{
    struct dcp_store store;
    struct dcp_step step = { .name = "" };
    size_t newest = 0;
    if (!targets->step)
        return DCP_OK;
    DCP_TRY(dcp_source_store(act->m, targets->run, &store, err));
    const struct dcp_context ctx = { .store = &store, .log = &act->m->log };
    if (dcp_find(&ctx, -1, &step, NULL) == DCP_OK)
        while (newest < n && strcmp(targets[newest].step, step.name) != 0)
            newest++;
    for (size_t i = 0; i < n; i++)
        done[i] = i != (newest < n ? newest : 0);
    dcp_store_free(&store);
    return DCP_OK;
}

/* A part of a run: of its steps in turn, so much as that part is of all. */
static int verify_part(struct act *act, struct inspect_scrub *scrub,
                       const struct inspect_target *targets, size_t n, double subset,
                       struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    DCP_CLEANUP_FREE char *run = inspect_scrub_key(targets->run, &why);
    DCP_CLEANUP_FREE const char **steps = dcp_mem_calloc(n, sizeof *steps);
    DCP_CLEANUP_FREE bool *done = dcp_mem_calloc(n, sizeof *done);
    if (!steps || !done)
        return dcp_error_memory(err, "a verification");
    if (!run) {
        dcp_source_hint(targets->run, &why);
        note(act, &why);
        return DCP_OK;
    }
    for (size_t i = 0; i < n; i++)
        steps[i] = targets[i].step;
    double left = subset * (act->settings->newest ? 1 : (double)n);
    int rc = act->settings->newest ? leave_newest(act, targets, n, done, err) : DCP_OK;
    while (!rc && left > ROUNDED) {
        struct inspect_part part;
        size_t next = inspect_scrub_next(scrub, run, steps, done, n, &part.from);
        if (next == n)
            break;
        part.to = part.from + left < 1 - ROUNDED ? part.from + left : 1;
        left -= part.to - part.from;
        done[next] = true;
        rc = verify(act, &targets[next], &part, err);
        if (!rc)
            rc = inspect_scrub_set(scrub, run, steps, n, next, part.to < 1 ? part.to : 0,
                                   err);
    }
    return rc;
}

/* So much of each operand: the steps of a run are one. */
static int verify_parts(struct act *act, const struct inspect_targets *targets,
                        struct dcp_error *err)
{
    struct inspect_scrub scrub = { 0 };
    double subset;
    int rc = inspect_scrub_parse(act->settings->subset, &subset, err);
    if (!rc)
        rc = inspect_scrub_open(act->settings->state, &scrub, err);
    for (size_t i = 0, end; i < targets->n && !rc; i = end) {
        const struct inspect_target *target = &targets->items[i];
        for (end = i + 1;
             end < targets->n && target->step && targets->items[end].run == target->run;)
            end++;
        rc = verify_part(act, &scrub, target, end - i, subset, err);
    }
    inspect_scrub_close(&scrub);
    return rc;
}

static int verify_all(struct act *act, const struct inspect_targets *targets,
                      struct dcp_error *err)
{
    static const struct inspect_part all = { 0 };
    for (size_t i = 0; i < targets->n; i++)
        DCP_TRY(verify(act, &targets->items[i], &all, err));
    return DCP_OK;
}

static json_t *sum(const json_t *docs, const char *key)
{
    size_t i;
    json_t *doc;
    json_int_t n = 0;
    json_array_foreach(docs, i, doc) n += json_integer_value(json_object_get(doc, key));
    return json_integer(n);
}

/* The first checkpoint's facts, what holds for all, and a document for each. */
static int print_docs(struct act *act, struct dcp_error *err)
{
    static const char *const sums[] = { "n_damages", "n_blocks", "n_unproved",
                                        "hole_bytes", "read_bytes" };
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("verify");
    json_t *findings = json_array(), *each;
    size_t i;
    int rc = json_object_update(doc, json_array_get(act->docs, 0)) ? DCP_E_MEMORY : 0;
    rc |= dcp_doc_set(doc, "whole", json_boolean(!act->worst.code));
    for (size_t k = 0; k < DCP_ARRAY_LEN(sums); k++)
        rc |= dcp_doc_set(doc, sums[k], sum(act->docs, sums[k]));
    rc |= dcp_doc_set(doc, "seconds", dcp_doc_real(act->seconds));
    json_array_foreach(act->docs, i, each)
    {
        json_t *list = json_object_get(each, "damages");
        if (list && json_array_extend(findings, list))
            rc = DCP_E_MEMORY;
    }
    rc |= dcp_doc_set(doc, "damages", findings);
    rc |= dcp_doc_set(doc, "steps", json_incref(act->docs));
    return dcp_doc_print(act->m->out.file, rc ? NULL : doc, err);
}

static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    struct act act = { .m = m, .settings = settings };
    struct inspect_targets targets;
    bool in_parts = act.settings->subset;
    int rc = inspect_targets_find(m, act.settings->newest && !in_parts, &targets, err);
    act.docs = m->json ? json_array() : NULL;
    if (!rc)
        rc = in_parts ? verify_parts(&act, &targets, err)
                      : verify_all(&act, &targets, err);
    if (!rc && m->json && json_array_size(act.docs))
        rc = print_docs(&act, err);
    json_decref(act.docs);
    inspect_targets_fini(&targets);
    if (rc || !act.worst.code)
        return rc;
    *err = act.worst;
    if (act.n_bad > 1)
        dcp_error_prefix(err, "%zu checkpoints are incomplete, the worst", act.n_bad);
    return err->code;
}

#define AT(field) .at = offsetof(struct settings, field)
static const struct dcp_opt opts[] = {
    { 0, "newest", NULL, "of a run folder only the newest complete step", "Selection",
      DCP_OPT_FLAG, AT(newest) },
    { 0, "rate", "SIZE", "read at most this many bytes per second", "In the background",
      DCP_OPT_SIZE, AT(rate), .min = 65536 },
    { 0, "subset", "PERCENT",
      "scrub: only so much of a native step, or of the steps of a run in turn, by the "
      "digests of blocks; the next call continues from there",
      NULL, DCP_OPT_TEXT, AT(subset) },
    { 0, "state", "FILE",
      "file that keeps the position (default ~/.local/state/libdcp/scrub.json)", NULL,
      DCP_OPT_TEXT, AT(state) },
    { 0 },
};

static const struct dcp_example examples[] = {
    { "dcp-inspect verify run", "all steps of a run, the newest first" },
    { "dcp-inspect verify run --newest", "its newest complete step" },
    { "dcp-inspect verify run/step-00001200 --json", "one step; the findings as a list" },
    { "dcp-inspect verify run --rate 50M --subset 5%",
      "a part at a time, for a job that runs every hour" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "all are complete" },
    INSPECT_EXITS_FAILED,
};

const struct dcp_command inspect_verify = {
    .name = "verify",
    .operands = "PATH...",
    .min_operands = 1,
    .max_operands = -1,
    .purpose = "read everything, check every digest, and name what is corrupt",
    .about =
        "PATH is a run folder (all its steps, the newest first), one step, any file or "
        "folder of a known format, which is told by its content, or a tar archive (.tar, "
        ".tar.zst) of such a folder, of a run its newest step.\nChecks every digest of "
        "blocks and pieces, the fingerprint of every tensor, and that there are no gaps "
        "and no overlaps. It continues after an error, and names the file, the tensor "
        "and the rows. With several checkpoints the exit status is that of the worst.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .examples = examples,
    .exits = exits,
    .run = run,
};
