#include "cudnn.h"

#include "attention_cudnn.h"
#include "base/mem.h"
#include <math.h>

#define MAX_HEAD 128
#define HEAD_STEP 8
#define MIN_ROWS 2 /* cuDNN 9.28 does not survive one */
/* Before 9.16 cuDNN wants rows padded, and had faults in the gradient. (Their front end
 * lists them: scaled_dot_product_flash_attention.h.) The program may find another cuDNN
 * than it was built with. */
#define MIN_VERSION 91600
#define ALIGN_BYTES 256
#define LSE_STEP 4 /* elements: addresses are multiples of 16 */

struct entry {
    struct cudnn_attention shape;
    struct cudnn_plan plan;
    bool possible; /* cuDNN has a way */
};

struct ops_cuda_cudnn {
    cudnnHandle_t handle;
    struct entry *entries;
    size_t n_entries, cap_entries;
};

/* --- the context --- */

void ops_cuda_cudnn_close(struct ops_cuda *cuda)
{
    struct ops_cuda_cudnn *dnn = cuda->cudnn;
    if (!dnn)
        return;
    for (size_t i = 0; i < dnn->n_entries; i++)
        cudnn_plan_fini(&dnn->entries[i].plan);
    free(dnn->entries);
    if (dnn->handle)
        cudnnDestroy(dnn->handle);
    free(dnn);
    cuda->cudnn = NULL;
}

static int open_cudnn(struct ops_cuda *cuda, struct dcp_error *err)
{
    if (cuda->cudnn)
        return DCP_OK;
    struct ops_cuda_cudnn *dnn = dcp_mem_calloc(1, sizeof *dnn);
    cuda->cudnn = dnn;
    if (!dnn)
        return dcp_error_memory(err, "attention");
    cudnnStatus_t why = cudnnCreate(&dnn->handle);
    if (!why)
        why = cudnnSetStream(dnn->handle, cuda->stream);
    if (!why)
        return DCP_OK;
    ops_cuda_cudnn_close(cuda);
    return cudnn_failed(why, DCP_E_IO, "open cuDNN", __LINE__, err);
}

/* --- plans --- */

/* Sequences of a run, as many as have the memory; 0: not even one. */
static int64_t sequences(const struct ops_cuda *cuda, const struct cudnn_attention *whole)
{
    int64_t n = whole->batch, bytes = cudnn_attention_bytes(whole);
    while (n && (whole->batch % n || n * bytes > cuda->attention_bytes))
        n--;
    return n == whole->batch || n * whole->seq_len * whole->n_head % LSE_STEP == 0 ? n
                                                                                   : 0;
}

static bool is_taken(const struct ops_attention *s)
{
    return cudnnGetVersion() >= MIN_VERSION && s->dtype != DCP_F32 && s->begin == 0 &&
           s->seq_len >= MIN_ROWS && s->head_size % HEAD_STEP == 0 &&
           s->head_size <= MAX_HEAD;
}

static bool is_same(const struct cudnn_attention *a, const struct cudnn_attention *b)
{
    return a->batch == b->batch && a->seq_len == b->seq_len && a->n_head == b->n_head &&
           a->head_size == b->head_size && a->backward == b->backward &&
           a->dtype == b->dtype;
}

/* The plan of a shape; *out NULL when cuDNN has none. */
static int find(struct ops_cuda *cuda, const struct ops_attention *s, bool backward,
                const struct entry **out, struct dcp_error *err)
{
    struct cudnn_attention shape = { s->batch,     s->seq_len, s->n_head,
                                     s->head_size, backward,   s->dtype };
    struct dcp_error refused = { 0 };
    *out = NULL;
    shape.batch = sequences(cuda, &shape);
    if (!is_taken(s) || shape.batch == 0)
        return DCP_OK;
    DCP_TRY(open_cudnn(cuda, err));
    struct ops_cuda_cudnn *dnn = cuda->cudnn;
    for (size_t i = 0; i < dnn->n_entries; i++)
        if (is_same(&dnn->entries[i].shape, &shape)) {
            *out = dnn->entries[i].possible ? &dnn->entries[i] : NULL;
            return DCP_OK;
        }
    struct entry *grown =
        dcp_mem_grow(dnn->entries, &dnn->cap_entries, dnn->n_entries + 1, sizeof *grown);
    if (!grown)
        return dcp_error_memory(err, "attention");
    dnn->entries = grown;
    struct entry *entry = &dnn->entries[dnn->n_entries++];
    const struct cudnn_target target = { .handle = dnn->handle };
    *entry = (struct entry){ .shape = shape };
    entry->possible = !cudnn_attention_plan(&shape, &target, &entry->plan, &refused);
    *out = entry->possible ? entry : NULL;
    return DCP_OK;
}

/* --- runs --- */

/* Where one run's sequences lie; of 16 bits, but for lse. */
struct operands {
    char *qkv, *out, *dout, *dqkv;
    float *lse, *delta;
    void *workspace;
};

