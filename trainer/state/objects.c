/* The objects of a checkpoint: JSON texts, written and read back. */
#include "state.h"

#include "base/arena.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "trainer/config/schedule.h"
#include <stdio.h>
#include <string.h>

/* What differs between machines and worlds but changes nothing that is computed. */
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

/* The configuration as JSON, without those. NULL: out of memory. */
static json_t *config_of(const struct settings *settings)
{
    json_t *config = NULL;
    if (dcp_json_parse(settings->text, strlen(settings->text), "the configuration",
                       &config, NULL))
        return NULL;
    for (size_t i = 0; i < DCP_ARRAY_LEN(not_kept); i++) {
        if (!not_kept[i][1])
            json_object_del(config, not_kept[i][0]);
        else
            json_object_del(json_object_get(config, not_kept[i][0]), not_kept[i][1]);
    }
    return config;
}

/* Takes value (may be NULL: out of memory). */
static int add(struct dcp_arena *arena, struct dcp_object *object, const char *name,
               json_t *value, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *owned = value;
    DCP_CLEANUP_FREE char *text = owned ? dcp_json_text(owned, 0) : NULL;
    char *copy = text ? dcp_arena_text(arena, text) : NULL;
    if (!copy)
        return dcp_error_memory(err, "the objects of a checkpoint");
    *object = (struct dcp_object){
        .name = name, .kind = DCP_OBJECT_JSON, .data = copy, .size_bytes = strlen(copy)
    };
    return DCP_OK;
}

static json_t *model_of(const struct model *model, const struct settings *settings)
{
    json_t *config = NULL;
    DCP_CLEANUP_FREE char *text =
        model_config_json(model_config(model), settings->bf16 ? DCP_BF16 : DCP_F32);
    if (!text || dcp_json_parse(text, strlen(text), "the model", &config, NULL))
        return NULL;
    return config;
}

static json_t *integer(int64_t v)
{
    return json_integer((json_int_t)v);
}

/* The options of one group of parameters, and its members: those that decay, or not. As
 * in torch and DeepSpeed lr is the one of the last update. */
static json_t *group_of(const struct model *model, const struct settings *settings,
                        int64_t updates, bool decay)
{
    double lr = schedule_lr(&settings->scheduler, settings->lr, updates ? updates : 1);
    int n;
    const struct model_param *params = model_params(model, &n);
    json_t *names = json_array();
    for (int p = 0; p < n; p++)
        if (params[p].decay == decay)
            json_array_append_new(names, json_string(params[p].name));
    return json_pack("{s:f, s:f, s:[f,f], s:f, s:f, s:b, s:o}", "lr", lr, "initial_lr",
                     settings->lr, "betas", settings->beta1, settings->beta2, "eps",
                     settings->eps, "weight_decay", decay ? settings->weight_decay : 0.0,
                     "bias_correction", settings->bias_correction, "params", names);
}

static json_t *optimizer_of(const struct model *model, const struct settings *settings,
                            const struct state_progress *progress)
{
    int64_t updates = progress->step - progress->skipped_steps;
    return json_pack("{s:s, s:o, s:[o,o]}", "type",
                     settings->decoupled_decay ? "AdamW" : "Adam", "step",
                     integer(updates), "param_groups",
                     group_of(model, settings, updates, true),
                     group_of(model, settings, updates, false));
}

