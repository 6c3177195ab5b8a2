/* The objects of a checkpoint: JSON texts, written and read back. */
#include "state.h"

#include "base/arena.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "json.h"
#include "optimizer.h"
#include "scheduler.h"
#include "trainer/config/schedule.h"
#include <dcp/training.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

/* What differs between machines and world sizes but changes nothing that is computed. */
static const char *const not_kept[][2] = {
    { "model", "init" },
    { "model", "activation_checkpointing" },
    { "data", "train" },
    { "data", "val" },
    { "data", "tokenizer" },
    { "checkpoint", NULL },
    { "activation_checkpointing", NULL },
    { "steps_per_print", NULL },
    { "steps", NULL },
    { "gradient_accumulation_steps", NULL },
    { "train_micro_batch_size_per_gpu", NULL },
    { "zero_optimization", NULL },
    { "fingerprint_every", NULL },
    { "max_skipped_steps", NULL },
    { "timeout_s", NULL },
};

/* Of ZeRO only what is quantized on its way decides what is learned. */
static bool keep_quantized(json_t *config, const struct settings *settings)
{
    json_t *zero = json_object();
    bool failed = (settings->quantized_weights &&
                   json_object_set_new(zero, "zero_quantized_weights", json_true())) ||
                  (settings->quantized_grads &&
                   json_object_set_new(zero, "zero_quantized_gradients", json_true()));
    if (!failed && json_object_size(zero))
        return !json_object_set_new(config, "zero_optimization", zero);
    json_decref(zero);
    return zero && !failed;
}

/* The configuration without those; caller frees. NULL: out of memory. */
static char *config_of(const struct settings *settings)
{
    DCP_CLEANUP_JSON json_t *config = NULL;
    if (dcp_json_parse(settings->text, strlen(settings->text), "the configuration",
                       &config, NULL))
        return NULL;
    for (size_t i = 0; i < DCP_ARRAY_LEN(not_kept); i++) {
        if (!not_kept[i][1])
            json_object_del(config, not_kept[i][0]);
        else
            json_object_del(json_object_get(config, not_kept[i][0]), not_kept[i][1]);
    }
    return keep_quantized(config, settings) ? dcp_json_text(config, 0) : NULL;
}

/* A text instead of the object's own. */
static void replace(struct dcp_object *object, const char *text)
{
    object->data = text;
    object->size_bytes = strlen(text);
}

/* The state of DeepSpeed's class; caller frees, NULL: out of memory. */
static char *loss_scaler_text(const struct loss_scale_rule *rule,
                              const struct loss_scale *at)
{
    bool dynamic = loss_scale_is_dynamic(rule);
    DCP_CLEANUP_JSON json_t *state = json_pack(
        "{s:s, s:f}", "type", dynamic ? "dynamic" : "static", "scale", at->scale);
    DCP_CLEANUP_JSON json_t *more = json_pack(
        "{s:I, s:I, s:f, s:I, s:f, s:I, s:I, s:b, s:b}", "cur_iter", (json_int_t)at->iter,
        "last_overflow_iter", (json_int_t)at->last_overflow, "scale_factor", 2.0,
        "scale_window", (json_int_t)rule->window, "min_scale", rule->least,
        "delayed_shift", (json_int_t)rule->tolerance, "cur_hysteresis",
        (json_int_t)at->tolerance, "consecutive_hysteresis", rule->refills,
        "raise_error_at_min_scale", 1);
    if (!state || !more || (dynamic && json_object_update(state, more)))
        return NULL;
    return dcp_json_text(state, 0);
}

/* Of a step whose loss was scaled here or by DeepSpeed; what it does not say stays. */
static void read_loss_scale(const struct dcp_catalog *catalog, struct loss_scale *out)
{
    DCP_CLEANUP_JSON json_t *state = state_json_object(catalog, DCP_TRAINING_LOSS_SCALER);
    const char *type = json_string_value(json_object_get(state, "type"));
    double scale = json_number_value(json_object_get(state, "scale"));
    const struct {
        const char *key;
        int64_t *to;
    } rows[] = { { "cur_iter", &out->iter },
                 { "last_overflow_iter", &out->last_overflow },
                 { "cur_hysteresis", &out->tolerance } };
    if (!type || strcmp(type, "dynamic") != 0 || !(scale > 0) || scale > FLT_MAX)
        return;
    out->scale = scale;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        const json_t *value = json_object_get(state, rows[i].key);
        if (json_is_integer(value) && json_integer_value(value) >= -1 &&
            json_integer_value(value) < INT64_MAX / 2)
            *rows[i].to = json_integer_value(value);
    }
}

/* An object whose text is made here. */
struct replaced {
    const char *name, *text;
};

/* Copies the objects into the state, some with other texts, and adds where it comes from.
 */
static int keep(struct state *state, const struct dcp_object *objects, size_t n,
                const struct replaced replaced[3], const struct dcp_lineage *lineage,
                struct dcp_error *err)
{
    struct dcp_object *kept = dcp_arena_alloc(state->arena, n + 1, sizeof *kept);
    char *text = dcp_arena_alloc(state->arena, DCP_LINEAGE_CAP, 1);
    bool ok = kept && text;
    for (size_t i = 0; i < n && ok; i++) {
        kept[i] = objects[i];
        for (int r = 0; r < 3; r++)
            if (!strcmp(kept[i].name, replaced[r].name))
                replace(&kept[i], replaced[r].text);
        kept[i].data = dcp_arena_copy(state->arena, kept[i].data, kept[i].size_bytes);
        ok = kept[i].data != NULL;
    }
    if (!ok)
        return dcp_error_memory(err, "the objects of a checkpoint");
    dcp_lineage_object(lineage, text, &kept[n]);
    state->dcp.objects = kept;
    state->dcp.n_objects = n + 1;
    return DCP_OK;
}

