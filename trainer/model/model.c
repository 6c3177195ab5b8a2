/* model: what stands before the mathematics of a family: checks, parameters, memory. */
#include "base/mem.h"
#include "family.h"
#include "trainer/ops/rng.h"
#include "trainer/ops/simd.h"

#define ENOUGH 4096 /* random numbers that are worth waking threads */

static int check_options(const struct model_config *config,
                         const struct model_options *options, struct dcp_error *err)
{
    enum dcp_dtype dtype = options->dtype;
    int batch = options->batch, seq_len = options->seq_len;
    if (dtype != DCP_F32 && dtype != DCP_BF16 && dtype != DCP_F16)
        return dcp_error_set(err, DCP_E_USAGE,
                             "a model's weights are float32, bfloat16 or float16, not %s",
                             dcp_dtype_torch_name(dtype));
    if (batch < 1)
        return dcp_error_set(err, DCP_E_USAGE,
                             "a micro-batch of %d sequences is impossible", batch);
    if (seq_len < 1 || seq_len > config->n_positions)
        return dcp_error_set(err, DCP_E_USAGE,
                             "sequences of %d tokens do not fit a model with n_positions "
                             "%d",
                             seq_len, config->n_positions);
    if ((int64_t)batch * seq_len > INT32_MAX)
        return dcp_error_set(err, DCP_E_USAGE,
                             "a micro-batch of %d × %d tokens is too large", batch,
                             seq_len);
    return DCP_OK;
}

int model_new(const struct model_config *config, enum dcp_dtype dtype,
              const struct ops *ops, int batch, int seq_len, struct model **out_model,
              struct dcp_error *err)
{
    const struct model_options options = { .dtype = dtype,
                                           .batch = batch,
                                           .seq_len = seq_len };
    return model_make(config, &options, ops, out_model, err);
}

int model_make(const struct model_config *config, const struct model_options *options,
               const struct ops *ops, struct model **out_model, struct dcp_error *err)
{
    DCP_TRY(model_config_check(config, err));
    DCP_TRY(check_options(config, options, err));
    struct model *model = dcp_mem_calloc(1, sizeof *model);
    if (!model)
        return dcp_error_memory(err, "a model");
    model->family = model_family_find(config->family);
    model->config = *config;
    if (model->config.layer_norm_epsilon == 0)
        model->config.layer_norm_epsilon = 1e-5;
    model->dtype = options->dtype;
    model->ops = ops;
    model->batch = options->batch;
    model->seq_len = options->seq_len;
    model->recompute = options->recompute;
    model->plan = options->plan;
    model->n_units = config->n_layer + 2;
    int rc = model->family->params(config, &model->params, &model->n_params, err);
    if (!rc)
        rc = ops->open(&model->ctx, err);
    if (!rc)
        rc = model->family->open(model, err);
    if (rc) {
        model_free(model);
        return rc;
    }
    *out_model = model;
    return DCP_OK;
}

void model_free(struct model *model)
{
    if (!model)
        return;
    model->family->close(model);
    model->ops->close(model->ctx);
    free(model->params);
    free(model);
}

const struct model_config *model_config(const struct model *model)
{
    return &model->config;
}

const struct model_param *model_params(const struct model *model, int *out_n)
{
    *out_n = model->n_params;
    return model->params;
}

int model_n_units(const struct model *model)
{
    return model->n_units;
}

bool model_is_hidden(const struct model *model, int param)
{
    const struct model_param *p = &model->params[param];
    return p->ndim == 2 && p->unit > 0 && p->unit < model->n_units - 1;
}

uint64_t model_activation_bytes(const struct model *model)
{
    return model->activation_bytes;
}

/* The layers of the last segment are as forward left them. */
int model_recompute_from(const struct model *model, int unit)
{
    int n = model->recompute.every, layer = unit - 1, n_layer = model->config.n_layer;
    if (layer < 0 || layer >= n_layer || (!n && !model->recompute.attention))
        return unit + 1;
    n = n ? n : 1;
    bool last = layer / n == (n_layer - 1) / n;
    return last || (layer + 1) % n ? unit + 1 : unit + 1 - n;
}

int model_seq_len(const struct model *model)
{
    return model->seq_len;
}

struct kernels model_kernels(const struct model *model)
{
    return (struct kernels){ model->ops, model->ctx };
}

void model_init_values(const struct model *model, int param, uint64_t seed, int64_t begin,
                       int64_t n, float *out)
{
    const struct model_param *p = &model->params[param];
    double std = (double)p->init_std;
    float constant = p->init == MODEL_INIT_ONES ? 1 : 0;
    OPS_PARALLEL_FOR(n > ENOUGH)
    for (int64_t i = 0; i < n; i++)
        out[i] =
            p->init != MODEL_INIT_NORMAL
                ? constant
                : (float)(std * rng_normal(seed, (uint64_t)param, (uint64_t)(begin + i)));
}

/* Every id is in the vocabulary. */
static int check_ids(const struct model *model, const char *what, const int32_t *ids,
                     int64_t n, struct dcp_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= model->config.vocab_size)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "%s %lld has the id %d, outside the vocabulary of %d",
                                 what, (long long)i, ids[i], model->config.vocab_size);
    return DCP_OK;
}

