/* table: the table, its context, and memory. */
#include "cuda.h"

#include "base/clock.h"
#include "base/mem.h"
#include "cudnn.h"

/* Waiting for the stream while somebody watches. */
#define LOOKS 2000
#define SLEEP_US 20
#define WATCH_NS UINT64_C(20000000)

#define ATTENTION_BYTES ((int64_t)512 << 20)

/* --- failures --- */

int ops_cuda_failed(struct ops_cuda *cuda, cudaError_t why, const char *act,
                    const char *file, int line)
{
    int code = why == cudaErrorMemoryAllocation ? DCP_E_MEMORY : DCP_E_IO;
    return dcp_error_set(&cuda->failed, code,
                         "the GPU cannot %s: CUDA says '%s' (%s, "
                         "%s:%d)",
                         act, cudaGetErrorString(why), cudaGetErrorName(why), file, line);
}

int ops_cuda_report(struct ops_cuda *cuda, struct dcp_error *err)
{
    int rc = cuda->failed.code;
    if (!err)
        return rc;
    if (rc && !err->code)
        *err = cuda->failed;
    cuda->failed = (struct dcp_error){ 0 };
    return rc;
}

/* --- the context --- */

static void close_cuda(void *ctx)
{
    struct ops_cuda *cuda = ctx;
    if (!cuda)
        return;
    if (cuda->stream)
        cudaStreamSynchronize(cuda->stream);
    ops_cuda_carry_close(cuda);
    ops_cuda_matmul_close(cuda);
    ops_cuda_cudnn_close(cuda);
    cudaFree(cuda->scratch);
    if (cuda->stream)
        cudaStreamDestroy(cuda->stream);
    free(cuda);
}

/* On the device that is current in this thread. */
static int open_cuda(void **out_ctx, struct dcp_error *err)
{
    struct ops_cuda *cuda = dcp_mem_calloc(1, sizeof *cuda);
    *out_ctx = NULL;
    if (!cuda)
        return dcp_error_memory(err, "kernels");
    cuda->attention_bytes = ATTENTION_BYTES;
    OPS_CUDA_CHECK(cuda, cudaGetDevice(&cuda->device), "be found");
    if (!cuda->failed.code)
        OPS_CUDA_CHECK(cuda,
                       cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking),
                       "open a stream");
    int rc = ops_cuda_report(cuda, err);
    if (!rc)
        rc = ops_cuda_matmul_open(cuda, err);
    if (rc)
        close_cuda(cuda);
    else
        *out_ctx = cuda;
    return rc;
}

/* --- waiting --- */

/* Looks quickly for a while, then sleeps between looks, and calls the watch. */
static int wait_watching(struct ops_cuda *cuda, cudaEvent_t event, struct dcp_error *err)
{
    uint64_t watched_ns = 0;
    for (int looks = 0;; looks++) {
        cudaError_t why = event ? cudaEventQuery(event) : cudaStreamQuery(cuda->stream);
        if (why != cudaErrorNotReady) {
            OPS_CUDA_CHECK(cuda, why, "do what it was given");
            return ops_cuda_report(cuda, err);
        }
        if (looks < LOOKS)
            continue;
        dcp_clock_sleep_us(SLEEP_US);
        uint64_t now_ns = dcp_clock_ns();
        if (now_ns - watched_ns < WATCH_NS)
            continue;
        watched_ns = now_ns;
        DCP_TRY(cuda->watch(cuda->watch_self, err));
    }
}

/* What CUDA itself waits in (cudaFree, copies of memory that is not pinned) nobody can
 * watch, so it is called when nothing is left to wait for. */
int ops_cuda_wait(struct ops_cuda *cuda, cudaEvent_t event, struct dcp_error *err)
{
    if (cuda->watch)
        return wait_watching(cuda, event, err);
    OPS_CUDA_CHECK(
        cuda, event ? cudaEventSynchronize(event) : cudaStreamSynchronize(cuda->stream),
        "do what it was given");
    return ops_cuda_report(cuda, err);
}

static int sync_stream(void *ctx, struct dcp_error *err)
{
    return ops_cuda_wait(ctx, NULL, err);
}

bool ops_cuda_settle(struct ops_cuda *cuda)
{
    struct dcp_error failed = { 0 };
    if (!sync_stream(cuda, &failed))
        return true;
    cuda->failed = failed;
    return false;
}

/* --- memory --- */

/* Kernels run one after the other, so the memory of the one before is free; what is too
 * small is given back, which waits for them. */
void *ops_cuda_scratch(struct ops_cuda *cuda, uint64_t size_bytes)
{
    if (size_bytes <= cuda->scratch_bytes)
        return cuda->scratch;
    if (!ops_cuda_settle(cuda))
        return NULL;
    cudaFree(cuda->scratch);
    cuda->scratch = NULL;
    cuda->scratch_bytes = 0;
    OPS_CUDA_CHECK(cuda, cudaMalloc(&cuda->scratch, (size_t)size_bytes),
                   "get memory for a kernel");
    if (cuda->scratch)
        cuda->scratch_bytes = size_bytes;
    return cuda->scratch;
}

