/* reasons: why keys that DeepSpeed and FSDP have cannot matter here. They go by name
 * alone: one that stands in two sections means the same in both. */
#include "draft.h"

#include "base/mem.h"
#include <string.h>

#define MOST 32

static const struct {
    const char *why;
    const char *keys[MOST];
} reasons[] = {
    { "a layer at a time is gathered, exchanged and summed, beside the computing where "
      "the network works by itself",
      { "contiguous_gradients", "reduce_scatter", "allgather_bucket_size",
        "allgather_partitions", "round_robin_gradients",
        "use_multi_rank_bucket_allreduce", "stage3_use_all_reduce_for_fetch_params",
        "use_all_reduce_for_fetch_params", "stage3_allgather_sequential",
        "allgather_sequential", "mics_hierarchical_params_gather",
        "disable_allgather" } },
    { "a layer is gathered whole, in one message, its smallest parameters beside its "
      "largest",
      { "min_num_params", "auto_wrap_policy", "transformer_layer_cls_to_wrap",
        "stage3_param_persistence_threshold", "param_persistence_threshold",
        "stage3_model_persistence_threshold", "model_persistence_threshold",
        "stage3_module_granularity_threshold", "module_granularity_threshold",
        "leaf_module" } },
    { "gradients are given to other ranks as they are kept, or quantized, and their sum "
      "is "
      "exact",
      { "communication_data_type", "seq_parallel_communication_data_type",
        "prescale_gradients", "gradient_predivide_factor" } },
    { "each optimizer is one fused kernel, with fp32 states",
      { "fused", "foreach", "capturable", "set_grad_none", "fp32_optimizer_states",
        "legacy_fusion", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
        "save_muon_momentum_buffer_in_memory" } },
    { "matrices are made orthogonal in fp32, where the ways to do it differ in rounding "
      "alone",
      { "ns_method", "use_addmm" } },
    { "what is offloaded comes and goes beside the computing, a window or a layer ahead",
      { "pipeline_read", "pipeline_write", "fast_init", "ratio", "super_offload",
        "cpuadam_cores_perc", "cpu_offload_use_pin_memory", "aio", "buffer_size",
        "max_in_cpu" } },
    { "all weights are trained", { "zero_quantized_nontrainable_weights" } },
    { "every step is checked for gradients that are not finite",
      { "immediate_grad_update", "check_grad_overflow", "check_overflow",
        "compute_grad_norm" } },
    { "steps are written and read by libdcp, which resumes any of them at any number of "
      "ranks",
      { "tag_validation", "load_universal", "checkpoint_serialization",
        "elastic_checkpoint", "load_from_fp32_weights", "pipeline_loading_checkpoint",
        "pipeline_stage", "type", "io_buffer_size", "io_buffer_double", "io_multiplier",
        "data_parallel", "decoupled", "show_statistics", "nebula" } },
    { "two layers are on their way at most", { "limit_all_gathers" } },
    { "it is about modules and tensors of PyTorch",
      { "version", "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading",
        "state_dict_type", "auto_cast", "buffer_dtype", "memory_efficient_linear",
        "override_module_apply", "ignore_unused_parameters", "log_trace_cache_warnings",
        "enable_sanity_checks", "disable_python_gc", "compile", "parameter_alignment",
        "legacy_stage1" } },
    { "ranks are parallel in data only",
      { "partition_activations", "pipeline", "use_data_before_expert_parallelism" } },
    { "activations are in one block in any case", { "contiguous_memory_optimization" } },
    { "kernels run in the order of their calls", { "synchronize_checkpoint_boundary" } },
    { "what is measured is in metrics.jsonl, and what is logged on standard error",
      { "profile", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level",
        "autotuning", "comet", "comms_logger", "csv_monitor", "flops_profiler",
        "tensorboard", "timers", "wandb" } },
    { "samples are drawn by number, and batches are always full",
      { "dataloader_drop_last", "managed_gradient_accumulation", "vocabulary_size" } },
};

const char *settings_reason(const char *name)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(reasons); i++)
        for (size_t k = 0; k < MOST && reasons[i].keys[k]; k++)
            if (strcmp(reasons[i].keys[k], name) == 0)
                return reasons[i].why;
    return NULL;
}

const char *settings_reason_at(size_t i)
{
    return i < DCP_ARRAY_LEN(reasons) ? reasons[i].why : NULL;
}
