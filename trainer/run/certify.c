#include "certify.h"

#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include "resume.h"
#include "step.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_METRICS_BYTES ((size_t)1 << 30)

struct certify {
    struct run *run;
    struct step step;
    int64_t *saved; /* numbers of the complete steps of the folder, rising */
    int64_t n_saved;
    char *metrics;    /* rank 0: metrics.jsonl, or NULL */
    int64_t from, to; /* to: trained up to it */
    int64_t n_compared, n_lines;
    int64_t first;   /* the first step that differs, -1: none */
    char what[200];  /* of it: "loss was 3.1 and is 3.2" */
    size_t n_differ; /* tensors of the saved step `in` */
    int64_t in;      /* -1: no saved step was found to differ */
    char tensor[160];
};

/* --- what was saved --- */

/* Steps after `from` that are complete; the same on all ranks. */
static int list_steps(struct certify *c, struct dcp_error *err)
{
    struct dcp_comm *comm = &c->run->join->comm;
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    size_t n = 0;
    int rc = comm->rank ? DCP_OK : dcp_steps(&c->run->store, &steps, &n, NULL, err);
    rc = dcp_agree(comm, rc, err);
    c->n_saved = 0;
    for (size_t i = 0; i < n; i++)
        c->n_saved += steps[i].complete && steps[i].step > c->from;
    if (!rc)
        rc = dcp_comm_bcast(comm, &c->n_saved, sizeof c->n_saved, 0, err);
    if (rc)
        return rc;
    if (!c->n_saved) {
        dcp_error_set(err, DCP_E_USAGE,
                      "'%s' has no complete step after %" PRId64 " to compare with",
                      c->run->settings.checkpoint_dir, c->from);
        dcp_error_hint(err, "'dcp-inspect steps %s' lists them",
                       c->run->settings.checkpoint_dir);
        return DCP_E_USAGE;
    }
    c->saved = dcp_mem_calloc((size_t)c->n_saved, sizeof *c->saved);
    rc = dcp_agree(comm, c->saved ? DCP_OK : dcp_error_memory(err, "steps"), err);
    if (rc)
        return rc;
    for (size_t i = 0, to = (size_t)c->n_saved; i < n && to; i++) /* newest first */
        if (steps[i].complete && steps[i].step > c->from)
            c->saved[--to] = steps[i].step;
    return dcp_comm_bcast(comm, c->saved, (size_t)c->n_saved * sizeof *c->saved, 0, err);
}

static bool is_saved(const struct certify *c, int64_t step)
{
    for (int64_t i = 0; i < c->n_saved; i++)
        if (c->saved[i] == step)
            return true;
    return false;
}

static void read_metrics(struct certify *c)
{
    DCP_CLEANUP_FREE char *path =
        dcp_fs_join(c->run->settings.checkpoint_dir, "metrics.jsonl");
    void *text = NULL;
    size_t size;
    if (path && !dcp_fs_read_file(path, MAX_METRICS_BYTES, &text, &size, NULL))
        c->metrics = text;
}

/* The last line of a step, or NULL; owned by the caller. */
static json_t *line_of(const struct certify *c, int64_t step)
{
    char begin[48];
    const char *found = NULL;
    json_t *line = NULL;
    int n = snprintf(begin, sizeof begin, "{\"step\":%" PRId64 ",", step);
    for (const char *at = c->metrics; at && *at; at = strchr(at, '\n'), at += at != NULL)
        if (!strncmp(at, begin, (size_t)n))
            found = at;
    if (found && dcp_json_parse(found, strcspn(found, "\n"), "a line", &line, NULL))
        return NULL;
    return line;
}

/* --- comparing --- */

static void differs(struct certify *c, int64_t step, const char *what, double was,
                    double is)
{
    if (c->first >= 0)
        return;
    c->first = step;
    snprintf(c->what, sizeof c->what, "%s was %.9g and is %.9g", what, was, is);
}

/* As they are written: to nine digits. */
static bool same_digits(double a, double b)
{
    char x[32], y[32];
    snprintf(x, sizeof x, "%.9g", a);
    snprintf(y, sizeof y, "%.9g", b);
    return !strcmp(x, y);
}

static void compare_line(struct certify *c, const struct metrics_step *m)
{
    DCP_CLEANUP_JSON json_t *line = line_of(c, c->run->at.step);
    const struct {
        const char *key;
        double is;
    } rows[] = { { "loss", m->loss }, { "grad_norm", m->grad_norm } };
    c->n_lines += line != NULL;
    const char *weights = json_string_value(json_object_get(line, "weights"));
    char hex[20];
    snprintf(hex, sizeof hex, "%016" PRIx64, m->weights);
    if (weights && m->weights && strcmp(weights, hex) != 0 && c->first < 0) {
        c->first = c->run->at.step;
        snprintf(c->what, sizeof c->what, "the weights were %.20s and are %s", weights,
                 hex);
    }
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        const json_t *was = json_object_get(line, rows[i].key);
        if (json_is_number(was) && !same_digits(json_number_value(was), rows[i].is))
            differs(c, c->run->at.step, rows[i].key, json_number_value(was), rows[i].is);
    }
}

