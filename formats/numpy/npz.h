/* npz: what reading and writing of NumPy archives share. */
#ifndef DCP_FORMATS_NUMPY_NPZ_H
#define DCP_FORMATS_NUMPY_NPZ_H

#include <dcp/format.h>

extern const struct dcp_format dcp_format_npz;

#define DCP_NPZ_SUFFIX ".npy" /* of every record */

int dcp_npz_layout(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                   struct dcp_literals *literals, struct dcp_error *err);
int dcp_npz_seal(struct dcp_catalog *catalog, int rank,
                 const struct dcp_target_options *options, struct dcp_literals *literals,
                 struct dcp_error *err);

#endif
