/* resolve: what keys mean together. */
#include "draft.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define AUTO_MICRO_BATCH 8 /* the per-device default of the Hugging Face Trainer */
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

static int resolve_optimizer(struct settings_draft *draft)
{
    struct settings *s = &draft->out;
    /* In DeepSpeed Adam too decouples the decay, unless adam_w_mode is false. */
    s->decoupled_decay = draft->optimizer == OPTIMIZER_ADAMW || draft->adam_w_mode;
    s->beta1 = draft->betas[0];
    s->beta2 = draft->betas[1];
    if (isnan(s->weight_decay)) /* torch.optim.AdamW has a default of its own */
        s->weight_decay = draft->torch_adam && s->decoupled_decay ? 0.01 : 0.0;
    return DCP_OK;
}

static int resolve_total_steps(struct settings_draft *draft, struct dcp_error *err)
{
    struct settings_scheduler *s = &draft->out.scheduler;
    if (s->type == SCHEDULE_WARMUP || s->total_num_steps > 0)
        return DCP_OK;
    if (settings_was_auto(draft, "scheduler.params.total_num_steps") &&
        draft->out.steps > 0) {
        s->total_num_steps = draft->out.steps;
        return DCP_OK;
    }
    fail(draft,
         "'scheduler.params.total_num_steps' must be given for a schedule that "
         "decays",
         err);
    dcp_error_hint(err, "give it, or say \"auto\" and how many steps to train (--steps)");
    return DCP_E_USAGE;
}

static int64_t clamp(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

static int resolve_scheduler(struct settings_draft *draft, struct dcp_error *err)
{
    struct settings_scheduler *s = &draft->out.scheduler;
    double base_lr = draft->out.lr;
    s->type = (enum settings_schedule)draft->schedule;
    s->warmup_linear = draft->warmup_type == 1;
    if (s->type == SCHEDULE_NONE)
        return DCP_OK;
    DCP_TRY(resolve_total_steps(draft, err));
    int64_t steps = s->total_num_steps ? s->total_num_steps : draft->out.steps;
    if (settings_was_auto(draft, "scheduler.params.warmup_num_steps") && steps > 0)
        s->warmup_num_steps = clamp(steps / 20, 1, 1000);
    if (s->warmup_max_lr < 0 && s->type == SCHEDULE_WARMUP_DECAY &&
        !settings_was_auto(draft, "scheduler.params.warmup_max_lr")) {
        s->warmup_max_lr = 0.001; /* its default, whatever the optimizer says */
        if (base_lr < 0.001 || base_lr > 0.001)
            dcp_log_write(draft->log, DCP_LOG_WARN,
                          "%s: WarmupDecayLR warms up to 0.001, not to "
                          "optimizer.params.lr %g: give scheduler.params.warmup_max_lr",
                          draft->what, base_lr);
    } else if (s->warmup_max_lr < 0) {
        s->warmup_max_lr = base_lr;
    }
    if (s->total_num_steps && s->total_num_steps < s->warmup_num_steps)
        dcp_log_write(draft->log, DCP_LOG_WARN,
                      "%s: total_num_steps %" PRId64
                      " is less than warmup_num_steps %" PRId64,
                      draft->what, s->total_num_steps, s->warmup_num_steps);
    return DCP_OK;
}

/* The sizes do not make the batch: says all of them, and which batch would do: multiples
 * of `unit`, the sizes that were given. */
static int wrong_batch(const struct settings_draft *draft, int world_size, int64_t unit,
                       struct dcp_error *err)
{
    const struct settings *s = &draft->out;
    int64_t below = s->train_batch_size / unit * unit;
    dcp_error_set(err, DCP_E_USAGE,
                  "%s: train_batch_size %" PRId64 " is not micro batch %d × accumulation "
                  "%d × %d rank%s = %" PRId64,
                  draft->what, s->train_batch_size, s->micro_batch, s->accumulation,
                  world_size, world_size == 1 ? "" : "s",
                  (int64_t)s->micro_batch * s->accumulation * world_size);
    if (below)
        dcp_error_hint(err, "train_batch_size %" PRId64 " or %" PRId64 " would do", below,
                       below + unit);
    else
        dcp_error_hint(err, "train_batch_size %" PRId64 " would do", unit);
    return DCP_E_USAGE;
}

/* As DeepSpeedConfig._set_batch_related_parameters: what is missing follows by integer
 * division, and then all must agree. */
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
    if (train && micro && !steps)
        steps = train / micro / world_size;
    else if (train && !micro && steps)
        micro = train / world_size / steps;
    else if (train && !micro)
        micro = train / world_size;
    if (!steps && !(train && s->micro_batch))
        steps = 1;
    if (!train)
        train = micro * steps * world_size;
    if (micro > INT_MAX || steps > INT_MAX)
        return fail(draft, "train_batch_size is too large", err);
    s->train_batch_size = train;
    s->micro_batch = (int)micro;
    s->accumulation = (int)steps;
    if (!micro || !steps || micro * steps * world_size != train)
        return wrong_batch(draft, world_size, unit, err);
    return DCP_OK;
}

