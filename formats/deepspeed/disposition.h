/* disposition: what becomes of a tensor in a DeepSpeed checkpoint. */
#ifndef DCP_FORMATS_DEEPSPEED_DISPOSITION_H
#define DCP_FORMATS_DEEPSPEED_DISPOSITION_H

#include <dcp/format.h>

/* `partitioned`: the target stores no weight that has a master. */
enum dcp_disposition dcp_ds_disposition(const struct dcp_catalog *src,
                                        const struct dcp_identity *of_src,
                                        bool partitioned,
                                        const struct dcp_tensor *tensor);

#endif
