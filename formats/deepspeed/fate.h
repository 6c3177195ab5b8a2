/* fate: what becomes of a tensor in a DeepSpeed checkpoint. */
#ifndef DCP_FORMATS_DEEPSPEED_FATE_H
#define DCP_FORMATS_DEEPSPEED_FATE_H

#include <dcp/format.h>

/* `partitioned`: the target stores no weight that has a master. */
enum dcp_fate dcp_ds_fate(const struct dcp_catalog *src,
                          const struct dcp_identity *of_src, bool partitioned,
                          const struct dcp_tensor *tensor);

#endif