static int run(struct ops_cuda *cuda, const struct entry *entry,
               const struct operands *at, struct dcp_error *err)
{
    const struct cudnn_attention *s = &entry->shape;
    float scale = (float)(1 / sqrt((double)s->head_size)), unseen = -INFINITY, one = 1;
    size_t part = (size_t)(s->n_head * s->head_size) * 2;
    void *const all[CUDNN_ATTENTION_END] = {
        [CUDNN_ATTENTION_Q] = at->qkv,
        [CUDNN_ATTENTION_K] = at->qkv + part,
        [CUDNN_ATTENTION_V] = at->qkv + 2 * part,
        [CUDNN_ATTENTION_OUT] = at->out,
        [CUDNN_ATTENTION_LSE] = at->lse,
        [CUDNN_ATTENTION_SCALE] = &scale,
        [CUDNN_ATTENTION_UNSEEN] = &unseen,
        [CUDNN_ATTENTION_DOUT] = at->dout,
        [CUDNN_ATTENTION_DQ] = at->dqkv,
        [CUDNN_ATTENTION_DK] = at->dqkv + (s->backward ? part : 0),
        [CUDNN_ATTENTION_DV] = at->dqkv + (s->backward ? 2 * part : 0),
        [CUDNN_ATTENTION_DELTA] = at->delta,
        [CUDNN_ATTENTION_ONE] = &one,
    };
    int64_t ids[CUDNN_ATTENTION_END];
    int first = CUDNN_ATTENTION_Q;
    int n = (s->backward ? CUDNN_ATTENTION_END : CUDNN_ATTENTION_FORWARD_END) - first;
    for (int i = 0; i < n; i++)
        ids[i] = first + i;
    return cudnn_plan_run(&entry->plan, cuda->cudnn->handle, n, ids, all + first,
                          at->workspace, err);
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* Runs it over the whole batch. `qkv` and `dout` are fp32 and are cast first. */
static int run_all(struct ops_cuda *cuda, const struct ops_attention *s,
                   const struct entry *entry, const float *qkv, void *out, float *lse,
                   const float *dout, void *dqkv, struct dcp_error *err)
{
    bool backward = entry->shape.backward;
    int64_t rows = s->batch * s->seq_len, width = s->n_head * s->head_size;
    int64_t some = entry->shape.batch * s->seq_len; /* rows of one run */
    uint64_t qkv_bytes = aligned((uint64_t)(rows * 3 * width) * 2);
    uint64_t dout_bytes = backward ? aligned((uint64_t)(rows * width) * 2) : 0;
    uint64_t delta_bytes = backward ? aligned((uint64_t)(some * s->n_head) * 4) : 0;
    char *scratch = ops_cuda_scratch(cuda, qkv_bytes + dout_bytes + delta_bytes +
                                               (uint64_t)entry->plan.workspace_bytes);
    if (!scratch)
        return ops_cuda_report(cuda, err);
    char *dout_at = scratch + qkv_bytes, *delta = dout_at + dout_bytes;
    ops_cuda_cast(cuda, s->dtype, rows * 3 * width, qkv, scratch);
    if (backward)
        ops_cuda_cast(cuda, s->dtype, rows * width, dout, dout_at);
    int rc = ops_cuda_report(cuda, err);
    for (int64_t row = 0; !rc && row < rows; row += some) {
        size_t at = (size_t)(row * width) * 2;
        const struct operands operands = {
            .qkv = scratch + 3 * at,
            .out = (char *)out + at,
            .lse = lse + row * s->n_head,
            .dout = backward ? dout_at + at : NULL,
            .dqkv = backward ? (char *)dqkv + 3 * at : NULL,
            .delta = backward ? (float *)(void *)delta : NULL,
            .workspace = delta + delta_bytes,
        };
        rc = run(cuda, entry, &operands, err);
    }
    return rc;
}

int ops_cuda_cudnn_attention(struct ops_cuda *cuda, const struct ops_attention *shape,
                             const float *qkv, void *out, float *lse, bool *out_done,
                             struct dcp_error *err)
{
    const struct entry *entry;
    int rc = find(cuda, shape, true, &entry, err);
    if (entry) /* what has no gradient there is ours both ways, with the same lse */
        rc = find(cuda, shape, false, &entry, err);
    *out_done = entry != NULL;
    return entry ? run_all(cuda, shape, entry, qkv, out, lse, NULL, NULL, err) : rc;
}

int ops_cuda_cudnn_attention_backward(struct ops_cuda *cuda,
                                      const struct ops_attention *shape, const float *qkv,
                                      const void *out, const float *lse,
                                      const float *dout, void *dqkv, bool *out_done,
                                      struct dcp_error *err)
{
    const struct entry *entry;
    int rc = find(cuda, shape, true, &entry, err);
    *out_done = entry != NULL;
    return entry ? run_all(cuda, shape, entry, qkv, (void *)(uintptr_t)out,
                           (float *)(uintptr_t)lse, dout, dqkv, err)
                 : rc;
}
