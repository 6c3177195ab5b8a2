#include "eval.h"

#include "base/mem.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "resume.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* One micro-batch of windows in file order. */
static int batch_loss(struct run *run, int64_t batch, int n, double *out_loss,
                      struct dcp_error *err)
{
    const struct settings *s = &run->settings;
    for (int b = 0; b < n; b++) {
        size_t at = (size_t)b * (size_t)s->seq_len;
        data_window(run->val, batch * n + b, run->tokens + at, run->targets + at);
    }
    return model_loss(run->model, &run->hooks, run->tokens, run->targets, n, s->seq_len,
                      out_loss, err);
}

int eval_loss(struct run *run, double *out_loss, int64_t *out_batches,
              struct dcp_error *err)
{
    const struct settings *s = &run->settings;
    struct coll *coll = &run->join->coll;
    int64_t samples = data_samples(run->val);
    int n = samples < s->micro_batch ? (int)samples : s->micro_batch;
    int64_t batches = samples / n;
    if (s->eval_batches && s->eval_batches < batches)
        batches = s->eval_batches;
    if (batches > INT32_MAX)
        batches = INT32_MAX;
    DCP_CLEANUP_FREE double *losses = dcp_mem_calloc((size_t)batches, sizeof *losses);
    int rc = losses ? DCP_OK : dcp_error_memory(err, "the validation losses");
    /* Layers are gathered by all ranks together, so that all run equally often. */
    for (int64_t first = 0; !rc && first < batches; first += coll->world_size) {
        int64_t mine = first + coll->rank;
        double loss;
        rc = batch_loss(run, mine < batches ? mine : batches - 1, n, &loss, err);
        if (mine < batches)
            losses[mine] = loss;
    }
    if (!rc)
        rc = coll_all_reduce(coll, losses, (int)batches, err);
    if (rc)
        return rc;
    coll_tree_sum_f64(losses, (int)batches, 1);
    *out_loss = losses[0] / (double)batches;
    if (out_batches)
        *out_batches = batches;
    return DCP_OK;
}

static int print(struct run *run, int64_t step, double loss, int64_t batches,
                 struct dcp_error *err)
{
    if (run->join->rank != 0)
        return DCP_OK;
    if (!run->main->json) {
        if (step >= 0)
            dcp_term_printf(&run->main->out, "step %" PRId64 "  ", step);
        dcp_term_printf(&run->main->out, "loss %.4f  perplexity %.4g  (%s)\n", loss,
                        exp(loss),
                        dcp_human_items((uint64_t)batches, "batch", "batches").text);
        return DCP_OK;
    }
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("eval");
    if (!doc)
        return dcp_error_memory(err, "the answer");
    DCP_TRY(dcp_doc_set(doc, "step", step < 0 ? json_null() : json_integer(step)));
    DCP_TRY(dcp_doc_set(doc, "loss", dcp_doc_real(loss)));
    DCP_TRY(dcp_doc_set(doc, "batches", json_integer(batches)));
    return dcp_doc_print(run->main->out.file, doc, err);
}

/* Whether it is a loss of something that learned. */
static int check_loss(double loss, struct dcp_error *err)
{
    if (isfinite(loss))
        return DCP_OK;
    dcp_error_set(err, DCP_E_CORRUPT, "the loss is not finite: training has diverged");
    dcp_error_hint(err,
                   "'dcp-inspect steps' lists steps that did not; --resume N takes one");
    return DCP_E_CORRUPT;
}

int eval_run(struct run *run, struct dcp_error *err)
{
    struct dcp_comm *comm = &run->join->comm;
    struct resume_result resumed;
    int64_t batches = 0;
    double loss = 0;
    if (!run->val) {
        dcp_error_set(err, DCP_E_USAGE, "--eval needs data.val, the files to measure on");
        dcp_error_hint(err, "--set data.val=FILE");
        return dcp_agree(comm, DCP_E_USAGE, err);
    }
    int rc = resume_run(run, true, &resumed, err);
    if (!rc)
        rc = eval_loss(run, &loss, &batches, err);
    if (rc)
        return rc;
    rc = print(run, resumed.step, loss, batches, err);
    if (!rc)
        rc = check_loss(loss, err);
    return dcp_agree(comm, rc, err);
}
