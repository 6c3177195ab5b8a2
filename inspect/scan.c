/* scan: what the pickles of a checkpoint would import and call. */
#include "verbs.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/source.h"
#include "cli/table.h"
#include "globals.h"
#include <errno.h>
#include <string.h>

struct settings {
    bool all;
};

/* A folder, a file, or an archive of a folder: it need not be a checkpoint. */
struct target {
    struct dcp_store store;
    struct dcp_source source;
    char *name;
};

static void close_target(struct target *t)
{
    if (t->store.ops)
        dcp_store_free(&t->store);
    free(t->name);
}

static int open_target(const struct dcp_main *m, const char *path, struct target *t,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL;
    const struct dcp_format *format;
    bool is_dir = dcp_fs_is_dir(path);
    if (!is_dir && !dcp_fs_exists(path))
        return errno == ENOENT || errno == ENOTDIR
                   ? dcp_error_set(err, DCP_E_NOT_FOUND, "there is no '%s'", path)
                   : dcp_error_sys(err, DCP_E_IO, errno, "cannot open '%s'", path);
    if (is_dir ? !(t->name = strdup("")) : !dcp_fs_split(path, &dir, &t->name))
        return dcp_error_memory(err, "a path");
    DCP_TRY(dcp_source_store(m, is_dir ? path : dir, &t->store, err));
    dcp_store_dir_follow(&t->store, true);
    t->source = (struct dcp_source){ &t->store, t->name, is_dir };
    if (is_dir || !dcp_bundle_probe(&t->store, t->name) ||
        !dcp_format_probe(&t->source, &format, NULL))
        return DCP_OK;
    struct dcp_store inner;
    struct dcp_error why = { 0 };
    int rc = dcp_store_bundle(&inner, &t->store, t->name, &why);
    if (rc == DCP_E_UNSUPPORTED) /* none that can be searched: the search tells of it */
        return DCP_OK;
    if (rc) {
        *err = why;
        return rc;
    }
    t->store = inner;
    t->name[0] = '\0';
    t->source.is_dir = true;
    return DCP_OK;
}

static json_t *global_json(const struct inspect_global *g)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:o}", "kind",
                     g->kind == DCP_GLOBAL_SAFE ? "safe" : dcp_global_kind_name(g->kind),
                     "name", dcp_doc_text(g->name), "file", dcp_doc_text(g->file),
                     "where", dcp_doc_text(g->where), "n", dcp_doc_u64(g->n));
}

static int print_json(struct dcp_main *m, const char *path,
                      const struct inspect_globals *globals, uint64_t n_pickles,
                      struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("scan");
    json_t *list = json_array();
    const size_t *n = globals->n_kinds;
    int rc = dcp_doc_set(doc, "path", dcp_doc_text(path));
    rc |= dcp_doc_set(doc, "safe",
                      json_boolean(!n[DCP_GLOBAL_UNKNOWN] && !n[DCP_GLOBAL_DANGEROUS]));
    rc |= dcp_doc_set(doc, "n_pickles", dcp_doc_u64(n_pickles));
    rc |= dcp_doc_set(doc, "n_safe", dcp_doc_u64(n[DCP_GLOBAL_SAFE]));
    rc |= dcp_doc_set(doc, "n_unknown", dcp_doc_u64(n[DCP_GLOBAL_UNKNOWN]));
    rc |= dcp_doc_set(doc, "n_dangerous", dcp_doc_u64(n[DCP_GLOBAL_DANGEROUS]));
    rc |= dcp_doc_set(doc, "globals", list);
    for (size_t i = 0; i < globals->n && !rc; i++)
        rc = dcp_doc_add(list, global_json(&globals->items[i]));
    return dcp_doc_print(m->out.file, rc ? NULL : doc, err);
}

static void add_row(struct dcp_table *table, const struct inspect_global *g)
{
    const char *file = g->file ? g->file : "";
    DCP_CLEANUP_FREE char *place =
        dcp_str_join(file, file[0] && g->where[0] ? "  " : "", g->where);
    dcp_table_cell(table, "%s", dcp_global_kind_name(g->kind));
    dcp_table_name(table, g->name);
    dcp_table_name(table, place ? place : "");
}

