/* matmul: fp32 products go to the library, and bf16 products where it has fast ones.
 * Otherwise 16 bits are widened and multiplied in fp32: the same sums. fp16 always is:
 * oneDNN 2.6 has no products of it on a CPU. All are cut into strips of c that do not
 * depend on the number of threads, each one thread's work. */
#include "matmul.h"
#include "base/mem.h"
#include "base/part.h"
#include "matlib.h"
#include "trainer/ops/ops.h"
#include "trainer/ops/simd.h"
#include "trainer/ops/value.h"
#include <string.h>

#if DCP_HAS_ONEDNN || DCP_HAS_BLAS

#define ALIGN 64
#define MAX_STRIPS 16   /* of a product, unless they get wider than the widest */
#define STRIP_LEAST 128 /* rows or columns */
#define STRIP_MOST 1024
#define BLOCK 128        /* rows or columns of c: few, so that the cache holds them */
#define STEP 64          /* rows that a thread widens at a time */
#define ENOUGH (1 << 16) /* elements that are worth waking threads */

struct wide {
    float *data;
    size_t size_bytes;
};

/* A thread's share of a product that is made of blocks. */
struct share {
    struct wide wide;
    int rc;
    struct dcp_error error;
};

struct matmul {
    bool serial;
    struct matlib *lib;
    struct wide whole;
    struct share *shares; /* one a thread */
    size_t n_shares, cap_shares;
};

int64_t matmul_strip(int64_t n)
{
    int64_t strip = dcp_part_align(dcp_part_ceil(n, MAX_STRIPS), 64);
    return strip < STRIP_LEAST ? STRIP_LEAST : strip > STRIP_MOST ? STRIP_MOST : strip;
}

int matmul_new(bool serial, struct matmul **out, struct dcp_error *err)
{
    struct matmul *matmul = dcp_mem_calloc(1, sizeof *matmul);
    if (!matmul)
        return dcp_error_memory(err, "matrix products");
    matmul->serial = serial;
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
    free(matmul->whole.data);
    for (size_t i = 0; i < matmul->n_shares; i++)
        free(matmul->shares[i].wide.data);
    free(matmul->shares);
    free(matmul);
}

/* A 16-bit operand, a or b: across × k with across m or n, or k × across. */
struct narrow {
    const uint16_t *data;
    int64_t ld;
    bool k_first;
};

INLINE void widen_rows_as(enum dcp_dtype dtype, int64_t rows, int64_t columns,
                          const uint16_t *in, int64_t ld, float *out)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < columns; j++)
            out[r * columns + j] = value_get(dtype, in, r * ld + j);
}

DCP_VECTORS
static void widen_rows(enum dcp_dtype dtype, int64_t rows, int64_t columns,
                       const uint16_t *in, int64_t ld, float *out)
{
    BY_DTYPE(dtype, widen_rows_as, rows, columns, in, ld, out);
}

/* Makes a dense fp32 copy of begin .. begin + n across. */
static int widen(struct wide *wide, bool threads, const struct narrow *in, int64_t begin,
                 int64_t n, const struct matmul_shape *shape, struct dcp_error *err)
{
    const uint16_t *from = in->data + begin * (in->k_first ? 1 : in->ld);
    int64_t rows = in->k_first ? shape->k : n, columns = in->k_first ? n : shape->k;
    size_t size_bytes;
    if (!dcp_mul_size((size_t)rows, (size_t)columns, &size_bytes) ||
        !dcp_mul_size(size_bytes, sizeof(float), &size_bytes))
        return dcp_error_memory(err, "a 16-bit matrix in fp32");
    if (size_bytes > wide->size_bytes) {
        free(wide->data);
        wide->data = dcp_mem_aligned(ALIGN, size_bytes);
        wide->size_bytes = wide->data ? size_bytes : 0;
        if (!wide->data)
            return dcp_error_memory(err, "a 16-bit matrix in fp32");
    }
    float *to = wide->data;
    if (!threads) {
        widen_rows(shape->dtype, rows, columns, from, in->ld, to);
        return DCP_OK;
    }
    OPS_PARALLEL_FOR(rows * columns > ENOUGH)
    for (int64_t r = 0; r < rows; r += STEP)
        widen_rows(shape->dtype, rows - r < STEP ? rows - r : STEP, columns,
                   from + r * in->ld, in->ld, to + r * columns);
    return DCP_OK;
}

/* A product in blocks of c's rows or columns: the smaller operand is widened whole, the
 * larger a block at a time. */
struct blocks {
    const struct matmul_shape *shape;
    struct narrow a, b;
    bool by_rows;
    int64_t all, size; /* rows or columns of c, of a block */
    float *c;
};

static struct blocks blocks_of(const struct matmul_shape *s, const void *a, const void *b,
                               float *c)
{
    return (struct blocks){ .shape = s,
                            .a = { a, s->lda, s->trans_a },
                            .b = { b, s->ldb, !s->trans_b },
                            .by_rows = s->m > s->n,
                            .all = s->m > s->n ? s->m : s->n,
                            .size = BLOCK,
                            .c = c };
}

