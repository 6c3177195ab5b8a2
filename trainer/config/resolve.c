/* resolve: what keys mean together. */
#include "draft.h"
#include "trainer/ops/exact.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/part.h"
#include "base/str.h"
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define AUTO_MICRO_BATCH 8 /* the per-device default of the Hugging Face Trainer */
#define MAX_UNEVEN_MICRO 4096
#define MAX_CONFIG_BYTES ((size_t)1 << 20)

/* Sizes of the HF GPT2Config: those of the 124M model. */
static const struct model_config gpt2_small = {
    .n_layer = 12, .n_head = 12, .n_embd = 768, .n_positions = 1024, .vocab_size = 50257
};

static int fail(const struct settings_draft *draft, const char *sentence,
                struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_USAGE, "%s: %s", draft->what, sentence);
}

static void set_default(double *value, double fallback)
{
    if (isnan(*value))
        *value = fallback;
}

/* DeepSpeed's, and of Newton-Schulz torch.optim.Muon's. */
static void resolve_muon(struct settings_draft *draft)
{
    struct settings *s = &draft->out;
    static const double coefficients[] = { 3.4445, -4.7750, 2.0315 };
    set_default(&draft->muon_lr, isnan(s->lr) ? 0.02 : s->lr);
    set_default(&s->adam_lr, isnan(s->lr) ? 3e-4 : s->lr);
    s->lr = draft->muon_lr;
    set_default(&draft->betas[1], 0.95);
    set_default(&s->eps, 1e-10);
    set_default(&s->momentum, 0.95);
    s->nesterov = draft->muon_nesterov;
    s->bias_correction = true;
    s->match_rms = draft->adjust_lr == 1;
    if (isnan(draft->ns_coefficients[0]))
        memcpy(draft->ns_coefficients, coefficients, sizeof coefficients);
    memcpy(s->newton_schulz.coefficients, draft->ns_coefficients, sizeof coefficients);
}

/* torch.optim.Adafactor's. */
static void resolve_adafactor(struct settings_draft *draft)
{
    struct settings *s = &draft->out;
    set_default(&s->lr, 0.01);
    set_default(&draft->eps_pair[1], 1e-3);
    s->eps = draft->eps_pair[0];
    s->eps_scale = draft->eps_pair[1];
}

/* Defaults are those of DeepSpeed's classes, and of PyTorch's where it has none. */
static int resolve_optimizer(struct settings_draft *draft, struct dcp_error *err)
{
    static const enum optim_type types[] = {
        [OPTIMIZER_ADAM] = OPTIM_ADAM,       [OPTIMIZER_ADAMW] = OPTIM_ADAM,
        [OPTIMIZER_SGD] = OPTIM_MOMENTUM,    [OPTIMIZER_LION] = OPTIM_LION,
        [OPTIMIZER_ADAGRAD] = OPTIM_ADAGRAD, [OPTIMIZER_LAMB] = OPTIM_LAMB,
        [OPTIMIZER_MUON] = OPTIM_MUON,       [OPTIMIZER_ADAFACTOR] = OPTIM_ADAFACTOR
    };
    struct settings *s = &draft->out;
    bool adagrad = draft->optimizer == OPTIMIZER_ADAGRAD;
    s->optimizer = types[draft->optimizer];
    if (s->optimizer == OPTIM_MUON)
        resolve_muon(draft);
    if (s->optimizer == OPTIM_ADAFACTOR)
        resolve_adafactor(draft);
    set_default(&s->momentum, 0);
    if (s->optimizer == OPTIM_MOMENTUM && s->momentum <= 0)
        s->optimizer = OPTIM_SGD;
    /* In DeepSpeed Adam too decouples the decay, unless adam_w_mode is false. */
    s->decoupled_decay = draft->optimizer == OPTIMIZER_ADAMW ||
                         draft->optimizer == OPTIMIZER_MUON ||
                         (draft->optimizer == OPTIMIZER_ADAM && draft->adam_w_mode);
    set_default(&draft->betas[0], 0.9);
    set_default(&draft->betas[1], 0.999);
    s->beta1 = draft->betas[0];
    s->beta2 = draft->betas[1];
    set_default(&s->lr, adagrad ? 1e-2 : 1e-3);
    if (s->optimizer != OPTIM_ADAFACTOR)
        set_default(&s->eps, adagrad ? 1e-10 : 1e-8);
    /* torch.optim.AdamW has a default of its own; beside Muon it gets Muon's. */
    set_default(&s->weight_decay,
                draft->torch_adam && s->decoupled_decay && s->optimizer != OPTIM_MUON
                    ? 0.01
                    : 0.0);
    if (s->beta2_decay > 0)
        return fail(draft, "'optimizer.params.beta2_decay' is above 0", err);
    if (!(s->min_coeff <= s->max_coeff))
        return fail(draft, "'optimizer.params.min_coeff' is above max_coeff", err);
    if (draft->optimizer == OPTIMIZER_SGD && s->nesterov &&
        (s->momentum <= 0 || s->dampening > 0))
        return fail(draft,
                    "'optimizer.params.nesterov' needs a momentum above 0 and a "
                    "dampening of 0",
                    err);
    return DCP_OK;
}

