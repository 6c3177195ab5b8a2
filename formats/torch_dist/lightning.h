/* lightning: what Lightning's FSDPStrategy writes beside a distributed checkpoint:
 * meta.pt, a PyTorch file with epoch, global_step, loops, callbacks, hyper-parameters.
 * Source: lightning/pytorch/strategies/fsdp.py (_METADATA_FILENAME). */
#ifndef DCP_FORMATS_TORCH_DIST_LIGHTNING_H
#define DCP_FORMATS_TORCH_DIST_LIGHTNING_H

#include <dcp/format.h>

/* Reads a checkpoint, and meta.pt as the object "lightning" where it is there; its
 * global_step is the step. */
int dcp_torch_dist_lightning_index(const struct dcp_source *source,
                                   struct dcp_catalog *catalog, struct dcp_error *err);

#endif
