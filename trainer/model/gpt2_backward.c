/* gpt2_backward: gradients, from the head back to the embedding. */
#include "base/mem.h"
#include "gpt2.h"

/* Of a linear layer, from dout T[rows,n_out]: adds to dweight and dbias; dx[rows,n_in] is
 * new. */
static int linear_backward(struct model *m, int64_t rows, int64_t n_in, int64_t n_out,
                           const void *x, const void *weight, const void *dout, float *dx,
                           float *dweight, float *dbias, struct dcp_error *err)
{
    struct ops_matmul to_weight = {
        .dtype = m->dtype, .m = n_in, .n = n_out, .k = rows, .trans_a = true
    };
    struct ops_matmul to_x = {
        .dtype = m->dtype, .m = rows, .n = n_in, .k = n_out, .trans_b = true
    };
    m->ops->sum_rows(m->ctx, m->dtype, rows, n_out, dout, dbias);
    DCP_TRY(m->ops->matmul(m->ctx, &to_weight, x, dout, NULL, dweight, dweight, err));
    return m->ops->matmul(m->ctx, &to_x, dout, weight, NULL, NULL, dx, err);
}

/* Adds to model->dx, from model->dpart. */
static void norm_backward(struct model *m, int64_t rows, const float *x,
                          const struct gpt2_norm *norm, const void *weight,
                          float *dweight, float *dbias)
{
    struct gpt2 *a = m->activations;
    m->ops->layer_norm_backward(m->ctx, m->dtype, rows, m->config.n_embd, a->dpart, x,
                                weight, norm->mean, norm->rstd, a->dx, dweight, dbias);
}

static const void *dx_as_operand(struct model *m, int64_t rows)
{
    struct gpt2 *a = m->activations;
    if (a->dx_t != a->dx)
        m->ops->cast(m->ctx, m->dtype, rows * m->config.n_embd, a->dx, a->dx_t);
    return a->dx_t;
}

/* model->dx is the gradient of the block's output before, of its input after. */
static int block_backward(struct model *m, struct gpt2_block *b, const void *const *w,
                          float *const *g, int batch, int seq_len, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    int64_t rows = (int64_t)batch * seq_len, c = m->config.n_embd;
    struct ops_attention shape = { .dtype = m->dtype,
                                   .batch = batch,
                                   .seq_len = seq_len,
                                   .n_head = m->config.n_head,
                                   .head_size = c / m->config.n_head };
    DCP_TRY(linear_backward(m, rows, 4 * c, c, b->gelu, w[FC_PROJ_WEIGHT],
                            dx_as_operand(m, rows), a->dwide, g[FC_PROJ_WEIGHT],
                            g[FC_PROJ_BIAS], err));
    m->ops->gelu_backward(m->ctx, m->dtype, rows * 4 * c, b->fc, a->dwide, a->dwide_t);
    DCP_TRY(linear_backward(m, rows, c, 4 * c, b->norm_2.out, w[FC_WEIGHT], a->dwide_t,
                            a->dpart, g[FC_WEIGHT], g[FC_BIAS], err));
    norm_backward(m, rows, b->mid, &b->norm_2, w[LN_2_WEIGHT], g[LN_2_WEIGHT],
                  g[LN_2_BIAS]);

    DCP_TRY(linear_backward(m, rows, c, c, b->att, w[ATTN_PROJ_WEIGHT],
                            dx_as_operand(m, rows), a->dpart, g[ATTN_PROJ_WEIGHT],
                            g[ATTN_PROJ_BIAS], err));
    DCP_TRY(m->ops->attention_backward(m->ctx, &shape, b->qkv, b->att, b->lse, a->dpart,
                                       a->dwide_t, err));
    DCP_TRY(linear_backward(m, rows, c, 3 * c, b->norm_1.out, w[ATTN_WEIGHT], a->dwide_t,
                            a->dpart, g[ATTN_WEIGHT], g[ATTN_BIAS], err));
    norm_backward(m, rows, b->x, &b->norm_1, w[LN_1_WEIGHT], g[LN_1_WEIGHT],
                  g[LN_1_BIAS]);
    return DCP_OK;
}

/* Computes again what the backward of a unit's segment needs, up to the unit itself, for
 * which the caller has the weights. */
static int segment_forward(struct model *m, const struct model_hooks *hooks, int unit,
                           int batch, int seq_len, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    const void *w[MODEL_MAX_UNIT_PARAMS];
    int first = model_recompute_from(m, unit);
    const float *x = first <= unit ? gpt2_host_x(m, first - 1) : NULL;
    uint64_t size_bytes =
        (uint64_t)batch * (uint64_t)seq_len * (uint64_t)m->config.n_embd * sizeof *x;
    if (x)
        DCP_TRY(m->ops->put(m->ctx, a->blocks[first - 1].x, x, size_bytes, err));
    for (int u = first; u < unit; u++) {
        DCP_TRY(hooks->acquire(hooks->self, u, w, err));
        int rc = gpt2_recompute(m, u - 1, w, a->blocks[u].x, batch, seq_len, err);
        hooks->release(hooks->self, u);
        if (rc)
            return rc;
    }
    return DCP_OK;
}

/* One unit with its weights and gradients: the final norm, or a block. */
static int unit_backward(struct model *m, const struct model_hooks *hooks, int unit,
                         int batch, int seq_len, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    const void *w[MODEL_MAX_UNIT_PARAMS];
    float *g[MODEL_MAX_UNIT_PARAMS];
    int64_t rows = (int64_t)batch * seq_len;
    DCP_TRY(segment_forward(m, hooks, unit, batch, seq_len, err));
    DCP_TRY(hooks->acquire(hooks->self, unit, w, err));
    int rc = hooks->grad_begin(hooks->self, unit, g, err);
    if (!rc && unit == m->n_units - 1) {
        m->ops->zero(m->ctx, a->dx, (uint64_t)(rows * m->config.n_embd) * sizeof *a->dx);
        norm_backward(m, rows, a->x, &a->final, w[FINAL_WEIGHT], g[FINAL_WEIGHT],
                      g[FINAL_BIAS]);
    } else if (!rc) {
        if (model_recompute_from(m, unit) <= unit)
            rc = gpt2_recompute(m, unit - 1, w, NULL, batch, seq_len, err);
        if (!rc)
            rc = block_backward(m, &a->blocks[unit - 1], w, g, batch, seq_len, err);
    }
    hooks->release(hooks->self, unit);
    return rc ? rc : hooks->grad_end(hooks->self, unit, err);
}

int gpt2_backward(struct model *m, const struct model_hooks *hooks, int batch,
                  int seq_len, float grad_scale, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    int64_t rows = (int64_t)batch * seq_len;
    float *g[MODEL_MAX_UNIT_PARAMS]; /* of the embedding: open until the end */
    DCP_TRY(hooks->grad_begin(hooks->self, 0, g, err));
    DCP_TRY(gpt2_head(m, hooks, rows, grad_scale, g[WTE], err));
    for (int unit = m->n_units - 1; unit > 0; unit--)
        DCP_TRY(unit_backward(m, hooks, unit, batch, seq_len, err));
    m->ops->embed_backward(m->ctx, rows, seq_len, m->config.n_embd, a->tokens, a->dx,
                           g[WTE], g[WPE]);
    return hooks->grad_end(hooks->self, 0, err);
}
