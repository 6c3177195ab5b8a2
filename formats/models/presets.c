/* presets: the names other programs use, for --rename. Names alone: axes and rows stay as
 * they are, which is the business of the formats. */
#include "base/mem.h"
#include "names.h"
#include <dcp/rename.h>
#include <string.h>

static const char *const model_types[] = { "gpt2", "llama" };

/* By the first family that knows the name in one scheme and has another for it. */
static bool translate(enum dcp_names_scheme from, enum dcp_names_scheme to,
                      const char *name, char *out, size_t cap)
{
    char text[DCP_NAMES_MAX_BYTES];

    for (size_t i = 0; i < DCP_ARRAY_LEN(model_types); i++) {
        if (!dcp_names_translate(dcp_names_family(model_types[i]), from, to, name, text))
            continue;
        if (strlen(text) >= cap)
            return false;
        memcpy(out, text, strlen(text) + 1);
        return true;
    }
    return false;
}

/* Also from names without the prefix. Those of GGUF may be of several families. */
static bool to_hf(const char *name, char *out, size_t cap)
{
    return translate(DCP_NAMES_META, DCP_NAMES_HF, name, out, cap) ||
           translate(DCP_NAMES_HF, DCP_NAMES_HF, name, out, cap);
}

static bool to_gguf(const char *name, char *out, size_t cap)
{
    return translate(DCP_NAMES_HF, DCP_NAMES_GGUF, name, out, cap) ||
           translate(DCP_NAMES_META, DCP_NAMES_GGUF, name, out, cap);
}

static bool to_meta(const char *name, char *out, size_t cap)
{
    return translate(DCP_NAMES_HF, DCP_NAMES_META, name, out, cap);
}

/* What engines and wrappers of PyTorch add to the names of a model: DeepSpeed's engine
 * and DistributedDataParallel in front, torch.compile, FSDP and checkpointing anywhere.
 */
static bool to_deepspeed(const char *name, char *out, size_t cap)
{
    static const char *const anywhere[] = { "_forward_module.", "_orig_mod.",
                                            "_fsdp_wrapped_module.",
                                            "_checkpoint_wrapped_module." };
    const char *at = name;
    size_t n = 0;

    while (strncmp(at, "module.", 7) == 0)
        at += 7;
    while (*at) {
        size_t skip = 0;
        for (size_t i = 0; i < DCP_ARRAY_LEN(anywhere) && !skip; i++)
            if ((at == name || at[-1] == '.') &&
                strncmp(at, anywhere[i], strlen(anywhere[i])) == 0)
                skip = strlen(anywhere[i]);
        at += skip;
        if (skip)
            continue;
        if (n + 1 >= cap)
            return false;
        out[n++] = *at++;
    }
    if (n >= cap)
        return false;
    out[n] = '\0';
    return n > 0;
}

static const struct dcp_name_preset hf = {
    .name = "hf",
    .help = "Hugging Face's names of GPT-2 and Llama",
    .rename = to_hf,
};
static const struct dcp_name_preset llmc = {
    .name = "llmc",
    .help = "those of train_gpt2.py of llm.c, which are Hugging Face's",
    .rename = to_hf,
};
static const struct dcp_name_preset gguf = {
    .name = "gguf",
    .help = "llama.cpp's names of GPT-2 and Llama",
    .rename = to_gguf,
};
static const struct dcp_name_preset meta = {
    .name = "meta",
    .help = "Meta's names of Llama",
    .rename = to_meta,
};

static const struct dcp_name_preset deepspeed = {
    .name = "deepspeed",
    .help = "the model's own, without what engines and wrappers put in front",
    .rename = to_deepspeed,
};

static const struct dcp_name_preset *const presets[] = { &hf,   &llmc,      &gguf,
                                                         &meta, &deepspeed, NULL };

const struct dcp_name_preset *const *dcp_name_presets(void)
{
    return presets;
}
