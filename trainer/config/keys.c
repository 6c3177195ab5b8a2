/* keys: DeepSpeed's configuration (0.19; keys that it has removed since 0.14
 * too) and our own three sections, key by key. A key that is not here is unknown. */
#include "draft.h"
#include <dcp/checkpoint.h>

#include <math.h>

#define AT(member) .at = offsetof(struct settings_draft, member)
#define FLAG(key, default)                                            \
    {                                                                 \
        .name = key, .kind = KEY_FLAG, .fallback = default, NO_EFFECT \
    }
#define NUMBER(key)                                                          \
    {                                                                        \
        .name = key, .kind = KEY_REAL, .fallback = NAN, .min = -1, NO_EFFECT \
    }
#define TEXT(key)                                \
    {                                            \
        .name = key, .kind = KEY_TEXT, NO_EFFECT \
    }
#define ANY(key)                                \
    {                                           \
        .name = key, .kind = KEY_ANY, NO_EFFECT \
    }
#define OTHER(key, reason)                             \
    {                                                  \
        .name = key, .kind = KEY_ANY, REJECTED(reason) \
    }
#define SECTION(key, table)                             \
    {                                                   \
        .name = key, .kind = KEY_SECTION, .keys = table \
    }
#define NO_EFFECT .use = KEY_NO_EFFECT
#define REJECTED(reason) .use = KEY_REJECTED, .why = reason

static const char *const families[] = { "gpt2", NULL };
static const char *const codecs[] = { "none", "zstd", "planes", "split", NULL };
static const char *const devices[] = { "none", "cpu", "nvme", NULL };
static const char *const reductions[] = { "mean", "sum", NULL };
static const char *const validations[] = { "Ignore", "Warn", "Fail", NULL };
_Static_assert(sizeof codecs / sizeof codecs[0] == DCP_N_CODECS + 1,
               "a name for each codec");

static const char by_option[] = "the Hugging Face Trainer takes from its options";

static const struct settings_key fp16_keys[] = {
    { .name = "enabled", .kind = KEY_FLAG, AT(fp16), .auto_by = by_option },
    FLAG("auto_cast", 0),
    { .name = "loss_scale", .kind = KEY_REAL, AT(out.loss_scale.static_to) },
    { .name = "initial_scale_power",
      .kind = KEY_INT,
      AT(scale_power),
      .max = 127,
      .fallback = 16 },
    { .name = "loss_scale_window",
      .kind = KEY_LONG,
      AT(out.loss_scale.window),
      .min = 1,
      .fallback = 1000 },
    { .name = "hysteresis",
      .kind = KEY_LONG,
      AT(out.loss_scale.tolerance),
      .min = 1,
      .fallback = 2 },
    { .name = "consecutive_hysteresis", .kind = KEY_FLAG, AT(out.loss_scale.refills) },
    { .name = "min_loss_scale",
      .kind = KEY_REAL,
      AT(out.loss_scale.least),
      .fallback = 1 },
    OTHER("fp16_master_weights_and_grads", "master weights are float32"),
    { 0 },
};

static const struct settings_key bf16_keys[] = {
    { .name = "enabled", .kind = KEY_FLAG, AT(bf16), .auto_by = by_option },
    FLAG("immediate_grad_update", 0),
    FLAG("check_grad_overflow", 1),
    FLAG("check_overflow", 0),
    OTHER("bf16_master_weights_and_grads", "master weights are float32"),
    OTHER("bf16_optimizer_states", "moments are float32"),
    { 0 },
};

static const struct settings_key data_types_keys[] = {
    { .name = "grad_accum_dtype",
      .kind = KEY_DTYPE,
      AT(accumulation_dtype),
      .fallback = -1 },
    { .name = "param_dtype", .kind = KEY_DTYPE, AT(param_dtype), .fallback = -1 },
    { .name = "buffer_dtype", .kind = KEY_DTYPE, NO_EFFECT },
    OTHER("keep_in_fp32_modules", "all weights have one dtype"),
    { 0 },
};

static const char no_zenflow[] = "the optimizer does not run apart from the rest";

