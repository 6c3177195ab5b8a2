/* show: what is this, is it complete, which steps are there, can I resume from it. */
#include "verbs.h"

#include "base/fs.h"
#include "base/mem.h"
#include "checkpoint.h"
#include "cli/human.h"
#include "cli/source.h"
#include "facts.h"
#include "show.h"
#include <string.h>

/* Steps of a run folder, none elsewhere, and none whose signature is not checked. */
static int find_steps(const struct dcp_main *m, struct inspect_shown *shown,
                      struct dcp_error *err)
{
    if (m->trusted || !inspect_is_run(&shown->checkpoint.location))
        return DCP_OK;
    return dcp_steps(shown->checkpoint.location.store, &shown->steps, &shown->n_steps,
                     &shown->n_unfinished, err);
}

/* A run folder whose steps are all corrupt cannot be opened: what is in it can be told.
 */
static int list_corrupt(struct dcp_main *m, const char *path, struct dcp_error *err)
{
    struct inspect_shown shown = { .path = path };
    struct dcp_store store;
    if (!dcp_fs_is_dir(path) || dcp_source_store(m, path, &store, NULL))
        return err->code;
    int rc = dcp_steps(&store, &shown.steps, &shown.n_steps, &shown.n_unfinished, NULL);
    bool listed = rc == DCP_OK && (shown.n_steps || shown.n_unfinished);
    if (listed) /* then the hint would say to do what is done here */
        err->hint[0] = '\0';
    if (listed)
        rc = m->json ? inspect_show_json(m, &shown, NULL)
                     : inspect_show_text(m, &shown, NULL);
    free(shown.steps);
    dcp_store_free(&store);
    return err->code;
}

static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    (void)settings;
    struct inspect_shown shown = { .path = m->operands.items[0] };
    int rc = inspect_open(m, shown.path, &shown.checkpoint, err);
    if (!m->trusted && (rc == DCP_E_CORRUPT || rc == DCP_E_NOT_FOUND))
        return list_corrupt(m, shown.path, err);
    if (rc)
        return rc;
    shown.path = shown.checkpoint.location.path;
    rc = find_steps(m, &shown, err);
    if (rc == DCP_OK)
        rc = inspect_facts_gather(shown.checkpoint.catalog, &shown.facts, err);
    if (rc == DCP_OK) {
        const struct dcp_catalog *catalog = shown.checkpoint.catalog;
        int complete = catalog->head ? DCP_OK : dcp_catalog_check(catalog, &shown.hole);
        rc = m->json ? inspect_show_json(m, &shown, err)
                     : inspect_show_text(m, &shown, err);
        const struct dcp_error *corruption = &shown.checkpoint.location.corruption;
        if (rc == DCP_OK && (complete || corruption->code)) {
            *err = complete ? shown.hole : *corruption;
            rc = err->code;
            if (!complete)
                dcp_error_hint(err, "'dcp-reshard repair %s' rebuilds it from its parity",
                               shown.path);
        }
    }
    inspect_facts_fini(&shown.facts);
    free(shown.steps);
    inspect_close(&shown.checkpoint);
    return rc;
}

static const struct dcp_example examples[] = {
    { "dcp-inspect run", "the newest complete step of a run, and the steps before it" },
    { "dcp-inspect run/step-00001200", "one step" },
    { "dcp-inspect show model.safetensors --json", "the same facts for a script" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "it is complete" },
    { 2, "wrong usage" },
    { 3, "not found" },
    { 4, "corrupt, also where parity gives what is lost" },
    { 6, "I/O error" },
    { 8, "not a known format" },
    { 9, "out of memory" },
    { 130, "interrupted" },
    { 0 },
};

const struct dcp_command inspect_show = {
    .name = "show",
    .operands = "PATH",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "what is this, is it complete, which steps, can I resume here",
    .about = INSPECT_ABOUT_PATH "\nReads headers only: 'verify' reads everything.",
    .settings_size_bytes = 1,
    .examples = examples,
    .exits = exits,
    .run = run,
};