/* The batch is no multiple of what was given: says so, and which batch would do. */
static int wrong_batch(const struct settings_draft *draft, int world_size, int64_t unit,
                       struct dcp_error *err)
{
    const struct settings *s = &draft->out;
    int64_t below = s->train_batch_size / unit * unit;
    char of[120];
    if (!s->micro_batch)
        snprintf(of, sizeof of, "a multiple of the %d ranks%s", world_size,
                 s->accumulation ? " × gradient_accumulation_steps" : "");
    else if (s->accumulation)
        snprintf(of, sizeof of, "micro batch %d × accumulation %d × a number of ranks",
                 s->micro_batch, s->accumulation);
    else
        snprintf(of, sizeof of, "a multiple of train_micro_batch_size_per_gpu %d",
                 s->micro_batch);
    dcp_error_set(err, DCP_E_USAGE, "%s: train_batch_size %" PRId64 " is not %s",
                  draft->what, s->train_batch_size, of);
    if (!s->micro_batch)
        dcp_error_hint(err, "give train_micro_batch_size_per_gpu: then any number of "
                            "ranks will do");
    else if (below)
        dcp_error_hint(err, "train_batch_size %" PRId64 " or %" PRId64 " would do", below,
                       below + unit);
    else
        dcp_error_hint(err, "train_batch_size %" PRId64 " would do", unit);
    return DCP_E_USAGE;
}

/* A batch that the ranks do not divide, and nothing else given: the largest micro-batch
 * of which every rank has one. */
static int64_t uneven_micro(const struct settings_draft *draft, int world_size)
{
    int64_t train = draft->out.train_batch_size;
    int64_t micro = train / world_size;
    if (micro > MAX_UNEVEN_MICRO)
        micro = MAX_UNEVEN_MICRO;
    while (train % micro)
        micro--;
    dcp_log_write(draft->log, DCP_LOG_INFO,
                  "%s: %d ranks do not divide train_batch_size %" PRId64
                  ": micro-batches of %" PRId64 " do",
                  draft->what, world_size, train, micro);
    return micro;
}

/* The sizes that were given: what is missing follows as in DeepSpeedConfig.
 * _set_batch_related_parameters, but micro-batches need not come out even over the ranks:
 * the batch and the micro-batch say what is trained, and any world size can train it. */
