/* ops_cuda: products by cuBLASLt, which thinks in columns: a row-major c is its
 * transposed c, so the operands change places. A product that was asked for before is not
 * planned again. */
#include "cuda.h"

#include "base/mem.h"
#include <cublasLt.h>
#include <string.h>

#define WORKSPACE_BYTES ((size_t)32 << 20)
/* Of an address, as far as cuBLASLt is told: it chooses by that, and the same product is
 * to have the same bits wherever its operands lie. */
#define MAX_ALIGN 16
#define AUX_ELEMS 8 /* rows of what GELU keeps are multiples of that */

enum epilogue { PLAIN, BIAS, GELU };

/* c = op(a) op(b) + bias + add; with GELU `kept` is that, and c its gelu. */
struct operands {
    const void *a, *b, *bias, *add;
    void *kept, *c;
};

/* What a plan depends on. Compared as bytes: zeroed first. */
struct key {
    int64_t m, n, k;
    enum dcp_dtype dtype;
    enum epilogue epilogue;
    bool trans_a, trans_b, add;
    int align_a, align_b, align_bias, align_add, align_kept, align_c;
};

struct plan {
    struct key key;
    bool possible; /* cuBLASLt has a way */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

struct ops_cuda_matmul {
    cublasLtHandle_t handle;
    void *workspace;
    float *bias; /* in fp32, when it had 16 bits */
    int64_t bias_elems;
    struct plan *plans;
    size_t n_plans, cap_plans;
};

/* --- failures --- */

static int failed(cublasStatus_t why, const char *act, int line, struct dcp_error *err)
{
    return dcp_error_set(err, why == CUBLAS_STATUS_ALLOC_FAILED ? DCP_E_MEMORY : DCP_E_IO,
                         "the GPU cannot %s: cuBLAS says '%s' (%s:%d)", act,
                         cublasLtGetStatusString(why), __FILE__, line);
}
#define FAILED(why, act, err) failed((why), (act), __LINE__, (err))

/* --- the context --- */

static void plan_fini(struct plan *plan)
{
    cublasLtMatmulDescDestroy(plan->operation);
    cublasLtMatrixLayoutDestroy(plan->a);
    cublasLtMatrixLayoutDestroy(plan->b);
    cublasLtMatrixLayoutDestroy(plan->c);
}

void ops_cuda_matmul_close(struct ops_cuda *cuda)
{
    struct ops_cuda_matmul *mm = cuda->matmul;
    if (!mm)
        return;
    for (size_t i = 0; i < mm->n_plans; i++)
        plan_fini(&mm->plans[i]);
    free(mm->plans);
    cudaFree(mm->workspace);
    cudaFree(mm->bias);
    if (mm->handle)
        cublasLtDestroy(mm->handle);
    free(mm);
    cuda->matmul = NULL;
}

int ops_cuda_matmul_open(struct ops_cuda *cuda, struct dcp_error *err)
{
    struct ops_cuda_matmul *mm = dcp_mem_calloc(1, sizeof *mm);
    cuda->matmul = mm;
    if (!mm)
        return dcp_error_memory(err, "products");
    cublasStatus_t why = cublasLtCreate(&mm->handle);
    if (why)
        return FAILED(why, "open cuBLASLt", err);
    OPS_CUDA_CHECK(cuda, cudaMalloc(&mm->workspace, WORKSPACE_BYTES),
                   "get memory for products");
    return ops_cuda_report(cuda, err);
}

/* --- planning --- */

static int align_of(const void *address)
{
    uintptr_t bits = (uintptr_t)address | MAX_ALIGN;
    return (int)(bits & -bits);
}

static cudaDataType_t type_of(enum dcp_dtype dtype)
{
    return dtype == DCP_BF16 ? CUDA_R_16BF : dtype == DCP_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Everything of a plan but the algorithm. */
static cublasStatus_t describe(struct plan *plan)
{
    const struct key *key = &plan->key;
    bool gelu = key->epilogue == GELU;
    cudaDataType_t in = type_of(key->dtype), out = gelu ? in : CUDA_R_32F;
    int32_t trans_a = key->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t trans_b = key->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t epilogue = gelu                    ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                       : key->epilogue == BIAS ? CUBLASLT_EPILOGUE_BIAS
                                               : CUBLASLT_EPILOGUE_DEFAULT;
    uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n, k = (uint64_t)key->k;
    cublasStatus_t why =
        cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
#define SET(name, value)                                                               \
    if (!why)                                                                          \
    why = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_##name, \
                                         &(value), sizeof(value))
    SET(TRANSA, trans_a);
    SET(TRANSB, trans_b);
    SET(EPILOGUE, epilogue);
    if (key->epilogue != PLAIN) {
        int32_t type = (int32_t)out;
        SET(BIAS_DATA_TYPE, type);
    }
    if (gelu) {
        int64_t row = key->n;
        SET(EPILOGUE_AUX_LD, row);
    }
#undef SET
    if (!why)
        why = cublasLtMatrixLayoutCreate(&plan->a, in, key->trans_b ? k : n,
                                         key->trans_b ? n : k,
                                         key->trans_b ? key->k : key->n);
    if (!why)
        why = cublasLtMatrixLayoutCreate(&plan->b, in, key->trans_a ? m : k,
                                         key->trans_a ? k : m,
                                         key->trans_a ? key->m : key->k);
    if (!why)
        why = cublasLtMatrixLayoutCreate(&plan->c, out, n, m, key->n);
    return why;
}

/* Where the operands of the epilogue are: how they are aligned counts in the choice. */
static cublasStatus_t point(struct plan *plan, const struct operands *at)
{
    cublasStatus_t why = CUBLAS_STATUS_SUCCESS;
    if (plan->key.epilogue != PLAIN)
        why = cublasLtMatmulDescSetAttribute(plan->operation,
                                             CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at->bias,
                                             sizeof at->bias);
    if (!why && plan->key.epilogue == GELU)
        why = cublasLtMatmulDescSetAttribute(plan->operation,
                                             CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                             &at->kept, sizeof at->kept);
    return why;
}

static cublasStatus_t choose(struct ops_cuda_matmul *mm, struct plan *plan)
{
    const struct key *key = &plan->key;
    size_t workspace_bytes = WORKSPACE_BYTES;
    uint32_t a = (uint32_t)key->align_b, b = (uint32_t)key->align_a; /* they change */
    uint32_t c = (uint32_t)key->align_add, d = (uint32_t)key->align_c;
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t found = { .algo = { { 0 } } };
    int n_found = 0;
    cublasStatus_t why = cublasLtMatmulPreferenceCreate(&wish);
#define SET(name, value)                                                          \
    if (!why)                                                                     \
    why = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_##name, \
                                               &(value), sizeof(value))
    SET(MAX_WORKSPACE_BYTES, workspace_bytes);
    SET(MIN_ALIGNMENT_A_BYTES, a);
    SET(MIN_ALIGNMENT_B_BYTES, b);
    SET(MIN_ALIGNMENT_C_BYTES, c);
    SET(MIN_ALIGNMENT_D_BYTES, d);
#undef SET
    if (!why)
        why =
            cublasLtMatmulAlgoGetHeuristic(mm->handle, plan->operation, plan->a, plan->b,
                                           plan->c, plan->c, wish, 1, &found, &n_found);
    /* Which epilogues there are differs between versions: GELU has a kernel, too. */
    bool refused = why == CUBLAS_STATUS_NOT_SUPPORTED ||
                   (why == CUBLAS_STATUS_INVALID_VALUE && key->epilogue == GELU);
    if (refused)
        why = CUBLAS_STATUS_SUCCESS;
    plan->possible = n_found > 0 && !found.state;
    plan->algo = found.algo;
    cublasLtMatmulPreferenceDestroy(wish);
    return why;
}

