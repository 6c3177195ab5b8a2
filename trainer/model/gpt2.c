/* gpt2: its parameters, and the memory of its activations. */
#include "gpt2.h"
#include "trainer/ops/carve.h"
#include <math.h>
#include <stdio.h>

#define INIT_STD 0.02f
#define HEAD_BYTES (INT64_C(128) << 20) /* of logits at a time */

/* Shapes in units of n_embd; rows 0: one dimension. */
static const struct {
    const char *name;
    int rows, columns;
    bool residual; /* its output joins the residual stream: a smaller start */
} block_params[BLOCK_PARAMS] = {
    [LN_1_WEIGHT] = { "ln_1.weight", 0, 1, false },
    [LN_1_BIAS] = { "ln_1.bias", 0, 1, false },
    [ATTN_WEIGHT] = { "attn.c_attn.weight", 1, 3, false },
    [ATTN_BIAS] = { "attn.c_attn.bias", 0, 3, false },
    [ATTN_PROJ_WEIGHT] = { "attn.c_proj.weight", 1, 1, true },
    [ATTN_PROJ_BIAS] = { "attn.c_proj.bias", 0, 1, false },
    [LN_2_WEIGHT] = { "ln_2.weight", 0, 1, false },
    [LN_2_BIAS] = { "ln_2.bias", 0, 1, false },
    [FC_WEIGHT] = { "mlp.c_fc.weight", 1, 4, false },
    [FC_BIAS] = { "mlp.c_fc.bias", 0, 4, false },
    [FC_PROJ_WEIGHT] = { "mlp.c_proj.weight", 4, 1, true },
    [FC_PROJ_BIAS] = { "mlp.c_proj.bias", 0, 1, false },
};

/* rows 0: one dimension, a bias, or the weight of a norm. */
static void param_init(struct model_param *param, int unit, int64_t rows, int64_t columns,
                       enum model_init init, float std)
{
    param->ndim = rows ? 2 : 1;
    param->shape[0] = rows ? rows : columns;
    param->shape[1] = rows ? columns : 1;
    param->n_elems = rows ? rows * columns : columns;
    param->unit = unit;
    param->decay = rows != 0;
    param->init = init;
    param->init_std = init == MODEL_INIT_NORMAL ? std : 0;
}

static void norm_init(struct model_param *params, int unit, int64_t width,
                      const char *prefix)
{
    snprintf(params[0].name, sizeof params[0].name, "%s.weight", prefix);
    snprintf(params[1].name, sizeof params[1].name, "%s.bias", prefix);
    param_init(&params[0], unit, 0, width, MODEL_INIT_ONES, 0);
    param_init(&params[1], unit, 0, width, MODEL_INIT_ZEROS, 0);
}

static void block_init(struct model_param *params, const struct model_config *config,
                       int layer)
{
    float residual_std = INIT_STD / sqrtf(2.0f * (float)config->n_layer);
    for (int i = 0; i < BLOCK_PARAMS; i++) {
        int64_t rows = (int64_t)block_params[i].rows * config->n_embd;
        int64_t columns = (int64_t)block_params[i].columns * config->n_embd;
        bool norm_weight = i == LN_1_WEIGHT || i == LN_2_WEIGHT;
        snprintf(params[i].name, sizeof params[i].name, "transformer.h.%d.%s", layer,
                 block_params[i].name);
        param_init(&params[i], 1 + layer, rows, columns,
                   rows          ? MODEL_INIT_NORMAL
                   : norm_weight ? MODEL_INIT_ONES
                                 : MODEL_INIT_ZEROS,
                   block_params[i].residual ? residual_std : INIT_STD);
    }
}

static int params(const struct model_config *config, struct model_param **out_params,
                  int *out_n, struct dcp_error *err)
{
    int n = EMBEDDING_PARAMS + config->n_layer * BLOCK_PARAMS + FINAL_PARAMS;
    struct model_param *params = dcp_mem_calloc((size_t)n, sizeof *params);
    if (!params)
        return dcp_error_memory(err, "the list of parameters");
    snprintf(params[WTE].name, sizeof params[WTE].name, "transformer.wte.weight");
    snprintf(params[WPE].name, sizeof params[WPE].name, "transformer.wpe.weight");
    param_init(&params[WTE], 0, config->vocab_size, config->n_embd, MODEL_INIT_NORMAL,
               INIT_STD);
    param_init(&params[WPE], 0, config->n_positions, config->n_embd, MODEL_INIT_NORMAL,
               INIT_STD);
    for (int layer = 0; layer < config->n_layer; layer++)
        block_init(params + EMBEDDING_PARAMS + layer * BLOCK_PARAMS, config, layer);
    norm_init(params + n - FINAL_PARAMS, config->n_layer + 1, config->n_embd,
              "transformer.ln_f");
    *out_params = params;
    *out_n = n;
    return DCP_OK;
}

