/* settings: a DeepSpeed JSON file plus "model", "data" and "checkpoint", read into plain
 * data.
 *
 * One table of keys drives parsing, defaults, notices and the nearest-key hint. */
#ifndef TRAINER_CONFIG_SETTINGS_H
#define TRAINER_CONFIG_SETTINGS_H

#include "trainer/model/model.h"
#include <dcp/log.h>
#include <jansson.h>

enum settings_schedule {
    SCHEDULE_NONE,
    SCHEDULE_WARMUP,
    SCHEDULE_WARMUP_DECAY,
    SCHEDULE_WARMUP_COSINE
};

struct settings_scheduler {
    enum settings_schedule type;
    double warmup_min_lr, warmup_max_lr; /* max < 0: the optimizer's lr */
    int64_t warmup_num_steps, total_num_steps;
    bool warmup_linear; /* else logarithmic, DeepSpeed's default */
    double warmup_min_ratio, cos_min_ratio;
};

struct settings {
    uint64_t seed;
    struct model_config model;
    char *model_init; /* path of a checkpoint to start from, or NULL */

    char *data_train, *data_val; /* globs, made absolute; val may be NULL */
    char *tokenizer;             /* "bytes" or "gpt2:FOLDER" */
    int seq_len;

    int64_t train_batch_size;
    int micro_batch,
        accumulation; /* resolved: train = micro × accumulation × world_size */

    double lr, beta1, beta2, eps, weight_decay;
    bool bias_correction,
        decoupled_decay; /* AdamW; false: Adam with L2 in the gradient */
    struct settings_scheduler scheduler;
    double gradient_clipping; /* 0: off */

    int stage;      /* ZeRO 0..3 */
    int shard_size; /* ranks in a sharding group (mics_shard_size); 0: the world size */
    bool bf16;      /* bf16 weights with fp32 master, else fp32 */
    bool grad_accum_fp32, grad_accum_bf16; /* data_types.grad_accum_dtype */
    bool stochastic_rounding;              /* of bf16 weights; see ops/adamw.h */
    bool gather_16bit_on_save;

    char *checkpoint_dir; /* as given: relative to the working folder */
    int64_t save_every;   /* 0: only at the end */
    int keep, keep_every;
    double pin_timeout_s; /* so long retention waits for readers; 0: not at all */
    int parity;           /* shards that may be lost, see dcp_save_options */
    bool checkpoint_async, verify_after_save;
    enum dcp_codec codec;
    uint64_t staging_bytes;     /* 0: what is needed */
    int fail_after;             /* failed saves in a row end the run; 0: never */
    char *on_save, *on_failure; /* commands, or NULL */
    char *metrics_textfile;     /* as given: relative to the working folder; or NULL */

    int64_t steps;           /* train up to this step; 0: until stopped */
    int64_t steps_per_print; /* 0: every step */
    int64_t eval_every;      /* "data": {"eval_every": n, "eval_batches": n}; 0: never */
    int64_t eval_batches;
    int timeout_s; /* a rank that is silent so long has failed */
    char *text;    /* the resolved configuration, as JSON, for --dry-run and the log */
};

/* Keys of our own at the top level: "seed", "steps" (--steps N is the override
 * "steps=N"), "timeout_s", "stochastic_rounding". "auto" means the key's default, which
 * is DeepSpeed's; where it has none: micro batch 8, total_num_steps the steps to train,
 * warmup_num_steps a twentieth of them (at most 1000), warmup_max_lr the optimizer's lr.
 * Without "model" sizes those of the config.json beside model.init are taken, or GPT-2's
 * 124M (vocab_size 256 for bytes).
 *
 * Reads `path`, applies each "key.path=value" of overrides (NULL-terminated, value as
 * JSON or else as text), resolves "auto", checks, and infers the batch sizes for this
 * world size. Warnings (parsed but without effect here) go to log once each. Errors:
 * NOT_FOUND, USAGE (no JSON, with line and column; what is impossible, with the numbers;
 * unknown key, with the nearest known one), UNSUPPORTED (why, and what instead), MISMATCH
 * (sizes that are not those of model.init), IO, MEMORY. *out is zero then. */
int settings_read(const char *path, const char *const *overrides, int world_size,
                  const struct dcp_log *log, struct settings *out, struct dcp_error *err);
/* The same for a text in memory, called `what` in messages, with relative paths below
 * `folder`. */
int settings_parse(const char *text, size_t size_bytes, const char *what,
                   const char *folder, const char *const *overrides, int world_size,
                   const struct dcp_log *log, struct settings *out,
                   struct dcp_error *err);
/* Takes settings that were never read, too, when they are zero. */
void settings_fini(struct settings *settings);

#endif
