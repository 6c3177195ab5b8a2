/* settings: a DeepSpeed JSON file plus "model", "data" and "checkpoint", read into plain
 * data.
 *
 * One table of keys drives parsing, defaults, notices and the nearest-key hint. */
#ifndef TRAINER_CONFIG_SETTINGS_H
#define TRAINER_CONFIG_SETTINGS_H

#include "loss_scale.h"
#include "trainer/model/model.h"
#include "trainer/ops/optim.h"
#include <dcp/log.h>
#include <jansson.h>

enum settings_schedule {
    SCHEDULE_NONE,
    SCHEDULE_WARMUP,
    SCHEDULE_WARMUP_DECAY,
    SCHEDULE_WARMUP_COSINE,
    SCHEDULE_ONE_CYCLE,
    SCHEDULE_LR_RANGE_TEST,
    SCHEDULE_STEP,
    SCHEDULE_COSINE_ANNEALING,
    SCHEDULE_CONSTANT
};

struct settings_scheduler {
    enum settings_schedule type;
    double warmup_min_lr, warmup_max_lr; /* max < 0: the optimizer's lr */
    int64_t warmup_num_steps, total_num_steps;
    bool warmup_linear; /* else logarithmic, DeepSpeed's default */
    double warmup_min_ratio, cos_min_ratio;
    /* OneCycle */
    double cycle_min_lr, cycle_max_lr, decay_lr_rate;
    double cycle_min_mom, cycle_max_mom, decay_mom_rate; /* of beta1 */
    int64_t cycle_first_step_size, cycle_second_step_size, decay_step_size;
    int64_t cycle_first_stair_count, cycle_second_stair_count; /* 0: no stairs */
    bool cycle_momentum;
    /* LRRangeTest */
    double lr_range_test_min_lr, lr_range_test_step_rate;
    int64_t lr_range_test_step_size;
    bool lr_range_test_staircase;
    /* StepLR, CosineAnnealingLR, ConstantLR */
    int64_t step_size, t_max, total_iters;
    double gamma, eta_min, factor;
};

/* Offloading: DeepSpeed's keys of offload_param and offload_optimizer. */
struct settings_swap {
    bool host; /* to the host's memory: device cpu */
    char *path;
    int buffers;
    int64_t buffer_size, max_in_cpu; /* elements */
    bool pinned;
    double ratio; /* of the optimizer's state, so much is offloaded */
};

struct settings {
    uint64_t seed;
    struct model_config model;
    struct model_recompute recompute;
    bool cpu_checkpointing; /* what is kept is to be in the memory of the host */
    char *model_init;       /* path of a checkpoint to start from, or NULL */

    char *data_train, *data_val; /* globs, made absolute; val may be NULL */
    char *tokenizer;             /* "bytes" or "gpt2:FOLDER" */
    int seq_len;

    int64_t train_batch_size;
    int micro_batch, n_micros; /* resolved: train = micro_batch × n_micros */
    int accumulation;          /* micro-batches of a rank, at most */
    bool batch_inferred;       /* from the world size: a checkpoint's own counts more */

    enum optim_type optimizer;
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening, lr_decay;
    double min_coeff, max_coeff; /* Lamb: of its trust ratio */
    double
        adam_lr; /* Muon: of what is no hidden matrix, and has AdamW; lr is the others' */
    struct newton_schulz newton_schulz;
    double beta2_decay, clip_threshold, eps_scale; /* Adafactor; eps may be NaN */
    bool scale_parameter, relative_step;
    bool match_rms;           /* Muon: steps are as long as those of AdamW */
    bool nesterov, decay_all; /* decay_all: norms and biases, too */
    bool bias_correction,
        decoupled_decay; /* AdamW; false: Adam with L2 in the gradient */
    struct settings_scheduler scheduler;
    double gradient_clipping; /* 0: off */

