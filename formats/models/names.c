/* names: the tables, and reading and spelling names by them. */
#include "names.h"
#include "base/mem.h"
#include "base/str.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct dcp_names_row gpt2_rows[] = {
    { .name = { "wte", "token_embd" } },
    { .name = { "wpe", "position_embd" } },
    { .name = { "h.#.ln_1", "blk.#.attn_norm" } },
    { .name = { "h.#.attn.c_attn", "blk.#.attn_qkv" }, .axes = DCP_AXES_TRANSPOSED },
    { .name = { "h.#.attn.c_proj", "blk.#.attn_output" }, .axes = DCP_AXES_TRANSPOSED },
    { .name = { "h.#.ln_2", "blk.#.ffn_norm" } },
    { .name = { "h.#.mlp.c_fc", "blk.#.ffn_up" }, .axes = DCP_AXES_TRANSPOSED },
    { .name = { "h.#.mlp.c_proj", "blk.#.ffn_down" }, .axes = DCP_AXES_TRANSPOSED },
    { .name = { "ln_f", "output_norm" } },
    { .name = { "lm_head", "output" } },
};

static const struct dcp_names_row llama_rows[] = {
    { .name = { "embed_tokens", "token_embd", "tok_embeddings" },
      .split = DCP_SPLIT_EITHER },
    { .name = { "layers.#.input_layernorm", "blk.#.attn_norm",
                "layers.#.attention_norm" } },
    { .name = { "layers.#.self_attn.q_proj", "blk.#.attn_q", "layers.#.attention.wq" },
      .axes = DCP_AXES_Q_ROWS,
      .split = DCP_SPLIT_ROWS },
    { .name = { "layers.#.self_attn.k_proj", "blk.#.attn_k", "layers.#.attention.wk" },
      .axes = DCP_AXES_K_ROWS,
      .split = DCP_SPLIT_ROWS },
    { .name = { "layers.#.self_attn.v_proj", "blk.#.attn_v", "layers.#.attention.wv" },
      .split = DCP_SPLIT_ROWS },
    { .name = { "layers.#.self_attn.o_proj", "blk.#.attn_output",
                "layers.#.attention.wo" },
      .split = DCP_SPLIT_COLUMNS },
    { .name = { "layers.#.post_attention_layernorm", "blk.#.ffn_norm",
                "layers.#.ffn_norm" } },
    { .name = { "layers.#.mlp.gate_proj", "blk.#.ffn_gate", "layers.#.feed_forward.w1" },
      .split = DCP_SPLIT_ROWS },
    { .name = { "layers.#.mlp.up_proj", "blk.#.ffn_up", "layers.#.feed_forward.w3" },
      .split = DCP_SPLIT_ROWS },
    { .name = { "layers.#.mlp.down_proj", "blk.#.ffn_down", "layers.#.feed_forward.w2" },
      .split = DCP_SPLIT_COLUMNS },
    { .name = { "norm", "output_norm", "norm" } },
    { .name = { "lm_head", "output", "output" }, .split = DCP_SPLIT_ROWS },
};

#define LLAMA_LIKE                                                           \
    .prefix = "model.", .head = "lm_head",                                   \
    .dropped = { ".rotary_emb.inv_freq", "rope.freqs" }, .rows = llama_rows, \
    .n_rows = DCP_ARRAY_LEN(llama_rows)

static const struct dcp_names_family families[] = {
    { .model_type = "gpt2",
      .architecture = "GPT2LMHeadModel",
      .base = "GPT2Model",
      .gguf = "gpt2",
      .prefix = "transformer.",
      .head = "lm_head",
      .tied = true,
      .dropped = { ".attn.bias", ".attn.masked_bias" },
      .rows = gpt2_rows,
      .n_rows = DCP_ARRAY_LEN(gpt2_rows) },
    { .model_type = "llama",
      .architecture = "LlamaForCausalLM",
      .base = "LlamaModel",
      .gguf = "llama",
      .permuted = true,
      LLAMA_LIKE },
    { .model_type = "mistral",
      .architecture = "MistralForCausalLM",
      .base = "MistralModel",
      .gguf = "llama",
      .permuted = true,
      LLAMA_LIKE },
    { .model_type = "qwen2",
      .architecture = "Qwen2ForCausalLM",
      .base = "Qwen2Model",
      .gguf = "qwen2",
      LLAMA_LIKE },
};