static int resolve_batch(struct settings_draft *draft, int world_size,
                         struct dcp_error *err)
{
    struct settings *s = &draft->out;
    int64_t train = s->train_batch_size, micro = s->micro_batch, steps = s->accumulation;
    if (!train && !micro) {
        if (!settings_was_auto(draft, "train_batch_size") &&
            !settings_was_auto(draft, "train_micro_batch_size_per_gpu"))
            return fail(draft,
                        "either train_batch_size or train_micro_batch_size_per_gpu must "
                        "be given",
                        err);
        micro = AUTO_MICRO_BATCH;
    }
    int64_t unit = (micro ? micro : 1) * (steps ? steps : 1);
    if (!dcp_mul_i64(unit, world_size, &unit) || unit > INT64_MAX / 2)
        return fail(draft, "micro batch × accumulation × ranks is too large", err);
    if (!micro && !steps && train > world_size && train % world_size)
        micro = uneven_micro(draft, world_size);
    s->batch_inferred = !train;
    if (!train)
        train = micro * (steps ? steps : 1) * world_size;
    if (!micro && train % (world_size * (steps ? steps : 1)))
        return wrong_batch(draft, world_size, unit, err);
    if (!micro)
        micro = train / world_size / (steps ? steps : 1);
    int64_t n_micros = train / micro, rounds = dcp_part_ceil(n_micros, world_size);
    /* Micro-batches dealt out unevenly come to those rounds without being a multiple. */
    unit = steps && steps != rounds ? micro * steps : micro;
    if (train % unit)
        return wrong_batch(draft, world_size, unit, err);
    if (micro > INT_MAX || n_micros > EXACT_MAX_VALUES)
        return fail(draft, "train_batch_size is too large", err);
    if (steps && steps != rounds)
        dcp_log_write(draft->log, DCP_LOG_WARN,
                      "%s: train_batch_size %" PRId64 " takes %" PRId64
                      " micro-batches of %" PRId64 " on each of %d rank%s, not "
                      "gradient_accumulation_steps %" PRId64,
                      draft->what, train, rounds, micro, world_size,
                      world_size == 1 ? "" : "s", steps);
    s->train_batch_size = train;
    s->micro_batch = (int)micro;
    s->n_micros = (int)n_micros;
    s->accumulation = (int)rounds;
    return DCP_OK;
}

static int check_swap(const struct settings_draft *draft, const char *of,
                      const struct settings_swap *swap, struct dcp_error *err)
{
    if (swap->path && *swap->path)
        return DCP_OK;
    dcp_error_set(err, DCP_E_USAGE,
                  "%s: 'zero_optimization.offload_%s.nvme_path' must say in which folder",
                  draft->what, of);
    dcp_error_hint(err, "such as \"nvme_path\": \"/local_nvme\"");
    return DCP_E_USAGE;
}

/* As in DeepSpeed weights are offloaded at stage 3, and only there a part of the
 * optimizer's state stays; elsewhere it refuses a ratio. */
static int resolve_offload(struct settings_draft *draft, struct dcp_error *err)
{
    struct settings *s = &draft->out;
    s->swap_param.host = draft->offload_param == OFFLOAD_CPU || draft->cpu_offload_param;
    s->swap_optim.host = draft->offload_optimizer == OFFLOAD_CPU || draft->cpu_offload;
    s->swap_weights = draft->offload_param == OFFLOAD_NVME;
    s->swap_optimizer = draft->offload_optimizer == OFFLOAD_NVME;
    if ((s->swap_weights || s->swap_param.host) && s->stage < 3) {
        s->swap_weights = s->swap_param.host = false;
        dcp_log_write(draft->log, DCP_LOG_WARN,
                      "%s: zero_optimization.offload_param has no effect at stage %d: "
                      "weights are offloaded at stage 3",
                      draft->what, s->stage);
    }
    if ((s->swap_optimizer || s->swap_optim.host) && s->stage < 3 &&
        s->swap_optim.ratio < 1)
        dcp_log_write(
            draft->log, DCP_LOG_WARN,
            "%s: zero_optimization.offload_optimizer.ratio has no effect at stage "
            "%d: all of the optimizer's state is offloaded, a part at stage 3",
            draft->what, s->stage);
    if (s->swap_weights)
        DCP_TRY(check_swap(draft, "param", &s->swap_param, err));
    return s->swap_optimizer ? check_swap(draft, "optimizer", &s->swap_optim, err)
                             : DCP_OK;
}

/* Below it there is nothing that the key could make smaller. */
static void needs_stage(const struct settings_draft *draft, bool *flag, int stage,
                        const char *key, const char *why)
{
    if (!*flag || draft->out.stage >= stage)
        return;
    *flag = false;
    dcp_log_write(draft->log, DCP_LOG_WARN,
                  "%s: zero_optimization.%s has no effect at stage %d: %s", draft->what,
                  key, draft->out.stage, why);
}

