/* order: the tables, and sorting by them. */
#include "order.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

/* Modules in the order of their definition, as words between blanks. */
static const struct order {
    const char *model_types;
    const char *prefix;   /* of the base model's names, which may be missing */
    const char *first;    /* before the layers */
    const char *layer;    /* what the number of a layer follows */
    const char *in_layer; /* in each */
    const char *last;     /* behind them, heads too */
} orders[] = {
    { .model_types = "gpt2",
      .prefix = "transformer.",
      .first = "wte wpe",
      .layer = "h.",
      .in_layer = "ln_1 attn.c_attn attn.c_proj ln_2 mlp.c_fc mlp.c_proj",
      .last = "ln_f lm_head score classifier qa_outputs" },
    { .model_types = "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text",
      .prefix = "model.",
      .first = "embed_tokens",
      .layer = "layers.",
      .in_layer = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
                  "self_attn.q_norm self_attn.k_norm mlp.gate_proj mlp.up_proj "
                  "mlp.down_proj input_layernorm post_attention_layernorm "
                  "pre_feedforward_layernorm post_feedforward_layernorm",
      .last = "norm lm_head score qa_outputs" },
    { .model_types = "bert",
      .prefix = "bert.",
      .first = "embeddings.word_embeddings embeddings.position_embeddings "
               "embeddings.token_type_embeddings embeddings.LayerNorm",
      .layer = "encoder.layer.",
      .in_layer = "attention.self.query attention.self.key attention.self.value "
                  "attention.output.dense attention.output.LayerNorm "
                  "intermediate.dense output.dense output.LayerNorm",
      .last = "pooler.dense cls.predictions cls.predictions.transform.dense "
              "cls.predictions.transform.LayerNorm cls.predictions.decoder "
              "cls.seq_relationship classifier qa_outputs" },
    { .model_types = "gpt_neox",
      .prefix = "gpt_neox.",
      .first = "embed_in",
      .layer = "layers.",
      .in_layer = "input_layernorm post_attention_layernorm attention.query_key_value "
                  "attention.dense mlp.dense_h_to_4h mlp.dense_4h_to_h",
      .last = "final_layer_norm embed_out lm_head score classifier qa_outputs" },
};

/* Where a weight stands: before, in or behind the layers; the layer; the module; whether
 * it is the bias. All in one number, for they are small. */
enum { SECTION_SHIFT = 60, LAYER_SHIFT = 16, MODULE_SHIFT = 1, MAX_LAYERS = 1 << 20 };
#define BEHIND_ALL INT64_MAX /* buffers, second names: no parameters */

struct place {
    int64_t key;
    size_t tensor;
};

/* The place of a module among words, or -1. */
static int64_t find_word(const char *words, const char *module, size_t n)
{
    int64_t at = 0;

    for (const char *p = words; *p; at++) {
        size_t len = strcspn(p, " ");
        if (len == n && !memcmp(p, module, n))
            return at;
        p += len + (p[len] == ' ');
    }
    return -1;
}

static const struct order *find_order(const char *model_type)
{
    for (size_t i = 0; model_type && i < DCP_ARRAY_LEN(orders); i++)
        if (find_word(orders[i].model_types, model_type, strlen(model_type)) >= 0)
            return &orders[i];
    return NULL;
}

/* The number of a layer at the beginning of text, and what follows it and a dot. */
static int64_t take_layer(const char **text)
{
    size_t n = strspn(*text, "0123456789");
    int64_t layer = 0;

    if (!n || n > 6 || (*text)[n] != '.')
        return -1;
    for (size_t i = 0; i < n; i++)
        layer = layer * 10 + ((*text)[i] - '0');
    *text += n + 1;
    return layer < MAX_LAYERS ? layer : -1;
}

/* The key of a name, or -1: it is none of these. */
static int64_t key_of(const struct order *order, const char *name)
{
    const char *words[] = { order->first, order->in_layer, order->last };
    int64_t layer = 0, section = 0, module = -1;

    if (dcp_str_starts(name, order->prefix))
        name += strlen(order->prefix);
    if (dcp_str_starts(name, order->layer)) {
        name += strlen(order->layer);
        layer = take_layer(&name);
        section = 1;
    }
    const char *leaf = strrchr(name, '.');
    bool bias = leaf && !strcmp(leaf, ".bias");
    if (!leaf || layer < 0 || (!bias && strcmp(leaf, ".weight") != 0))
        return -1;
    module = find_word(words[section], name, (size_t)(leaf - name));
    if (module < 0 && section == 0) {
        section = 2;
        module = find_word(words[section], name, (size_t)(leaf - name));
    }
    return module < 0 ? -1
                      : section << SECTION_SHIFT | layer << LAYER_SHIFT |
                            module << MODULE_SHIFT | bias;
}

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

int dcp_hf_order(const char *model_type, const struct dcp_catalog *catalog, size_t n,
                 size_t *order, bool *out_known, struct dcp_error *err)
{
    const struct order *of_type = find_order(model_type);
    DCP_CLEANUP_FREE struct place *places = dcp_mem_calloc(n, sizeof *places);

    *out_known = of_type && n;
    if (!places)
        return dcp_error_memory(err, "the order of weights");
    for (size_t t = 0; t < n && *out_known; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        bool weight = tensor->role == DCP_ROLE_MODEL && !tensor->tied_to &&
                      dcp_dtype_is_float(tensor->dtype);
        places[t] = (struct place){ BEHIND_ALL, t };
        if (weight)
            places[t].key = key_of(of_type, tensor->param);
        *out_known = places[t].key >= 0;
    }
    if (*out_known)
        qsort(places, n, sizeof *places, by_place);
    for (size_t t = 0; t < n && *out_known; t++)
        order[t] = places[t].tensor;
    return DCP_OK;
}