int state_objects(struct dcp_arena *arena, const struct model *model,
                  const struct settings *settings, const struct state_progress *progress,
                  const struct dcp_object **out_objects, size_t *out_n,
                  struct dcp_error *err)
{
    char digest[17];
    dcp_str_hex64(digest, progress->data_digest);
    int64_t seed = (int64_t)settings->seed;
    const struct {
        const char *name;
        json_t *value;
    } rows[] = {
        { "model_config", model_of(model, settings) },
        { "trainer",
          json_pack("{s:o, s:o, s:o, s:o, s:o}", "step", integer(progress->step),
                    "samples", integer(progress->samples), "tokens",
                    integer(progress->tokens), "skipped_steps",
                    integer(progress->skipped_steps), "seed", integer(seed)) },
        { "optimizer", optimizer_of(model, settings, progress) },
        { "scheduler",
          json_pack("{s:s, s:o}", "type", schedule_name(settings->scheduler.type),
                    "last_batch_iteration",
                    integer(progress->step - progress->skipped_steps - 1)) },
        { "loss_scaler", json_pack("{s:s, s:f}", "type", "static", "scale", 1.0) },
        { "rng",
          json_pack("{s:s, s:o}", "algorithm", "philox4x32-10", "seed", integer(seed)) },
        { "data", json_pack("{s:o, s:s, s:i}", "cursor", integer(progress->samples),
                            "digest", digest, "seq_len", settings->seq_len) },
        { "deepspeed_config", config_of(settings) },
    };
    const size_t n = DCP_ARRAY_LEN(rows);
    struct dcp_object *objects = dcp_arena_alloc(arena, n + 1, sizeof *objects);
    char *lineage = dcp_arena_alloc(arena, DCP_LINEAGE_CAP, 1);
    int rc = objects && lineage ? DCP_OK
                                : dcp_error_memory(err, "the objects of a checkpoint");
    for (size_t i = 0; i < n; i++) {
        if (rc)
            json_decref(rows[i].value);
        else
            rc = add(arena, &objects[i], rows[i].name, rows[i].value, err);
    }
    if (!rc)
        dcp_lineage_object(&progress->lineage, lineage, &objects[n]);
    *out_objects = objects;
    *out_n = rc ? 0 : n + 1;
    return rc;
}

/* An object of the catalog, parsed; *out is NULL when it is not there. */
static int read_object(const struct dcp_catalog *catalog, const char *name, json_t **out,
                       struct dcp_error *err)
{
    int found = dcp_catalog_find_object(catalog, name);
    *out = NULL;
    if (found < 0 || catalog->objects[found].kind != DCP_OBJECT_JSON)
        return DCP_OK;
    const struct dcp_object *object = &catalog->objects[found];
    return dcp_json_parse(object->data, object->size_bytes, name, out, err);
}

static int read_i64(const json_t *object, const char *key, const char *what, int64_t *out,
                    struct dcp_error *err)
{
    int64_t v;
    if (!json_object_get(object, key))
        return DCP_OK;
    int rc = dcp_json_get_i64(object, key, what, &v, err);
    if (rc)
        return rc;
    if (v < 0)
        return dcp_error_set(err, DCP_E_CORRUPT, "%s: '%s' is %lld", what, key,
                             (long long)v);
    *out = v;
    return DCP_OK;
}

int state_read_progress(const struct dcp_catalog *catalog,
                        struct state_progress *progress, uint64_t *out_seed,
                        int *out_seq_len, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *trainer = NULL;
    DCP_CLEANUP_JSON json_t *data = NULL;
    int64_t seed = (int64_t)*out_seed, seq_len = *out_seq_len;
    struct state_progress read = *progress;
    int rc = read_object(catalog, "trainer", &trainer, err);
    if (!rc)
        rc = read_object(catalog, "data", &data, err);
    if (!rc)
        rc = read_i64(trainer, "step", "trainer", &read.step, err);
    if (!rc)
        rc = read_i64(trainer, "samples", "trainer", &read.samples, err);
    if (!rc)
        rc = read_i64(trainer, "tokens", "trainer", &read.tokens, err);
    if (!rc)
        rc = read_i64(trainer, "skipped_steps", "trainer", &read.skipped_steps, err);
    if (!rc)
        rc = read_i64(trainer, "seed", "trainer", &seed, err);
    if (!rc)
        rc = read_i64(data, "cursor", "data", &read.samples, err);
    if (!rc)
        rc = read_i64(data, "seq_len", "data", &seq_len, err);
    if (!rc && data && json_object_get(data, "digest"))
        rc = dcp_json_get_hex64(data, "digest", "data", &read.data_digest, err);
    if (rc)
        return rc;
    *progress = read;
    *out_seed = (uint64_t)seed;
    *out_seq_len = (int)seq_len;
    return DCP_OK;
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
    int found = dcp_catalog_find_object(catalog, "model_config");
    struct model_config saved;
    char there[160], here[160];
    if (found < 0)
        return DCP_OK; /* the shapes of the tensors will tell */
    const struct dcp_object *object = &catalog->objects[found];
    int rc = model_config_parse(object->data, object->size_bytes, &saved, err);
    if (rc)
        return rc;
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
