/* The keys of "fsdp_config", as transformers and accelerate pass them to PyTorch's FSDP.
 * They become settings of "zero_optimization" (resolve_fsdp.c). */
#include "draft.h"

#include <string.h>

#define AT(member) .at = offsetof(struct settings_draft, member)
#define NO_EFFECT(key, type)                            \
    {                                                   \
        .name = key, .kind = type, .use = KEY_NO_EFFECT \
    }
#define XLA(key, type)                                   \
    {                                                    \
        .name = key, .kind = type, .use = KEY_REJECTED,  \
        .why = "it is for TPUs, which are not supported" \
    }

/* In the order of enum settings_strategy. */
static const char *const strategies[] = { "no_shard", "shard_grad_op", "full_shard",
                                          NULL };
static const char *const prefetches[] = { "no_prefetch", "backward_pre", "backward_post",
                                          NULL };

const struct settings_key settings_fsdp_keys[] = {
    { .name = "sharding_strategy",
      .kind = KEY_CHOICE,
      .choices = strategies,
      .fallback = -1,
      AT(strategy) },
    { .name = "reshard_after_forward",
      .kind = KEY_SWITCH,
      .fallback = -1,
      AT(reshard_after_forward) },
    { .name = "backward_prefetch",
      .kind = KEY_CHOICE,
      .choices = prefetches,
      .fallback = -1,
      AT(out.backward_prefetch) },
    { .name = "forward_prefetch",
      .kind = KEY_SWITCH,
      .fallback = -1,
      AT(out.forward_prefetch) },
    { .name = "offload_params", .kind = KEY_SWITCH, .fallback = -1, AT(fsdp_offload) },
    { .name = "activation_checkpointing",
      .kind = KEY_SWITCH,
      .fallback = -1,
      AT(fsdp_checkpoint) },
    NO_EFFECT("limit_all_gathers", KEY_FLAG),
    NO_EFFECT("min_num_params", KEY_REAL),
    NO_EFFECT("auto_wrap_policy", KEY_TEXT),
    NO_EFFECT("transformer_layer_cls_to_wrap", KEY_ANY),
    NO_EFFECT("version", KEY_REAL),
    NO_EFFECT("use_orig_params", KEY_FLAG),
    NO_EFFECT("sync_module_states", KEY_FLAG),
    NO_EFFECT("cpu_ram_efficient_loading", KEY_FLAG),
    NO_EFFECT("state_dict_type", KEY_TEXT),
    XLA("xla", KEY_FLAG),
    XLA("xla_fsdp_v2", KEY_FLAG),
    XLA("xla_fsdp_grad_ckpt", KEY_FLAG),
    XLA("xla_fsdp_settings", KEY_ANY),
    { 0 },
};

#define PREFIX "fsdp_"

int settings_plain_fsdp(json_t *root, struct dcp_error *err)
{
    json_t *section = json_object_get(root, "fsdp_config"), *value;
    const char *name;
    void *next;
    int failed = 0;
    json_object_foreach_safe(section, next, name, value)
    {
        if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0)
            continue;
        failed |= json_object_set(section, name + sizeof PREFIX - 1, value) ||
                  json_object_del(section, name);
    }
    return failed ? dcp_error_memory(err, "a configuration") : DCP_OK;
}
