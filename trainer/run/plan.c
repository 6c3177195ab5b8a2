#include "plan.h"

#include "base/mem.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/text.h"
#include "resume.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define INDENT 8 /* of what is said in a row */

struct plan {
    int world_size;
    int64_t n_elems;
    struct shard_bytes bytes; /* of a rank */
    uint64_t step_bytes;      /* of a saved step */
    struct resume_look begin;
};

static int make(struct run *run, struct plan *plan, struct dcp_error *err)
{
    const struct settings *s = &run->settings;
    struct shard_options cut;
    int n_params;
    const struct model_param *params = model_params(run->model, &n_params);
    *plan = (struct plan){ .world_size = run->options->ranks ? (int)run->options->ranks
                                                             : run->join->world_size };
    for (int p = 0; p < n_params; p++)
        plan->n_elems += params[p].n_elems;
    plan->step_bytes = (uint64_t)plan->n_elems * (s->dtype == DCP_F32 ? 12 : 14);
    DCP_TRY(resume_look(run, &plan->begin, err)); /* it may tell the batch */
    run_shard_options(s, false, &cut);
    return shard_plan(run->model, &cut, plan->world_size, false,
                      run_overlaps(s, false, plan->world_size), &plan->bytes, err);
}

/* "data    13 k tokens, …", broken where a terminal is too narrow. */
static void DCP_PRINTF(3, 4)
    row(const struct run *run, const char *label, const char *fmt, ...)
{
    const struct dcp_term *out = &run->main->out;
    DCP_CLEANUP_BUF struct dcp_buf wrapped = { 0 };
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (out->width)
        dcp_text_add_wrapped(&wrapped, text, INDENT, INDENT, out->width);
    bool is_wrapped = wrapped.size_bytes && !wrapped.failed;
    dcp_term_printf(out, "%-*s%s\n", INDENT, label,
                    is_wrapped ? (const char *)wrapped.data : text);
}

static void print_text(const struct run *run, const struct plan *plan)
{
    const struct settings *s = &run->settings;
    const struct shard_bytes *b = &plan->bytes;
    const char *resume = plan->begin.found ? "" : "nothing to resume";
    char every[48] = "at the end";
    row(run, "model", "%s, %d layers, %d heads, width %d: %s parameters", s->model.family,
        s->model.n_layer, s->model.n_head, s->model.n_embd,
        dcp_human_count((uint64_t)plan->n_elems).text);
    row(run, "batch",
        s->n_micros % plan->world_size
            ? "%" PRId64
              " samples of %d tokens = micro-batches of %d, %d at most on each "
              "of %d rank%s"
            : "%" PRId64 " samples of %d tokens = %d micro × %d accumulation × %d rank%s",
        s->train_batch_size, s->seq_len, s->micro_batch, s->accumulation,
        plan->world_size, plan->world_size == 1 ? "" : "s");
    row(run, "data", "%s tokens, %s; a model of frequencies alone has loss %.3f",
        dcp_human_count((uint64_t)data_tokens(run->train)).text,
        dcp_human_items((uint64_t)data_samples(run->train), "sample", "samples").text,
        data_unigram_entropy(run->train));
    row(run, "state",
        "ZeRO stage %d, %s: %s a rank = weights %s + gradients %s + optimizer %s",
        s->stage, settings_precision(s),
        dcp_human_size(b->weights + b->gradients + b->optimizer).text,
        dcp_human_size(b->weights).text, dcp_human_size(b->gradients).text,
        dcp_human_size(b->optimizer).text);
    if (b->swapped)
        row(run, "disk", "%s a rank in files, with buffers of %s in memory",
            dcp_human_size(b->swapped).text, dcp_human_size(b->buffers).text);
    if (s->save_every)
        snprintf(every, sizeof every, "every %" PRId64 " steps", s->save_every);
    row(run, "saves", "%s to %s, %s each", every, s->checkpoint_dir,
        dcp_human_size(plan->step_bytes).text);
    const struct dcp_storage storage = dcp_storage_of(s->checkpoint_dir);
    if (storage.shared)
        row(run, "storage", "%s, shared by machines%s%s", storage.name,
            storage.advice ? ": " : "", storage.advice ? storage.advice : "");
    row(run, "resume", "%s%s%s", resume,
        !plan->begin.found && plan->begin.what[0] ? "; weights from " : "",
        plan->begin.what);
    dcp_term_printf(&run->main->out, "nothing was trained or written (--dry-run)\n");
}

static int print_json(const struct run *run, const struct plan *plan,
                      struct dcp_error *err)
{
    const struct settings *s = &run->settings;
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("train");
    json_t *config = NULL;
    int rc = doc ? DCP_OK : dcp_error_memory(err, "the answer");
    if (!rc)
        rc = dcp_json_parse(s->text, strlen(s->text), "the configuration", &config, err);
    if (!rc)
        rc = dcp_doc_set(doc, "config", config);
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        { "world", (uint64_t)plan->world_size },
        { "parameters", (uint64_t)plan->n_elems },
        { "train_tokens", (uint64_t)data_tokens(run->train) },
        { "train_samples", (uint64_t)data_samples(run->train) },
        { "weight_bytes", plan->bytes.weights },
        { "gradient_bytes", plan->bytes.gradients },
        { "optimizer_bytes", plan->bytes.optimizer },
        { "disk_bytes", plan->bytes.swapped },
        { "step_bytes", plan->step_bytes },
    };
    for (size_t i = 0; !rc && i < DCP_ARRAY_LEN(rows); i++)
        rc = dcp_doc_set(doc, rows[i].name, dcp_doc_u64(rows[i].value));
    const struct dcp_storage storage = dcp_storage_of(s->checkpoint_dir);
    if (!rc)
        rc = dcp_doc_set(doc, "storage", json_string(storage.name));
    if (!rc)
        rc = dcp_doc_set(doc, "storage_shared", json_boolean(storage.shared));
    if (!rc)
        rc = dcp_doc_set(doc, "resume_step",
                         plan->begin.found && plan->begin.step >= 0
                             ? json_integer(plan->begin.step)
                             : json_null());
    return rc ? rc : dcp_doc_print(run->main->out.file, doc, err);
}

int plan_print(struct run *run, struct dcp_error *err)
{
    struct plan plan;
    int rc = make(run, &plan, err);
    if (rc || run->join->rank != 0)
        return rc;
    if (run->main->json)
        return print_json(run, &plan, err);
    print_text(run, &plan);
    return DCP_OK;
}
