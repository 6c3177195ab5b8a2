/* gpt2_head: logits, loss, and their gradients, a share of the rows at a time: the logits
 * of all rows are never in memory at once. */
#include "base/mem.h"
#include "gpt2.h"

/* logits[n,V] = the final norm's rows from `row` on · wte^T */
static int logits_of(struct model *m, const void *wte, int64_t row, int64_t n,
                     float *logits, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    struct ops_matmul shape = { .dtype = m->dtype,
                                .m = n,
                                .n = m->config.vocab_size,
                                .k = m->config.n_embd,
                                .trans_b = true };
    const void *x = gpt2_at(m, a->final.out, row * m->config.n_embd);
    return m->ops->matmul(m->ctx, &shape, x, wte, NULL, NULL, logits, err);
}

/* From dlogits: dpart[n,C] = dlogits · wte, dwte[V,C] += dlogits^T · x. */
static int logits_backward(struct model *m, const void *wte, int64_t row, int64_t n,
                           float *dwte, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    int64_t vocab = m->config.vocab_size, c = m->config.n_embd;
    struct ops_matmul to_x = { .dtype = m->dtype, .m = n, .n = c, .k = vocab };
    DCP_TRY(m->ops->matmul(m->ctx, &to_x, a->dlogits, wte, NULL, NULL, a->dpart + row * c,
                           err));
    struct ops_matmul to_wte = {
        .dtype = m->dtype, .m = vocab, .n = c, .k = n, .trans_a = true
    };
    return m->ops->matmul(m->ctx, &to_wte, a->dlogits, gpt2_at(m, a->final.out, row * c),
                          NULL, dwte, dwte, err);
}

int gpt2_head(struct model *m, const struct model_hooks *hooks, int64_t rows,
              float grad_scale, float *dwte, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    const void *w[MODEL_MAX_UNIT_PARAMS];
    int rc = hooks->acquire(hooks->self, 0, w, err);
    if (rc)
        return rc;
    for (int64_t row = 0; row < rows && !rc; row += a->head_rows) {
        int64_t n = rows - row < a->head_rows ? rows - row : a->head_rows;
        rc = logits_of(m, w[WTE], row, n, a->logits, err);
        if (rc)
            break;
        m->ops->cross_entropy(m->ctx, m->dtype, n, m->config.vocab_size, a->logits,
                              m->targets + row, grad_scale / (float)rows, a->losses + row,
                              dwte ? a->dlogits : NULL);
        if (dwte)
            rc = logits_backward(m, w[WTE], row, n, dwte, err);
    }
    hooks->release(hooks->self, 0);
    return rc;
}

int gpt2_losses(struct model *m, const struct model_hooks *hooks, int64_t rows,
                struct dcp_error *err)
{
    return gpt2_head(m, hooks, rows, 1, NULL, err);
}

int gpt2_mean_loss(struct model *m, int64_t rows, double *out_loss, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    uint64_t size_bytes = (uint64_t)rows * sizeof *a->losses;
    int rc = m->ops->get(m->ctx, a->host_losses, a->losses, size_bytes, err);
    double sum = 0;
    for (int64_t row = 0; row < rows; row++)
        sum += a->host_losses[row];
    *out_loss = sum / (double)rows;
    return rc;
}

int gpt2_logits(struct model *m, const struct model_hooks *hooks, int64_t row,
                float *out_logits, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    const void *w[MODEL_MAX_UNIT_PARAMS];
    DCP_TRY(hooks->acquire(hooks->self, 0, w, err));
    int rc = logits_of(m, w[WTE], row, 1, a->logits, err);
    hooks->release(hooks->self, 0);
    if (!rc)
        rc = m->ops->get(m->ctx, out_logits, a->logits,
                         (uint64_t)m->config.vocab_size * sizeof *out_logits, err);
    return rc;
}