/* A micro-batch; its targets are put where the kernels find them, for that waits for all
 * that was begun. What generation kept in the activations is lost. */
static int take_batch(struct model *model, const int32_t *tokens, const int32_t *targets,
                      int batch, int seq_len, struct dcp_error *err)
{
    model->n_kept = 0;
    if (batch < 1 || batch > model->batch || seq_len < 1 || seq_len > model->seq_len)
        return dcp_error_set(err, DCP_E_USAGE,
                             "a micro-batch of %d × %d tokens; the model was made for at "
                             "most %d × %d",
                             batch, seq_len, model->batch, model->seq_len);
    int64_t rows = (int64_t)batch * seq_len;
    DCP_TRY(check_ids(model, "token", tokens, rows, err));
    DCP_TRY(check_ids(model, "target", targets, rows, err));
    return model->ops->put(model->ctx, model->targets, targets,
                           (uint64_t)rows * sizeof *targets, err);
}

int model_train(struct model *model, const struct model_hooks *hooks,
                const int32_t *tokens, const int32_t *targets, int batch, int seq_len,
                float grad_scale, double *out_loss, struct dcp_error *err)
{
    DCP_TRY(take_batch(model, tokens, targets, batch, seq_len, err));
    DCP_TRY(model->family->forward(model, hooks, tokens, batch, seq_len, 0, err));
    DCP_TRY(model->family->backward(model, hooks, batch, seq_len, grad_scale, err));
    return model->family->mean_loss(model, (int64_t)batch * seq_len, out_loss, err);
}

int model_idle(const struct model *model, const struct model_hooks *hooks,
               struct dcp_error *err)
{
    int last = model->n_units - 1;
    const void *w[MODEL_MAX_UNIT_PARAMS];
    float *g[MODEL_MAX_UNIT_PARAMS];
    for (int unit = 0; unit <= last; unit++) {
        DCP_TRY(hooks->acquire(hooks->self, unit, w, err));
        hooks->release(hooks->self, unit);
    }
    DCP_TRY(hooks->grad_begin(hooks->self, 0, g, err));
    for (int unit = 0, next = last; unit >= 0; unit = next--) {
        for (int u = model_recompute_from(model, unit); u < unit; u++) {
            DCP_TRY(hooks->acquire(hooks->self, u, w, err));
            hooks->release(hooks->self, u);
        }
        DCP_TRY(hooks->acquire(hooks->self, unit, w, err));
        if (unit)
            DCP_TRY(hooks->grad_begin(hooks->self, unit, g, err));
        hooks->release(hooks->self, unit);
        if (unit)
            DCP_TRY(hooks->grad_end(hooks->self, unit, err));
        if (!next)
            break;
    }
    return hooks->grad_end(hooks->self, 0, err);
}

int model_loss(struct model *model, const struct model_hooks *hooks,
               const int32_t *tokens, const int32_t *targets, int batch, int seq_len,
               double *out_loss, struct dcp_error *err)
{
    DCP_TRY(take_batch(model, tokens, targets, batch, seq_len, err));
    DCP_TRY(model->family->forward(model, hooks, tokens, batch, seq_len, 0, err));
    DCP_TRY(model->family->losses(model, hooks, (int64_t)batch * seq_len, err));
    return model->family->mean_loss(model, (int64_t)batch * seq_len, out_loss, err);
}

/* Tokens for the positions n_kept .. n_kept + n. */
static int logits_behind(struct model *model, const struct model_hooks *hooks,
                         const int32_t *tokens, int n, float *out_logits,
                         struct dcp_error *err)
{
    int begin = model->n_kept;
    model->n_kept = 0;
    DCP_TRY(check_ids(model, "token", tokens, n, err));
    DCP_TRY(model->family->forward(model, hooks, tokens, 1, begin + n, begin, err));
    DCP_TRY(model->family->logits(model, hooks, n - 1, out_logits, err));
    bool keeps = !model->recompute.every && !model->recompute.attention;
    model->n_kept = keeps ? begin + n : 0;
    return DCP_OK;
}

int model_logits(struct model *model, const struct model_hooks *hooks,
                 const int32_t *tokens, int n_tokens, float *out_logits,
                 struct dcp_error *err)
{
    model->n_kept = 0;
    if (n_tokens < 1)
        return dcp_error_set(err, DCP_E_USAGE, "there is no token to predict from");
    int n = n_tokens < model->seq_len ? n_tokens : model->seq_len;
    return logits_behind(model, hooks, tokens + n_tokens - n, n, out_logits, err);
}

int model_logits_next(struct model *model, const struct model_hooks *hooks, int32_t token,
                      float *out_logits, struct dcp_error *err)
{
    if (model->n_kept == 0 || model->n_kept == model->seq_len)
        return dcp_error_set(err, DCP_E_USAGE,
                             model->n_kept ? "all %d positions of the model are taken"
                                           : "no keys and values are kept to go on from",
                             model->seq_len);
    return logits_behind(model, hooks, &token, 1, out_logits, err);
}
