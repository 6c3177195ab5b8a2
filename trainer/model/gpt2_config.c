/* gpt2_config: the config.json of a Hugging Face GPT-2, and what it may say. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "gpt2.h"
#include <limits.h>
#include <math.h>
#include <string.h>

#define WHAT MODEL_CONFIG_FILE
#define GPT2_VOCAB_SIZE 50257
#define GPT2_END_OF_TEXT 50256

int gpt2_check(const struct model_config *config, struct dcp_error *err)
{
    /* The limits keep every product of two of them in 63 bits. */
    const struct {
        const char *name;
        int value, max;
    } numbers[] = {
        { "n_layer", config->n_layer, 1 << 16 },
        { "n_head", config->n_head, 1 << 20 },
        { "n_embd", config->n_embd, 1 << 20 },
        { "n_positions", config->n_positions, 1 << 28 },
        { "vocab_size", config->vocab_size, 1 << 28 },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(numbers); i++)
        if (numbers[i].value < 1 || numbers[i].value > numbers[i].max)
            return dcp_error_set(err, DCP_E_USAGE, "%s is %d; it must be 1 to %d",
                                 numbers[i].name, numbers[i].value, numbers[i].max);
    if (config->n_embd % config->n_head != 0)
        return dcp_error_set(err, DCP_E_USAGE, "n_embd %d is not a multiple of n_head %d",
                             config->n_embd, config->n_head);
    if (!(config->layer_norm_epsilon >= 0) || isinf(config->layer_norm_epsilon))
        return dcp_error_set(err, DCP_E_USAGE,
                             "layer_norm_epsilon is %g; it must be 0 or more",
                             config->layer_norm_epsilon);
    return DCP_OK;
}

/* --- write --- */

json_t *gpt2_json(const struct model_config *config, enum dcp_dtype dtype)
{
    double eps = config->layer_norm_epsilon;
    /* Another vocabulary has its end of text elsewhere, or nowhere. */
    bool known = config->vocab_size == GPT2_VOCAB_SIZE;
    const struct {
        const char *key;
        json_t *value;
    } members[] = {
        { "model_type", json_string(gpt2_family.name) },
        { "architectures", json_pack("[s]", "GPT2LMHeadModel") },
        { "activation_function", json_string("gelu_new") },
        { "attn_pdrop", json_real(0) },
        { "bos_token_id", known ? json_integer(GPT2_END_OF_TEXT) : json_null() },
        { "embd_pdrop", json_real(0) },
        { "eos_token_id", known ? json_integer(GPT2_END_OF_TEXT) : json_null() },
        { "initializer_range", json_real(0.02) },
        { "layer_norm_epsilon", json_real(eps != 0 ? eps : 1e-5) },
        { "n_ctx", json_integer(config->n_positions) },
        { "n_embd", json_integer(config->n_embd) },
        { "n_head", json_integer(config->n_head) },
        { "n_inner", json_null() },
        { "n_layer", json_integer(config->n_layer) },
        { "n_positions", json_integer(config->n_positions) },
        { "reorder_and_upcast_attn", json_false() },
        { "resid_pdrop", json_real(0) },
        { "scale_attn_by_inverse_layer_idx", json_false() },
        { "scale_attn_weights", json_true() },
        { "tie_word_embeddings", json_true() },
        { "torch_dtype", json_string(dcp_dtype_torch_name(dtype)) },
        { "use_cache", json_true() },
        { "vocab_size", json_integer(config->vocab_size) },
    };
    json_t *json = json_object();
    bool complete = true;
    for (size_t i = 0; i < DCP_ARRAY_LEN(members); i++) /* takes NULL as a failure */
        complete &= json_object_set_new(json, members[i].key, members[i].value) == 0;
    if (complete)
        return json;
    json_decref(json);
    return NULL;
}

/* --- read --- */

static int get_int(const json_t *json, const char *key, int *out, struct dcp_error *err)
{
    int64_t value;
    DCP_TRY(dcp_json_get_i64(json, key, WHAT, &value, err));
    if (value < 1 || value > INT_MAX)
        return dcp_error_set(err, DCP_E_CORRUPT, WHAT ": '%s' is %lld", key,
                             (long long)value);
    *out = (int)value;
    return DCP_OK;
}

/* Flags that change what the model computes; a missing one has the default. */
static const struct {
    const char *key;
    bool wanted; /* also the default */
} flags[] = {
    { "scale_attn_weights", true },
    { "scale_attn_by_inverse_layer_idx", false },
    { "tie_word_embeddings", true },
    { "add_cross_attention", false },
};

/* Refuses a GPT-2 that computes something else than ours. */
static int check_same_model(const json_t *json, const struct model_config *config,
                            struct dcp_error *err)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(flags); i++) {
        const json_t *flag = json_object_get(json, flags[i].key);
        if (flag && !json_is_null(flag) &&
            (!json_is_boolean(flag) || json_is_true(flag) != flags[i].wanted))
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 WHAT ": a model whose '%s' is not %s is not supported",
                                 flags[i].key, flags[i].wanted ? "true" : "false");
    }
    const json_t *activation = json_object_get(json, "activation_function");
    char shown[64];
    const char *name = activation ? json_string_value(activation) : "gelu_new";
    if (!name ||
        (strcmp(name, "gelu_new") != 0 && strcmp(name, "gelu_pytorch_tanh") != 0))
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             WHAT
                             ": activation_function is '%s'; 'gelu_new' is supported",
                             dcp_str_escape(shown, sizeof shown, name ? name : "?"));
    const json_t *inner = json_object_get(json, "n_inner");
    if (inner && !json_is_null(inner) &&
        json_integer_value(inner) != 4 * (json_int_t)config->n_embd)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             WHAT ": n_inner is %lld; 4 × n_embd, %lld, is supported",
                             (long long)json_integer_value(inner),
                             4 * (long long)config->n_embd);
    return DCP_OK;
}

int gpt2_parse(const json_t *json, struct model_config *config, struct dcp_error *err)
{
    config->layer_norm_epsilon = 1e-5;
    const struct {
        const char *key;
        int *out;
    } numbers[] = {
        { "n_layer", &config->n_layer },       { "n_head", &config->n_head },
        { "n_embd", &config->n_embd },         { "n_positions", &config->n_positions },
        { "vocab_size", &config->vocab_size },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(numbers); i++)
        DCP_TRY(get_int(json, numbers[i].key, numbers[i].out, err));
    const json_t *eps = json_object_get(json, "layer_norm_epsilon");
    if (eps && (!json_is_number(eps) || !(json_number_value(eps) > 0)))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             WHAT ": 'layer_norm_epsilon' must be a number above 0");
    if (eps)
        config->layer_norm_epsilon = json_number_value(eps);
    return check_same_model(json, config, err);
}
