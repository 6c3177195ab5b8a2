/* The memory of a CUDA device. Copies run on a stream of their own, so that they do not
 * wait for what the device computes, and are done when a call returns. */
#include <dcp/device.h>

#include "base/mem.h"
#include <cuda_runtime_api.h>

struct cuda {
    int number;
    cudaStream_t stream;
};

static int error_of(cudaError_t why)
{
    switch (why) {
    case cudaErrorMemoryAllocation:
        return DCP_E_MEMORY;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorNotSupported:
        return DCP_E_UNSUPPORTED;
    default:
        return DCP_E_IO;
    }
}

static int fail_at(int line, cudaError_t why, const char *act, struct dcp_error *err)
{
    return dcp_error_set(err, error_of(why), "cannot %s: CUDA says '%s' (%s, %s:%d)", act,
                         cudaGetErrorString(why), cudaGetErrorName(why), __FILE__, line);
}
#define FAIL(why, act, err) fail_at(__LINE__, why, act, err)

/* Which device is meant is a matter of each thread. */
static cudaError_t enter(const struct cuda *cuda)
{
    return cudaSetDevice(cuda->number);
}

static int cuda_alloc_staging(void *self, size_t size_bytes, void **out,
                              struct dcp_error *err)
{
    cudaError_t why = enter(self);

    *out = NULL;
    if (!why)
        why = cudaHostAlloc(out, size_bytes ? size_bytes : 1, cudaHostAllocPortable);
    return why ? FAIL(why, "pin host memory", err) : DCP_OK;
}

static void cuda_free_staging(void *self, void *staging, size_t size_bytes)
{
    (void)self;
    (void)size_bytes;
    if (staging)
        cudaFreeHost(staging);
}

static int copy(const struct cuda *cuda, void *to, const void *from, size_t size_bytes,
                enum cudaMemcpyKind kind, struct dcp_error *err)
{
    cudaError_t why = enter(cuda);

    if (!why && size_bytes)
        why = cudaMemcpyAsync(to, from, size_bytes, kind, cuda->stream);
    if (!why)
        why = cudaStreamSynchronize(cuda->stream);
    return why ? FAIL(why,
                      kind == cudaMemcpyDeviceToHost ? "copy from the device"
                                                     : "copy to the device",
                      err)
               : DCP_OK;
}

static int cuda_to_host(void *self, void *host, const void *device, size_t size_bytes,
                        struct dcp_error *err)
{
    return copy(self, host, device, size_bytes, cudaMemcpyDeviceToHost, err);
}

static int cuda_to_device(void *self, void *device, const void *host, size_t size_bytes,
                          struct dcp_error *err)
{
    return copy(self, device, host, size_bytes, cudaMemcpyHostToDevice, err);
}

/* CUDA knows its own memory, and what it pinned. */
static int cuda_is_host(void *self, const void *data)
{
    struct cudaPointerAttributes what;
    if (enter(self) || cudaPointerGetAttributes(&what, data)) {
        cudaGetLastError();
        return 0;
    }
    return what.type == cudaMemoryTypeHost || what.type == cudaMemoryTypeUnregistered;
}

static void cuda_free(void *self)
{
    struct cuda *cuda = self;

    if (!enter(cuda))
        cudaStreamDestroy(cuda->stream);
    free(cuda);
}

static const struct dcp_device_ops cuda_ops = {
    .alloc_staging = cuda_alloc_staging,
    .free_staging = cuda_free_staging,
    .to_host = cuda_to_host,
    .to_device = cuda_to_device,
    .free = cuda_free,
    .is_host = cuda_is_host,
};

int dcp_device_cuda(struct dcp_device *out_device, int number, struct dcp_error *err)
{
    struct cuda *cuda = calloc(1, sizeof *cuda);
    int n = 0;

    *out_device = (struct dcp_device){ 0 };
    if (!cuda)
        return dcp_error_memory(err, "a device");
    cuda->number = number;
    cudaError_t why = cudaGetDeviceCount(&n);
    if (!why)
        why = enter(cuda);
    if (!why)
        why = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    if (why) {
        free(cuda);
        return FAIL(why, "use a CUDA device", err);
    }
    *out_device = (struct dcp_device){ .ops = &cuda_ops, .self = cuda };
    return DCP_OK;
}