static int plan_for(struct ops_cuda_matmul *mm, const struct ops_matmul *shape,
                    enum epilogue epilogue, const struct operands *at,
                    struct plan **out_plan, struct dcp_error *err)
{
    struct key key;
    memset(&key, 0, sizeof key);
    key.m = shape->m;
    key.n = shape->n;
    key.k = shape->k;
    key.dtype = shape->dtype;
    key.epilogue = epilogue;
    key.trans_a = shape->trans_a;
    key.trans_b = shape->trans_b;
    key.add = at->add != NULL;
    key.align_a = align_of(at->a);
    key.align_b = align_of(at->b);
    key.align_bias = align_of(at->bias);
    key.align_add = align_of(at->add ? at->add : at->c);
    key.align_kept = align_of(at->kept);
    key.align_c = align_of(at->c);
    for (size_t i = 0; i < mm->n_plans; i++)
        if (!memcmp(&mm->plans[i].key, &key, sizeof key)) {
            *out_plan = &mm->plans[i];
            return DCP_OK;
        }
    struct plan *grown =
        dcp_mem_grow(mm->plans, &mm->cap_plans, mm->n_plans + 1, sizeof *grown);
    if (!grown)
        return dcp_error_memory(err, "the plans of products");
    mm->plans = grown;
    struct plan *plan = &mm->plans[mm->n_plans];
    memset(plan, 0, sizeof *plan);
    memcpy(&plan->key, &key, sizeof key);
    cublasStatus_t why = describe(plan);
    if (!why)
        why = point(plan, at);
    if (!why)
        why = choose(mm, plan);
    if (why) {
        plan_fini(plan);
        return FAILED(why, "plan a product", err);
    }
    mm->n_plans++;
    *out_plan = plan;
    return DCP_OK;
}

/* --- products --- */

