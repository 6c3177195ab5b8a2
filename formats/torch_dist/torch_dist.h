/* torch_dist: the format of torch.distributed.checkpoint: a folder with .metadata and
 * data files (metadata.h, item.h). */
#ifndef DCP_FORMATS_TORCH_DIST_TORCH_DIST_H
#define DCP_FORMATS_TORCH_DIST_TORCH_DIST_H

#include <dcp/format.h>

extern const struct dcp_format dcp_format_torch_dist;

#endif
