/* config: config.json of Hugging Face from the keys of a GGUF file, and back. */
#include "formats/models/config.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/models/axes.h"
#include "gguf.h"
#include <stdio.h>
#include <string.h>

#define WHAT "a GGUF file"

/* Members that stand under other names in both. */
static const struct member {
    const char *gguf, *config, *older;
    bool is_real, needed;
} gpt2_members[] = {
    { "block_count", "n_layer", NULL, false, true },
    { "context_length", "n_positions", "n_ctx", false, true },
    { "embedding_length", "n_embd", NULL, false, true },
    { "feed_forward_length", "n_inner", NULL, false, false },
    { "attention.head_count", "n_head", NULL, false, true },
    { "attention.layer_norm_epsilon", "layer_norm_epsilon", NULL, true, true },
}, llama_members[] = {
    { "block_count", "num_hidden_layers", NULL, false, true },
    { "context_length", "max_position_embeddings", NULL, false, true },
    { "embedding_length", "hidden_size", NULL, false, true },
    { "feed_forward_length", "intermediate_size", NULL, false, true },
    { "attention.head_count", "num_attention_heads", NULL, false, true },
    { "attention.head_count_kv", "num_key_value_heads", NULL, false, false },
    { "attention.layer_norm_rms_epsilon", "rms_norm_eps", NULL, true, true },
};

/* What yarn may say beside its factor. */
static const struct {
    const char *gguf, *config;
} yarn_members[] = {
    { "rope.scaling.yarn_ext_factor", "extrapolation_factor" },
    { "rope.scaling.yarn_attn_factor", "attention_factor" },
    { "rope.scaling.yarn_beta_fast", "beta_fast" },
    { "rope.scaling.yarn_beta_slow", "beta_slow" },
};

static bool is_gpt2(const struct dcp_names_family *family)
{
    return !strcmp(family->model_type, "gpt2");
}

static const struct member *members_of(const struct dcp_names_family *family,
                                       size_t *out_n)
{
    *out_n = is_gpt2(family) ? DCP_ARRAY_LEN(gpt2_members) : DCP_ARRAY_LEN(llama_members);
    return is_gpt2(family) ? gpt2_members : llama_members;
}

bool dcp_gguf_heads(const json_t *config, enum dcp_names_axes axes, int64_t n_rows,
                    int64_t *out)
{
    int64_t heads, size, hidden;

    if (!dcp_model_config_int(config, "num_attention_heads", NULL, &heads))
        return false;
    if (!dcp_model_config_int(config, "head_dim", NULL, &size)) {
        dcp_model_config_int(config, "hidden_size", NULL, &hidden);
        size = hidden / heads;
    }
    *out = heads;
    if (axes == DCP_AXES_K_ROWS &&
        !dcp_model_config_int(config, "num_key_value_heads", NULL, out))
        *out = heads;
    return dcp_axes_heads_ok(axes, n_rows, *out) && n_rows / *out == size;
}

/* -- to config.json ------------------------------------------------------------------ */

/* Fills a config; `enough` turns false where the keys do not tell what is needed. */
struct filler {
    const struct dcp_gguf *gguf;
    const struct dcp_names_family *family;
    json_t *config;
    bool enough, failed; /* failed: memory ran out */
};

static void set(struct filler *f, const char *key, json_t *value)
{
    f->failed = f->failed || json_object_set_new(f->config, key, value);
}

static bool get_int(const struct filler *f, const char *name, int64_t *out)
{
    char key[80];

    snprintf(key, sizeof key, "%s.%s", f->family->gguf, name);
    return dcp_gguf_get_int(f->gguf->metadata, key, out) && *out > 0;
}

static bool get_real(const struct filler *f, const char *name, double *out)
{
    char key[80];

    snprintf(key, sizeof key, "%s.%s", f->family->gguf, name);
    return dcp_gguf_get_real(f->gguf->metadata, key, out);
}

static void set_members(struct filler *f)
{
    size_t n;
    const struct member *members = members_of(f->family, &n);

    for (size_t i = 0; i < n; i++) {
        double real;
        int64_t number;
        if (members[i].is_real ? get_real(f, members[i].gguf, &real)
                               : get_int(f, members[i].gguf, &number))
            set(f, members[i].config,
                members[i].is_real ? json_real(real) : json_integer(number));
        else
            f->enough = f->enough && !members[i].needed;
    }
}

