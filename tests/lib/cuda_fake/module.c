/* The module for CUDA on the fake of CUDA: it is linked, nothing is loaded. */
#include "trainer/run/compute.h"

extern const struct compute_module dcp_train_cuda;

int compute_module(const struct compute_module **out_module, struct dcp_error *err)
{
    (void)err;
    *out_module = &dcp_train_cuda;
    return DCP_OK;
}
