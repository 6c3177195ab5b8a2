/* What fsdp_config says, in the words of ZeRO: full_shard is stage 3, shard_grad_op stage
 * 2, no_shard stage 0. Where it says anything, full_shard is the default, as in FSDP. */
#include "draft.h"

#include <stdint.h>

#define ALL (INT64_C(1) << 53) /* elements: more than any model has */

static bool says_anything(const struct settings_draft *draft)
{
    return draft->reshard_after_forward >= 0 || draft->fsdp_offload >= 0 ||
           draft->fsdp_checkpoint >= 0 || draft->out.backward_prefetch >= 0 ||
           draft->out.forward_prefetch >= 0;
}

int settings_resolve_fsdp(struct settings_draft *draft, struct dcp_error *err)
{
    static const int stages[] = {
        [STRATEGY_NO_SHARD] = 0, [STRATEGY_GRAD_OP] = 2, [STRATEGY_FULL] = 3
    };
    struct settings *s = &draft->out;
    int stage = draft->strategy >= 0   ? stages[draft->strategy]
                : s->stage >= 0        ? s->stage
                : says_anything(draft) ? 3
                                       : 0;
    if (s->stage >= 0 && stage != s->stage)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%s: fsdp_config.sharding_strategy is ZeRO's stage %d, but "
                             "zero_optimization.stage is %d",
                             draft->what, stage, s->stage);
    s->stage = stage;
    if (draft->reshard_after_forward == 0)
        s->max_live = s->max_reuse = ALL;
    if (draft->fsdp_offload == 1) /* its optimizer works on the host, too */
        draft->cpu_offload = draft->cpu_offload_param = true;
    if (draft->fsdp_checkpoint == 1)
        draft->checkpoint_all = true;
    return DCP_OK;
}
