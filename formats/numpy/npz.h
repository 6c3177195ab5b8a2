/* npz: what reading and writing of NumPy archives share. */
#ifndef DCP_FORMATS_NUMPY_NPZ_H
#define DCP_FORMATS_NUMPY_NPZ_H

#include <dcp/format.h>

extern const struct dcp_format dcp_format_npz;

#define DCP_NPZ_SUFFIX ".npy" /* of every record */

/* The functions of dcp_format of these names. */
int dcp_npz_open(struct dcp_target *target, struct dcp_error *err);
int dcp_npz_assign(struct dcp_target *target, struct dcp_error *err);
int dcp_npz_finalize(struct dcp_target *target, int rank, struct dcp_error *err);
void dcp_npz_close(struct dcp_target *target);

#endif
