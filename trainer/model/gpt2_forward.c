/* gpt2_forward: from tokens to what the head reads. */
#include "base/mem.h"
#include "gpt2.h"

/* A linear layer: out[rows,n_out] = x T[rows,n_in] · weight + bias + add. */
static int linear(struct model *m, int64_t rows, int64_t n_in, int64_t n_out,
                  const void *x, const void *weight, const void *bias, const float *add,
                  float *out, struct dcp_error *err)
{
    struct ops_matmul shape = { .dtype = m->dtype, .m = rows, .n = n_out, .k = n_in };
    return m->ops->matmul(m->ctx, &shape, x, weight, bias, add, out, err);
}

static void norm(struct model *m, int64_t rows, const float *x, const void *weight,
                 const void *bias, struct gpt2_norm *out)
{
    m->ops->layer_norm(m->ctx, m->dtype, rows, m->config.n_embd,
                       m->config.layer_norm_epsilon, x, weight, bias, out->out, out->mean,
                       out->rstd);
}

/* attention(norm_1(x)). w: the unit's weights, also below. */
static int attention(struct model *m, struct gpt2_block *b, const void *const *w,
                     int batch, int seq_len, int begin, struct dcp_error *err)
{
    int64_t rows = (int64_t)batch * (seq_len - begin), c = m->config.n_embd;
    struct ops_attention shape = { .dtype = m->dtype,
                                   .batch = batch,
                                   .seq_len = seq_len,
                                   .n_head = m->config.n_head,
                                   .head_size = c / m->config.n_head,
                                   .begin = begin };
    norm(m, rows, b->x, w[LN_1_WEIGHT], w[LN_1_BIAS], &b->norm_1);
    DCP_TRY(linear(m, rows, c, 3 * c, b->norm_1.out, w[ATTN_WEIGHT], w[ATTN_BIAS], NULL,
                   b->qkv + begin * 3 * c, err));
    return m->ops->attention(m->ctx, &shape, b->qkv, b->att, b->lse, err);
}

/* x and attention's part, and the wide half of mlp(norm_2(…)). */
static int widen(struct model *m, struct gpt2_block *b, const void *const *w, int batch,
                 int seq_len, int begin, struct dcp_error *err)
{
    int64_t rows = (int64_t)batch * (seq_len - begin), c = m->config.n_embd;
    DCP_TRY(linear(m, rows, c, c, gpt2_at(m, b->att, begin * c), w[ATTN_PROJ_WEIGHT],
                   w[ATTN_PROJ_BIAS], b->x, b->mid, err));
    norm(m, rows, b->mid, w[LN_2_WEIGHT], w[LN_2_BIAS], &b->norm_2);
    struct ops_matmul fc = { .dtype = m->dtype, .m = rows, .n = 4 * c, .k = c };
    return m->ops->linear_gelu(m->ctx, &fc, b->norm_2.out, w[FC_WEIGHT], w[FC_BIAS],
                               b->fc, b->gelu, err);
}

static int narrow(struct model *m, struct gpt2_block *b, float *out, const void *const *w,
                  int64_t rows, struct dcp_error *err)
{
    int64_t c = m->config.n_embd;
    return linear(m, rows, 4 * c, c, b->gelu, w[FC_PROJ_WEIGHT], w[FC_PROJ_BIAS], b->mid,
                  out, err);
}

static int block(struct model *m, struct gpt2_block *b, float *out, const void *const *w,
                 int batch, int seq_len, int begin, struct dcp_error *err)
{
    DCP_TRY(attention(m, b, w, batch, seq_len, begin, err));
    DCP_TRY(widen(m, b, w, batch, seq_len, begin, err));
    return narrow(m, b, out, w, (int64_t)batch * (seq_len - begin), err);
}

int gpt2_recompute(struct model *m, int layer, const void *const *w, float *out,
                   int batch, int seq_len, struct dcp_error *err)
{
    struct gpt2_block *b = &((struct gpt2 *)m->activations)->blocks[layer];
    DCP_TRY(attention(m, b, w, batch, seq_len, 0, err));
    if (m->recompute.every)
        DCP_TRY(widen(m, b, w, batch, seq_len, 0, err));
    return out ? narrow(m, b, out, w, (int64_t)batch * seq_len, err) : DCP_OK;
}

int gpt2_forward(struct model *m, const struct model_hooks *hooks, const int32_t *tokens,
                 int batch, int seq_len, int begin, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    const void *w[MODEL_MAX_UNIT_PARAMS];
    int64_t rows = (int64_t)batch * (seq_len - begin);
    int rc = m->ops->put(m->ctx, a->tokens, tokens, (uint64_t)rows * sizeof *tokens, err);
    if (!rc)
        rc = hooks->acquire(hooks->self, 0, w, err);
    if (rc)
        return rc;
    m->ops->embed(m->ctx, m->dtype, rows, seq_len - begin, begin, m->config.n_embd,
                  a->tokens, w[WTE], w[WPE], a->blocks[0].x);
    hooks->release(hooks->self, 0);

    for (int l = 0; l < m->config.n_layer; l++) {
        rc = hooks->acquire(hooks->self, 1 + l, w, err);
        if (rc)
            return rc;
        float *out = l + 1 < m->config.n_layer ? a->blocks[l + 1].x : a->x;
        if (gpt2_host_x(m, l))
            rc = m->ops->get(m->ctx, gpt2_host_x(m, l), a->blocks[l].x,
                             (uint64_t)(rows * m->config.n_embd) * sizeof(float), err);
        if (!rc)
            rc = block(m, &a->blocks[l], out, w, batch, seq_len, begin, err);
        hooks->release(hooks->self, 1 + l);
        if (rc)
            return rc;
    }
    int last = m->n_units - 1;
    rc = hooks->acquire(hooks->self, last, w, err);
    if (rc)
        return rc;
    norm(m, rows, a->x, w[FINAL_WEIGHT], w[FINAL_BIAS], &a->final);
    hooks->release(hooks->self, last);
    return DCP_OK;
}
