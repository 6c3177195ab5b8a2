/* Products, in double, element by element. */
#include "cublasLt.h"
#include "fake.h"
#include "trainer/ops/f16.h"
#include <vector>

struct cublas_handle {
    int unused;
};
struct cublas_operation {
    int32_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
    int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT, bias_type = -1;
    const void *bias = nullptr;
    void *aux = nullptr;
    int64_t aux_ld = 0;
};
struct cublas_layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct cublas_preference {
    size_t workspace_bytes = 0;
    uint32_t align[4] = { 256, 256, 256, 256 };
};

const char *cublasLtGetStatusString(cublasStatus_t why)
{
    return why == CUBLAS_STATUS_NOT_SUPPORTED ? "the functionality is not supported"
                                              : "an unsupported value or parameter";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = new cublas_handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out,
                                        cublasComputeType_t compute, cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *out = new cublas_operation;
    return CUBLAS_STATUS_SUCCESS;
}

template <typename V> static cublasStatus_t set(V *to, const void *value, size_t size)
{
    if (size != sizeof *to)
        return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t size)
{
    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&operation->trans_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&operation->trans_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&operation->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&operation->bias, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(&operation->aux, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(&operation->aux_ld, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&operation->bias_type, value, size);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation)
{
    delete operation;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out,
                                          cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    *out = new cublas_layout{ type, rows, cols, ld };
    return ld >= (int64_t)rows && rows && cols ? CUBLAS_STATUS_SUCCESS
                                               : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = new cublas_preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t wish, cublasLtMatmulPreferenceAttributes_t name,
    const void *value, size_t size)
{
    if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&wish->workspace_bytes, value, size);
    return set(&wish->align[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
               size);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish)
{
    delete wish;
    return CUBLAS_STATUS_SUCCESS;
}

static bool is_aligned(const void *address, uint64_t bytes)
{
    return (uintptr_t)address % bytes == 0;
}

/* What the real one refuses is refused. */
static cublasStatus_t check(const cublas_operation *op, const cublas_layout *a,
                            const cublas_layout *b, const cublas_layout *c)
{
    bool ta = op->trans_a == CUBLAS_OP_T, tb = op->trans_b == CUBLAS_OP_T;
    uint64_t m = ta ? a->cols : a->rows, k = ta ? a->rows : a->cols;
    uint64_t k2 = tb ? b->cols : b->rows, n = tb ? b->rows : b->cols;
    if (a->type != b->type || k != k2 || m != c->rows || n != c->cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (op->epilogue != CUBLASLT_EPILOGUE_DEFAULT && op->bias_type != (int)c->type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (op->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS &&
        (!op->aux || op->aux_ld % 8 || op->aux_ld < (int64_t)c->rows ||
         !is_aligned(op->aux, 16)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* What it was told of the alignments goes into the algorithm, to be checked later. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t wish, int n_wanted,
    cublasLtMatmulHeuristicResult_t found[], int *out_n)
{
    (void)handle;
    *out_n = 0;
    cublasStatus_t why = check(operation, a, b, c);
    if (why || c != d || n_wanted < 1)
        return why;
    std::memset(&found[0], 0, sizeof found[0]);
    for (int i = 0; i < 4; i++)
        found[0].algo.data[i] = wish->align[i];
    found[0].algo.data[4] = wish->workspace_bytes;
    *out_n = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static double value(const void *array, cudaDataType_t type, int64_t i)
{
    if (type == CUDA_R_32F)
        return ((const float *)array)[i];
    if (type == CUDA_R_16F)
        return f16_to_f32(((const uint16_t *)array)[i]);
    uint32_t bits = (uint32_t)((const uint16_t *)array)[i] << 16;
    float v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
}

static void put(void *array, cudaDataType_t type, int64_t i, double v)
{
    float f = (float)v;
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    if (type == CUDA_R_32F)
        ((float *)array)[i] = f;
    else if (type == CUDA_R_16F)
        ((uint16_t *)array)[i] = f16_from_f32(f);
    else
        ((uint16_t *)array)[i] =
            std::isnan(f) ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct product {
    cublas_operation op;
    cublas_layout la, lb, lc;
    const void *a, *b, *c;
    void *d;
    float beta;
};

static void multiply(const product &p)
{
    bool ta = p.op.trans_a == CUBLAS_OP_T, tb = p.op.trans_b == CUBLAS_OP_T;
    int64_t m = (int64_t)p.lc.rows, n = (int64_t)p.lc.cols;
    int64_t k = (int64_t)(ta ? p.la.rows : p.la.cols);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            double sum = p.beta != 0 ? value(p.c, p.lc.type, i + j * p.lc.ld) : 0;
            for (int64_t l = 0; l < k; l++)
                sum += value(p.a, p.la.type, ta ? l + i * p.la.ld : i + l * p.la.ld) *
                       value(p.b, p.lb.type, tb ? j + l * p.lb.ld : l + j * p.lb.ld);
            if (p.op.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
                sum += value(p.op.bias, p.lc.type, i);
            if (p.op.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                put(p.op.aux, p.lc.type, i + j * p.op.aux_ld, sum);
                sum *= 0.5 * (1 + std::tanh(0.7978845608028654 *
                                            (sum + 0.044715 * sum * sum * sum)));
            }
            put(p.d, p.lc.type, i + j * p.lc.ld, sum);
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    (void)handle;
    const void *at[4] = { a, b, c, d };
    cublasStatus_t why = check(operation, a_layout, b_layout, c_layout);
    if (why || c_layout != d_layout || *(const float *)alpha != 1 || !workspace ||
        workspace_bytes != algo->data[4])
        return why ? why : CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if (!is_aligned(at[i], algo->data[i]))
            cuda_fake_fail("a product was planned for an operand %d that is aligned to "
                           "%d bytes; it is not",
                           i, (int)algo->data[i]);
    const product p = { *operation, *a_layout, *b_layout, *c_layout,           a,
                        b,          c,         d,         *(const float *)beta };
    cuda_lock lock(cuda_fake_get().mutex);
    cuda_give(lock, stream, [p](cuda_lock &) {
        cuda_open_memory open;
        multiply(p);
        return true;
    });
    return CUBLAS_STATUS_SUCCESS;
}
