/* SRC DST: any checkpoint to another world size, layout, dtype, selection or format. */
#include "job.h"
#include "verbs.h"

/* A name such as model.bin asks for a file, and the native format makes a folder, or one
 * archive of it. */
static int choose_format(const char *path, const char **out, struct dcp_error *err)
{
    const struct dcp_format *format = dcp_format_for_suffix(path);
    *out = NULL; /* native */
    if (!format)
        return DCP_OK;
    *out = format->name;
    if (format->packs)
        return DCP_OK;
    dcp_error_set(err, DCP_E_USAGE, "'%s' is named like a file of the format '%s'", path,
                  format->name);
    dcp_error_hint(err, "'dcp-reshard export' makes one; --to FORMAT says what is meant");
    return DCP_E_USAGE;
}

static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    return reshard_job_start(m, "reshard", settings, choose_format, err);
}

static const struct dcp_opt opts[] = {
    { 'w', "world", "N", "ranks of the target (default: as many as the source has)",
      "Shape", DCP_OPT_INT, RESHARD_AT(world_size), .min = 1, .max = 65536 },
    { 0, "dp", "N", "data parallel ranks: the same as --world", NULL, DCP_OPT_INT,
      RESHARD_AT(dp), .min = 1, .max = 65536 },
    { 0, "tp", "N", "tensor parallel ranks: 1 in this version", NULL, DCP_OPT_INT,
      RESHARD_AT(tp), .min = 1, .max = 65536 },
    { 0, "pp", "N", "pipeline stages: 1 in this version", NULL, DCP_OPT_INT,
      RESHARD_AT(pp), .min = 1, .max = 65536 },
    { 'l', "layout", "L",
      "flat, zero1, zero2, zero3, dim0 or replicated (default: the source's)", NULL,
      DCP_OPT_TEXT, RESHARD_AT(layout), .values = DCP_VALUES_LAYOUTS },
    { 't', "select", "GLOB", RESHARD_HELP_SELECT, "Content", DCP_OPT_LIST,
      RESHARD_AT(select), .values = DCP_VALUES_TENSORS },
    { 0, "only", "all|model|optim", "weights and buffers, or optimizer state", NULL,
      DCP_OPT_CHOICE, RESHARD_AT(only) },
    { 'd', "dtype", "T", RESHARD_HELP_DTYPE, NULL, DCP_OPT_TEXT, RESHARD_AT(dtype),
      .values = DCP_VALUES_DTYPES },
    { 0, "weights", "auto|model|master", RESHARD_HELP_WEIGHTS, NULL, DCP_OPT_CHOICE,
      RESHARD_AT(weights) },
    { 0, "rename", "FILE", RESHARD_HELP_RENAME, NULL, DCP_OPT_TEXT, RESHARD_AT(rename),
      .values = DCP_VALUES_PRESETS },
    { 0, "untie", NULL, RESHARD_HELP_UNTIE, NULL, DCP_OPT_FLAG, RESHARD_AT(untie) },
    { 0, "spelling", "auto|nested|flat|torchtitan|kept", RESHARD_HELP_SPELLING, NULL,
      DCP_OPT_CHOICE, RESHARD_AT(spelling) },
    { 0, "prefix", "NAME", RESHARD_HELP_PREFIX, NULL, DCP_OPT_TEXT, RESHARD_AT(prefix) },
    { 0, "to", "FORMAT", "see 'dcp-reshard formats' (default native)", "Form",
      DCP_OPT_TEXT, RESHARD_AT(to), .values = DCP_VALUES_FORMATS },
    { 0, "model-config", "FILE", RESHARD_HELP_CONFIG, NULL, DCP_OPT_TEXT,
      RESHARD_AT(model_config) },
    { 0, "max-shard-size", "SIZE", RESHARD_HELP_MAX_SHARD, NULL, DCP_OPT_SIZE,
      RESHARD_AT(max_shard_bytes) },
    { 0, "codec", "none|zstd|planes|split", RESHARD_HELP_CODEC, NULL, DCP_OPT_CHOICE,
      RESHARD_AT(codec) },
    { 0, "parity", "M", RESHARD_HELP_PARITY, NULL, DCP_OPT_INT, RESHARD_AT(parity),
      .max = DCP_PARITY_MAX_ROWS },
    { 0, "key", "FILE", RESHARD_HELP_KEY, NULL, DCP_OPT_TEXT, RESHARD_AT(key) },
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

static const struct dcp_example examples[] = {
    { "dcp-reshard run out --world 4 --dry-run",
      "what it would take; nothing is written" },
    { "dcp-reshard run out --world 4", "the newest complete step, for 4 ranks" },
    { "dcp-reshard model.bin start --world 8 --layout zero3",
      "weights of PyTorch as a native step, cut for 8 ranks" },
    { "dcp-reshard run step.tar.zst", "one file, to ship or to keep" },
    { "dcp-reshard run/step-00001200 small --only model --dtype bf16",
      "the weights alone, in 16 bits" },
    { "dcp-reshard run weights --only model --reflink",
      "on Btrfs or XFS: what lies alike in both takes no space" },
    { "dcp-reshard run out --world 64 --part 3/16",
      "one of 16 processes; when all have ended:" },
    { "dcp-reshard run out --world 64 --finish", "the parts become DST" },
    { 0 },
};

const struct dcp_exit reshard_exits[] = {
    { 0, "the target is complete and durable, or the plan was printed" },
    { 2, "wrong usage" },
    { 3, "SRC, a file that an option names, or a part to finish was not found" },
    { 4, "the source is corrupt; nothing was written" },
    { 5, "the target exists, or cannot hold what was asked" },
    { 6, "I/O error, or no space is left" },
    { 8, "not a known format, not in this version, or not on this file system" },
    { 9, "out of memory" },
    { 130, "interrupted; nothing was written" },
    { 0 },
};

const struct dcp_command reshard_run = {
    .operands = "SRC DST",
    .min_operands = 2,
    .max_operands = 2,
    .purpose = "bring a checkpoint to another world size, layout, dtype or format",
    .about =
        "SRC is a run folder (its newest complete step), one step, any file or folder of "
        "a known format, which is told by its content, or a tar archive (.tar, .tar.zst) "
        "of such a folder. It is never written to. DST must not exist, and appears only "
        "when it is complete, durable, and proved to hold the same numbers.\n"
        "With --part many machines make one DST together: each writes some of its files "
        "to .parts-DST beside it, at any time and in any order; one that died is run "
        "again, and does its part anew. When all are done --finish proves the whole and "
        "publishes it. 'dcp-reshard gc FOLDER --parts --yes' throws the parts away.\n"
        "With --reflink DST is proved as it is without; but a block that is shared and "
        "rots "
        "on the disk rots in both, and du counts it twice.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct reshard_settings),
    .examples = examples,
    .exits = reshard_exits,
    .stops = true,
    .run = run,
};