static int run_block(const struct blocks *blocks, int64_t begin, const float *whole,
                     struct wide *wide, struct dcp_error *err)
{
    struct matmul_shape part = *blocks->shape;
    bool by_rows = blocks->by_rows;
    int64_t n = blocks->all - begin < blocks->size ? blocks->all - begin : blocks->size;
    *(by_rows ? &part.m : &part.n) = n;
    DCP_TRY(widen(wide, false, by_rows ? &blocks->a : &blocks->b, begin, n, &part, err));
    part.dtype = DCP_F32;
    part.lda = part.trans_a ? part.m : part.k;
    part.ldb = part.trans_b ? part.k : part.n;
    return matlib_sgemm(&part, by_rows ? wide->data : whole, by_rows ? whole : wide->data,
                        blocks->c + begin * (by_rows ? part.ldc : 1), err);
}

static int reserve_shares(struct matmul *matmul, size_t want, struct dcp_error *err)
{
    if (want <= matmul->n_shares)
        return DCP_OK;
    struct share *grown =
        dcp_mem_grow(matmul->shares, &matmul->cap_shares, want, sizeof *grown);
    if (!grown)
        return dcp_error_memory(err, "matrix products");
    memset(grown + matmul->n_shares, 0, (want - matmul->n_shares) * sizeof *grown);
    matmul->shares = grown;
    matmul->n_shares = want;
    return DCP_OK;
}

/* The first failure of a thread. */
static int end_shares(struct matmul *matmul, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (size_t i = 0; i < matmul->n_shares; i++) {
        struct share *share = &matmul->shares[i];
        if (share->rc && !rc && err)
            *err = share->error;
        rc = rc ? rc : share->rc;
        share->rc = DCP_OK;
        share->error = (struct dcp_error){ 0 };
    }
    return rc;
}

/* Each thread takes whole blocks, so the bits do not depend on how many there are;
 * without OpenMP a library may have threads of its own. */
static int run_shared(struct matmul *matmul, const struct blocks *blocks,
                      struct dcp_error *err)
{
    matlib_region_begin();
    OPS_PARALLEL_FOR(true)
    for (int64_t begin = 0; begin < blocks->all; begin += blocks->size) {
        struct share *mine = &matmul->shares[OPS_THREAD()];
        if (!mine->rc)
            mine->rc =
                run_block(blocks, begin, matmul->whole.data, &mine->wide, &mine->error);
    }
    matlib_region_end();
    return end_shares(matmul, err);
}

static int run_wide(struct matmul *matmul, const struct matmul_shape *s, const void *a,
                    const void *b, float *c, struct dcp_error *err)
{
    const struct blocks blocks = blocks_of(s, a, b, c);
    bool threads = !matmul->serial;
    DCP_TRY(reserve_shares(matmul, threads ? (size_t)ops_threads() : 1, err));
    DCP_TRY(widen(&matmul->whole, threads, blocks.by_rows ? &blocks.b : &blocks.a, 0,
                  blocks.by_rows ? s->n : s->m, s, err));
    if (threads)
        return run_shared(matmul, &blocks, err);
    for (int64_t begin = 0; begin < blocks.all; begin += blocks.size)
        DCP_TRY(
            run_block(&blocks, begin, matmul->whole.data, &matmul->shares[0].wide, err));
    return DCP_OK;
}

/* A product of fp32: the library's own threads would add in an order of their number. */
static int run_strips(struct matmul *matmul, const struct matmul_shape *s, const float *a,
                      const float *b, float *c, struct dcp_error *err)
{
    bool by_rows = s->m > s->n, threads = !matmul->serial;
    int64_t all = by_rows ? s->m : s->n, size = matmul_strip(all);
    DCP_TRY(reserve_shares(matmul, threads ? (size_t)ops_threads() : 1, err));
    if (threads)
        matlib_region_begin();
    OPS_PARALLEL_TASKS(threads ? ops_threads() : 1)
    for (int64_t begin = 0; begin < all; begin += size) {
        struct share *mine = &matmul->shares[threads ? OPS_THREAD() : 0];
        struct matmul_shape part = *s;
        *(by_rows ? &part.m : &part.n) = all - begin < size ? all - begin : size;
        const float *of_a = a + (by_rows ? begin * (s->trans_a ? 1 : s->lda) : 0);
        const float *of_b = b + (by_rows ? 0 : begin * (s->trans_b ? s->ldb : 1));
        if (!mine->rc)
            mine->rc = matlib_sgemm(&part, of_a, of_b, c + begin * (by_rows ? s->ldc : 1),
                                    &mine->error);
    }
    if (threads)
        matlib_region_end();
    return end_shares(matmul, err);
}

int matmul_run(struct matmul *matmul, const struct matmul_shape *shape, const void *a,
               const void *b, float *c, struct dcp_error *err)
{
    if (shape->m == 0 || shape->n == 0)
        return DCP_OK;
    if (shape->dtype == DCP_F32)
        return run_strips(matmul, shape, a, b, c, err);

    bool done = false;
    if (shape->dtype == DCP_BF16)
        DCP_TRY(matlib_bf16(matmul->lib, shape, a, b, c, &done, err));
    if (done)
        return DCP_OK;
    return run_wide(matmul, shape, a, b, c, err);
}

#endif
