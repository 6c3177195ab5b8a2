/* delta: checkpoints told by what differs from another one. */
#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/corruption.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/source.h"
#include "verbs.h"
#include <dcp/delta.h>
#include <string.h>

struct settings {
    const char *base, *onto;
    int64_t max_chain;
    bool dry_run, force;
};

enum act { MAKE, APPLY, REBASE };

/* How each act is called for. */
static const struct act_form {
    const char *name, *operands;
    size_t n_paths; /* with OUT */
} acts[] = {
    [MAKE] = { "make", "make BASE TARGET OUT", 3 },
    [APPLY] = { "apply", "apply DELTA OUT [--base BASE]", 2 },
    [REBASE] = { "rebase", "rebase DELTA OUT --onto BASE", 2 },
};

/* One act: what it reads, and what came of it. */
struct job {
    struct dcp_main *m;
    const struct settings *s;
    enum act act;
    struct dcp_location base, source; /* base: not of APPLY */
    const char *out;
    struct dcp_delta_result result;
    double seconds;
};

static int find_act(const struct dcp_main *m, enum act *out, struct dcp_error *err)
{
    const char *word = m->operands.items[0];
    for (size_t i = 0; i < DCP_ARRAY_LEN(acts); i++)
        if (strcmp(word, acts[i].name) == 0) {
            *out = (enum act)i;
            return DCP_OK;
        }
    return dcp_error_set(err, DCP_E_USAGE, "'%s' is none of make, apply and rebase",
                         word);
}

static int check(const struct job *job, struct dcp_error *err)
{
    const struct act_form *form = &acts[job->act];
    const struct settings *s = job->s;
    if (job->m->operands.n != form->n_paths + 1 || (job->act == REBASE) != !!s->onto)
        return dcp_error_set(err, DCP_E_USAGE, "it is called 'dcp-reshard delta %s'",
                             form->operands);
    if (s->base && job->act != APPLY)
        return dcp_error_set(err, DCP_E_USAGE, "--base is for 'delta apply'");
    if (s->max_chain && job->act == APPLY)
        return dcp_error_set(err, DCP_E_USAGE, "--max-chain is not for 'delta apply'");
    return DCP_OK;
}

static int open_both(struct job *job, struct dcp_error *err)
{
    const char **paths = job->m->operands.items + 1;
    const char *base = job->act == MAKE ? paths[0] : job->s->onto;
    const char *source = job->act == MAKE ? paths[1] : paths[0];
    job->out = paths[acts[job->act].n_paths - 1];
    if (job->act == APPLY)
        return dcp_source_open_delta(job->m, source, job->s->base, &job->source, err);
    DCP_TRY(dcp_source_open(job->m, base, &job->base, err));
    dcp_corruption_passed_over(&job->base, &job->m->log);
    DCP_TRY(dcp_source_open(job->m, source, &job->source, err));
    dcp_corruption_passed_over(&job->source, &job->m->log);
    return DCP_OK;
}

static int work(struct job *job, struct dcp_error *err)
{
    const struct dcp_delta_options options = {
        .max_chain = (int)job->s->max_chain,
        .threads = job->m->threads,
        .dry_run = job->s->dry_run,
        .force = job->s->force,
        .log = &job->m->log,
        .progress = dcp_main_progress(job->m, job->act == APPLY ? "applying" : "coding"),
    };
    double begin = dcp_clock_s();
    int rc = job->act == APPLY
                 ? dcp_delta_apply(&job->source, job->out, &options, &job->result, err)
                 : dcp_delta_make(&job->base, &job->source, job->out, &options,
                                  &job->result, err);
    dcp_main_progress_end(job->m);
    job->seconds = dcp_clock_s() - begin;
    return rc ? dcp_location_failed(&job->source, rc, err) : DCP_OK;
}

static const char *const ways[DCP_DELTA_N_WAYS] = { "unchanged", "sparse", "planes",
                                                    "raw" };

static double share(uint64_t part, uint64_t all)
{
    return all ? (double)part / (double)all : 0;
}