const struct dcp_names_family *dcp_names_family(const char *model_type)
{
    for (size_t i = 0; model_type && i < DCP_ARRAY_LEN(families); i++)
        if (!strcmp(families[i].model_type, model_type))
            return &families[i];
    return NULL;
}

const struct dcp_names_family *dcp_names_gguf_family(const char *architecture)
{
    const struct dcp_names_family *family = dcp_names_family(architecture);

    return family && !strcmp(family->gguf, architecture) ? family : NULL;
}

/* The number at the beginning of text, as it is written: no sign, no leading zero. */
static bool read_layer(const char *text, int64_t *out, const char **out_rest)
{
    size_t n = strspn(text, "0123456789");

    if (!n || n > 6 || (n > 1 && text[0] == '0'))
        return false;
    *out = 0;
    for (size_t i = 0; i < n; i++)
        *out = *out * 10 + (text[i] - '0');
    *out_rest = text + n;
    return *out < DCP_NAMES_MAX_LAYERS;
}

/* Whether name begins with the pattern; *out_rest is what follows. */
static bool match_pattern(const char *pattern, const char *name, int64_t *out_layer,
                          const char **out_rest)
{
    *out_layer = -1;
    for (; *pattern; pattern++) {
        if (*pattern == '#') {
            if (!read_layer(name, out_layer, &name))
                return false;
        } else if (*pattern != *name++) {
            return false;
        }
    }
    *out_rest = name;
    return true;
}

static bool is_head(const struct dcp_names_family *family,
                    const struct dcp_names_row *row)
{
    return !strcmp(row->name[DCP_NAMES_HF], family->head);
}

bool dcp_names_match(const struct dcp_names_family *family, enum dcp_names_scheme scheme,
                     const char *name, struct dcp_names_match *out)
{
    static const char *const suffixes[] = { ".weight", ".bias" };
    bool prefixed = scheme == DCP_NAMES_HF && dcp_str_starts(name, family->prefix);

    if (prefixed)
        name += strlen(family->prefix);
    for (size_t i = 0; i < family->n_rows; i++) {
        const struct dcp_names_row *row = &family->rows[i];
        const char *rest;
        int64_t layer;
        if (!row->name[scheme] || (prefixed && is_head(family, row)) ||
            !match_pattern(row->name[scheme], name, &layer, &rest))
            continue;
        for (size_t s = 0; s < DCP_ARRAY_LEN(suffixes); s++)
            if (!strcmp(rest, suffixes[s])) {
                *out = (struct dcp_names_match){ family, row, layer, suffixes[s] };
                return true;
            }
    }
    return false;
}

bool dcp_names_spell(const struct dcp_names_match *match, enum dcp_names_scheme scheme,
                     char out[DCP_NAMES_MAX_BYTES])
{
    const char *pattern = match->row->name[scheme];
    bool prefixed = scheme == DCP_NAMES_HF && !is_head(match->family, match->row);

    if (!pattern)
        return false;
    const char *hash = strchr(pattern, '#');
    int before = hash ? (int)(hash - pattern) : (int)strlen(pattern);
    char layer[24] = "";
    if (hash)
        snprintf(layer, sizeof layer, "%" PRId64, match->layer);
    snprintf(out, DCP_NAMES_MAX_BYTES, "%s%.*s%s%s%s",
             prefixed ? match->family->prefix : "", before, pattern, layer,
             hash ? hash + 1 : "", match->suffix);
    return true;
}

bool dcp_names_translate(const struct dcp_names_family *family,
                         enum dcp_names_scheme from, enum dcp_names_scheme to,
                         const char *name, char out[DCP_NAMES_MAX_BYTES])
{
    struct dcp_names_match match;

    return dcp_names_match(family, from, name, &match) &&
           dcp_names_spell(&match, to, out);
}

bool dcp_names_dropped(const struct dcp_names_family *family, const char *name)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(family->dropped); i++)
        if (family->dropped[i] && dcp_str_ends(name, family->dropped[i]))
            return true;
    return false;
}

enum dcp_names_axes dcp_names_axes_of(const struct dcp_names_match *match, int ndim)
{
    enum dcp_names_axes axes = match->row->axes;

    if (axes == DCP_AXES_TRANSPOSED)
        return ndim == 2 ? axes : DCP_AXES_SAME;
    return match->family->permuted ? axes : DCP_AXES_SAME;
}