static void carve_norm(struct model *m, struct gpt2_norm *norm, struct carve *carve)
{
    int64_t rows = (int64_t)m->batch * m->seq_len;
    norm->out = carve_take(carve, rows * m->config.n_embd, dcp_dtype_size(m->dtype));
    norm->mean = carve_take(carve, rows, sizeof *norm->mean);
    norm->rstd = carve_take(carve, rows, sizeof *norm->rstd);
}

static void carve_attention(struct model *m, struct gpt2_block *b, struct carve *carve)
{
    int64_t rows = (int64_t)m->batch * m->seq_len, c = m->config.n_embd;
    carve_norm(m, &b->norm_1, carve);
    b->qkv = carve_take(carve, rows * 3 * c, sizeof *b->qkv);
    b->lse = carve_take(carve, rows * m->config.n_head, sizeof *b->lse);
    b->att = carve_take(carve, rows * c, dcp_dtype_size(m->dtype));
}

static void carve_mlp(struct model *m, struct gpt2_block *b, struct carve *carve)
{
    int64_t rows = (int64_t)m->batch * m->seq_len, c = m->config.n_embd;
    b->mid = carve_take(carve, rows * c, sizeof *b->mid);
    carve_norm(m, &b->norm_2, carve);
    b->fc = carve_take(carve, rows * 4 * c, sizeof(float));
    b->gelu = carve_take(carve, rows * 4 * c, dcp_dtype_size(m->dtype));
}

/* What is computed again lies where the same of other blocks does: that of a segment's
 * i-th in the i-th block's, that of attention in the first one's. Inputs that wait on the
 * host have one place, or two where a block makes the next one's of its own. */
static void carve_blocks(struct model *m, struct carve *carve)
{
    const struct model_recompute *r = &m->recompute;
    struct gpt2_block *blocks = ((struct gpt2 *)m->activations)->blocks;
    int64_t rows = (int64_t)m->batch * m->seq_len, c = m->config.n_embd;
    for (int l = 0; l < m->config.n_layer; l++) {
        int like = r->every ? l % r->every : r->attention ? 0 : l;
        struct gpt2_block *b = &blocks[l];
        *b = blocks[like];
        if (r->host && r->every <= 1 && l > 1)
            b->x = blocks[l % 2].x;
        else if (like == l || (!like && !(r->host && r->every > 1)))
            b->x = carve_take(carve, rows * c, sizeof *b->x);
        if (like == l)
            carve_attention(m, b, carve);
        if (like == l || !r->every)
            carve_mlp(m, b, carve);
    }
}

/* The activations: for each row and block that is kept 64 C bytes in F32 and 50 C in
 * 16 bits, of which 20 C or 16 C are attention's, and for one of which only the input is
 * kept 4 C; for all blocks together 32 C or 40 C more, and the logits of the head's rows.
 */
static void carve_activations(struct model *m, struct carve *carve)
{
    struct gpt2 *a = m->activations;
    int64_t rows = (int64_t)m->batch * m->seq_len, c = m->config.n_embd;
    bool is_cast = m->dtype != DCP_F32;
    size_t t = dcp_dtype_size(m->dtype), f = sizeof(float);
    carve_blocks(m, carve);
    a->tokens = carve_take(carve, rows, sizeof *a->tokens);
    m->targets = carve_take(carve, rows, sizeof *m->targets);
    a->x = carve_take(carve, rows * c, f);
    a->final.out = carve_take(carve, rows * c, t);
    a->final.mean = carve_take(carve, rows, f);
    a->final.rstd = carve_take(carve, rows, f);

    a->logits = carve_take(carve, a->head_rows * m->config.vocab_size, f);
    a->dlogits =
        is_cast ? carve_take(carve, a->head_rows * m->config.vocab_size, t) : a->logits;
    a->losses = carve_take(carve, rows, sizeof *a->losses);

    a->dx = carve_take(carve, rows * c, f);
    a->dx_t = is_cast ? carve_take(carve, rows * c, t) : a->dx;
    a->dpart = carve_take(carve, rows * c, f);
    a->dwide = carve_take(carve, rows * 4 * c, f);
    a->dwide_t = is_cast ? carve_take(carve, rows * 4 * c, t) : a->dwide;
}