/* offload_param and offload_optimizer: where the state is while it is not needed. */
#define OFFLOAD(table, member, swap, n_buffers, ...)                                    \
    static const struct settings_key table[] = {                                        \
        { .name = "device", .kind = KEY_CHOICE, .choices = devices, AT(member) },       \
        { .name = "nvme_path", .kind = KEY_TEXT, AT(out.swap.path) },                   \
        { .name = "buffer_count",                                                       \
          .kind = KEY_INT,                                                              \
          AT(out.swap.buffers),                                                         \
          .min = 1,                                                                     \
          .fallback = n_buffers },                                                      \
        __VA_ARGS__,                                                                    \
        { .name = "pin_memory", .kind = KEY_FLAG, AT(out.swap.pinned), .fallback = 1 }, \
        FLAG("pipeline_read", 0),                                                       \
        FLAG("pipeline_write", 0),                                                      \
        FLAG("fast_init", 0),                                                           \
        FLAG("super_offload", 0),                                                       \
        NUMBER("cpuadam_cores_perc"),                                                   \
        { 0 },                                                                          \
    }
OFFLOAD(offload_param_keys, offload_param, swap_param, 5,
        { .name = "buffer_size",
          .kind = KEY_LONG,
          AT(out.swap_param.buffer_size),
          .min = 1,
          .fallback = 1e8 },
        { .name = "max_in_cpu",
          .kind = KEY_LONG,
          AT(out.swap_param.max_in_cpu),
          .fallback = 1e9 },
        NUMBER("ratio"));
OFFLOAD(offload_optimizer_keys, offload_optimizer, swap_optim, 4,
        { .name = "ratio",
          .kind = KEY_REAL,
          AT(out.swap_optim.ratio),
          .max = 1,
          .fallback = 1 },
        NUMBER("buffer_size"), NUMBER("max_in_cpu"));

/* Elements; -1: not given. */
#define LIMIT(key, member, least, is_alias)                                             \
    {                                                                                   \
        .name = key, .kind = KEY_LONG, .alias = is_alias, AT(out.member), .min = least, \
        .fallback = -1                                                                  \
    }

