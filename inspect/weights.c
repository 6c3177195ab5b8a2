#include "weights.h"

#include "base/mem.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

#define GPT2_PREFIX "transformer."

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

static bool has(const struct dcp_catalog *catalog, const char *name, enum dcp_role role,
                int other)
{
    for (size_t i = 0; i < catalog->n_tensors; i++) {
        const struct dcp_tensor *t = &catalog->tensors[i];
        const char *param = t->param;
        if (t->role != role && (int)t->role != other)
            continue;
        if (dcp_str_starts(param, GPT2_PREFIX))
            param += strlen(GPT2_PREFIX);
        if (strcmp(param, name) == 0)
            return true;
    }
    return false;
}

bool inspect_weights_lacks(const struct dcp_catalog *catalog, const char *family,
                           int64_t n_layers, enum dcp_role role, int other, char *out,
                           size_t cap)
{
    if (strcmp(family, "gpt2") != 0)
        return false;
    for (size_t i = 0; i < DCP_ARRAY_LEN(outside); i++) {
        snprintf(out, cap, "%s", outside[i]);
        if (!has(catalog, out, role, other))
            return true;
    }
    /* Ends at the first that is missing, whatever number of layers a file claims. */
    for (int64_t layer = 0; layer < n_layers; layer++)
        for (size_t i = 0; i < DCP_ARRAY_LEN(in_block); i++) {
            snprintf(out, cap, "h.%lld.%s", (long long)layer, in_block[i]);
            if (!has(catalog, out, role, other))
                return true;
        }
    return false;
}
