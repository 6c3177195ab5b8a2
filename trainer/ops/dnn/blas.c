/* blas: products by a CBLAS, for builds without oneDNN. */
#include "base/mem.h"
#include "matlib.h"
#include "trainer/ops/ops.h"

#if DCP_HAS_BLAS && !DCP_HAS_ONEDNN

#include <cblas.h>
#include <limits.h>

int matlib_new(bool serial, struct matlib **out, struct dcp_error *err)
{
    (void)serial;
    (void)err;
    *out = NULL; /* nothing is kept */
    return DCP_OK;
}

void matlib_free(struct matlib *lib)
{
    (void)lib;
}

int matlib_sgemm(const struct matmul_shape *s, const float *a, const float *b, float *c,
                 struct dcp_error *err)
{
    const int64_t numbers[] = { s->m, s->n, s->k, s->lda, s->ldb, s->ldc };
    for (size_t i = 0; i < DCP_ARRAY_LEN(numbers); i++)
        if (numbers[i] > INT_MAX)
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "a matrix of %lld rows or columns is too large for the "
                                 "BLAS of this build",
                                 (long long)numbers[i]);
    cblas_sgemm(CblasRowMajor, s->trans_a ? CblasTrans : CblasNoTrans,
                s->trans_b ? CblasTrans : CblasNoTrans, (int)s->m, (int)s->n, (int)s->k,
                1, a, (int)s->lda, b, (int)s->ldb, s->accumulate ? 1 : 0, c, (int)s->ldc);
    return DCP_OK;
}

int matlib_bf16(struct matlib *lib, const struct matmul_shape *shape, const uint16_t *a,
                const uint16_t *b, float *c, bool *out_done, struct dcp_error *err)
{
    (void)lib, (void)shape, (void)a, (void)b, (void)c, (void)err;
    *out_done = false;
    return DCP_OK;
}

/* OpenBLAS's own; other libraries lack it. */
extern void openblas_set_num_threads(int n) __attribute__((weak));

void matlib_set_threads(int n)
{
    if (openblas_set_num_threads)
        openblas_set_num_threads(n);
}

void matlib_region_begin(void)
{
    if (ops_threads() > 1)
        matlib_set_threads(1);
}

void matlib_region_end(void)
{
    if (ops_threads() > 1)
        matlib_set_threads(ops_threads());
}

#endif
