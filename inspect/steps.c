/* steps: the steps of a run, one in a line. */
#include "verbs.h"

#include "base/buf.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/main.h"
#include "cli/source.h"
#include "cli/table.h"
#include <dcp/checkpoint.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

struct row {
    const struct dcp_step *step;
    struct dcp_marks marks;
    int64_t saved; /* when, in seconds since 1970; -1: unknown */
};

static const char *state_of(const struct dcp_step *step)
{
    return !step->complete      ? step->recoverable ? "recoverable" : "incomplete"
           : step->diverged     ? "not finite"
           : step->weights_only ? "weights only"
                                : "complete";
}

/* "1000" of a step of the run, the path of another folder, or "". */
static const char *base_of(const struct dcp_step *step, char out[80])
{
    long long number;
    char rest;
    if (!step->chain)
        return "";
    if (sscanf(step->base, "step-%lld%c", &number, &rest) == 1)
        snprintf(out, 80, "%lld", number);
    else
        dcp_str_escape(out, 80, step->base);
    return out;
}

static void add_marks(struct dcp_buf *text, const struct dcp_marks *marks)
{
    if (marks->pinned)
        dcp_buf_add_text(text, "pinned");
    for (int i = 0; i < marks->n_tags; i++)
        dcp_buf_add_fmt(text, "%s%s", text->size_bytes ? ", " : "", marks->tags[i]);
}

static int print_text(struct dcp_main *m, const struct row *rows, size_t n,
                      size_t n_unfinished, struct dcp_error *err)
{
    static const struct dcp_column columns[] = {
        { .title = "step", .right = true },
        { .title = "saved" },
        { .title = "size", .right = true },
        { .title = "ranks", .right = true },
        { .title = "state" },
        { .title = "from", .right = true },
        { .title = "marks", .wrap = true },
        { .title = "delta on" }, /* only where one is */
    };
    bool deltas = false;
    for (size_t i = 0; i < n; i++)
        deltas |= rows[i].step->chain > 0;
    struct dcp_table *table = dcp_table_new(columns, DCP_ARRAY_LEN(columns) - !deltas);
    if (!table)
        return dcp_error_memory(err, "a table");
    for (size_t i = 0; i < n; i++) {
        const struct dcp_step *step = rows[i].step;
        DCP_CLEANUP_BUF struct dcp_buf marks = { 0 };
        char saved[32] = "?", base[80];
        time_t at = (time_t)rows[i].saved;
        struct tm when;
        if (rows[i].saved >= 0 && localtime_r(&at, &when))
            strftime(saved, sizeof saved, "%Y-%m-%d %H:%M", &when);
        add_marks(&marks, &rows[i].marks);
        dcp_table_cell(table, "%lld", (long long)step->step);
        dcp_table_cell(table, "%s", saved);
        dcp_table_cell(table, "%s",
                       step->complete ? dcp_human_size(step->size_bytes).text : "");
        if (step->complete)
            dcp_table_cell(table, "%d", step->world_size);
        else
            dcp_table_cell(table, "%s", "");
        dcp_table_cell(table, "%s", state_of(step));
        if (step->complete && step->lineage.parent >= 0)
            dcp_table_cell(table, "%lld", (long long)step->lineage.parent);
        else
            dcp_table_cell(table, "%s", "");
        dcp_table_cell(table, "%s", marks.size_bytes ? (const char *)marks.data : "");
        if (deltas)
            dcp_table_cell(table, "%s", base_of(step, base));
    }
    int rc = dcp_table_print(table, &m->out, 0, err);
    dcp_table_free(table);
    if (!rc && n_unfinished)
        dcp_term_printf(
            &m->out, "unfinished: %s\n",
            dcp_human_items(n_unfinished, "temporary folder", "temporary folders").text);
    return rc;
}