static void set_vocabulary(struct filler *f)
{
    static const struct {
        const char *gguf, *config;
    } ids[] = {
        { "tokenizer.ggml.bos_token_id", "bos_token_id" },
        { "tokenizer.ggml.eos_token_id", "eos_token_id" },
        { "tokenizer.ggml.padding_token_id", "pad_token_id" },
    };
    const struct dcp_gguf_tensor *embedding = dcp_gguf_find(f->gguf, "token_embd.weight");
    int64_t id;

    f->enough = f->enough && embedding && embedding->ndim == 2;
    if (f->enough)
        set(f, "vocab_size", json_integer(embedding->shape[0]));
    for (size_t i = 0; i < DCP_ARRAY_LEN(ids); i++)
        if (dcp_gguf_get_int(f->gguf->metadata, ids[i].gguf, &id))
            set(f, ids[i].config, json_integer(id));
    set(f, "tie_word_embeddings", json_boolean(!dcp_gguf_find(f->gguf, DCP_GGUF_HEAD)));
}

static void set_gpt2(struct filler *f)
{
    int64_t inner, embedding, positions;

    if (get_int(f, "feed_forward_length", &inner) &&
        get_int(f, "embedding_length", &embedding) && inner / 4 == embedding &&
        inner % 4 == 0)
        json_object_del(f->config, "n_inner");    /* the rule */
    if (get_int(f, "context_length", &positions)) /* older readers ask for this one */
        set(f, "n_ctx", json_integer(positions));
    set(f, "activation_function", json_string("gelu_new"));
}

/* The size of a head where it is not the embedding divided by the heads. */
static void set_head_dim(struct filler *f)
{
    int64_t key, rope, hidden = 0, heads = 0;
    bool has_key = get_int(f, "attention.key_length", &key);
    bool has_rope = get_int(f, "rope.dimension_count", &rope);

    get_int(f, "embedding_length", &hidden);
    get_int(f, "attention.head_count", &heads);
    if (!has_key && !has_rope)
        return;
    if (has_key && has_rope && key != rope) /* a part of each head is not rotated */
        f->enough = false;
    int64_t size = has_key ? key : rope;
    if (f->enough && (hidden % heads || size != hidden / heads))
        set(f, "head_dim", json_integer(size));
}

static void set_rope_scaling(struct filler *f)
{
    static const char key[] = ".rope.scaling.type";
    char name[80];
    int64_t original;
    double factor;

    snprintf(name, sizeof name, "%s%s", f->family->gguf, key);
    const char *type = json_string_value(json_object_get(f->gguf->metadata, name));
    if (!type || !strcmp(type, "none"))
        return;
    bool yarn = !strcmp(type, "yarn");
    if ((strcmp(type, "linear") && !yarn) ||
        !get_real(f, "rope.scaling.factor", &factor)) {
        f->enough = false;
        return;
    }
    json_t *scaling =
        json_pack("{s:s,s:s,s:f}", "rope_type", type, "type", type, "factor", factor);
    if (yarn && get_int(f, "rope.scaling.original_context_length", &original))
        f->failed |= json_object_set_new(scaling, "original_max_position_embeddings",
                                         json_integer(original)) != 0;
    for (size_t i = 0; yarn && i < DCP_ARRAY_LEN(yarn_members); i++)
        if (get_real(f, yarn_members[i].gguf, &factor))
            f->failed |= json_object_set_new(scaling, yarn_members[i].config,
                                             json_real(factor)) != 0;
    set(f, "rope_scaling", scaling);
}

static void set_llama(struct filler *f)
{
    int64_t heads;
    double base;

    if (get_int(f, "attention.head_count", &heads) &&
        !json_object_get(f->config, "num_key_value_heads"))
        set(f, "num_key_value_heads", json_integer(heads));
    set_head_dim(f);
    set(f, "rope_theta", json_real(get_real(f, "rope.freq_base", &base) ? base : 10000));
    set_rope_scaling(f);
    set(f, "hidden_act", json_string("silu"));
    if (!strcmp(f->family->model_type, "llama")) {
        set(f, "attention_bias",
            json_boolean(dcp_gguf_find(f->gguf, "blk.0.attn_q.bias") != NULL));
        set(f, "mlp_bias",
            json_boolean(dcp_gguf_find(f->gguf, "blk.0.ffn_up.bias") != NULL));
    }
}

/* The factors of Llama 3, from their tensor. */
static int set_rope_factors(struct filler *f, const struct dcp_input *in,
                            struct dcp_error *err)
{
    const struct dcp_gguf_tensor *tensor = dcp_gguf_find(f->gguf, DCP_GGUF_ROPE_FREQS);
    DCP_CLEANUP_FREE void *data = NULL;
    json_t *scaling = NULL;
    double base;

