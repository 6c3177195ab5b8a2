/* The objects of a checkpoint: JSON texts, written and read back. */
#include "state.h"

#include "base/arena.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "trainer/config/schedule.h"
#include <dcp/training.h>
#include <stdio.h>
#include <string.h>

/* What differs between machines and world sizes but changes nothing that is computed. */
static const char *const not_kept[][2] = {
    { "model", "init" },
    { "data", "train" },
    { "data", "val" },
    { "data", "tokenizer" },
    { "checkpoint", NULL },
    { "steps_per_print", NULL },
    { "steps", NULL },
    { "gradient_accumulation_steps", NULL },
    { "train_micro_batch_size_per_gpu", NULL },
    { "zero_optimization", NULL },
    { "timeout_s", NULL },
};

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
    return dcp_json_text(config, 0);
}

/* The options of one group of parameters, and its members: those that decay, or not. As
 * in torch and DeepSpeed lr is the one of the last update. False: out of memory. */
static bool set_group(struct dcp_arena *arena, const struct model *model,
                      const struct settings *settings, int64_t updates, bool decay,
                      struct dcp_training_group *out)
{
    int n;
    const struct model_param *params = model_params(model, &n);
    const char **names = dcp_arena_alloc(arena, (size_t)n, sizeof *names);
    *out = (struct dcp_training_group){
        .lr = schedule_lr(&settings->scheduler, settings->lr, updates ? updates : 1),
        .initial_lr = settings->lr,
        .betas = { settings->beta1, settings->beta2 },
        .eps = settings->eps,
        .weight_decay = decay ? settings->weight_decay : 0.0,
        .bias_correction = settings->bias_correction,
        .params = names,
    };
    for (int p = 0; names && p < n; p++)
        if (params[p].decay == decay)
            names[out->n_params++] = params[p].name;
    return names;
}

/* Copies the objects into the state, and adds where it comes from. */
static int keep(struct state *state, const struct dcp_object *objects, size_t n,
                const struct dcp_lineage *lineage, struct dcp_error *err)
{
    struct dcp_object *kept = dcp_arena_alloc(state->arena, n + 1, sizeof *kept);
    char *text = dcp_arena_alloc(state->arena, DCP_LINEAGE_CAP, 1);
    bool ok = kept && text;
    for (size_t i = 0; i < n && ok; i++) {
        kept[i] = objects[i];
        kept[i].data =
            dcp_arena_copy(state->arena, objects[i].data, objects[i].size_bytes);
        ok = kept[i].data != NULL;
    }
    if (!ok)
        return dcp_error_memory(err, "the objects of a checkpoint");
    dcp_lineage_object(lineage, text, &kept[n]);
    state->dcp.objects = kept;
    state->dcp.n_objects = n + 1;
    return DCP_OK;
}

int state_objects(struct state *state, const struct model *model,
                  const struct settings *settings, const struct state_progress *progress,
                  struct dcp_error *err)
{
    int64_t updates = progress->step - progress->skipped_steps;
    struct dcp_training_group groups[2];
    char digest[17];
    DCP_CLEANUP_FREE char *config = config_of(settings);
    DCP_CLEANUP_FREE char *described =
        model_config_json(model_config(model), settings->bf16 ? DCP_BF16 : DCP_F32);
    bool ok = config && described &&
              set_group(state->arena, model, settings, updates, true, &groups[0]) &&
              set_group(state->arena, model, settings, updates, false, &groups[1]);
    dcp_str_hex64(digest, progress->data_digest);
    struct dcp_training t = {
        .step = progress->step,
        .samples = progress->samples,
        .tokens = progress->tokens,
        .skipped_steps = progress->skipped_steps,
        .seed = (int64_t)settings->seed,
        .optimizer = settings->decoupled_decay ? "AdamW" : "Adam",
        .updates = updates,
        .groups = groups,
        .n_groups = DCP_ARRAY_LEN(groups),
        .scheduler = schedule_name(settings->scheduler.type),
        .last_batch_iteration = updates - 1,
        .loss_scaler = "static",
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
    if (!rc)
        rc = keep(state, made, n, &progress->lineage, err);
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
        take(t.step, &progress->step);
        take(t.samples, &progress->samples);
        take(t.tokens, &progress->tokens);
        take(t.skipped_steps, &progress->skipped_steps);
        take(t.seed, &seed);
        take(t.cursor, &progress->samples);
        take(t.seq_len, &seq_len);
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
