/* prune: retention outside of training. */
#include "base/mem.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "run_folder.h"
#include "verbs.h"

struct settings {
    int64_t keep, keep_every, keep_optimizer; /* keep 0: not given */
    double pin_timeout_s;
    bool yes;
};

struct act {
    struct dcp_main *m;
    bool yes;
    json_t *list, *thin; /* with --json; NULL once memory ran out */
    size_t n_going;      /* steps, and those whose optimizer state goes */
    uint64_t bytes;
};

enum { USUAL_KEEP = 3 };

static const char *const reasons[] = {
    [DCP_GOES] = "goes",
    [DCP_STAYS_NEW] = "one of the newest",
    [DCP_STAYS_EVERY] = "--keep-every",
    [DCP_STAYS_FINITE] = "finite, before the run diverged",
    [DCP_STAYS_MARKED] = "pinned or tagged",
    [DCP_STAYS_BASE] = "a delta is against it",
    [DCP_STAYS_UNKNOWN] = "it cannot be judged",
    [DCP_STAYS_READ] = "it is being read, or marked",
    [DCP_STAYS_STUCK] = "it cannot be removed",
    [DCP_STAYS_SIGNED] = "it is signed",
};

static void add_to(json_t **list, const struct dcp_step *step, enum dcp_stay stay,
                   uint64_t size_bytes)
{
    json_t *item = *list
                       ? json_pack("{s:I, s:b, s:s, s:o}", "step", (json_int_t)step->step,
                                   "goes", (int)(stay == DCP_GOES), "why", reasons[stay],
                                   "size_bytes", dcp_doc_u64(size_bytes))
                       : NULL;
    if (*list && dcp_doc_add(*list, item)) {
        json_decref(*list);
        *list = NULL;
    }
}

static void judged(void *self, const struct dcp_step *step, enum dcp_stay stay)
{
    struct act *act = self;
    const struct dcp_term *out = &act->m->out;
    bool goes = stay == DCP_GOES;
    act->n_going += goes;
    act->bytes += goes ? step->size_bytes : 0;
    if (act->m->json) {
        add_to(&act->list, step, stay, step->size_bytes);
        return;
    }
    dcp_term_printf(out, "%-9s %s  %s%s%s%s\n",
                    !goes      ? "stays"
                    : act->yes ? "removed"
                               : "goes",
                    step->name, dcp_human_size(step->size_bytes).text, goes ? "" : "  (",
                    goes ? "" : reasons[stay], goes ? "" : ")");
}

/* Of a step that stays. */
static void thinned(void *self, const struct dcp_step *step, enum dcp_stay stay)
{
    struct act *act = self;
    bool goes = stay == DCP_GOES;
    act->n_going += goes;
    act->bytes += goes ? step->optimizer_bytes : 0;
    if (act->m->json) {
        add_to(&act->thin, step, stay, step->optimizer_bytes);
        return;
    }
    dcp_term_printf(&act->m->out, "%-9s optimizer state of %s  %s%s%s%s\n",
                    !goes      ? "stays"
                    : act->yes ? "removed"
                               : "goes",
                    step->name, dcp_human_size(step->optimizer_bytes).text,
                    goes ? "" : "  (", goes ? "" : reasons[stay], goes ? "" : ")");
}

static int run(struct dcp_main *m, const void *given, struct dcp_error *err)
{
    const struct settings *s = given;
    struct act act = { .m = m,
                       .yes = s->yes,
                       .list = m->json ? json_array() : NULL,
                       .thin = m->json ? json_array() : NULL };
    const struct dcp_retention retention = {
        .keep = s->keep             ? (int)s->keep
                : s->keep_optimizer ? 0 /* every step stays */
                                    : USUAL_KEEP,
        .keep_every = (int)s->keep_every,
        .keep_optimizer = (int)s->keep_optimizer,
        .pin_timeout_s = s->pin_timeout_s > 0 ? s->pin_timeout_s : -1,
        .dry_run = !s->yes,
        .judged = judged,
        .thinned = thinned,
        .self = &act,
    };
    struct dcp_store store;
    DCP_TRY(reshard_open_folder(m, m->operands.items[0], &store, err));
    int rc = dcp_prune(&store, &retention, NULL, err);
    if (!rc && m->json) {
        DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("prune");
        int failed = dcp_doc_set(doc, "path", dcp_doc_text(store.root));
        failed |= dcp_doc_set(doc, "dry_run", json_boolean(!s->yes));
        failed |= dcp_doc_set(doc, "n_removed", dcp_doc_u64(act.n_going));
        failed |= dcp_doc_set(doc, "removed_bytes", dcp_doc_u64(act.bytes));
        failed |= dcp_doc_set(doc, "steps", json_incref(act.list));
        failed |= dcp_doc_set(doc, "optimizer_states", json_incref(act.thin));
        rc = dcp_doc_print(m->out.file, failed ? NULL : doc, err);
    }
    if (!m->json && s->keep_optimizer && act.n_going)
        dcp_term_printf(&m->out, "%s %s\n", dcp_human_size(act.bytes).text,
                        s->yes ? "were freed" : "would be freed");
    reshard_tell_dry(m, s->yes, act.n_going);
    json_decref(act.list);
    json_decref(act.thin);
    dcp_store_free(&store);
    return rc;
}

#define AT(field) .at = offsetof(struct settings, field)
static const struct settings defaults = { .pin_timeout_s = 3600 };
static const struct dcp_opt opts[] = {
    { 0, "keep", "N",
      "so many of the newest complete steps stay (default 3; with --keep-optimizer all)",
      "What stays", DCP_OPT_INT, AT(keep), .min = 1, .max = INT32_MAX },
    { 0, "keep-every", "N", "keep steps whose number is a multiple of N", NULL,
      DCP_OPT_INT, AT(keep_every), .max = INT32_MAX },
    { 0, "keep-optimizer", "N",
      "so many of the newest steps keep their optimizer state; older ones that stay hold "
      "their weights only",
      NULL, DCP_OPT_INT, AT(keep_optimizer), .max = INT32_MAX },
    { 0, "pin-timeout", "SECONDS", "how long a step to be removed waits for its readers",
      NULL, DCP_OPT_REAL, AT(pin_timeout_s) },
    { 0, "yes", NULL, "remove them; without it they are listed only", "Acting",
      DCP_OPT_FLAG, AT(yes) },
    { 0 },
};

static const struct dcp_example examples[] = {
    { "dcp-reshard prune run --keep 5", "what would go" },
    { "dcp-reshard prune run --keep 5 --keep-every 1000 --yes", "and remove them" },
    { "dcp-reshard prune run --keep-optimizer 2 --yes",
      "all weights stay, and two steps that training can go on from" },
    { 0 },
};

const struct dcp_command reshard_prune = {
    .name = "prune",
    .operands = "RUN",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "remove old steps of a run",
    .about =
        "By the rules of dcp-train's checkpoint.keep. Never removed are the newest "
        "complete step, steps that are pinned or tagged, and the last ones before a "
        "run diverged; steps that are being read not before --pin-timeout. Optimizer "
        "state stays in these, too, and where a step is being read, is signed, or "
        "is the base of a delta.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .checks_no_signature = true,
    .defaults = &defaults,
    .examples = examples,
    .exits = reshard_keeping_exits,
    .run = run,
};
