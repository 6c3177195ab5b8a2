/* repair: lost or corrupt files of a step from its parity. */
#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/source.h"
#include "verbs.h"
#include <dcp/dcp.h>
#include <string.h>

/* The whole act: as many steps as are named. */
struct act {
    struct dcp_main *m;
    json_t *docs;          /* with --json: one for each step that was looked at */
    json_t *files;         /* of the step that is being repaired */
    size_t n_steps, n_bad; /* looked at, and incomplete now */
    struct dcp_error worst;
};

static void on_repaired(void *self, const char *file, uint64_t size_bytes)
{
    struct act *act = self;
    const struct dcp_term *out = &act->m->out;
    dcp_main_progress_hide(act->m);
    if (act->m->json) {
        if (dcp_doc_add(act->files, dcp_doc_text(file))) {
            json_decref(act->files);
            act->files = NULL;
        }
        return;
    }
    dcp_term_printf(out, "%srebuilt%s   %s  %s\n", dcp_term_style(out, DCP_STYLE_GOOD),
                    dcp_term_style(out, DCP_STYLE_OFF), DCP_SHOWN(file),
                    dcp_human_size(size_bytes).text);
}

static int tell(struct act *act, const char *path, const struct dcp_repair_result *r,
                double seconds, struct dcp_error *err)
{
    const struct dcp_term *out = &act->m->out;
    char shown[512];
    if (act->m->json) {
        json_t *doc = json_object();
        int rc = dcp_doc_set(doc, "step", dcp_doc_text(path));
        rc |= dcp_doc_set(doc, "files", act->files);
        act->files = NULL;
        rc |= dcp_doc_set(doc, "n_units", dcp_doc_u64(r->n_units));
        rc |= dcp_doc_set(doc, "read_bytes", dcp_doc_u64(r->size_bytes));
        rc |= dcp_doc_set(doc, "seconds", dcp_doc_real(seconds));
        rc |= dcp_doc_add(act->docs, doc);
        return rc ? dcp_error_memory(err, "the JSON document") : DCP_OK;
    }
    dcp_term_printf(
        out, "%scomplete%s  %s: %s, %s read in %s\n", dcp_term_style(out, DCP_STYLE_GOOD),
        dcp_term_style(out, DCP_STYLE_OFF), dcp_str_escape(shown, sizeof shown, path),
        r->n_files ? "every file is again what was saved" : "nothing needed repair",
        dcp_human_size(r->size_bytes).text, dcp_human_time(seconds).text);
    return DCP_OK;
}

static int repair(struct act *act, const struct dcp_store *store, const char *name,
                  const char *path, struct dcp_error *err)
{
    struct dcp_repair_result result = { 0 };
    const struct dcp_repair_options options = {
        .threads = act->m->threads,
        .progress = dcp_main_progress(act->m, "repairing"),
        .repaired = on_repaired,
        .self = act,
    };
    json_decref(act->files);
    act->files = act->m->json ? json_array() : NULL;
    double begin = dcp_clock_s();
    act->n_steps++;
    int rc = dcp_repair(store, name, &options, &result, err);
    dcp_main_progress_end(act->m);
    if (rc == DCP_E_NOT_FOUND)
        dcp_error_hint(err, "parity is made when a step is saved: checkpoint.parity of "
                            "dcp-train, --parity of dcp-reshard");
    else if (rc)
        dcp_error_prefix(err, "cannot repair '%s'", path);
    if (!rc) /* what parity gives is held by the step's own digests alone */
        rc = dcp_source_trust(act->m, &(struct dcp_source){ store, name, true }, path,
                              err);
    return rc ? rc : tell(act, path, &result, dcp_clock_s() - begin, err);
}

/* What ends the act is returned; what is wrong with one step is noted. */
static int note(struct act *act, const struct dcp_error *why, struct dcp_error *err)
{
    if (why->code == DCP_E_MEMORY || why->code == DCP_E_INTERRUPTED) {
        *err = *why;
        return why->code;
    }
    bool worse = !act->worst.code ||
                 (why->code == DCP_E_CORRUPT && act->worst.code != DCP_E_CORRUPT);
    const struct dcp_error *lesser = worse ? &act->worst : why;
    if (lesser->code)
        dcp_log_write(&act->m->log, DCP_LOG_WARN, "%s", lesser->message);
    act->n_bad++;
    if (worse)
        act->worst = *why;
    return DCP_OK;
}

/* Every step of a run. One that has no parity, and wants none, is no failure as long as
 * another one has. */