    if (!tensor)
        return DCP_OK;
    f->enough = f->enough && tensor->dtype == DCP_F32 && tensor->ndim == 1 &&
                tensor->size_bytes <= 1 << 20;
    if (!f->enough)
        return DCP_OK;
    DCP_TRY(
        dcp_input_read_new(in, tensor->offset, (size_t)tensor->size_bytes, &data, err));
    for (int64_t i = 0; i < tensor->shape[0]; i++) { /* of this machine from now on */
        uint32_t bits = dcp_le32((unsigned char *)data + 4 * i);
        memcpy((unsigned char *)data + 4 * i, &bits, sizeof bits);
    }
    base = json_number_value(json_object_get(f->config, "rope_theta"));
    int rc = dcp_gguf_rope_scaling(data, (size_t)tensor->shape[0], base, &scaling, err);
    f->enough = f->enough && scaling && !json_object_get(f->config, "rope_scaling");
    if (f->enough)
        set(f, "rope_scaling", scaling);
    else
        json_decref(scaling);
    return rc;
}

int dcp_gguf_to_config(const struct dcp_gguf *gguf, const struct dcp_input *in,
                       const struct dcp_names_family *family, json_t **out,
                       struct dcp_error *err)
{
    struct filler f = { .gguf = gguf, .family = family, .enough = true };
    int rc = DCP_OK;

    *out = NULL;
    f.config = json_pack("{s:[s],s:s}", "architectures", family->architecture,
                         "model_type", family->model_type);
    if (!f.config)
        return dcp_error_memory(err, "a configuration");
    set_members(&f);
    set_vocabulary(&f);
    if (f.enough && is_gpt2(family))
        set_gpt2(&f);
    else if (f.enough)
        set_llama(&f);
    if (f.enough)
        rc = set_rope_factors(&f, in, err);
    if (!rc && f.failed)
        rc = dcp_error_memory(err, "a configuration");
    if (!rc && f.enough)
        *out = f.config;
    else
        json_decref(f.config);
    return rc;
}

/* -- from config.json ---------------------------------------------------------------- */

/* Takes value, which is NULL when memory ran out. A key that is there already stays. */
static int add_key(json_t *metadata, const char *architecture, const char *name,
                   json_t *value, struct dcp_error *err)
{
    char key[80];

    snprintf(key, sizeof key, "%s%s%s", architecture, architecture[0] ? "." : "", name);
    if (value && json_object_get(metadata, key)) {
        json_decref(value);
        return DCP_OK;
    }
    return json_object_set_new(metadata, key, value)
               ? dcp_error_memory(err, "the keys of a GGUF file")
               : DCP_OK;
}

static int add_members(const json_t *config, const struct dcp_names_family *family,
                       json_t *metadata, struct dcp_error *err)
{
    size_t n;
    const struct member *members = members_of(family, &n);

    for (size_t i = 0; i < n; i++) {
        int64_t number = 0, embedding = 0;
        double real = 0;
        bool found = members[i].is_real
                         ? dcp_model_config_real(config, members[i].config, &real)
                         : dcp_model_config_int(config, members[i].config,
                                                members[i].older, &number);
        if (!found && !strcmp(members[i].config, "n_inner") &&
            dcp_model_config_int(config, "n_embd", NULL, &embedding)) {
            number = 4 * embedding;
            found = embedding <= INT32_MAX / 4;
        }
        if (!found && !members[i].needed)
            continue;
        if (!found || number > UINT32_MAX)
            return dcp_error_set(err, DCP_E_MISMATCH,
                                 WHAT " needs a model configuration with '%s'",
                                 members[i].config);
        DCP_TRY(add_key(metadata, family->gguf, members[i].gguf,
                        members[i].is_real ? dcp_gguf_f32(real) : dcp_gguf_u32(number),
                        err));
    }
    return DCP_OK;
}

static int add_rope_scaling(const json_t *scaling, const char *gguf, json_t *metadata,
                            struct dcp_error *err)
{
    const json_t *named = json_object_get(scaling, "rope_type");
    const char *type =
        json_string_value(named ? named : json_object_get(scaling, "type"));
    char shown[80];
    int64_t original;
    double factor;

