/* export: the weights in one piece, for other programs. */
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "job.h"
#include "verbs.h"
#include <string.h>

/* The format that a target's name asks for: by its suffix, or a Hugging Face folder. */
static int choose_format(const char *path, const char **out, struct dcp_error *err)
{
    const struct dcp_format *format =
        dcp_str_ends(path, "/") ? NULL : dcp_format_for_suffix(path);
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL;
    if (format) {
        *out = format->name;
        return DCP_OK;
    }
    if (!dcp_fs_split(path, &dir, &name))
        return dcp_error_memory(err, "a path");
    if (dcp_str_ends(path, "/") || dcp_fs_is_dir(path) || !strchr(name, '.')) {
        *out = "hf";
        return DCP_OK;
    }
    dcp_error_set(err, DCP_E_USAGE, "no format writes files named like '%s'", name);
    dcp_error_hint(err, "give --to FORMAT; 'dcp-reshard formats' lists them");
    return DCP_E_USAGE;
}

static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    return reshard_job_start(m, "export", settings, choose_format, err);
}

static const struct dcp_opt opts[] = {
    { 't', "select", "GLOB", RESHARD_HELP_SELECT, "Content", DCP_OPT_LIST,
      RESHARD_AT(select), .values = DCP_VALUES_TENSORS },
    { 0, "only", "all|model|optim",
      "weights and buffers (the default), optimizer, or all", NULL, DCP_OPT_CHOICE,
      RESHARD_AT(only) },
    { 'd', "dtype", "T", RESHARD_HELP_DTYPE, NULL, DCP_OPT_TEXT, RESHARD_AT(dtype),
      .values = DCP_VALUES_DTYPES },
    { 0, "weights", "auto|model|master", RESHARD_HELP_WEIGHTS, NULL, DCP_OPT_CHOICE,
      RESHARD_AT(weights) },
    { 0, "rename", "FILE", RESHARD_HELP_RENAME, NULL, DCP_OPT_TEXT, RESHARD_AT(rename),
      .values = DCP_VALUES_PRESETS },
    { 0, "untie", NULL, RESHARD_HELP_UNTIE, NULL, DCP_OPT_FLAG, RESHARD_AT(untie) },
    { 0, "to", "FORMAT", "instead of the one chosen by FILE's suffix", "Form",
      DCP_OPT_TEXT, RESHARD_AT(to), .values = DCP_VALUES_FORMATS },
    { 0, "model-config", "FILE", RESHARD_HELP_CONFIG, NULL, DCP_OPT_TEXT,
      RESHARD_AT(model_config) },
    { 0, "max-shard-size", "SIZE", RESHARD_HELP_MAX_SHARD, NULL, DCP_OPT_SIZE,
      RESHARD_AT(max_shard_bytes) },
    { 'm', "memory", "SIZE", RESHARD_HELP_MEMORY, "Work", DCP_OPT_SIZE,
      RESHARD_AT(memory_bytes), .min = RESHARD_LEAST_MEMORY },
    { 0, "reflink", NULL, RESHARD_HELP_REFLINK, NULL, DCP_OPT_FLAG, RESHARD_AT(reflink) },
    { 0, "no-verify", NULL, RESHARD_HELP_NO_VERIFY, NULL, DCP_OPT_FLAG,
      RESHARD_AT(no_verify) },
    { 'n', "dry-run", NULL, RESHARD_HELP_DRY_RUN, NULL, DCP_OPT_FLAG,
      RESHARD_AT(dry_run) },
    { 0, "lossy", NULL, RESHARD_HELP_LOSSY, NULL, DCP_OPT_FLAG, RESHARD_AT(lossy) },
    { 0, "trust-global", "NAME", RESHARD_HELP_TRUST, NULL, DCP_OPT_LIST,
      RESHARD_AT(trust) },
    { 0, "keep-unsafe-objects", NULL, RESHARD_HELP_KEEP_UNSAFE, NULL, DCP_OPT_FLAG,
      RESHARD_AT(keep_unsafe) },
    { 'f', "force", NULL, RESHARD_HELP_FORCE, NULL, DCP_OPT_FLAG, RESHARD_AT(force) },
    RESHARD_OPTS_PARTS,
    { 0 },
};

static const struct reshard_settings defaults = { .only = DCP_ONLY_MODEL,
                                                  .world_size = 1 };

static const struct dcp_example examples[] = {
    { "dcp-reshard export run model.bin --dtype bf16",
      "the newest weights for torch.load, in 16 bits" },
    { "dcp-reshard export run model.safetensors", "the same as safetensors" },
    { "dcp-reshard export run gpt2/", "a folder for from_pretrained of transformers" },
    { "dcp-reshard export run model.gguf --dtype fp16", "a file for llama.cpp" },
    { 0 },
};

const struct dcp_command reshard_export = {
    .name = "export",
    .operands = "SRC FILE",
    .min_operands = 2,
    .max_operands = 2,
    .purpose = "export the weights, in the format of FILE's suffix",
    .about =
        "The suffix chooses: .bin, .pt and .pth are PyTorch's, .safetensors is "
        "safetensors', .gguf is llama.cpp's, a folder (or a name without a suffix) is "
        "Hugging Face's. "
        "Optimizer state is left out unless --only all asks for it.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct reshard_settings),
    .defaults = &defaults,
    .examples = examples,
    .exits = reshard_exits,
    .stops = true,
    .run = run,
};
