/* repair: lost or damaged files of a step from its parity. */
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

struct found {
    struct dcp_main *m;
    json_t *files;
};

/* A folder of a step has such files, also when its manifest is lost; a run folder has
 * steps. */
static bool is_step(const struct dcp_store *store)
{
    struct dcp_store_entry *entries;
    bool found = false;
    size_t n;
    if (store->ops->list(store->self, "", &entries, &n, NULL))
        return false;
    for (size_t i = 0; i < n; i++)
        found |= dcp_str_starts(entries[i].name, "shard-") ||
                 dcp_str_starts(entries[i].name, "parity-");
    dcp_store_list_free(entries, n);
    return found;
}

/* The newest step of a run folder. */
static int newest(struct dcp_store *run, const char *path, char **out,
                  struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    size_t n = 0;
    int rc = dcp_steps(run, &steps, &n, NULL, err);
    if (!rc && n == 0)
        rc = dcp_error_set(err, DCP_E_NOT_FOUND, "there is no step in '%s'", path);
    if (!rc && !(*out = strdup(steps[0].name)))
        rc = dcp_error_memory(err, "a path");
    return rc;
}

/* The store that a step lies in, and its name there. */
static int open_step(const char *path, struct dcp_store *store, char **out_name,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL;
    *out_name = NULL;
    if (!dcp_fs_is_dir(path))
        return dcp_error_set(err, DCP_E_NOT_FOUND, "there is no step '%s'", path);
    int rc = dcp_store_dir(store, path, false, err);
    if (rc || !is_step(store))
        return rc ? rc : newest(store, path, out_name, err);
    dcp_store_free(store);
    *store = (struct dcp_store){ 0 };
    if (!dcp_fs_split(path, &dir, out_name))
        return dcp_error_memory(err, "a path");
    return dcp_store_dir(store, dir, false, err);
}

static void on_repaired(void *self, const char *file, uint64_t size_bytes)
{
    struct found *found = self;
    const struct dcp_term *out = &found->m->out;
    char name[160];
    dcp_main_progress_hide(found->m);
    if (found->m->json) {
        if (dcp_doc_add(found->files, dcp_doc_text(file))) {
            json_decref(found->files);
            found->files = NULL;
        }
        return;
    }
    dcp_term_printf(out, "%srebuilt%s   %s  %s\n", dcp_term_style(out, DCP_STYLE_GOOD),
                    dcp_term_style(out, DCP_STYLE_OFF),
                    dcp_str_escape(name, sizeof name, file),
                    dcp_human_size(size_bytes).text);
}

static int print_result(struct found *found, const char *path,
                        const struct dcp_repair_result *r, double seconds,
                        struct dcp_error *err)
{
    const struct dcp_term *out = &found->m->out;
    char shown[512];
    if (found->m->json) {
        DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("repair");
        int rc = dcp_doc_set(doc, "step", dcp_doc_text(path));
        rc |= dcp_doc_set(doc, "files", found->files);
        found->files = NULL;
        rc |= dcp_doc_set(doc, "n_units", dcp_doc_u64(r->n_units));
        rc |= dcp_doc_set(doc, "read_bytes", dcp_doc_u64(r->size_bytes));
        rc |= dcp_doc_set(doc, "seconds", dcp_doc_real(seconds));
        return dcp_doc_print(out->file, rc ? NULL : doc, err);
    }
    dcp_term_printf(
        out, "%swhole%s     %s: %s, %s read in %s\n", dcp_term_style(out, DCP_STYLE_GOOD),
        dcp_term_style(out, DCP_STYLE_OFF), dcp_str_escape(shown, sizeof shown, path),
        r->n_files ? "every file is again what was saved" : "nothing was to be repaired",
        dcp_human_size(r->size_bytes).text, dcp_human_time(seconds).text);
    return DCP_OK;
}

static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    (void)settings;
    const char *path = m->operands.items[0];
    struct dcp_store store = { 0 };
    struct dcp_repair_result result = { 0 };
    struct found found = { .m = m, .files = m->json ? json_array() : NULL };
    const struct dcp_repair_options options = {
        .threads = m->threads,
        .progress = dcp_main_progress(m, "repairing"),
        .repaired = on_repaired,
        .self = &found,
    };
    DCP_CLEANUP_FREE char *name = NULL;
    double begin = dcp_clock_s();
    int rc = open_step(path, &store, &name, err);
    if (!rc)
        rc = dcp_repair(&store, name, &options, &result, err);
    dcp_main_progress_end(m);
    DCP_CLEANUP_FREE char *step = name ? dcp_fs_join(store.root, name) : NULL;
    if (rc == DCP_E_NOT_FOUND && name)
        dcp_error_hint(err, "parity is made when a step is saved: checkpoint.parity of "
                            "dcp-train, --parity of dcp-reshard");
    else if (rc)
        dcp_error_prefix(err, "cannot repair '%s'", step ? step : path);
    if (!rc) /* what parity gives is held by the step's own digests alone */
        rc = dcp_source_trust(m, &(struct dcp_source){ &store, name, true }, step, err);
    if (!rc)
        rc =
            print_result(&found, step ? step : path, &result, dcp_clock_s() - begin, err);
    json_decref(found.files);
    if (store.ops)
        dcp_store_free(&store);
    return rc;
}

static const struct dcp_example examples[] = {
    { "dcp-reshard repair run/step-00001200", "what is lost or damaged of this step" },
    { "dcp-reshard repair run", "the newest step of a run" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "the step is what was saved" },
    { 2, "used wrongly" },
    { 3, "not found, or it has no parity" },
    { 4, "more is lost than parity can rebuild; nothing was changed" },
    { 5, "another process holds the run folder, or there is no space" },
    { 6, "input or output failed" },
    { 9, "out of memory" },
    { 130, "interrupted" },
    { 0 },
};

const struct dcp_command reshard_repair = {
    .name = "repair",
    .operands = "STEP",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "rebuild lost or damaged files of a step from its parity",
    .about =
        "With parity M any M shards or parity files of a step can be lost or damaged, "
        "or any M of the units of 64 KiB that stand at the same place in them. Every "
        "unit is read and checked; what is wrong is written beside the step, proved, "
        "and put in its place file by file, so a repair can be interrupted and begun "
        "again. Damaged files are removed once the good ones are in their place.",
    .settings_size_bytes = 1,
    .examples = examples,
    .exits = exits,
    .run = run,
};