/* Blocks whose inputs are kept but in the last segment, as in model_recompute_from. */
static int n_waiting(const struct model *m)
{
    int n = m->recompute.every > 1 ? m->recompute.every : 1;
    return m->recompute.host ? (m->config.n_layer - 1) / n : 0;
}

float *gpt2_host_x(const struct model *m, int layer)
{
    const struct gpt2 *a = m->activations;
    int n = m->recompute.every > 1 ? m->recompute.every : 1;
    size_t size = (size_t)m->batch * (size_t)m->seq_len * (size_t)m->config.n_embd;
    return layer % n || layer / n >= n_waiting(m)
               ? NULL
               : a->host_x + size * (size_t)(layer / n);
}

static int alloc_host(struct model *m, struct dcp_error *err)
{
    struct gpt2 *a = m->activations;
    size_t rows = (size_t)m->batch * (size_t)m->seq_len, n = (size_t)n_waiting(m);
    size_t size_bytes = rows * (size_t)m->config.n_embd * sizeof *a->host_x;
    a->host_losses = dcp_mem_calloc(rows, sizeof *a->host_losses);
    if (n)
        a->host_x = dcp_mem_calloc(n, size_bytes);
    return a->host_losses && (a->host_x || !n)
               ? DCP_OK
               : dcp_error_memory(err, "activations on the host");
}

static int open_activations(struct model *m, struct dcp_error *err)
{
    struct gpt2 *a = m->activations = dcp_mem_calloc(1, sizeof *a);
    if (!a)
        return dcp_error_memory(err, "the blocks of the model");
    a->blocks = dcp_mem_calloc((size_t)m->config.n_layer, sizeof *a->blocks);
    int64_t rows = (int64_t)m->batch * m->seq_len;
    if (!a->blocks)
        return dcp_error_memory(err, "the blocks of the model");
    if (!m->plan)
        DCP_TRY(alloc_host(m, err));

    /* Equal shares of the rows, as large as HEAD_BYTES allows. */
    int64_t most = HEAD_BYTES / ((int64_t)sizeof(float) * m->config.vocab_size);
    most = most < 1 ? 1 : most;
    int64_t n_shares = (rows + most - 1) / most;
    a->head_rows = (rows + n_shares - 1) / n_shares;

    struct carve carve = { 0 };
    carve_activations(m, &carve);
    m->activation_bytes = carve.too_large ? UINT64_MAX : carve.size_bytes;
    if (m->plan)
        return DCP_OK;
    char what[80];
    snprintf(what, sizeof what, "the activations of %d × %d tokens", m->batch,
             m->seq_len);
    int rc = m->ops->alloc(m->ctx, m->activation_bytes, what, &a->memory, err);
    if (rc) {
        dcp_error_hint(err, "make the micro-batch smaller and accumulate gradients, or "
                            "give model.activation_checkpointing");
        return rc;
    }
    carve = (struct carve){ .base = a->memory };
    carve_activations(m, &carve);
    return DCP_OK;
}

static void close_activations(struct model *m)
{
    struct gpt2 *a = m->activations;
    if (!a)
        return;
    if (a->memory)
        m->ops->free(m->ctx, a->memory);
    free(a->host_losses);
    free(a->host_x);
    free(a->blocks);
    free(a);
}

void *gpt2_at(const struct model *m, void *array, int64_t i)
{
    return (char *)array + (size_t)i * dcp_dtype_size(m->dtype);
}

const struct model_family gpt2_family = {
    .name = "gpt2",
    .check = gpt2_check,
    .params = params,
    .open = open_activations,
    .close = close_activations,
    .forward = gpt2_forward,
    .backward = gpt2_backward,
    .losses = gpt2_losses,
    .mean_loss = gpt2_mean_loss,
    .logits = gpt2_logits,
    .json = gpt2_json,
    .parse = gpt2_parse,
};
