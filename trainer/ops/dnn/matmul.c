/* matmul: fp32 products go to the library as they are, and bf16 products where it
 * has fast ones. Otherwise bf16 is widened and multiplied in fp32: the same sums. */
#include "matmul.h"
#include "base/mem.h"
#include "matlib.h"
#include "trainer/ops/ops.h"

#if DCP_HAS_ONEDNN || DCP_HAS_BLAS

#define ALIGN 64

struct wide {
    float *data;
    size_t size_bytes;
};

struct matmul {
    struct matlib *lib;
    struct wide a, b;
};

int matmul_new(bool serial, struct matmul **out, struct dcp_error *err)
{
    struct matmul *matmul = dcp_mem_calloc(1, sizeof *matmul);
    if (!matmul)
        return dcp_error_memory(err, "matrix products");
    int rc = matlib_new(serial, &matmul->lib, err);
    if (rc) {
        free(matmul);
        return rc;
    }
    *out = matmul;
    return DCP_OK;
}

void matmul_free(struct matmul *matmul)
{
    if (!matmul)
        return;
    matlib_free(matmul->lib);
    free(matmul->a.data);
    free(matmul->b.data);
    free(matmul);
}

/* Makes a dense fp32 copy of rows × columns; the rows of `in` are ld elements apart. */
static int widen(struct wide *wide, const uint16_t *in, int64_t rows, int64_t columns,
                 int64_t ld, struct dcp_error *err)
{
    size_t size_bytes;
    if (!dcp_mul_size((size_t)rows, (size_t)columns, &size_bytes) ||
        !dcp_mul_size(size_bytes, sizeof(float), &size_bytes))
        return dcp_error_memory(err, "a bf16 matrix in fp32");
    if (size_bytes > wide->size_bytes) {
        free(wide->data);
        wide->data = dcp_mem_aligned(ALIGN, size_bytes);
        wide->size_bytes = wide->data ? size_bytes : 0;
        if (!wide->data)
            return dcp_error_memory(err, "a bf16 matrix in fp32");
    }
    if (ld == columns)
        ops_from_bf16(in, wide->data, rows * columns);
    else
        for (int64_t r = 0; r < rows; r++)
            ops_from_bf16(in + r * ld, wide->data + r * columns, columns);
    return DCP_OK;
}

int matmul_run(struct matmul *matmul, const struct matmul_shape *shape, const void *a,
               const void *b, float *c, struct dcp_error *err)
{
    if (shape->m == 0 || shape->n == 0)
        return DCP_OK;
    if (shape->dtype == DCP_F32)
        return matlib_sgemm(shape, a, b, c, err);

    bool done;
    int rc = matlib_bf16(matmul->lib, shape, a, b, c, &done, err);
    if (rc || done)
        return rc;
    struct matmul_shape wide = *shape;
    wide.dtype = DCP_F32;
    wide.lda = shape->trans_a ? shape->m : shape->k;
    wide.ldb = shape->trans_b ? shape->k : shape->n;
    DCP_TRY(widen(&matmul->a, a, shape->trans_a ? shape->k : shape->m, wide.lda,
                  shape->lda, err));
    DCP_TRY(widen(&matmul->b, b, shape->trans_b ? shape->n : shape->k, wide.ldb,
                  shape->ldb, err));
    return matlib_sgemm(&wide, matmul->a.data, matmul->b.data, c, err);
}

#endif
