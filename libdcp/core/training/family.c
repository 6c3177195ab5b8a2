/* family: a model's configuration in Hugging Face's keys, and its weights by name. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/family.h>
#include <dcp/training.h>
#include <stdio.h>
#include <string.h>

/* -- the configuration --------------------------------------------------------------- */

static int64_t integer_of(const json_t *object, const char *key, const char *other)
{
    const json_t *value = json_object_get(object, key);
    if (!value)
        value = json_object_get(object, other);
    return json_is_integer(value) ? json_integer_value(value) : 0;
}

/* Ours, and that of a Hugging Face folder. */
static const char *const config_names[] = { DCP_TRAINING_MODEL_CONFIG, "config" };

bool dcp_family_is_config(const char *object_name)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(config_names); i++)
        if (strcmp(object_name, config_names[i]) == 0)
            return true;
    return false;
}

/* The configuration in Hugging Face's keys. Foreign text: what is odd in it is left out.
 */
static void read_config(const struct dcp_catalog *catalog, struct dcp_family *family)
{
    int i = -1;
    for (size_t k = 0; k < DCP_ARRAY_LEN(config_names) && i < 0; k++)
        i = dcp_catalog_find_object(catalog, config_names[k]);
    if (i < 0 || catalog->objects[i].kind != DCP_OBJECT_JSON)
        return;
    const struct dcp_object *object = &catalog->objects[i];
    DCP_CLEANUP_JSON json_t *config = NULL;
    if (dcp_json_parse(object->data, object->size_bytes, "model_config", &config, NULL))
        return;
    const char *name = json_string_value(json_object_get(config, "model_type"));
    if (!name)
        name = json_string_value(json_object_get(config, "family"));
    if (name)
        dcp_str_escape(family->name, sizeof family->name, name);
    family->n_layers = integer_of(config, "n_layer", "num_hidden_layers");
    family->n_vocab = integer_of(config, "vocab_size", "padded_vocab_size");
}

/* "transformer.h.11.attn.bias": 11; -1 where no part is a number. */
static int64_t layer_of(const char *name)
{
    for (; name; name = strchr(name, '.')) {
        name += *name == '.';
        char part[16];
        size_t n = strcspn(name, ".");
        int64_t number;
        if (n == 0 || n >= sizeof part)
            continue;
        memcpy(part, name, n);
        part[n] = '\0';
        if (dcp_str_parse_i64(part, &number) && number >= 0 && number < 100000)
            return number;
    }
    return -1;
}

static void guess_layers(const struct dcp_catalog *catalog, struct dcp_family *family)
{
    for (size_t i = 0; i < catalog->n_tensors && family->n_layers == 0; i++)
        if (catalog->tensors[i].role == DCP_ROLE_MODEL)
            family->n_layers = layer_of(catalog->tensors[i].name) >= 0 ? 1 : 0;
    for (size_t i = 0; i < catalog->n_tensors && family->n_layers > 0; i++) {
        int64_t layer = layer_of(catalog->tensors[i].name);
        if (catalog->tensors[i].role == DCP_ROLE_MODEL && layer >= family->n_layers)
            family->n_layers = layer + 1;
    }
}

void dcp_family_read(const struct dcp_catalog *catalog, struct dcp_family *out)
{
    *out = (struct dcp_family){ 0 };
    read_config(catalog, out);
    if (out->n_layers == 0)
        guess_layers(catalog, out);
}

/* -- its weights --------------------------------------------------------------------- */

/* GPT-2, in the names of Hugging Face's state dict: outside the blocks, and in each. */
static const char *const outside[] = {
    "wte.weight",
    "wpe.weight",
    "ln_f.weight",
    "ln_f.bias",
};
static const char *const in_block[] = {
    "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
    "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
    "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias",
};

/* Whether it is there, or something like it in its module: quantized ("c_fc.qweight") or
 * wrapped ("c_fc.base_layer.bias") it has another name. */
static bool has(const struct dcp_catalog *catalog, const char *name, enum dcp_role role,
                int other)
{
    size_t n = (size_t)(strrchr(name, '.') - name) + 1;
    bool is_bias = dcp_str_ends(name, ".bias");
    char module[64];

    snprintf(module, sizeof module, "%.*s", (int)n, name);
    for (size_t i = 0; i < catalog->n_tensors; i++) {
        const struct dcp_tensor *t = &catalog->tensors[i];
        bool may = t->role == role || (int)t->role == other ||
                   (!dcp_role_is_optim(role) && !dcp_role_is_optim(t->role));
        if (may && strstr(t->param, module) && dcp_str_ends(t->param, ".bias") == is_bias)
            return true;
    }
    return false;
}

bool dcp_family_lacks(const struct dcp_family *family, const struct dcp_catalog *catalog,
                      enum dcp_role role, int other, char *out, size_t cap)
{
    out[0] = '\0';
    if (strcmp(family->name, "gpt2") != 0)
        return false;
    for (size_t i = 0; i < DCP_ARRAY_LEN(outside); i++) {
        snprintf(out, cap, "%s", outside[i]);
        if (!has(catalog, out, role, other))
            return true;
    }
    /* Ends at the first that is missing, whatever number of layers a file claims. */
    for (int64_t layer = 0; layer < family->n_layers; layer++)
        for (size_t i = 0; i < DCP_ARRAY_LEN(in_block); i++) {
            snprintf(out, cap, "h.%lld.%s", (long long)layer, in_block[i]);
            if (!has(catalog, out, role, other))
                return true;
        }
    out[0] = '\0';
    return false;
}

bool dcp_family_lacks_weight(const struct dcp_catalog *catalog, char *out, size_t cap)
{
    struct dcp_family family;
    bool any = false;

    for (size_t t = 0; t < catalog->n_tensors; t++)
        any = any || catalog->tensors[t].role == DCP_ROLE_MODEL ||
              catalog->tensors[t].role == DCP_ROLE_MASTER;
    dcp_family_read(catalog, &family);
    return any &&
           dcp_family_lacks(&family, catalog, DCP_ROLE_MODEL, DCP_ROLE_MASTER, out, cap);
}
