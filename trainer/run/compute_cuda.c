/* compute_cuda: the GPU of a rank, and what the module for CUDA gives. */
#include "base/mem.h"
#include "compute.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

static int open_gpu(const struct join *join, struct compute *compute,
                    struct dcp_error *err)
{
    int n = 0;
    struct cudaDeviceProp what;
    cudaError_t why = cudaGetDeviceCount(&n);
    if (why || n < 1) {
        cudaGetLastError();
        dcp_error_set(err, DCP_E_UNSUPPORTED, "no GPU is seen: CUDA says '%s'",
                      cudaGetErrorString(why ? why : cudaErrorNoDevice));
        dcp_error_hint(err, "--device cpu, or look at what nvidia-smi says");
        return DCP_E_UNSUPPORTED;
    }
    int number = join->local_rank % n;
    DCP_TRY(dcp_device_cuda(&compute->device, number, err));
    compute->ops = ops_cuda();
    why = cudaGetDeviceProperties(&what, number);
    if (why)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "CUDA does not say what GPU %d is: '%s'", number,
                             cudaGetErrorString(why));
    memcpy(compute->gpu.uuid, &what.uuid, sizeof compute->gpu.uuid);
    compute->gpu.is_open = true;
    snprintf(compute->name, sizeof compute->name, "%s", what.name);
    return DCP_OK;
}

extern const struct compute_module dcp_train_cuda;
__attribute__((visibility("default"))) const struct compute_module dcp_train_cuda = {
    .open = open_gpu,
#if DCP_HAS_NCCL
    .coll = coll_nccl,
#endif
};