static int run(struct ops_cuda *cuda, struct plan *plan, const struct operands *at,
               struct dcp_error *err)
{
    struct ops_cuda_matmul *mm = cuda->matmul;
    const float one = 1, beta = at->add ? 1 : 0;
    cublasStatus_t why = point(plan, at);
    if (!why)
        why = cublasLtMatmul(mm->handle, plan->operation, &one, at->b, plan->a, at->a,
                             plan->b, &beta, at->add ? at->add : at->c, plan->c, at->c,
                             plan->c, &plan->algo, mm->workspace, WORKSPACE_BYTES,
                             cuda->stream);
    return why ? FAILED(why, "multiply", err) : ops_cuda_report(cuda, err);
}

/* Room for a bias of n elements. */
static bool has_bias_room(struct ops_cuda *cuda, int64_t n)
{
    struct ops_cuda_matmul *mm = cuda->matmul;
    if (mm->bias_elems >= n)
        return true;
    if (!ops_cuda_settle(cuda))
        return false;
    cudaFree(mm->bias);
    mm->bias = NULL;
    mm->bias_elems = 0;
    OPS_CUDA_CHECK(cuda, cudaMalloc((void **)&mm->bias, (size_t)n * sizeof *mm->bias),
                   "get memory for a bias");
    if (mm->bias)
        mm->bias_elems = n;
    return mm->bias != NULL;
}

/* The bias in fp32, as a product that writes fp32 wants it. */
static const float *wide_bias(struct ops_cuda *cuda, const struct ops_matmul *s,
                              const void *bias)
{
    if (s->dtype == DCP_F32 || !bias)
        return bias;
    if (!has_bias_room(cuda, s->n))
        return NULL;
    ops_cuda_widen(cuda, s->dtype, s->n, bias, cuda->matmul->bias);
    return cuda->matmul->bias;
}

/* The bias in 16 bits where it can be read 16 bytes at a time: cuBLASLt does so without
 * being asked whether it may, in the epilogue with GELU. */
static const void *aligned_bias(struct ops_cuda *cuda, const struct ops_matmul *s,
                                const void *bias)
{
    if (align_of(bias) == MAX_ALIGN)
        return bias;
    if (!has_bias_room(cuda, s->n))
        return NULL;
    OPS_CUDA_CHECK(cuda,
                   cudaMemcpyAsync(cuda->matmul->bias, bias, (size_t)s->n * 2,
                                   cudaMemcpyDeviceToDevice, cuda->stream),
                   "copy a bias");
    return cuda->matmul->bias;
}

int ops_cuda_matmul(void *ctx, const struct ops_matmul *shape, const void *a,
                    const void *b, const void *bias, const float *add, float *c,
                    struct dcp_error *err)
{
    struct ops_cuda *cuda = ctx;
    const struct operands at = {
        .a = a, .b = b, .bias = wide_bias(cuda, shape, bias), .add = add, .c = c
    };
    struct plan *plan = NULL;
    DCP_TRY(ops_cuda_report(cuda, err));
    DCP_TRY(plan_for(cuda->matmul, shape, bias ? BIAS : PLAIN, &at, &plan, err));
    if (!plan->possible)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "cuBLASLt has no way to multiply %lld × %lld by %lld × %lld",
                             (long long)shape->m, (long long)shape->k,
                             (long long)shape->k, (long long)shape->n);
    return run(cuda, plan, &at, err);
}

/* cuBLASLt's tanh is an approximation, good to some 11 bits: enough for bf16 only,
 * fp16 has as many. */
static bool has_epilogue(const struct ops_matmul *shape, const void *kept)
{
    return shape->dtype == DCP_BF16 && shape->n % AUX_ELEMS == 0 &&
           align_of(kept) == MAX_ALIGN;
}

/* In the epilogue of the product where cuBLASLt does that, else by a kernel behind it. */
int ops_cuda_linear_gelu(void *ctx, const struct ops_matmul *shape, const void *x,
                         const void *weight, const void *bias, void *kept, void *out,
                         struct dcp_error *err)
{
    struct ops_cuda *cuda = ctx;
    struct plan *plan = NULL;
    if (has_epilogue(shape, kept)) {
        const struct operands at = { .a = x,
                                     .b = weight,
                                     .bias = aligned_bias(cuda, shape, bias),
                                     .kept = kept,
                                     .c = out };
        int rc = ops_cuda_report(cuda, err);
        if (!rc)
            rc = plan_for(cuda->matmul, shape, GELU, &at, &plan, err);
        if (rc || plan->possible)
            return rc ? rc : run(cuda, plan, &at, err);
    }
    uint64_t n = (uint64_t)shape->m * (uint64_t)shape->n;
    float *y = ops_cuda_scratch(cuda, n * sizeof *y);
    int rc = y ? ops_cuda_matmul(ctx, shape, x, weight, bias, NULL, y, err) : DCP_OK;
    if (y && !rc)
        ops_cuda_gelu(cuda, shape->dtype, (int64_t)n, y, kept, out);
    return rc ? rc : ops_cuda_report(cuda, err);
}
