/* gc: what killed processes left in a folder. */
#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "run_folder.h"
#include "verbs.h"

struct settings {
    bool yes, superseded, parts;
};

struct act {
    struct dcp_main *m;
    bool yes;
    json_t *list; /* with --json; NULL once memory ran out */
    size_t n_found, n_going;
    uint64_t bytes;
};

static const char *const kinds[] = {
    [DCP_LEFT_UNFINISHED] = "unfinished",
    [DCP_LEFT_TRASH] = "trash",
    [DCP_LEFT_NOTE] = "note on a step that is gone",
    [DCP_LEFT_SUPERSEDED] = "superseded",
    [DCP_LEFT_PARTS] = "reshard in parts",
};

/* Why it stays. */
static const char *const reasons[] = {
    [DCP_GOES] = "goes",
    [DCP_STAYS_MARKED] = "pinned or tagged",
    [DCP_STAYS_BASE] = "a delta is against it",
    [DCP_STAYS_READ] = "in use",
    [DCP_STAYS_STUCK] = "it cannot be removed",
    [DCP_STAYS_SUPERSEDED] = "--aside removes it, too",
    [DCP_STAYS_PARTS] = "not finished; --parts removes it, too",
};

static void found(void *self, const char *name, enum dcp_leftover kind,
                  uint64_t size_bytes, enum dcp_stay stay)
{
    struct act *act = self;
    bool goes = stay == DCP_GOES;
    char shown[200];
    act->n_found++;
    act->n_going += goes;
    act->bytes += goes ? size_bytes : 0;
    if (act->m->json) {
        json_t *item = json_pack(
            "{s:o, s:s, s:o, s:b, s:b, s:s}", "name", dcp_doc_text(name), "kind",
            kinds[kind], "size_bytes", dcp_doc_u64(size_bytes), "in_use",
            stay == DCP_STAYS_READ, "goes", (int)goes, "why", reasons[stay]);
        if (act->list && dcp_doc_add(act->list, item)) {
            json_decref(act->list);
            act->list = NULL;
        }
        return;
    }
    dcp_term_printf(&act->m->out, "%-9s %s  %s  (%s%s%s)\n",
                    !goes      ? "stays"
                    : act->yes ? "removed"
                               : "goes",
                    dcp_str_escape(shown, sizeof shown, name),
                    dcp_human_size(size_bytes).text, kinds[kind], goes ? "" : "; ",
                    goes ? "" : reasons[stay]);
}

static int run(struct dcp_main *m, const void *given, struct dcp_error *err)
{
    const struct settings *s = given;
    struct act act = { .m = m, .yes = s->yes, .list = m->json ? json_array() : NULL };
    const struct dcp_gc gc = {
        .dry_run = !s->yes,
        .superseded = s->superseded,
        .parts = s->parts,
        .found = found,
        .self = &act,
    };
    struct dcp_store store;
    DCP_TRY(reshard_open_folder(m, m->operands.items[0], &store, err));
    int rc = dcp_gc(&store, &gc, NULL, err);
    if ((!rc || act.n_found) && m->json) { /* what could not be removed stops nothing */
        DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("gc");
        int failed = dcp_doc_set(doc, "path", dcp_doc_text(store.root));
        failed |= dcp_doc_set(doc, "dry_run", json_boolean(!s->yes));
        failed |= dcp_doc_set(doc, "n_removed", dcp_doc_u64(act.n_going));
        failed |= dcp_doc_set(doc, "removed_bytes", dcp_doc_u64(act.bytes));
        failed |= dcp_doc_set(doc, "leftovers", json_incref(act.list));
        int printed = dcp_doc_print(m->out.file, failed ? NULL : doc, rc ? NULL : err);
        rc = rc ? rc : printed;
    }
    if (!rc && !m->json && act.n_found == 0)
        dcp_term_put(&m->out, "nothing is left over\n");
    reshard_tell_dry(m, s->yes, act.n_going);
    json_decref(act.list);
    dcp_store_free(&store);
    return rc;
}

#define AT(field) .at = offsetof(struct settings, field)
static const struct dcp_opt opts[] = {
    { 0, "aside", NULL,
      "also steps that a resume has superseded, unless read, pinned or tagged",
      "What goes", DCP_OPT_FLAG, AT(superseded) },
    { 0, "parts", NULL,
      "also the parts of reshards that were never finished, unless one is being made",
      NULL, DCP_OPT_FLAG, AT(parts) },
    { 0, "yes", NULL, "remove it; without it is listed only", "Acting", DCP_OPT_FLAG,
      AT(yes) },
    { 0 },
};

static const struct dcp_example examples[] = {
    { "dcp-reshard gc run", "what is left over in a run folder" },
    { "dcp-reshard gc . --yes", "after a reshard into this folder that was killed" },
    { 0 },
};

const struct dcp_command reshard_gc = {
    .name = "gc",
    .operands = "FOLDER",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "remove what killed processes left behind",
    .about =
        "FOLDER is a run folder, or one that targets were made in. Temporary and "
        "trash folders (.tmp-..., .trash-...) whose process is dead go, and notes on "
        "steps that are gone. A reshard in parts (.parts-...) waits for parts that other "
        "machines make: it stays until it is finished, or thrown away with --parts.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .checks_no_signature = true,
    .examples = examples,
    .exits = reshard_keeping_exits,
    .run = run,
};