static const struct settings_key zero_keys[] = {
    { .name = "stage",
      .kind = KEY_INT,
      AT(out.stage),
      .max = 3,
      .fallback = -1,
      .no_auto = true },
    { .name = "mics_shard_size",
      .kind = KEY_INT,
      AT(out.shard_size),
      .min = -1,
      .fallback = -1 },
    { .name = "stage3_gather_fp16_weights_on_model_save",
      .kind = KEY_FLAG,
      .alias = true,
      AT(out.gather_16bit_on_save) },
    { .name = "gather_16bit_weights_on_model_save",
      .kind = KEY_FLAG,
      .alias = true,
      AT(out.gather_16bit_on_save) },
    { .name = "stage3_gather_16bit_weights_on_model_save",
      .kind = KEY_FLAG,
      AT(out.gather_16bit_on_save) },
    SECTION("offload_param", offload_param_keys),
    SECTION("offload_optimizer", offload_optimizer_keys),
    { .name = "cpu_offload", .kind = KEY_FLAG, AT(cpu_offload) },
    { .name = "cpu_offload_param", .kind = KEY_FLAG, AT(cpu_offload_param) },
    { .name = "zero_hpz_partition_size",
      .kind = KEY_INT,
      AT(out.near_size),
      .min = 1,
      .fallback = 1 },
    { .name = "zero_quantized_weights", .kind = KEY_FLAG, AT(out.quantized_weights) },
    { .name = "zero_quantized_gradients", .kind = KEY_FLAG, AT(out.quantized_grads) },
    FLAG("zero_quantized_nontrainable_weights", 0),
    OTHER("zeropp_loco_param",
          "a rank's rounding errors are not kept for its next "
          "gradients, since then how many ranks there are would show "
          "in the bits"),
    OTHER("zenflow", no_zenflow),
    FLAG("contiguous_gradients", 1),
    FLAG("reduce_scatter", 1),
    FLAG("use_multi_rank_bucket_allreduce", 1),
    FLAG("allgather_partitions", 1),
    { .name = "overlap_comm", .kind = KEY_SWITCH, AT(out.overlap), .fallback = -1 },
    FLAG("compute_grad_norm", 1),
    FLAG("load_from_fp32_weights", 1),
    FLAG("elastic_checkpoint", 0),
    FLAG("round_robin_gradients", 0),
    FLAG("parameter_alignment", 0),
    FLAG("ignore_unused_parameters", 1),
    FLAG("legacy_stage1", 0),
    FLAG("memory_efficient_linear", 1),
    FLAG("pipeline_loading_checkpoint", 0),
    FLAG("override_module_apply", 1),
    FLAG("log_trace_cache_warnings", 0),
    FLAG("enable_sanity_checks", 0),
    FLAG("save_muon_momentum_buffer_in_memory", 0),
    FLAG("cpu_offload_use_pin_memory", 0),
    FLAG("mics_hierarchical_params_gather", 0),
    FLAG("stage3_use_all_reduce_for_fetch_params", 0),
    FLAG("use_all_reduce_for_fetch_params", 0),
    FLAG("stage3_allgather_sequential", 0),
    FLAG("allgather_sequential", 0),
    LIMIT("reduce_bucket_size", reduce_bucket, 1, false),
    NUMBER("allgather_bucket_size"),
    { .name = "sub_group_size",
      .kind = KEY_LONG,
      AT(out.sub_group_size),
      .min = 1,
      .fallback = 1e9 },
    LIMIT("prefetch_bucket_size", prefetch, 0, true),
    LIMIT("stage3_prefetch_bucket_size", prefetch, 0, false),
    NUMBER("stage3_param_persistence_threshold"),
    NUMBER("param_persistence_threshold"),
    NUMBER("stage3_model_persistence_threshold"),
    NUMBER("model_persistence_threshold"),
    LIMIT("max_live_parameters", max_live, 0, true),
    LIMIT("stage3_max_live_parameters", max_live, 0, false),
    LIMIT("max_reuse_distance", max_reuse, 0, true),
    LIMIT("stage3_max_reuse_distance", max_reuse, 0, false),
    NUMBER("stage3_module_granularity_threshold"),
    NUMBER("module_granularity_threshold"),
    ANY("leaf_module"),
    { 0 },
};

static const struct settings_key activation_keys[] = {
    FLAG("partition_activations", 0),
    { .name = "cpu_checkpointing", .kind = KEY_FLAG, AT(out.cpu_checkpointing) },
    FLAG("contiguous_memory_optimization", 0),
    { .name = "number_checkpoints",
      .kind = KEY_INT,
      AT(number_checkpoints),
      .no_auto = true },
    FLAG("synchronize_checkpoint_boundary", 0),
    FLAG("profile", 0),
    { 0 },
};

static const struct settings_key writer_keys[] = {
    TEXT("type"),
    NUMBER("io_buffer_size"),
    FLAG("io_buffer_double", 1),
    NUMBER("io_multiplier"),
    TEXT("data_parallel"),
    FLAG("decoupled", 0),
    FLAG("show_statistics", 0),
    { 0 },
};

static const struct settings_key parallel_write_keys[] = {
    FLAG("pipeline_stage", 0),
    { 0 },
};

