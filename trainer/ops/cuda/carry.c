/* carry: copies between the host and the GPU beside the kernels, on a stream for each
 * way: PCIe goes both ways at once. */
#include "cuda.h"

#include "base/mem.h"

#define N_EVENTS 64 /* copies of a way that are told apart */

struct way {
    cudaStream_t stream;
    cudaEvent_t ready; /* of the kernels that a copy waits for */
    cudaEvent_t done[N_EVENTS];
    uint64_t n; /* copies so far */
};
struct ops_cuda_carry {
    struct way ways[OPS_N_WAYS];
};

int ops_cuda_pin(void *ctx, uint64_t size_bytes, const char *what, void **out,
                 struct dcp_error *err)
{
    struct ops_cuda *cuda = ctx;
    *out = NULL;
    DCP_TRY(ops_cuda_report(cuda, err));
    cudaError_t why =
        size_bytes > SIZE_MAX / 2
            ? cudaErrorMemoryAllocation
            : cudaHostAlloc(out, (size_t)size_bytes + 1, cudaHostAllocPortable);
    if (!why)
        return DCP_OK;
    *out = NULL;
    cudaGetLastError();
    dcp_error_set(err, DCP_E_MEMORY,
                  "out of memory of the host that can be pinned: %s need %.1f MiB (CUDA "
                  "says '%s')",
                  what, (double)size_bytes / (1 << 20), cudaGetErrorString(why));
    dcp_error_hint(err, "\"pin_memory\": false pins only buffers, and is slower");
    return DCP_E_MEMORY;
}

void ops_cuda_unpin(void *ctx, void *memory)
{
    struct ops_cuda *cuda = ctx;
    if (memory)
        OPS_CUDA_CHECK(cuda, cudaFreeHost(memory), "free pinned memory");
}

static cudaError_t open_way(struct way *way)
{
    cudaError_t why = cudaStreamCreateWithFlags(&way->stream, cudaStreamNonBlocking);
    if (!why)
        why = cudaEventCreateWithFlags(&way->ready, cudaEventDisableTiming);
    for (int i = 0; !why && i < N_EVENTS; i++)
        why = cudaEventCreateWithFlags(&way->done[i], cudaEventDisableTiming);
    return why;
}

/* NULL: a failure that is kept. */
static struct way *way_of(struct ops_cuda *cuda, enum ops_way way)
{
    if (cuda->failed.code)
        return NULL;
    if (!cuda->carry) {
        cuda->carry = dcp_mem_calloc(1, sizeof *cuda->carry);
        if (!cuda->carry) {
            dcp_error_memory(&cuda->failed, "copies beside the kernels");
            return NULL;
        }
        for (int i = 0; i < OPS_N_WAYS; i++)
            OPS_CUDA_CHECK(cuda, open_way(&cuda->carry->ways[i]), "open a stream");
        if (cuda->failed.code) /* nor is half of it used later */
            ops_cuda_carry_close(cuda);
    }
    return cuda->failed.code ? NULL : &cuda->carry->ways[way];
}

/* An event that is used again is that of a later copy: what waits for it waits longer. */
static cudaEvent_t done_of(const struct way *way, uint64_t n_copies)
{
    return way->done[n_copies % N_EVENTS];
}

uint64_t ops_cuda_carry(void *ctx, enum ops_way to_where, void *to, const void *from,
                        uint64_t size_bytes, uint64_t after)
{
    struct ops_cuda *cuda = ctx;
    struct way *way = way_of(cuda, to_where);
    enum cudaMemcpyKind kind =
        to_where == OPS_TO_HOST ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    if (!way)
        return 0;
    cudaError_t why = cudaEventRecord(way->ready, cuda->stream);
    if (!why)
        why = cudaStreamWaitEvent(way->stream, way->ready, 0);
    if (!why && after)
        why = cudaStreamWaitEvent(
            way->stream, done_of(&cuda->carry->ways[OPS_N_WAYS - 1 - to_where], after),
            0);
    if (!why && size_bytes)
        why = cudaMemcpyAsync(to, from, (size_t)size_bytes, kind, way->stream);
    if (!why)
        why = cudaEventRecord(done_of(way, way->n + 1), way->stream);
    OPS_CUDA_CHECK(cuda, why, "copy beside kernels");
    return ++way->n;
}

void ops_cuda_carry_join(void *ctx, enum ops_way to_where, uint64_t n_copies)
{
    struct ops_cuda *cuda = ctx;
    struct way *way = n_copies ? way_of(cuda, to_where) : NULL;
    if (way)
        OPS_CUDA_CHECK(cuda, cudaStreamWaitEvent(cuda->stream, done_of(way, n_copies), 0),
                       "order kernels behind a copy");
}

int ops_cuda_carry_wait(void *ctx, enum ops_way to_where, uint64_t n_copies,
                        struct dcp_error *err)
{
    struct ops_cuda *cuda = ctx;
    struct way *way = n_copies ? way_of(cuda, to_where) : NULL;
    return way ? ops_cuda_wait(cuda, done_of(way, n_copies), err)
               : ops_cuda_report(cuda, err);
}

static void close_way(struct way *way)
{
    if (way->stream)
        cudaStreamSynchronize(way->stream);
    if (way->ready)
        cudaEventDestroy(way->ready);
    for (int i = 0; i < N_EVENTS; i++)
        if (way->done[i])
            cudaEventDestroy(way->done[i]);
    if (way->stream)
        cudaStreamDestroy(way->stream);
}

void ops_cuda_carry_close(struct ops_cuda *cuda)
{
    for (int i = 0; cuda->carry && i < OPS_N_WAYS; i++)
        close_way(&cuda->carry->ways[i]);
    free(cuda->carry);
    cuda->carry = NULL;
}
