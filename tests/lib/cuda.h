/* cuda: what tests on a GPU begin with; with the fake of CUDA there is always one. Of
 * functions, so that every test is compiled for what it runs on. */
#ifndef TESTS_LIB_CUDA_H
#define TESTS_LIB_CUDA_H

#include "arrays.h"
#include "trainer/ops/ops.h"
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with 77 when there is no GPU. */
static inline void cuda_need(void)
{
    int n = 0;
    cudaError_t why = cudaGetDeviceCount(&n);
    if (why || !n) {
        printf("skipped: no GPU: %s\n", cudaGetErrorString(why));
        exit(77);
    }
}

static inline void cuda_must(cudaError_t why)
{
    if (why) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(why));
        abort();
    }
}

static inline void *cuda_array_alloc(size_t size_bytes)
{
    void *memory = NULL;
    cuda_must(
        cudaHostAlloc(&memory, size_bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    return memory;
}

static inline void cuda_array_free(void *memory)
{
    cuda_must(cudaFreeHost(memory));
}

static inline void cuda_array_sync(void)
{
    cuda_must(cudaDeviceSynchronize());
}

/* Arrays of lib/arrays.h lie where host and GPU can look at them. */
static inline void cuda_use_arrays(void)
{
    static const struct array_memory mapped = { cuda_array_alloc, cuda_array_free,
                                                cuda_array_sync };
    array_use(&mapped);
}

/* ops_cuda(), but its memory is managed, too. */
static inline int cuda_managed_alloc(void *ctx, uint64_t size_bytes, const char *what,
                                     void **out, struct dcp_error *err)
{
    (void)ctx;
    if (size_bytes < UINT64_C(1) << 40)
        return cudaMallocManaged(out, size_bytes + 1, cudaMemAttachGlobal) ? DCP_E_MEMORY
                                                                           : DCP_OK;
    *out = NULL;
    return dcp_error_set(err, DCP_E_MEMORY, "%s need too much", what);
}

static inline const struct ops *cuda_managed_ops(void)
{
    static struct ops managed;
    memcpy(&managed, ops_cuda(), sizeof managed);
    managed.alloc = cuda_managed_alloc;
    return &managed;
}

#endif