static int resolve_sharding(struct settings_draft *draft, int world_size,
                            struct dcp_error *err)
{
    struct settings *s = &draft->out;
    needs_stage(draft, &s->quantized_weights, 3, "zero_quantized_weights",
                "weights are gathered layer by layer at stage 3");
    needs_stage(draft, &s->quantized_grads, 2, "zero_quantized_gradients",
                "gradients go to their owners at stages 2 and 3");
    if (s->shard_size < 0)
        s->shard_size = 0;
    if (s->shard_size && s->stage != 3)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%s: 'zero_optimization.mics_shard_size' %d needs stage 3, "
                             "not %d",
                             draft->what, s->shard_size, s->stage);
    if (s->near_size > 1 && (s->stage != 3 || s->shard_size))
        return dcp_error_set(err, DCP_E_USAGE,
                             "%s: 'zero_optimization.zero_hpz_partition_size' %d needs "
                             "stage 3 without mics_shard_size",
                             draft->what, s->near_size);
    if (s->near_size > 1 && world_size % s->near_size) {
        dcp_log_write(draft->log, DCP_LOG_WARN,
                      "%s: zero_optimization.zero_hpz_partition_size %d does not divide "
                      "%d rank%s: there is no second copy of the weights",
                      draft->what, s->near_size, world_size, world_size == 1 ? "" : "s");
        s->near_size = 1;
    }
    if (s->shard_size && world_size % s->shard_size)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%s: %d ranks cannot be divided into sharding groups of %d",
                             draft->what, world_size, s->shard_size);
    return DCP_OK;
}

static int resolve_loss_scale(struct settings_draft *draft, struct dcp_error *err)
{
    struct loss_scale_rule *rule = &draft->out.loss_scale;
    rule->scales = draft->fp16;
    rule->initial = ldexp(1, draft->scale_power);
    if (rule->scales && !loss_scale_is_dynamic(rule) && rule->static_to > FLT_MAX)
        return fail(draft, "'fp16.loss_scale' is too large", err);
    if (loss_scale_is_dynamic(rule) && !(rule->least > 0 && rule->least <= rule->initial))
        return fail(draft,
                    "'fp16.min_loss_scale' must be above 0, and not above 2 to the power "
                    "of fp16.initial_scale_power",
                    err);
    return DCP_OK;
}

static int resolve_precision(struct settings_draft *draft, struct dcp_error *err)
{
    struct settings *s = &draft->out;
    int dtype = draft->accumulation_dtype;
    if (draft->fp16 && draft->bf16)
        return fail(draft, "'fp16.enabled' and 'bf16.enabled' exclude each other", err);
    s->dtype = draft->bf16 ? DCP_BF16 : draft->fp16 ? DCP_F16 : DCP_F32;
    if (draft->param_dtype >= 0 && draft->param_dtype != (int)s->dtype) {
        dcp_error_set(
            err, DCP_E_USAGE, "%s: 'data_types.param_dtype' is %s, but weights are in %s",
            draft->what, dcp_dtype_torch_name((enum dcp_dtype)draft->param_dtype),
            settings_precision(s));
        dcp_error_hint(err, "bf16.enabled and fp16.enabled say what weights are in");
        return DCP_E_USAGE;
    }
    if (dtype >= 0 && dtype != DCP_F32 && dtype != (int)s->dtype)
        return dcp_error_set(
            err, DCP_E_USAGE,
            "%s: 'data_types.grad_accum_dtype' is %s; with weights in %s "
            "gradients are added up in fp32%s%s",
            draft->what, dcp_dtype_torch_name((enum dcp_dtype)dtype),
            settings_precision(s), s->dtype == DCP_F32 ? "" : " or ",
            s->dtype == DCP_F32 ? "" : settings_precision(s));
    if (s->stochastic_rounding && s->dtype != DCP_BF16)
        return fail(draft, "'stochastic_rounding' needs bf16.enabled true", err);
    s->grad_accum_fp32 = dtype == DCP_F32 || s->dtype == DCP_F32;
    s->grad_accum_bf16 = dtype >= 0 && !s->grad_accum_fp32;
    return resolve_loss_scale(draft, err);
}

/* Makes a path that is not absolute one below the folder. In a glob the folder's own name
 * is escaped: it is meant as it is. */
static int absolute(char **path, const char *folder, bool is_glob, struct dcp_error *err)
{
    if (!*path || **path == '/')
        return DCP_OK;
    size_t n = strlen(folder);
    DCP_CLEANUP_FREE char *prefix = dcp_mem_calloc(2 * n + 1, 1);
    if (!prefix)
        return dcp_error_memory(err, "the configuration");
    for (size_t i = 0, to = 0; i < n; i++) {
        if (is_glob && strchr("*?[\\", folder[i]))
            prefix[to++] = '\\';
        prefix[to++] = folder[i];
    }
    char *joined = dcp_fs_join(prefix, *path);
    if (!joined)
        return dcp_error_memory(err, "the configuration");
    free(*path);
    *path = joined;
    return DCP_OK;
}