static void print_blocks(const struct dcp_term *out, const struct dcp_delta_result *r)
{
    const char *before = "";
    dcp_term_printf(out, "  changed   %.3g %% of %s\n",
                    100 * share(r->n_changed, r->n_elements),
                    dcp_human_items(r->n_elements, "element", "elements").text);
    dcp_term_put(out, "  blocks    ");
    for (int i = 0; i < DCP_DELTA_N_WAYS; i++) {
        if (!r->n_blocks[i])
            continue;
        dcp_term_printf(out, "%s%s %s", before, dcp_human_count(r->n_blocks[i]).text,
                        ways[i]);
        before = ", ";
    }
    dcp_term_put(out, "\n");
}

static void print(const struct job *job)
{
    const struct dcp_term *out = &job->m->out;
    const struct dcp_delta_result *r = &job->result;
    const char *path = DCP_SHOWN(job->out);
    if (job->act == APPLY)
        dcp_term_printf(out, "%s: %s in %s, every digest holds, %s\n", path,
                        dcp_human_size(r->full_bytes).text,
                        dcp_human_items(r->n_files, "file", "files").text,
                        dcp_human_time(job->seconds).text);
    else
        dcp_term_printf(out,
                        "%s: %s for %s in %s, %.3g times smaller, %s\n"
                        "  base      %s; number %d of its chain\n",
                        path, dcp_human_size(r->stored_bytes).text,
                        dcp_human_size(r->full_bytes).text,
                        dcp_human_items(r->n_files, "file", "files").text,
                        share(r->full_bytes, r->stored_bytes),
                        dcp_human_time(job->seconds).text, DCP_SHOWN(job->base.path),
                        r->chain);
    if (job->act != APPLY)
        print_blocks(out, r);
    if (job->s->dry_run)
        dcp_term_put(out, "nothing was written (--dry-run)\n");
}

static int print_json(const struct job *job, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("delta"), *blocks = json_object();
    const struct dcp_delta_result *r = &job->result;
    int rc = 0;
    for (int i = 0; i < DCP_DELTA_N_WAYS; i++)
        rc |= dcp_doc_set(blocks, ways[i], dcp_doc_u64(r->n_blocks[i]));
    rc |= dcp_doc_set(doc, "act", json_string(acts[job->act].name));
    rc |= dcp_doc_set(doc, "source", dcp_doc_text(job->source.path));
    rc |= dcp_doc_set(doc, "base", dcp_doc_text(job->base.path)); /* of apply null */
    rc |= dcp_doc_set(doc, "target", dcp_doc_text(job->out));
    rc |= dcp_doc_set(doc, "dry_run", json_boolean(job->s->dry_run));
    rc |= dcp_doc_set(doc, "chain", json_integer(r->chain));
    rc |= dcp_doc_set(doc, "n_files", dcp_doc_u64(r->n_files));
    rc |= dcp_doc_set(doc, "full_bytes", dcp_doc_u64(r->full_bytes));
    rc |= dcp_doc_set(doc, "stored_bytes", dcp_doc_u64(r->stored_bytes));
    rc |= dcp_doc_set(doc, "blocks", json_incref(blocks));
    rc |= dcp_doc_set(doc, "n_elements", dcp_doc_u64(r->n_elements));
    rc |= dcp_doc_set(doc, "n_changed", dcp_doc_u64(r->n_changed));
    rc |= dcp_doc_set(doc, "seconds", dcp_doc_real(job->seconds));
    return dcp_doc_print(job->m->out.file, rc ? NULL : doc, err);
}

/* Retention looks for deltas beside the steps of a run, and knows of no others. */
static void warn_of_retention(const struct job *job)
{
    DCP_CLEANUP_FREE char *base = realpath(job->base.path, NULL);
    DCP_CLEANUP_FREE char *out = realpath(job->out, NULL);
    DCP_CLEANUP_FREE char *run = NULL, *step = NULL, *dir = NULL, *name = NULL;
    struct dcp_marks marks = { 0 };
    struct dcp_store store;
    if (!base || !out || !dcp_fs_split(base, &run, &step) ||
        !dcp_fs_split(out, &dir, &name) || strcmp(run, dir) == 0 ||
        !dcp_str_glob("step-[0-9]*", step) || dcp_str_glob("*.aside*", step) ||
        dcp_store_dir(&store, run, false, NULL))
        return;
    int rc = dcp_marks_read(&store, step, &marks, NULL);
    dcp_store_free(&store);
    if (!rc && !marks.pinned && !marks.n_tags)
        dcp_log_write(&job->m->log, DCP_LOG_WARN,
                      "retention may remove '%s', which '%s' needs: 'dcp-reshard pin %s' "
                      "keeps it",
                      job->base.path, job->out, job->base.path);
}

