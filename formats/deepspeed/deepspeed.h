/* deepspeed: checkpoints of DeepSpeed's ZeRO, stages 0 to 3, and of BF16_Optimizer. */
#ifndef DCP_FORMATS_DEEPSPEED_DEEPSPEED_H
#define DCP_FORMATS_DEEPSPEED_DEEPSPEED_H

#include <dcp/format.h>

extern const struct dcp_format dcp_format_deepspeed;

#endif
