/* settings: what a user asks a reshard or an export for. */
#ifndef RESHARD_SETTINGS_H
#define RESHARD_SETTINGS_H

#include "cli/opt.h"
#include <dcp/reshard.h>

struct reshard_settings {
    int64_t world_size, dp, tp, pp; /* 0: not given */
    const char *layout, *to, *dtype, *rename, *model_config, *prefix, *key, *part;
    struct dcp_opt_list select, trust;
    int only, codec; /* enum dcp_only, enum dcp_codec */
    int weights;     /* enum dcp_weights */
    int spelling;    /* of keys: auto, nested, flat, torchtitan, kept */
    int64_t parity;
    uint64_t memory_bytes, max_shard_bytes;
    bool no_verify, dry_run, finish, force, lossy, untie, keep_unsafe, reflink;
};

/* Checks what the option table cannot, and fills the options of the library; strings are
 * borrowed from the settings. out->rename is freed by the caller, after a failure too.
 * Errors: USAGE, UNSUPPORTED, NOT_FOUND and IO (the file of rules). */
int reshard_settings_check(const struct reshard_settings *settings,
                           struct dcp_reshard_options *out, struct dcp_error *err);

/* Rows that both tables have. */
#define RESHARD_LEAST_MEMORY ((int64_t)8 << 20)
#define RESHARD_AT(field) .at = offsetof(struct reshard_settings, field)
#define RESHARD_HELP_SELECT "only tensors whose name matches; may be given again"
#define RESHARD_HELP_DTYPE                                                         \
    "cast floating tensors, but for the scales of quantized weights: bf16, fp16, " \
    "fp32, or another floating type"
#define RESHARD_HELP_RENAME                                                             \
    "rules for names (strip TEXT, prefix TEXT, s/REGEX/TEXT/), or a preset: hf, llmc, " \
    "gguf, meta, deepspeed"
#define RESHARD_HELP_WEIGHTS                                                          \
    "the weights the model computes with, or the optimizer's masters (auto: masters " \
    "for "                                                                            \
    "another --dtype, and for a model alone out of DeepSpeed's files)"
#define RESHARD_HELP_SPELLING                                                          \
    "keys of the optimizer with --to torch-dist: nested as get_state_dict of PyTorch " \
    "has them, "                                                                       \
    "flat as with flatten_optimizer_state_dict, torchtitan's, or kept as in SRC"
#define RESHARD_HELP_PREFIX                                                             \
    "container of the weights with --to torch-dist: model, app.model, or '' for none; " \
    "the optimizer stands beside it, as optim"
#define RESHARD_HELP_CONFIG \
    "config.json of the model, for DST that needs one (default: SRC's)"
#define RESHARD_HELP_LOSSY "leave out what DST cannot hold, instead of refusing"
#define RESHARD_HELP_TRUST                                                            \
    "classes of yours that objects may name (module.Class, or a glob); may be given " \
    "again"
#define RESHARD_HELP_KEEP_UNSAFE "keep all objects: loading the target may run their code"
#define RESHARD_HELP_CODEC                                                              \
    "compress blocks (native); split codes each byte of the numbers by itself, is the " \
    "fastest and makes weights smallest"
#define RESHARD_HELP_PARITY                                                       \
    "parity files, so that any M shards or parity files can be lost and rebuilt " \
    "(native)"
#define RESHARD_HELP_KEY "sign DST with this secret key (native; see 'sign')"
#define RESHARD_HELP_UNTIE "write tensors that share their bytes once for each name"
#define RESHARD_HELP_MAX_SHARD "largest file, as 5G (formats with shards)"
#define RESHARD_HELP_MEMORY \
    "buffers in all (default 256M, at least 8M), however large the checkpoint"
#define RESHARD_HELP_NO_VERIFY "do not check digests or fingerprints"
#define RESHARD_HELP_DRY_RUN "print the plan and write nothing"
#define RESHARD_HELP_REFLINK                                                        \
    "share blocks that lie alike in SRC and DST, in place of writing them (Btrfs, " \
    "XFS): "                                                                        \
    "no space, all read and proved still"
#define RESHARD_HELP_PART                                                                \
    "make part I of N only, as one of N processes on machines that share the folder of " \
    "DST; --finish publishes"
#define RESHARD_HELP_FINISH \
    "prove all parts together and publish DST; DST and options as the parts had them"
#define RESHARD_HELP_FORCE "replace the target if it exists, once the new one is complete"

/* The rows of both tables for a target in parts. */
#define RESHARD_OPTS_PARTS                                                             \
    {                                                                                  \
        0,                                                                             \
        "part",                                                                        \
        "I/N",                                                                         \
        RESHARD_HELP_PART,                                                             \
        "Many machines",                                                               \
        DCP_OPT_TEXT,                                                                  \
        RESHARD_AT(part)                                                               \
    },                                                                                 \
    {                                                                                  \
        0, "finish", NULL, RESHARD_HELP_FINISH, NULL, DCP_OPT_FLAG, RESHARD_AT(finish) \
    }

#endif