static const struct settings_key checkpoint_keys[] = {
    { .name = "dir", .kind = KEY_TEXT, AT(out.checkpoint_dir), .text = "run" },
    { .name = "save_every", .kind = KEY_LONG, AT(out.save_every), .fallback = 1000 },
    { .name = "keep", .kind = KEY_INT, AT(out.keep), .fallback = 3 },
    { .name = "keep_every", .kind = KEY_INT, AT(out.keep_every), .no_auto = true },
    { .name = "keep_optimizer",
      .kind = KEY_INT,
      AT(out.keep_optimizer),
      .no_auto = true },
    { .name = "pin_timeout", .kind = KEY_REAL, AT(out.pin_timeout_s), .fallback = 3600 },
    { .name = "verify_after_save", .kind = KEY_FLAG, AT(out.verify_after_save) },
    { .name = "async", .kind = KEY_FLAG, AT(out.checkpoint_async), .fallback = 1 },
    { .name = "codec", .kind = KEY_CHOICE, AT(codec), .choices = codecs },
    { .name = "staging", .kind = KEY_SIZE, AT(out.staging_bytes) },
    { .name = "parity",
      .kind = KEY_INT,
      AT(out.parity),
      .max = DCP_PARITY_MAX_ROWS,
      .no_auto = true },
    { .name = "delta", .kind = KEY_INT, AT(out.delta), .no_auto = true },
    { .name = "fail_after", .kind = KEY_INT, AT(out.fail_after), .no_auto = true },
    { .name = "on_save", .kind = KEY_TEXT, AT(out.on_save) },
    { .name = "on_failure", .kind = KEY_TEXT, AT(out.on_failure) },
    { .name = "metrics_textfile", .kind = KEY_TEXT, AT(out.metrics_textfile) },
    { .name = "use_node_local_storage",
      .kind = KEY_FLAG,
      REJECTED("all ranks write into one folder"),
      .hint = "let checkpoint.dir be on a file system that all nodes see" },
    { .name = "tag_validation",
      .kind = KEY_CHOICE,
      .choices = validations,
      .fallback = 1,
      NO_EFFECT },
    FLAG("load_universal", 0),
    FLAG("checkpoint_serialization", 1),
    SECTION("parallel_write", parallel_write_keys),
    SECTION("writer", writer_keys),
    { 0 },
};

static const struct settings_key datastates_keys[] = {
    { .name = "host_cache_size",
      .kind = KEY_REAL,
      .alias = true,
      AT(host_cache_gib),
      .max = 1 << 20 },
    { 0 },
};

static const struct settings_key model_keys[] = {
    { .name = "family",
      .kind = KEY_CHOICE,
      AT(family),
      .choices = families,
      .why = "there is no such model here" },
    { .name = "n_layer", .kind = KEY_INT, .min = 1, AT(out.model.n_layer) },
    { .name = "n_head", .kind = KEY_INT, .min = 1, AT(out.model.n_head) },
    { .name = "n_embd", .kind = KEY_INT, .min = 1, AT(out.model.n_embd) },
    { .name = "n_positions", .kind = KEY_INT, .min = 1, AT(out.model.n_positions) },
    { .name = "vocab_size", .kind = KEY_INT, .min = 1, AT(out.model.vocab_size) },
    { .name = "layer_norm_epsilon",
      .kind = KEY_REAL,
      .max = 1,
      AT(out.model.layer_norm_epsilon) },
    { .name = "init", .kind = KEY_TEXT, AT(out.model_init) },
    { .name = "activation_checkpointing",
      .kind = KEY_LAYERS,
      AT(recompute),
      .fallback = LAYERS_NOT_GIVEN,
      .no_auto = true },
    { 0 },
};

static const struct settings_key data_keys[] = {
    { .name = "train", .kind = KEY_TEXT, AT(out.data_train) },
    { .name = "val", .kind = KEY_TEXT, AT(out.data_val) },
    { .name = "tokenizer", .kind = KEY_TEXT, AT(out.tokenizer), .text = "bytes" },
    { .name = "seq_len", .kind = KEY_INT, .min = 1, AT(out.seq_len) },
    { .name = "eval_every", .kind = KEY_LONG, AT(out.eval_every), .fallback = 100 },
    { .name = "eval_batches",
      .kind = KEY_LONG,
      .min = 1,
      AT(out.eval_batches),
      .fallback = 20 },
    { 0 },
};

static const char no_groups[] = "ranks are parallel in data only";
static const char removed[] = "it does not exist here";

