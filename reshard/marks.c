/* tag, pin, unpin: what people say of steps, and retention respects. */
#include "base/fs.h"
#include "base/mem.h"
#include "cli/doc.h"
#include "run_folder.h"
#include "verbs.h"
#include <stdio.h>
#include <string.h>

struct settings {
    bool remove; /* of tag */
};

static int add_tag(struct dcp_marks *marks, const char *tag, struct dcp_error *err)
{
    if (!dcp_tag_ok(tag))
        return dcp_error_set(
            err, DCP_E_USAGE,
            "'%s' is not a valid tag: up to %d letters, digits and -_.:+=/", tag,
            DCP_TAG_MAX);
    if (dcp_marks_has(marks, tag))
        return DCP_OK;
    if (marks->n_tags == DCP_MAX_TAGS)
        return dcp_error_set(err, DCP_E_USAGE, "a step has at most %d tags",
                             DCP_MAX_TAGS);
    snprintf(marks->tags[marks->n_tags++], sizeof marks->tags[0], "%s", tag);
    return DCP_OK;
}

static void remove_tag(struct dcp_marks *marks, const char *tag)
{
    int kept = 0;
    for (int i = 0; i < marks->n_tags; i++)
        if (strcmp(marks->tags[i], tag) != 0)
            memmove(marks->tags[kept++], marks->tags[i], sizeof marks->tags[0]);
    marks->n_tags = kept;
}

struct act {
    const struct dcp_main *m;
    const struct settings *s;
};

/* What the verb makes of the marks of a step. */
static int change(void *self, struct dcp_marks *marks, struct dcp_error *err)
{
    const struct act *act = self;
    const struct dcp_main *m = act->m;
    if (m->command != &reshard_tag) {
        marks->pinned = m->command == &reshard_pin;
        return DCP_OK;
    }
    for (size_t i = 1; i < m->operands.n; i++)
        if (act->s->remove)
            remove_tag(marks, m->operands.items[i]);
        else
            DCP_TRY(add_tag(marks, m->operands.items[i], err));
    return DCP_OK;
}

static json_t *marks_json(const char *path, const struct dcp_marks *marks)
{
    return json_pack("{s:o, s:b, s:o}", "path", dcp_doc_text(path), "pinned",
                     (int)marks->pinned, "tags", dcp_doc_tags(marks));
}

static void print(const struct dcp_main *m, const char *path,
                  const struct dcp_marks *marks)
{
    dcp_term_printf(&m->out, "%s: %s", path, marks->pinned ? "pinned" : "not pinned");
    for (int i = 0; i < marks->n_tags; i++)
        dcp_term_printf(&m->out, "%s%s", i ? ", " : "; tags ", marks->tags[i]);
    dcp_term_put(&m->out, "\n");
}

static int mark(struct dcp_main *m, const struct settings *s, const char *path,
                json_t *list, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL;
    struct dcp_marks marks;
    struct dcp_store store = { 0 };
    int rc = dcp_fs_split(path, &dir, &name) ? DCP_OK : dcp_error_memory(err, "a path");
    if (!rc)
        rc = reshard_open_folder(m, dir, &store, err);
    if (!rc)
        rc = dcp_marks_change(&store, name, change, &(struct act){ m, s }, &marks, err);
    if (rc == DCP_E_NOT_FOUND)
        dcp_error_hint(err, "name a step, as run/step-00001200; 'dcp-inspect steps RUN' "
                            "lists them");
    if (!rc && m->json && dcp_doc_add(list, marks_json(path, &marks)))
        rc = dcp_error_memory(err, "the JSON document");
    else if (!rc && !m->json)
        print(m, path, &marks);
    if (store.ops)
        dcp_store_free(&store);
    return rc;
}

static int run(struct dcp_main *m, const void *given, struct dcp_error *err)
{
    json_t *list = m->json ? json_array() : NULL;
    size_t n = m->command == &reshard_tag ? 1 : m->operands.n;
    int rc = DCP_OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = mark(m, given, m->operands.items[i], list, err);
    if (!rc && m->json) {
        DCP_CLEANUP_JSON json_t *doc = dcp_doc_new(m->command->name);
        int failed = dcp_doc_set(doc, "steps", json_incref(list));
        rc = dcp_doc_print(m->out.file, failed ? NULL : doc, err);
    }
    json_decref(list);
    return rc;
}

static const struct dcp_opt tag_opts[] = {
    { 'd', "remove", NULL, "remove the tags", "Acting", DCP_OPT_FLAG,
      .at = offsetof(struct settings, remove) },
    { 0 },
};

static const struct dcp_example tag_examples[] = {
    { "dcp-reshard tag run/step-00001200 best", "it stays as long as it has the tag" },
    { "dcp-reshard tag run/step-00001200 best --remove", "and no longer" },
    { 0 },
};
static const struct dcp_example pin_examples[] = {
    { "dcp-reshard pin run/step-00001200", "it stays" },
    { 0 },
};
static const struct dcp_example unpin_examples[] = {
    { "dcp-reshard unpin run/step-00001200", "it is removed when it is due" },
    { 0 },
};

const struct dcp_command reshard_tag = {
    .name = "tag",
    .operands = "STEP TAG...",
    .min_operands = 2,
    .max_operands = -1,
    .purpose = "tag a step, which keeps it from being removed",
    .about = "A run in training can be marked. The marks lie beside the step.",
    .opts = tag_opts,
    .settings_size_bytes = sizeof(struct settings),
    .checks_no_signature = true,
    .examples = tag_examples,
    .exits = reshard_keeping_exits,
    .run = run,
};

const struct dcp_command reshard_pin = {
    .name = "pin",
    .operands = "STEP...",
    .min_operands = 1,
    .max_operands = -1,
    .purpose = "keep steps from being removed",
    .about = "A run in training can be marked. The marks lie beside the step.",
    .settings_size_bytes = sizeof(struct settings),
    .checks_no_signature = true,
    .examples = pin_examples,
    .exits = reshard_keeping_exits,
    .run = run,
};

const struct dcp_command reshard_unpin = {
    .name = "unpin",
    .operands = "STEP...",
    .min_operands = 1,
    .max_operands = -1,
    .purpose = "let steps go again that were pinned",
    .about =
        "Tags keep a step, too: 'dcp-reshard tag STEP TAG --remove' takes them away.",
    .settings_size_bytes = sizeof(struct settings),
    .checks_no_signature = true,
    .examples = unpin_examples,
    .exits = reshard_keeping_exits,
    .run = run,
};