/* The text of the optimizer's object, which is among these. */
static int text_of_optimizer(const struct dcp_object *objects, size_t n,
                             const struct settings *settings, char **out_text,
                             struct dcp_error *err)
{
    size_t i = 0;
    while (i + 1 < n && strcmp(objects[i].name, DCP_TRAINING_OPTIMIZER) != 0)
        i++;
    return optimizer_text(&objects[i], settings, out_text, err);
}

int state_objects(struct state *state, const struct model *model,
                  const struct settings *settings, const struct state_progress *progress,
                  struct dcp_error *err)
{
    struct dcp_training_group groups[SHARD_N_GROUPS];
    char digest[17];
    DCP_CLEANUP_FREE char *config = config_of(settings);
    DCP_CLEANUP_FREE char *described =
        model_config_json(model_config(model), settings->dtype);
    DCP_CLEANUP_FREE char *scheduler = scheduler_text(settings, progress->scheduled);
    DCP_CLEANUP_FREE char *scaler =
        loss_scaler_text(&settings->loss_scale, &progress->loss_scale);
    bool ok =
        config && described && scheduler && scaler &&
        optimizer_groups(state->arena, model, settings, progress->scheduled, groups);
    dcp_str_hex64(digest, progress->data_digest);
    struct dcp_training t = {
        .step = progress->step,
        .samples = progress->samples,
        .tokens = progress->tokens,
        .skipped_steps = progress->skipped_steps,
        .seed = (int64_t)settings->seed,
        .optimizer = optimizer_name(settings),
        .updates = progress->updates,
        .groups = groups,
        .n_groups = (size_t)optimizer_n_groups(settings),
        .scheduler = schedule_names[settings->scheduler.type],
        .last_batch_iteration = progress->scheduled - 1,
        .loss_scaler = "static", /* replaced */
        .loss_scale = 1.0,
        .rng = "philox4x32-10",
        .rng_seed = (int64_t)settings->seed,
        .cursor = progress->samples,
        .data_digest = digest,
        .seq_len = settings->seq_len,
        .model_config = described,
        .deepspeed_config = config,
    };
    const struct dcp_object *made;
    size_t n = 0;
    int rc = ok ? dcp_training_format(&t, &made, &n, err)
                : dcp_error_memory(err, "the objects of a checkpoint");
    DCP_CLEANUP_FREE char *optimizer = NULL;
    if (!rc)
        rc = text_of_optimizer(made, n, settings, &optimizer, err);
    const struct replaced replaced[3] = { { DCP_TRAINING_SCHEDULER, scheduler },
                                          { DCP_TRAINING_LOSS_SCALER, scaler },
                                          { DCP_TRAINING_OPTIMIZER, optimizer } };
    if (!rc)
        rc = keep(state, made, n, replaced, &progress->lineage, err);
    dcp_training_fini(&t);
    return rc;
}

static void take(int64_t read, int64_t *out)
{
    if (read != DCP_TRAINING_UNKNOWN)
        *out = read;
}

int state_read_progress(const struct dcp_catalog *catalog,
                        struct state_progress *progress, uint64_t *out_seed,
                        int *out_seq_len, struct dcp_error *err)
{
    int64_t seed = (int64_t)*out_seed, seq_len = *out_seq_len;
    struct dcp_training t;
    DCP_TRY(dcp_training_parse(catalog, &t, err));
    int rc = dcp_training_check(&t, err);
    if (!rc) {
        take(t.updates, &progress->step); /* all that an optimizer alone tells */
        take(t.step, &progress->step);
        take(t.samples, &progress->samples);
        take(t.tokens, &progress->tokens);
        take(t.skipped_steps, &progress->skipped_steps);
        progress->updates = progress->step - progress->skipped_steps;
        take(t.updates, &progress->updates);
        take(t.seed, &seed);
        take(t.cursor, &progress->samples);
        take(t.seq_len, &seq_len);
        progress->scheduled =
            scheduler_done(catalog, progress->step - progress->skipped_steps);
        read_loss_scale(catalog, &progress->loss_scale);
        if (t.data_digest)
            dcp_str_parse_hex64(t.data_digest, &progress->data_digest);
        *out_seed = (uint64_t)seed;
        *out_seq_len = (int)seq_len;
    }
    dcp_training_fini(&t);
    return rc;
}

/* "gpt2, 4 layers, 4 heads, width 128, 128 positions, vocabulary 256" */
static void describe(const struct model_config *config, char *out, size_t cap)
{
    snprintf(out, cap, "%s, %d layers, %d heads, width %d, %d positions, vocabulary %d",
             config->family, config->n_layer, config->n_head, config->n_embd,
             config->n_positions, config->vocab_size);
}

int state_check_model(const struct dcp_catalog *catalog,
                      const struct model_config *config, struct dcp_error *err)
{
    int found = dcp_catalog_find_object(catalog, DCP_TRAINING_MODEL_CONFIG);
    struct model_config saved;
    char there[160], here[160];
    if (found < 0)
        return DCP_OK; /* the shapes of the tensors will tell */
    const struct dcp_object *object = &catalog->objects[found];
    DCP_TRY(model_config_parse(object->data, object->size_bytes, &saved, err));
    describe(&saved, there, sizeof there);
    describe(config, here, sizeof here);
    if (!strcmp(there, here))
        return DCP_OK;
    dcp_error_set(err, DCP_E_MISMATCH,
                  "the checkpoint's model is (%s), the configured one is (%s)", there,
                  here);
    dcp_error_hint(err, "make \"model\" in the configuration the same, or start another "
                        "run with --resume never and another checkpoint.dir");
    return DCP_E_MISMATCH;
}