    int stage;      /* ZeRO 0..3 */
    int near_size;  /* ranks that share a second copy of the weights; 1: there is none */
    int shard_size; /* ranks in a sharding group (mics_shard_size); 0: the world size */
    bool quantized_weights, quantized_grads; /* on their way between ranks (ZeRO++) */
    enum dcp_dtype dtype; /* of weights: F32, or BF16 with fp32 masters */
    bool grad_accum_fp32, grad_accum_bf16; /* data_types.grad_accum_dtype */
    struct loss_scale_rule loss_scale;
    bool stochastic_rounding;          /* of bf16 weights; see ops/optim.h */
    bool swap_weights, swap_optimizer; /* what is not needed waits in files */
    struct settings_swap swap_param, swap_optim;
    int64_t sub_group_size; /* elements that the optimizer works on at a time */
    bool gather_16bit_on_save;
    int overlap; /* communication goes on beside the computing: yes, no, or -1: where the
                  * network works by itself */
    /* Elements; -1: not given. */
    int64_t reduce_bucket, prefetch, max_live, max_reuse;
    /* FSDP's: whether the next layer is gathered while one is worked on; -1: not given */
    int forward_prefetch, backward_prefetch;

    char *checkpoint_dir; /* as given: relative to the working folder */
    int64_t save_every;   /* 0: only at the end */
    int keep, keep_every, keep_optimizer;
    double pin_timeout_s; /* so long retention waits for readers; 0: not at all */
    int parity;           /* shards that may be lost, see dcp_save_options */
    int delta;            /* saves to one that is full, see there */
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
    int64_t fingerprint_every; /* steps whose weights metrics.jsonl knows; 0: none */
    int max_skipped_steps;     /* so many in a row end the run; 0: never */
    int timeout_s;             /* a rank that is silent so long has failed */
    char *text; /* the resolved configuration, as JSON, for --dry-run and the log */
};

/* Keys of our own at the top level: "seed", "steps" (--steps N is the override
 * "steps=N"), "timeout_s", "stochastic_rounding", "max_skipped_steps". "auto" means the
 * key's default, which is DeepSpeed's; where it has none: micro batch 8, total_num_steps
 * and T_max the steps to train, warmup_num_steps a twentieth of them (at most 1000),
 * warmup_max_lr the optimizer's lr. Without "model" sizes those of the config.json beside
 * model.init are taken, or GPT-2's 124M (vocab_size 256 for bytes).
 *
 * Reads `path`, applies each "key.path=value" of overrides (NULL-terminated, value as
 * JSON or else as text), resolves "auto", checks, and infers the batch sizes for this
 * world size. Warnings (parsed but without effect here) go to log once each. Errors:
 * NOT_FOUND, USAGE (no JSON, with line and column; what is impossible, with the numbers;
 * unknown key, with the nearest known one), UNSUPPORTED (why, and what instead), MISMATCH
 * (sizes that are not those of model.init), IO, MEMORY. *out is zero then. */
int settings_read(const char *path, const char *const *overrides, int world_size,
                  const struct dcp_log *log, struct settings *out, struct dcp_error *err);
/* The same for who trains nothing: data.train may be missing. */
int settings_read_sizes(const char *path, const char *const *overrides, int world_size,
                        const struct dcp_log *log, struct settings *out,
                        struct dcp_error *err);
/* The same as settings_read for a text in memory, called `what` in messages, with
 * relative paths below `folder`. */
int settings_parse(const char *text, size_t size_bytes, const char *what,
                   const char *folder, const char *const *overrides, int world_size,
                   const struct dcp_log *log, struct settings *out,
                   struct dcp_error *err);
/* Makes the batch another one, a multiple of the micro-batch. Errors: MEMORY, USAGE (it
 * is none). */
int settings_set_batch(struct settings *settings, int64_t train_batch_size,
                       int world_size, struct dcp_error *err);
/* The dtype of weights, for people: "fp32", "bf16" or "fp16". */
const char *settings_precision(const struct settings *settings);
/* Takes settings that were never read, too, when they are zero. */
void settings_fini(struct settings *settings);

#endif