static void compare_tensors(struct certify *c, const struct dcp_catalog *now,
                            const struct dcp_catalog *saved)
{
    for (size_t t = 0; t < now->n_tensors; t++) {
        const struct dcp_tensor *tensor = &now->tensors[t];
        int at = dcp_catalog_find(saved, tensor->name);
        const struct dcp_tensor *was = at < 0 ? NULL : &saved->tensors[at];
        if (was && was->dtype == tensor->dtype && was->has_fingerprint &&
            was->fingerprint == tensor->fingerprint)
            continue;
        if (!c->n_differ++)
            snprintf(c->tensor, sizeof c->tensor, "%s", DCP_SHOWN(tensor->name));
    }
    c->n_compared++;
    if (!c->n_differ)
        return;
    c->in = c->run->at.step;
    if (c->first < 0)
        c->first = c->in;
}

/* Every tensor of the state beside the step that was saved. Collective. */
static int compare_step(struct certify *c, struct dcp_error *err)
{
    struct run *run = c->run;
    struct dcp_load_options options = { .step = run->at.step };
    struct dcp_state nothing = { .layout = "replicated" };
    struct dcp_load_result result = { .catalog = NULL };
    struct dcp_catalog *now = NULL;
    int rc = step_fingerprints(run, false, &now, err);
    if (!rc)
        rc = dcp_load(&run->ctx, &options, &nothing, &result, err);
    if (!rc)
        compare_tensors(c, now, result.catalog);
    dcp_catalog_free(result.catalog);
    dcp_catalog_free(now);
    return rc;
}

/* --- told --- */

static json_t *step_json(int64_t step)
{
    return step < 0 ? json_null() : json_integer(step);
}

static int print_json(const struct certify *c, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("certify");
    int rc = dcp_doc_set(doc, "from", json_integer(c->from));
    rc |= dcp_doc_set(doc, "to", json_integer(c->to));
    rc |= dcp_doc_set(doc, "world", json_integer(c->run->join->world_size));
    rc |= dcp_doc_set(doc, "same", json_boolean(c->first < 0));
    rc |= dcp_doc_set(doc, "steps_compared", json_integer(c->n_compared));
    rc |= dcp_doc_set(doc, "losses_compared", json_integer(c->n_lines));
    rc |= dcp_doc_set(doc, "first_step", step_json(c->first));
    rc |= dcp_doc_set(doc, "first_tensor",
                      c->tensor[0] ? json_string(c->tensor) : json_null());
    rc |= dcp_doc_set(doc, "tensors_differ", json_integer((json_int_t)c->n_differ));
    return dcp_doc_print(c->run->main->out.file, rc ? NULL : doc, err);
}

static int print(const struct certify *c, const struct resume_result *resumed,
                 struct dcp_error *err)
{
    const struct dcp_term *out = &c->run->main->out;
    int world_size = c->run->join->world_size;
    if (c->run->join->rank)
        return DCP_OK;
    if (c->run->main->json)
        return print_json(c, err);
    if (c->first < 0)
        dcp_term_printf(out,
                        "the same  steps %" PRId64 " to %" PRId64
                        ", trained again on %d rank%s (saved by %d): %" PRId64
                        " losses, %" PRId64 " saved step%s bit for bit\n",
                        c->from + 1, c->to, world_size, world_size == 1 ? "" : "s",
                        resumed->world_size, c->n_lines, c->n_compared,
                        c->n_compared == 1 ? "" : "s");
    else if (c->what[0])
        dcp_term_printf(out, "differs   first at step %" PRId64 ": %s\n", c->first,
                        c->what);
    if (c->in >= 0)
        dcp_term_printf(out, "differs   in step %" PRId64 ": %zu tensor%s, first %s\n",
                        c->in, c->n_differ, c->n_differ == 1 ? "" : "s", c->tensor);
    return DCP_OK;
}

/* --- the run --- */

/* On to the end, or to the first saved step that differs: all after it do. */
static int replay(struct certify *c, struct dcp_error *err)
{
    struct run *run = c->run;
    int64_t last = c->saved[c->n_saved - 1], most = run->settings.steps;
    if (run->options->steps > 0 && most < last)
        last = most;
    while (run->at.step < last && c->in < 0) {
        struct metrics_step m = { .val_loss = 0 };
        DCP_TRY(step_train(&c->step, &m, err));
        if (c->step.stop)
            return dcp_error_set(err, DCP_E_INTERRUPTED,
                                 "interrupted after step %" PRId64, run->at.step);
        c->to = run->at.step;
        compare_line(c, &m);
        run_say(run, "step %" PRId64 "/%" PRId64 "  loss %.4f", c->to, last, m.loss);
        if (is_saved(c, c->to))
            DCP_TRY(compare_step(c, err));
    }
    return DCP_OK;
}

int certify_run(struct run *run, struct dcp_error *err)
{
    struct dcp_comm *comm = &run->join->comm;
    struct certify c = { .run = run, .first = -1, .in = -1 };
    struct resume_result resumed;
    int rc = resume_again(run, &resumed, err);
    c.from = c.to = run->at.step;
    if (!rc)
        rc = list_steps(&c, err);
    if (!rc)
        rc = dcp_agree(comm, step_init(&c.step, run, err), err);
    if (!rc && !comm->rank)
        read_metrics(&c);
    if (!rc)
        rc = replay(&c, err);
    if (!rc)
        rc = dcp_agree(comm, print(&c, &resumed, err), err);
    int64_t first = c.first;
    if (!rc)
        rc = dcp_comm_bcast(comm, &first, sizeof first, 0, err);
    if (!rc && first >= 0)
        rc = dcp_error_set(err, DCP_E_DIFFERS,
                           "training again from step %" PRId64
                           " is not what was trained, from step %" PRId64 " on",
                           c.from, first);
    step_fini(&c.step);
    free(c.saved);
    free(c.metrics);
    return rc;
}