    if (!type || !strcmp(type, "default") || !strcmp(type, "llama3"))
        return DCP_OK; /* the last is a tensor: dcp_gguf_rope_factors */
    bool yarn = !strcmp(type, "yarn");
    if ((strcmp(type, "linear") && !yarn) ||
        !dcp_model_config_real(scaling, "factor", &factor))
        return dcp_error_set(err, DCP_E_MISMATCH, WHAT " cannot hold: rope scaling '%s'",
                             dcp_str_escape(shown, sizeof shown, type));
    DCP_TRY(add_key(metadata, gguf, "rope.scaling.type", json_string(type), err));
    DCP_TRY(add_key(metadata, gguf, "rope.scaling.factor", dcp_gguf_f32(factor), err));
    if (yarn && dcp_model_config_int(scaling, "original_max_position_embeddings", NULL,
                                     &original))
        DCP_TRY(add_key(metadata, gguf, "rope.scaling.original_context_length",
                        dcp_gguf_u32(original), err));
    for (size_t i = 0; yarn && i < DCP_ARRAY_LEN(yarn_members); i++)
        if (dcp_model_config_real(scaling, yarn_members[i].config, &factor))
            DCP_TRY(
                add_key(metadata, gguf, yarn_members[i].gguf, dcp_gguf_f32(factor), err));
    return DCP_OK;
}

/* Newer configurations have all of the rotation in rope_parameters. */
static int add_rope(const json_t *config, const char *gguf, json_t *metadata,
                    struct dcp_error *err)
{
    const json_t *parameters = json_object_get(config, "rope_parameters");
    const json_t *scaling =
        parameters ? parameters : json_object_get(config, "rope_scaling");
    double base = 10000;

    if (!dcp_model_config_real(parameters, "rope_theta", &base) &&
        !dcp_model_config_real(config, "rope_theta", &base))
        base = 10000;
    DCP_TRY(add_rope_scaling(scaling, gguf, metadata, err));
    return add_key(metadata, gguf, "rope.freq_base", dcp_gguf_f32(base), err);
}

static int add_llama(const json_t *config, const struct dcp_names_family *family,
                     json_t *metadata, struct dcp_error *err)
{
    static const char *const activations[] = { "silu", NULL };
    const char *gguf = family->gguf;
    int64_t size, heads = 1, hidden = 1, vocabulary;

    DCP_TRY(dcp_model_config_check(config, "hidden_act", activations, WHAT, err));
    DCP_TRY(add_rope(config, gguf, metadata, err));
    dcp_model_config_int(config, "num_attention_heads", NULL, &heads);
    dcp_model_config_int(config, "hidden_size", NULL, &hidden);
    bool has_size = dcp_model_config_int(config, "head_dim", NULL, &size);
    if (has_size) {
        DCP_TRY(add_key(metadata, gguf, "attention.key_length", dcp_gguf_u32(size), err));
        DCP_TRY(
            add_key(metadata, gguf, "attention.value_length", dcp_gguf_u32(size), err));
    } else {
        size = hidden / heads;
    }
    if (dcp_model_config_int(config, "vocab_size", NULL, &vocabulary))
        DCP_TRY(add_key(metadata, gguf, "vocab_size", dcp_gguf_u32(vocabulary), err));
    return add_key(metadata, gguf, "rope.dimension_count", dcp_gguf_u32(size), err);
}

int dcp_gguf_from_config(const json_t *config, const struct dcp_names_family *family,
                         json_t *metadata, struct dcp_error *err)
{
    static const char *const activations[] = { "gelu_new", "gelu_pytorch_tanh",
                                               "gelu_fast", NULL };
    static const struct {
        const char *config, *gguf;
    } ids[] = {
        { "bos_token_id", "tokenizer.ggml.bos_token_id" },
        { "eos_token_id", "tokenizer.ggml.eos_token_id" },
    };

    DCP_TRY(add_key(metadata, "", DCP_GGUF_ARCHITECTURE, json_string(family->gguf), err));
    DCP_TRY(add_key(metadata, "", "general.type", json_string("model"), err));
    DCP_TRY(add_key(metadata, "", "general.name", json_string(family->gguf), err));
    DCP_TRY(add_members(config, family, metadata, err));
    if (is_gpt2(family))
        DCP_TRY(dcp_model_config_check(config, "activation_function", activations, WHAT,
                                       err));
    else
        DCP_TRY(add_llama(config, family, metadata, err));
    for (size_t i = 0; i < DCP_ARRAY_LEN(ids); i++) {
        const json_t *id = json_object_get(config, ids[i].config);
        if (json_is_integer(id) && json_integer_value(id) >= 0)
            DCP_TRY(add_key(metadata, "", ids[i].gguf,
                            dcp_gguf_u32(json_integer_value(id)), err));
    }
    return DCP_OK;
}