static int absolute_tokenizer(struct settings *s, const char *folder,
                              struct dcp_error *err)
{
    static const char prefix[] = "gpt2:";
    const size_t n = sizeof prefix - 1;
    if (!dcp_str_starts(s->tokenizer, prefix) || !s->tokenizer[n])
        return DCP_OK;
    DCP_CLEANUP_FREE char *path = strdup(s->tokenizer + n);
    if (!path)
        return dcp_error_memory(err, "the configuration");
    DCP_TRY(absolute(&path, folder, false, err));
    char *spec = dcp_mem_calloc(n + strlen(path) + 1, 1);
    if (!spec)
        return dcp_error_memory(err, "the configuration");
    memcpy(spec, prefix, n);
    memcpy(spec + n, path, strlen(path));
    free(s->tokenizer);
    s->tokenizer = spec;
    return DCP_OK;
}

static int resolve_data(struct settings_draft *draft, const char *folder,
                        struct dcp_error *err)
{
    struct settings *s = &draft->out;
    if (!s->data_train && !draft->no_data) {
        fail(draft, "'data.train' must say which files to train on", err);
        dcp_error_hint(err, "such as \"data\": {\"train\": \"text/*.txt\"}");
        return DCP_E_USAGE;
    }
    int rc = absolute(&s->data_train, folder, true, err);
    if (!rc)
        rc = absolute(&s->data_val, folder, true, err);
    if (!rc)
        rc = absolute_tokenizer(s, folder, err);
    if (!s->data_val)
        s->eval_every = 0;
    return rc;
}

/* Sizes of the model to start from, when it is a folder with a config.json. */
static int read_init_config(struct settings_draft *draft, struct model_config *out,
                            bool *out_found, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_fs_join(draft->out.model_init, "config.json");
    DCP_CLEANUP_FREE void *text = NULL;
    size_t size;
    *out_found = false;
    if (!path)
        return dcp_error_memory(err, "the configuration");
    if (!dcp_fs_exists(path))
        return DCP_OK;
    int rc = dcp_fs_read_file(path, MAX_CONFIG_BYTES, &text, &size, err);
    if (!rc)
        rc = model_config_parse(text, size, out, err);
    if (rc)
        dcp_error_prefix(err, "'%s'", path);
    *out_found = !rc;
    return rc;
}

static int resolve_model(struct settings_draft *draft, const char *folder,
                         struct dcp_error *err)
{
    struct settings *s = &draft->out;
    struct model_config base = gpt2_small;
    bool is_init = false;
    snprintf(s->model.family, sizeof s->model.family, "gpt2");
    if (strcmp(s->tokenizer, "bytes") == 0)
        base.vocab_size = 256;
    int rc = absolute(&s->model_init, folder, false, err);
    if (!rc && s->model_init)
        rc = read_init_config(draft, &base, &is_init, err);
    const struct {
        const char *name;
        int *value, base;
    } sizes[] = {
        { "n_layer", &s->model.n_layer, base.n_layer },
        { "n_head", &s->model.n_head, base.n_head },
        { "n_embd", &s->model.n_embd, base.n_embd },
        { "n_positions", &s->model.n_positions, base.n_positions },
        { "vocab_size", &s->model.vocab_size, base.vocab_size },
    };
    for (size_t i = 0; !rc && i < DCP_ARRAY_LEN(sizes); i++) {
        if (!*sizes[i].value)
            *sizes[i].value = sizes[i].base;
        if (is_init && *sizes[i].value != sizes[i].base)
            rc = dcp_error_set(
                err, DCP_E_MISMATCH, "%s: 'model.%s' is %d, but '%s' has %d", draft->what,
                sizes[i].name, *sizes[i].value, s->model_init, sizes[i].base);
    }
    double *epsilon = &s->model.layer_norm_epsilon;
    if (*epsilon <= 0)
        *epsilon =
            is_init && base.layer_norm_epsilon > 0 ? base.layer_norm_epsilon : 1e-5;
    return rc;
}