static json_t *row_json(const struct row *row)
{
    const struct dcp_step *step = row->step;
    bool known = step->complete && step->lineage.run;
    bool parent = step->complete && step->lineage.parent >= 0;
    return json_pack(
        "{s:I, s:s, s:o, s:o, s:o, s:b, s:b, s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:o, "
        "s:o, s:i}",
        "step", (json_int_t)step->step, "name", step->name, "saved",
        row->saved >= 0 ? json_integer(row->saved) : json_null(), "size_bytes",
        step->complete ? dcp_doc_u64(step->size_bytes) : json_null(), "world",
        step->complete ? json_integer(step->world_size) : json_null(), "whole",
        (int)step->complete, "mendable", (int)step->recoverable, "why",
        step->complete ? json_null() : dcp_doc_text(step->why.message), "finite",
        step->complete ? json_boolean(!step->diverged) : json_null(), "weights_only",
        step->complete ? json_boolean(step->weights_only) : json_null(), "pinned",
        (int)row->marks.pinned, "tags", dcp_doc_tags(&row->marks), "run",
        known ? dcp_doc_hex(step->lineage.run) : json_null(), "parent",
        parent ? json_integer(step->lineage.parent) : json_null(), "fingerprint",
        step->complete && step->fingerprint ? dcp_doc_hex(step->fingerprint)
                                            : json_null(),
        "base", step->chain ? dcp_doc_text(step->base) : json_null(), "chain",
        step->chain);
}

static int print_json(struct dcp_main *m, const char *path, const struct row *rows,
                      size_t n, size_t n_unfinished, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("steps");
    json_t *list = json_array();
    int rc = dcp_doc_set(doc, "path", dcp_doc_text(path));
    for (size_t i = 0; i < n; i++)
        rc |= dcp_doc_add(list, row_json(&rows[i]));
    rc |= dcp_doc_set(doc, "steps", list);
    rc |= dcp_doc_set(doc, "n_unfinished", dcp_doc_u64(n_unfinished));
    return dcp_doc_print(m->out.file, rc ? NULL : doc, err);
}

static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    (void)settings;
    const char *path = m->operands.items[0];
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    DCP_CLEANUP_FREE struct row *rows = NULL;
    struct dcp_store store;
    size_t n = 0, n_unfinished = 0;
    if (!dcp_fs_is_dir(path))
        return dcp_error_set(err, DCP_E_NOT_FOUND, "there is no run folder '%s'", path);
    DCP_TRY(dcp_source_store(m, path, &store, err));
    int rc = dcp_steps(&store, &steps, &n, &n_unfinished, err);
    if (!rc && n == 0) {
        dcp_error_set(err, DCP_E_NOT_FOUND, "there is no step in '%s'", path);
        dcp_error_hint(err, "'dcp-inspect %s' says what it is", path);
        rc = DCP_E_NOT_FOUND;
    }
    if (!rc && !(rows = dcp_mem_calloc(n, sizeof *rows)))
        rc = dcp_error_memory(err, "the list of steps");
    for (size_t i = 0; i < n && !rc; i++) {
        struct dcp_error why = { 0 };
        rows[i].step = &steps[i];
        rows[i].saved = dcp_source_saved_at(path, steps[i].name);
        if (dcp_marks_read(&store, steps[i].name, &rows[i].marks, &why))
            dcp_log_write(&m->log, DCP_LOG_WARN, "%s", why.message);
    }
    if (!rc)
        rc = m->json ? print_json(m, path, rows, n, n_unfinished, err)
                     : print_text(m, rows, n, n_unfinished, err);
    dcp_store_free(&store);
    return rc;
}

static const struct dcp_example examples[] = {
    { "dcp-inspect steps run", "which steps are there, and which are good" },
    { "dcp-inspect steps run --json", "the same for a script" },
    { 0 },
};

const struct dcp_command inspect_steps = {
    .name = "steps",
    .operands = "RUN",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "list the steps of a run: when, size, ranks, state, marks",
    .about = "RUN is a run folder. Whether a step is complete is told by its headers: "
             "'verify' reads everything. \"from\" is the step that training went on "
             "from, where that was recorded. \"weights only\": its optimizer state is "
             "gone, and training cannot go on from it. 'dcp-reshard pin' and 'tag' make "
             "marks.",
    .settings_size_bytes = 1,
    .checks_no_signature = true,
    .examples = examples,
    .exits = inspect_exits,
    .run = run,
};