static int resolve_sharding(struct settings_draft *draft, int world_size,
                            struct dcp_error *err)
{
    struct settings *s = &draft->out;
    if (s->shard_size < 0)
        s->shard_size = 0;
    if (s->shard_size && s->stage != 3)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%s: 'zero_optimization.mics_shard_size' %d needs stage 3, "
                             "not %d",
                             draft->what, s->shard_size, s->stage);
    if (s->shard_size && world_size % s->shard_size)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%s: %d ranks are no whole number of sharding groups of %d",
                             draft->what, world_size, s->shard_size);
    return DCP_OK;
}

static int resolve_precision(struct settings_draft *draft, struct dcp_error *err)
{
    struct settings *s = &draft->out;
    int dtype = draft->accumulation_dtype;
    if (dtype == DCP_BF16 && !s->bf16)
        return fail(draft, "'data_types.grad_accum_dtype' bf16 needs bf16.enabled true",
                    err);
    if (dtype >= 0 && dtype != DCP_BF16 && dtype != DCP_F32)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "%s: 'data_types.grad_accum_dtype' is %s; gradients are "
                             "added up in fp32 or bf16",
                             draft->what, dcp_dtype_torch_name((enum dcp_dtype)dtype));
    if (s->stochastic_rounding && !s->bf16)
        return fail(draft, "'stochastic_rounding' needs bf16.enabled true", err);
    s->grad_accum_fp32 = dtype == DCP_F32 || !s->bf16;
    s->grad_accum_bf16 = dtype == DCP_BF16;
    return DCP_OK;
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
    if (!s->data_train) {
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

static void resolve_checkpoint(struct settings_draft *draft)
{
    struct settings *s = &draft->out;
    s->codec = (enum dcp_codec)draft->codec;
    if (!s->staging_bytes)
        s->staging_bytes = (uint64_t)(draft->host_cache_gib * 0x1p30);
}

static void tell_autos(const struct settings_draft *draft)
{
    for (size_t i = 0; i < draft->n_autos; i++) {
        char shown[160];
        settings_show(draft, draft->autos[i].key, shown, sizeof shown);
        dcp_log_write(draft->log, DCP_LOG_INFO, "%s: %s is \"auto\": %s", draft->what,
                      draft->autos[i].path, shown);
    }
}

int settings_resolve(struct settings_draft *draft, const char *folder, int world_size,
                     struct dcp_error *err)
{
    DCP_TRY(resolve_optimizer(draft));
    DCP_TRY(resolve_scheduler(draft, err));
    DCP_TRY(resolve_batch(draft, world_size, err));
    DCP_TRY(resolve_sharding(draft, world_size, err));
    DCP_TRY(resolve_precision(draft, err));
    DCP_TRY(resolve_data(draft, folder, err));
    DCP_TRY(resolve_model(draft, folder, err));
    DCP_TRY(check_sizes(draft, err));
    resolve_checkpoint(draft);
    tell_autos(draft);
    return DCP_OK;
}