static int repair_run(struct act *act, const struct dcp_store *store, const char *path,
                      struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    struct dcp_error without = { 0 };
    size_t n = 0, n_parity = 0;
    char shown[512];
    int rc = dcp_steps(store, &steps, &n, NULL, err);
    if (!rc && n == 0)
        rc = dcp_error_set(err, DCP_E_NOT_FOUND, "there is no step in '%s'", path);
    for (size_t i = 0; i < n && !rc; i++) {
        DCP_CLEANUP_FREE char *step = dcp_fs_join(path, steps[i].name);
        struct dcp_error why = { 0 };
        int failed = step ? repair(act, store, steps[i].name, step, &why)
                          : dcp_error_memory(&why, "a path");
        bool has_none = failed == DCP_E_NOT_FOUND;
        n_parity += !has_none;
        if (has_none && !steps[i].complete) { /* it wants one */
            why = (struct dcp_error){ 0 };
            failed = dcp_error_set(&why, DCP_E_CORRUPT, "'%s' has no parity, and %s",
                                   step, steps[i].why.message);
        } else if (has_none) {
            without = why;
            failed = DCP_OK;
            if (!act->m->json)
                dcp_term_printf(&act->m->out, "no parity %s\n",
                                dcp_str_escape(shown, sizeof shown, step));
        }
        if (failed)
            rc = note(act, &why, err);
    }
    return !rc && n_parity == 0 && without.code ? note(act, &without, err) : rc;
}

/* A step, or a run folder. */
static int repair_operand(struct act *act, const char *path, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL;
    struct dcp_store store = { 0 };
    if (!dcp_fs_is_dir(path))
        return dcp_error_set(err, DCP_E_NOT_FOUND, "there is no step '%s'", path);
    int rc = dcp_source_store(act->m, path, &store, err);
    if (!rc && !dcp_is_step(&store)) {
        rc = repair_run(act, &store, path, err);
    } else if (!rc) {
        dcp_store_free(&store);
        rc = dcp_fs_split(path, &dir, &name) ? dcp_source_store(act->m, dir, &store, err)
                                             : dcp_error_memory(err, "a path");
        if (!rc)
            rc = repair(act, &store, name, path, err);
    }
    if (store.ops)
        dcp_store_free(&store);
    return rc;
}

/* The first step's facts, the sums of all, and a document for each. */
static int print_docs(const struct act *act, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("repair");
    json_t *files = json_array(), *each;
    json_int_t n_units = 0, read_bytes = 0;
    double seconds = 0;
    size_t i;
    int rc = json_object_update(doc, json_array_get(act->docs, 0)) ? DCP_E_MEMORY : 0;
    json_array_foreach(act->docs, i, each)
    {
        rc |= json_array_extend(files, json_object_get(each, "files"));
        n_units += json_integer_value(json_object_get(each, "n_units"));
        read_bytes += json_integer_value(json_object_get(each, "read_bytes"));
        seconds += json_number_value(json_object_get(each, "seconds"));
    }
    rc |= dcp_doc_set(doc, "files", files);
    rc |= dcp_doc_set(doc, "n_units", json_integer(n_units));
    rc |= dcp_doc_set(doc, "read_bytes", json_integer(read_bytes));
    rc |= dcp_doc_set(doc, "seconds", dcp_doc_real(seconds));
    rc |= dcp_doc_set(doc, "steps", json_incref(act->docs));
    return dcp_doc_print(act->m->out.file, rc ? NULL : doc, err);
}

static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    (void)settings;
    struct act act = { .m = m, .docs = m->json ? json_array() : NULL };
    int rc = DCP_OK;
    for (size_t i = 0; i < m->operands.n && !rc; i++) {
        struct dcp_error why = { 0 };
        if (repair_operand(&act, m->operands.items[i], &why))
            rc = note(&act, &why, err);
    }
    if (!rc && m->json && json_array_size(act.docs))
        rc = print_docs(&act, err);
    json_decref(act.docs);
    json_decref(act.files);
    if (rc || !act.worst.code)
        return rc;
    *err = act.worst;
    if (act.n_bad > 1)
        dcp_error_prefix(err, "%zu steps are incomplete, the worst", act.n_bad);
    return err->code;
}

static const struct dcp_example examples[] = {
    { "dcp-reshard repair run/step-00001200", "what is lost or corrupt of this step" },
    { "dcp-reshard repair run", "every step of a run" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "the steps are what was saved" },
    { 2, "wrong usage" },
    { 3, "not found, or it has no parity" },
    { 4, "more is lost than parity can rebuild; nothing was changed" },
    { 5, "another process holds the run folder, or there is no space" },
    { 6, "I/O error" },
    { 9, "out of memory" },
    { 130, "interrupted" },
    { 0 },
};

const struct dcp_command reshard_repair = {
    .name = "repair",
    .operands = "STEP...",
    .min_operands = 1,
    .max_operands = -1,
    .purpose = "rebuild lost or corrupt files of a step from its parity",
    .about = "STEP is a step, or a run folder: all its steps. With parity M any M shards "
             "or parity files of a step can be lost or corrupt, or any M of the units of "
             "64 KiB that stand at the same place in them. Every unit is read and "
             "checked; what is wrong is written beside the step, proved, and put in its "
             "place file by file, so a repair can be interrupted and begun again. "
             "Corrupt files are removed once the good ones are in their place.",
    .settings_size_bytes = 1,
    .examples = examples,
    .exits = exits,
    .run = run,
};