static int print_text(struct dcp_main *m, const char *path,
                      const struct inspect_globals *globals, uint64_t n_pickles, bool all,
                      struct dcp_error *err)
{
    static const struct dcp_column columns[] = {
        { .title = "verdict" },
        { .title = "name" },
        { .title = "where", .cut = true },
    };
    struct dcp_table *table = dcp_table_new(columns, DCP_ARRAY_LEN(columns));
    const size_t *n = globals->n_kinds;
    char shown[512];
    if (!table)
        return dcp_error_memory(err, "the table");
    size_t n_shown = all ? globals->n : n[DCP_GLOBAL_DANGEROUS] + n[DCP_GLOBAL_UNKNOWN];
    for (size_t i = 0; i < n_shown; i++)
        add_row(table, &globals->items[i]);
    int rc = n_shown ? dcp_table_print(table, &m->out, 0, err) : DCP_OK;
    dcp_table_free(table);
    bool bad = n[DCP_GLOBAL_DANGEROUS] || n[DCP_GLOBAL_UNKNOWN];
    dcp_term_printf(&m->out, "%s%s%s %s: ",
                    dcp_term_style(&m->out, bad ? DCP_STYLE_BAD : DCP_STYLE_GOOD),
                    bad                       ? "not known safe"
                    : n_pickles || globals->n ? "known safe"
                                              : "no pickle found",
                    dcp_term_style(&m->out, DCP_STYLE_OFF),
                    dcp_str_escape(shown, sizeof shown, path));
    dcp_term_printf(&m->out, "%s, %s dangerous",
                    dcp_human_items(n_pickles, "pickle", "pickles").text,
                    dcp_human_items(n[DCP_GLOBAL_DANGEROUS], "name", "names").text);
    dcp_term_printf(&m->out, ", %s unknown", dcp_human_count(n[DCP_GLOBAL_UNKNOWN]).text);
    dcp_term_printf(&m->out, ", %s known safe%s\n",
                    dcp_human_count(n[DCP_GLOBAL_SAFE]).text,
                    all || !n[DCP_GLOBAL_SAFE] ? "" : " (--all lists these)");
    return rc;
}

static int run(struct dcp_main *m, const void *given, struct dcp_error *err)
{
    const struct settings *settings = given;
    const char *path = m->operands.items[0];
    struct target target = { 0 };
    struct inspect_globals globals = { 0 };
    uint64_t n_pickles = 0;
    int rc = open_target(m, path, &target, err);
    if (rc == DCP_OK)
        rc = dcp_source_trust(m, &target.source, path, err);
    if (rc == DCP_OK)
        rc = inspect_globals_of_source(&target.source, &globals, &n_pickles, err);
    if (rc == DCP_OK)
        rc = m->json ? print_json(m, path, &globals, n_pickles, err)
                     : print_text(m, path, &globals, n_pickles, settings->all, err);
    if (rc == DCP_OK &&
        (globals.n_kinds[DCP_GLOBAL_DANGEROUS] || globals.n_kinds[DCP_GLOBAL_UNKNOWN]))
        rc = DCP_E_DIFFERS;
    inspect_globals_fini(&globals);
    close_target(&target);
    return rc;
}

static const struct dcp_opt opts[] = {
    { 'a', "all", NULL, "also what is known safe", "Output", DCP_OPT_FLAG,
      .at = offsetof(struct settings, all) },
    { 0 },
};

static const struct dcp_example examples[] = {
    { "dcp-inspect scan model.bin",
      "is it safe to load this file with weights_only=False?" },
    { "dcp-inspect scan downloads --json", "all files of a folder, for a script" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "all that the pickles name is known to build data, or none was found" },
    { 1, "something is not known to be safe to load" },
    INSPECT_EXITS_FAILED,
};

const struct dcp_command inspect_scan = {
    .name = "scan",
    .operands = "PATH",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "list what the pickles in it would import and call when loaded",
    .about = "PATH is any file or folder, all of which is searched: files of torch.save "
             "of all ages, distributed checkpoints, NumPy's arrays of objects, pickles, "
             "the objects of native steps, archives of such folders.\nNothing is loaded. "
             "A name is dangerous when it is known to run code, to import, or to open "
             "files; known safe when it builds data whatever its arguments are; unknown "
             "else, as classes of your own are. A pickle that cannot be read to its end "
             "counts as dangerous, a compressed file as unknown: it is not searched, "
             "nor is an archive in an archive.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .examples = examples,
    .exits = exits,
    .run = run,
};