static int check_sizes(struct settings_draft *draft, struct dcp_error *err)
{
    struct settings *s = &draft->out;
    if (!s->seq_len)
        s->seq_len = s->model.n_positions;
    if (s->seq_len > s->model.n_positions)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%s: 'data.seq_len' %d is more than 'model.n_positions' %d",
                             draft->what, s->seq_len, s->model.n_positions);
    if (s->model.n_embd % s->model.n_head)
        return dcp_error_set(
            err, DCP_E_USAGE,
            "%s: 'model.n_embd' %d is not a multiple of 'model.n_head' %d", draft->what,
            s->model.n_embd, s->model.n_head);
    return DCP_OK;
}

/* In DeepSpeed the section turns nothing on by itself, the model's code does; so here
 * does a number of checkpoints. Our own key counts more. */
static void resolve_recompute(struct settings_draft *draft)
{
    struct settings *s = &draft->out;
    int n_layer = s->model.n_layer, asked = draft->checkpoint_all ? LAYERS_ALL : 0;
    const char *by = "activation_checkpointing true";
    if (draft->number_checkpoints) {
        asked = (int)dcp_part_ceil(n_layer, draft->number_checkpoints);
        by = "activation_checkpointing.number_checkpoints";
    }
    if (draft->recompute == LAYERS_NOT_GIVEN)
        draft->recompute = asked;
    else if (asked && asked != draft->recompute)
        dcp_log_write(draft->log, DCP_LOG_WARN,
                      "%s: %s does not count: model.activation_checkpointing says "
                      "otherwise",
                      draft->what, by);
    if (draft->recompute >= n_layer && n_layer > 1)
        dcp_log_write(draft->log, DCP_LOG_WARN,
                      "%s: no activations are computed again: what the last %d layers "
                      "make is kept in any case, and there are %d",
                      draft->what, draft->recompute, n_layer);
    if (s->cpu_checkpointing && draft->recompute == LAYERS_NONE)
        dcp_log_write(draft->log, DCP_LOG_WARN,
                      "%s: activation_checkpointing.cpu_checkpointing has no effect: it "
                      "turns nothing on without model.activation_checkpointing or "
                      "number_checkpoints",
                      draft->what);
    s->recompute.attention = draft->recompute == LAYERS_SELECTIVE;
    s->recompute.every = s->recompute.attention ? 0 : draft->recompute;
}

static int resolve_checkpoint(struct settings_draft *draft, struct dcp_error *err)
{
    struct settings *s = &draft->out;
    s->codec = (enum dcp_codec)draft->codec;
    if (!s->staging_bytes)
        s->staging_bytes = (uint64_t)(draft->host_cache_gib * 0x1p30);
    if (s->delta > 1 && (s->parity || s->codec != DCP_CODEC_NONE))
        return fail(draft,
                    "checkpoint.delta does not go together with checkpoint.parity or "
                    "checkpoint.codec",
                    err);
    return DCP_OK;
}

static void tell_autos(const struct settings_draft *draft)
{
    for (size_t i = 0; i < draft->n_autos; i++) {
        char shown[160];
        if (!settings_has_value(draft, draft->autos[i].key))
            continue;
        settings_show(draft, draft->autos[i].key, shown, sizeof shown);
        dcp_log_write(draft->log, DCP_LOG_INFO, "%s: %s is \"auto\": %s", draft->what,
                      draft->autos[i].path, shown);
    }
}

int settings_resolve(struct settings_draft *draft, const char *folder, int world_size,
                     struct dcp_error *err)
{
    DCP_TRY(resolve_optimizer(draft, err));
    DCP_TRY(settings_resolve_scheduler(draft, err));
    DCP_TRY(resolve_batch(draft, world_size, err));
    DCP_TRY(settings_resolve_fsdp(draft, err));
    DCP_TRY(resolve_offload(draft, err));
    DCP_TRY(resolve_sharding(draft, world_size, err));
    DCP_TRY(resolve_precision(draft, err));
    DCP_TRY(resolve_data(draft, folder, err));
    DCP_TRY(resolve_model(draft, folder, err));
    DCP_TRY(check_sizes(draft, err));
    resolve_recompute(draft);
    DCP_TRY(resolve_checkpoint(draft, err));
    tell_autos(draft);
    return DCP_OK;
}
