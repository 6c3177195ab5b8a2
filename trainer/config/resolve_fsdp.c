/* What fsdp_config says, in the words of ZeRO: full_shard is stage 3, shard_grad_op stage
 * 2, no_shard stage 0. */
#include "draft.h"

#include <stdint.h>

#define ALL (INT64_C(1) << 53) /* elements: more than any model has */

int settings_resolve_fsdp(struct settings_draft *draft, struct dcp_error *err)
{
    static const int stages[] = {
        [STRATEGY_NO_SHARD] = 0, [STRATEGY_GRAD_OP] = 2, [STRATEGY_FULL] = 3
    };
    struct settings *s = &draft->out;
    int stage = draft->strategy < 0 ? s->stage : stages[draft->strategy];
    if (s->stage && stage != s->stage)
        return dcp_error_set(err, DCP_E_USAGE,
                             "%s: fsdp_config.sharding_strategy is ZeRO's stage %d, but "
                             "zero_optimization.stage is %d",
                             draft->what, stage, s->stage);
    s->stage = stage;
    if (draft->reshard_after_forward == 0)
        s->max_live = s->max_reuse = ALL;
    return DCP_OK;
}