const struct settings_key settings_root[] = {
    { .name = "seed", .kind = KEY_SEED, AT(out.seed), .fallback = 1337 },
    { .name = "steps", .kind = KEY_LONG, AT(out.steps) },
    { .name = "timeout_s",
      .kind = KEY_INT,
      AT(out.timeout_s),
      .min = 1,
      .max = 1000000,
      .fallback = 120 },
    { .name = "stochastic_rounding", .kind = KEY_FLAG, AT(out.stochastic_rounding) },
    { .name = "fingerprint_every", .kind = KEY_LONG, AT(out.fingerprint_every) },
    { .name = "max_skipped_steps",
      .kind = KEY_INT,
      AT(out.max_skipped_steps),
      .max = 1000000000,
      .fallback = 100 },
    SECTION("model", model_keys),
    SECTION("data", data_keys),
    SECTION("checkpoint", checkpoint_keys),
    { .name = "train_batch_size", .kind = KEY_LONG, .min = 1, AT(out.train_batch_size) },
    { .name = "train_micro_batch_size_per_gpu",
      .kind = KEY_INT,
      .min = 1,
      AT(out.micro_batch) },
    { .name = "gradient_accumulation_steps",
      .kind = KEY_INT,
      .min = 1,
      AT(out.accumulation) },
    SECTION("optimizer", settings_optimizer_keys),
    SECTION("scheduler", settings_scheduler_keys),
    { .name = "gradient_clipping",
      .kind = KEY_REAL,
      AT(out.gradient_clipping),
      .fallback = 1 },
    { .name = "steps_per_print", .kind = KEY_LONG, AT(out.steps_per_print) },
    { .name = "bfloat16", .kind = KEY_SECTION, .alias = true, .keys = bf16_keys },
    SECTION("bf16", bf16_keys),
    SECTION("fp16", fp16_keys),
    SECTION("data_types", data_types_keys),
    SECTION("zero_optimization", zero_keys),
    SECTION("fsdp_config", settings_fsdp_keys),
    { .name = "activation_checkpointing",
      .kind = KEY_SECTION,
      .keys = activation_keys,
      .or_flag = true,
      AT(checkpoint_all) },
    SECTION("datastates_ckpt", datastates_keys),
    { .name = "gradient_allreduce_op",
      .kind = KEY_CHOICE,
      .choices = reductions,
      REJECTED("gradients are averaged over ranks"),
      .hint = "for a sum multiply optimizer.params.lr" },
    { .name = "communication_data_type", .kind = KEY_DTYPE, NO_EFFECT },
    { .name = "seq_parallel_communication_data_type", .kind = KEY_DTYPE, NO_EFFECT },
    FLAG("prescale_gradients", 0),
    NUMBER("gradient_predivide_factor"),
    FLAG("managed_gradient_accumulation", 1),
    FLAG("zero_allow_untested_optimizer", 0),
    FLAG("zero_force_ds_cpu_optimizer", 1),
    FLAG("disable_allgather", 0),
    FLAG("disable_python_gc", 0),
    FLAG("dataloader_drop_last", 0),
    FLAG("wall_clock_breakdown", 0),
    FLAG("memory_breakdown", 0),
    FLAG("dump_state", 0),
    FLAG("use_data_before_expert_parallelism", 0),
    TEXT("log_level"),
    NUMBER("vocabulary_size"),
    ANY("aio"),
    ANY("autotuning"),
    ANY("comet"),
    ANY("comms_logger"),
    ANY("compile"),
    ANY("csv_monitor"),
    ANY("flops_profiler"),
    ANY("nebula"),
    ANY("pipeline"),
    ANY("tensorboard"),
    ANY("timers"),
    ANY("wandb"),
    OTHER("amp", "mixed precision is bf16 weights with float32 masters"),
    OTHER("torch_autocast", "mixed precision is bf16 weights with float32 masters"),
    OTHER("tensor_parallel", no_groups),
    OTHER("expert_parallel", no_groups),
    { .name = "sequence_parallel_size",
      .kind = KEY_INT,
      .fallback = 1,
      REJECTED(no_groups) },
    { .name = "elasticity",
      .kind = KEY_ANY,
      REJECTED("batch sizes are not chosen here"),
      .hint = "give train_batch_size; every run may have another number of ranks" },
    OTHER("compression_training", removed),
    OTHER("curriculum_learning", removed),
    OTHER("data_efficiency", removed),
    OTHER("eigenvalue", removed),
    OTHER("hybrid_engine", removed),
    OTHER("progressive_layer_drop", removed),
    OTHER("quantize_training", removed),
    OTHER("sparse_attention", removed),
    OTHER("sparse_gradients", removed),
    OTHER("weight_quantization", removed),
    { 0 },
};