static int run(struct dcp_main *m, const void *given, struct dcp_error *err)
{
    struct job job = { .m = m, .s = given };
    DCP_TRY(find_act(m, &job.act, err));
    DCP_TRY(check(&job, err));
    int rc = open_both(&job, err);
    if (rc == DCP_OK)
        rc = work(&job, err);
    if (rc == DCP_OK && job.act != APPLY && !job.s->dry_run)
        warn_of_retention(&job);
    if (rc == DCP_OK && m->json)
        rc = print_json(&job, err);
    else if (rc == DCP_OK)
        print(&job);
    dcp_location_close(&job.source);
    dcp_location_close(&job.base);
    return rc;
}

#define AT(field) .at = offsetof(struct settings, field)
static const struct dcp_opt opts[] = {
    { 0, "base", "FOLDER", "apply: where the base is, if it is not where it was", "Base",
      DCP_OPT_TEXT, AT(base) },
    { 0, "onto", "FOLDER", "rebase: the new base", NULL, DCP_OPT_TEXT, AT(onto) },
    { 0, "max-chain", "N",
      "make, rebase: at most N deltas one upon the other (default 8)", NULL, DCP_OPT_INT,
      AT(max_chain), .min = 1, .max = DCP_DELTA_MAX_CHAIN },
    { 'n', "dry-run", NULL, "say how large it would be, and write nothing", "Work",
      DCP_OPT_FLAG, AT(dry_run) },
    { 'f', "force", NULL, "replace the checkpoint that is at OUT, after success", NULL,
      DCP_OPT_FLAG, AT(force) },
    { 0 },
};

static const struct dcp_example examples[] = {
    { "dcp-reshard delta make run/step-00001000 run/step-00001010 d10",
      "d10 is step 1010, told by what differs from step 1000" },
    { "dcp-reshard delta make d10 run/step-00001020 d20", "step 1020, upon d10" },
    { "dcp-reshard delta apply d20 step-00001020", "the step again, byte for byte" },
    { "dcp-reshard delta rebase d20 d20b --onto run/step-00001000",
      "without d10 in between" },
    { "dcp-inspect verify d20", "every verb reads a delta as what it stands for" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "done" },
    { 2, "wrong usage" },
    { 3, "not found" },
    { 4, "a source is corrupt, or a base is not the one" },
    { 5, "the target exists, they do not go together, or the chain is too long" },
    { 6, "I/O error, or no space is left" },
    { 8, "no delta is made of that" },
    { 9, "out of memory" },
    { 130, "interrupted; nothing was written" },
    { 0 },
};

const struct dcp_command reshard_delta = {
    .name = "delta",
    .operands = "make|apply|rebase FOLDER... OUT",
    .min_operands = 3,
    .max_operands = 4,
    .purpose = "store a checkpoint by what differs from another one",
    .about =
        "A delta is a folder that holds, of each file of a checkpoint, what differs from "
        "the file of that name in another one, its base. Every program reads it as the "
        "checkpoint that it stands for, as long as the base is there. Steps of one run "
        "at one world size go together, and folders of other formats with the same "
        "tensors: few weights change between steps of reinforcement learning in 16 "
        "bits.\n"
        "make: OUT is TARGET as a delta against BASE, which may be a delta itself. "
        "apply: "
        "OUT is what DELTA stands for. rebase: OUT is the same as DELTA, against another "
        "base. Nothing appears at OUT before it was read back and proved.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .examples = examples,
    .exits = exits,
    .stops = true,
    .run = run,
};