static int alloc(void *ctx, uint64_t size_bytes, const char *what, void **out,
                 struct dcp_error *err)
{
    struct ops_cuda *cuda = ctx;
    size_t free_bytes = 0, total_bytes = 0;
    *out = NULL;
    DCP_TRY(ops_cuda_report(cuda, err));
    cudaError_t why = size_bytes > SIZE_MAX / 2 ? cudaErrorMemoryAllocation
                                                : cudaMalloc(out, size_bytes + 1);
    if (why != cudaErrorMemoryAllocation) {
        OPS_CUDA_CHECK(cuda, why, "get memory");
        return ops_cuda_report(cuda, err);
    }
    *out = NULL;
    cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return dcp_error_set(err, DCP_E_MEMORY,
                         "out of memory on the GPU: %s need %.1f MiB, %.1f MiB of its "
                         "%.1f are free",
                         what, (double)size_bytes / (1 << 20),
                         (double)free_bytes / (1 << 20), (double)total_bytes / (1 << 20));
}

static void free_memory(void *ctx, void *memory)
{
    struct ops_cuda *cuda = ctx;
    OPS_CUDA_CHECK(cuda, cudaFree(memory), "free memory");
}

static void move(struct ops_cuda *cuda, void *to, const void *from, uint64_t size_bytes,
                 enum cudaMemcpyKind kind)
{
    if (size_bytes && !cuda->failed.code)
        OPS_CUDA_CHECK(cuda,
                       cudaMemcpyAsync(to, from, (size_t)size_bytes, kind, cuda->stream),
                       "copy");
}

static int put(void *ctx, void *to, const void *host, uint64_t size_bytes,
               struct dcp_error *err)
{
    DCP_TRY(sync_stream(ctx, err));
    move(ctx, to, host, size_bytes, cudaMemcpyHostToDevice);
    return sync_stream(ctx, err);
}

static int get(void *ctx, void *host, const void *from, uint64_t size_bytes,
               struct dcp_error *err)
{
    DCP_TRY(sync_stream(ctx, err));
    move(ctx, host, from, size_bytes, cudaMemcpyDeviceToHost);
    return sync_stream(ctx, err);
}

static void copy(void *ctx, void *to, const void *from, uint64_t size_bytes)
{
    move(ctx, to, from, size_bytes, cudaMemcpyDeviceToDevice);
}

static void zero(void *ctx, void *to, uint64_t size_bytes)
{
    struct ops_cuda *cuda = ctx;
    if (size_bytes && !cuda->failed.code)
        OPS_CUDA_CHECK(cuda, cudaMemsetAsync(to, 0, (size_t)size_bytes, cuda->stream),
                       "zero memory");
}

const struct ops *ops_cuda(void)
{
    static const struct ops table = {
        .name = "CUDA",
        .open = open_cuda,
        .close = close_cuda,
        .alloc = alloc,
        .free = free_memory,
        .put = put,
        .get = get,
        .copy = copy,
        .zero = zero,
        .sync = sync_stream,
        .pin = ops_cuda_pin,
        .unpin = ops_cuda_unpin,
        .carry = ops_cuda_carry,
        .carry_join = ops_cuda_carry_join,
        .carry_wait = ops_cuda_carry_wait,
        .matmul = ops_cuda_matmul,
        .linear_gelu = ops_cuda_linear_gelu,
        .gelu_backward = ops_cuda_gelu_backward,
        .embed = ops_cuda_embed,
        .embed_backward = ops_cuda_embed_backward,
        .layer_norm = ops_cuda_layer_norm,
        .layer_norm_backward = ops_cuda_layer_norm_backward,
        .rms_norm = ops_cuda_rms_norm,
        .rms_norm_backward = ops_cuda_rms_norm_backward,
        .swiglu = ops_cuda_swiglu,
        .swiglu_backward = ops_cuda_swiglu_backward,
        .rope = ops_cuda_rope,
        .attention = ops_cuda_attention,
        .attention_backward = ops_cuda_attention_backward,
        .cross_entropy = ops_cuda_cross_entropy,
        .sum_rows = ops_cuda_sum_rows,
        .cast = ops_cuda_cast,
        .widen = ops_cuda_widen,
        .sum = ops_cuda_sum,
        .blend = ops_cuda_blend,
        .exact_add = ops_cuda_exact_add,
        .exact_sum = ops_cuda_exact_sum,
        .exact_merge = ops_cuda_exact_merge,
        .exact_get = ops_cuda_exact_get,
        .quantize = ops_cuda_quantize,
        .dequantize = ops_cuda_dequantize,
        .norm_peak = ops_cuda_norm_peak,
        .norm_add = ops_cuda_norm_add,
        .factor_add = ops_cuda_factor_add,
        .factored = ops_cuda_factored,
        .optim = ops_cuda_optim,
    };
    return &table;
}
