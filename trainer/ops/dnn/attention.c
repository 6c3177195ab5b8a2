/* attention: each thread takes whole heads. The rows of a head go in blocks; a
 * block's scores against the keys up to its last row are a product, so is everything that
 * is made from them. The backward pass computes them again from the kept row sums (Dao et
 * al., "FlashAttention", arXiv:2205.14135, with blocks over rows only).
 *
 * In F32 products read and write the parts of a head where they lie. In 16 bits a head is
 * first copied into dense arrays, whose keys are padded with zeros to a multiple of KEYS,
 * so that a growing sequence needs few compiled products. */
#include "base/mem.h"
#include "base/part.h"
#include "dnn.h"
#include "matlib.h"
#include "trainer/ops/carve.h"
#include "trainer/ops/simd.h"
#include "trainer/ops/value.h"
#include <math.h>

#if DCP_HAS_ONEDNN || DCP_HAS_BLAS

#define ROWS 64 /* of a block */
#define KEYS 64

/* A part of one head: rows × head_size; its rows are ld elements apart. */
struct part {
    const void *data;
    int64_t ld;
};

/* What a thread works with for one head. */
struct head {
    const struct ops_attention *shape;
    int64_t batch, index, width; /* width: n_head × head_size */
    float scale;
    const float *qkv;        /* the head's first query; keys are width further */
    struct part q, k, v;     /* in the dtype of the shape */
    float *scores, *dscores; /* ROWS × keys, fp32 */
    void *p, *ds;            /* the same in the dtype; in F32 the arrays above */
    float *block;            /* 16 bits: ROWS × head_size, a product before its cast */
    uint16_t *packed[4];     /* 16 bits: q, k, v, dout */
    float *dk, *dv;          /* 16 bits: before their cast */
};

/* Keys that a block with this many takes into its products. */
static int64_t padded(const struct ops_attention *shape, int64_t keys)
{
    return shape->dtype == DCP_F32 ? keys : dcp_part_align(keys, KEYS);
}

/* --- scratch --- */

static void carve_head(struct carve *carve, const struct ops_attention *shape,
                       struct head *out)
{
    int64_t keys = padded(shape, shape->seq_len), n = ROWS * keys;
    out->scores = carve_take(carve, n, sizeof(float));
    out->dscores = carve_take(carve, n, sizeof(float));
    out->p = out->scores;
    out->ds = out->dscores;
    if (shape->dtype == DCP_F32)
        return;
    int64_t part = keys * shape->head_size;
    out->p = carve_take(carve, n, sizeof(uint16_t));
    out->ds = carve_take(carve, n, sizeof(uint16_t));
    for (size_t i = 0; i < DCP_ARRAY_LEN(out->packed); i++)
        out->packed[i] = carve_take(carve, part, sizeof(uint16_t));
    out->dk = carve_take(carve, part, sizeof(float));
    out->dv = carve_take(carve, part, sizeof(float));
    out->block = carve_take(carve, ROWS * shape->head_size, sizeof(float));
}

/* A worker for every thread, each with its products and room for one head. */
static int reserve_workers(struct ops_dnn *dnn, const struct ops_attention *shape,
                           struct dcp_error *err)
{
    struct carve carve = { 0 };
    struct head head;
    carve_head(&carve, shape, &head);
    if (carve.too_large)
        return dcp_error_memory(err, "attention");
    size_t want = (size_t)ops_threads();
    if (want > dnn->n_workers) {
        void *grown =
            dcp_mem_grow(dnn->workers, &dnn->cap_workers, want, sizeof *dnn->workers);
        if (!grown)
            return dcp_error_memory(err, "attention");
        dnn->workers = grown;
    }
    for (; dnn->n_workers < want; dnn->n_workers++) {
        struct ops_dnn_worker *worker = &dnn->workers[dnn->n_workers];
        *worker = (struct ops_dnn_worker){ 0 };
        DCP_TRY(matmul_new(true, &worker->matmul, err));
    }
    for (size_t i = 0; i < want; i++) {
        struct ops_dnn_worker *worker = &dnn->workers[i];
        if (worker->scratch_bytes >= carve.size_bytes)
            continue;
        free(worker->scratch);
        worker->scratch = dcp_mem_aligned(CARVE_ALIGN, carve.size_bytes);
        worker->scratch_bytes = worker->scratch ? carve.size_bytes : 0;
        if (!worker->scratch)
            return dcp_error_memory(err, "attention");
    }
    return DCP_OK;
}

/* --- a head's parts --- */

/* n rows of `size` elements, which are so far apart. */
INLINE void cast_rows_as(enum dcp_dtype dtype, int64_t n, int64_t size, const float *in,
                         int64_t ld_in, uint16_t *out, int64_t ld_out)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < size; c++)
            value_put(dtype, out, i * ld_out + c, in[i * ld_in + c]);
}

DCP_VECTORS
static void cast_rows(enum dcp_dtype dtype, int64_t n, int64_t size, const float *in,
                      int64_t ld_in, uint16_t *out, int64_t ld_out)
{
    BY_DTYPE(dtype, cast_rows_as, n, size, in, ld_in, out, ld_out);
}

static struct part part_of(struct head *head, const float *data, int64_t ld,
                           uint16_t *packed)
{
    const struct ops_attention *s = head->shape;
    if (s->dtype == DCP_F32)
        return (struct part){ data, ld };
    int64_t dense = s->seq_len * s->head_size;
    int64_t whole = padded(s, s->seq_len) * s->head_size;
    cast_rows(s->dtype, s->seq_len, s->head_size, data, ld, packed, s->head_size);
    memset(packed + dense, 0, (size_t)(whole - dense) * sizeof *packed);
    return (struct part){ packed, s->head_size };
}

static struct head head_init(const struct ops_attention *shape, int64_t i,
                             const float *qkv, struct ops_dnn_worker *worker)
{
    struct head head = { .shape = shape,
                         .batch = i / shape->n_head,
                         .index = i % shape->n_head,
                         .width = shape->n_head * shape->head_size,
                         .scale = 1 / sqrtf((float)shape->head_size) };
    struct carve carve = { .base = worker->scratch };
    carve_head(&carve, shape, &head);
    int64_t ld = 3 * head.width;
    head.qkv = qkv + head.batch * shape->seq_len * ld + head.index * shape->head_size;
    head.q = part_of(&head, head.qkv, ld, head.packed[0]);
    head.k = part_of(&head, head.qkv + head.width, ld, head.packed[1]);
    head.v = part_of(&head, head.qkv + 2 * head.width, ld, head.packed[2]);
    return head;
}

/* Where the head's row begins in an array [batch,seq_len,n_head,head_size]. */
static int64_t row_at(const struct head *head, int64_t row)
{
    return (head->batch * head->shape->seq_len + row) * head->width +
           head->index * head->shape->head_size;
}

/* And in the row sums [batch,n_head,seq_len]. */
static int64_t lse_at(const struct head *head, int64_t row)
{
    return (head->batch * head->shape->n_head + head->index) * head->shape->seq_len + row;
}

static const void *row_of(const struct head *head, struct part part, int64_t row)
{
    size_t size_bytes = dcp_dtype_size(head->shape->dtype);
    return (const char *)part.data + (size_t)(row * part.ld) * size_bytes;
}

/* Element i of a T array. */
static void *at(enum dcp_dtype dtype, void *array, int64_t i)
{
    return (char *)array + (size_t)i * dcp_dtype_size(dtype);
}

/* c[rows,keys] = x[rows from row on] · y[the first keys]^T */
static int product_scores(struct matmul *matmul, const struct head *head, struct part x,
                          int64_t row, int64_t rows, struct part y, int64_t keys,
                          float *c, struct dcp_error *err)
{
    struct matmul_shape shape = { .dtype = head->shape->dtype,
                                  .m = rows,
                                  .n = keys,
                                  .k = head->shape->head_size,
                                  .lda = x.ld,
                                  .ldb = y.ld,
                                  .ldc = keys,
                                  .trans_b = true };
    return matmul_run(matmul, &shape, row_of(head, x, row), y.data, c, err);
}

/* c[rows,size] = scores[rows,keys] · y[the first keys] */
static int product_rows(struct matmul *matmul, const struct head *head,
                        const void *scores, int64_t rows, int64_t keys, struct part y,
                        float *c, int64_t ldc, struct dcp_error *err)
{
    struct matmul_shape shape = { .dtype = head->shape->dtype,
                                  .m = rows,
                                  .n = head->shape->head_size,
                                  .k = keys,
                                  .lda = keys,
                                  .ldb = y.ld,
                                  .ldc = ldc };
    return matmul_run(matmul, &shape, scores, y.data, c, err);
}

/* c[keys,size] = or += scores[rows,keys]^T · x[rows from row on] */
static int product_keys(struct matmul *matmul, const struct head *head,
                        const void *scores, int64_t rows, int64_t keys, struct part x,
                        int64_t row, bool accumulate, float *c, int64_t ldc,
                        struct dcp_error *err)
{
    struct matmul_shape shape = { .dtype = head->shape->dtype,
                                  .m = keys,
                                  .n = head->shape->head_size,
                                  .k = rows,
                                  .lda = keys,
                                  .ldb = x.ld,
                                  .ldc = ldc,
                                  .trans_a = true,
                                  .accumulate = accumulate };
    return matmul_run(matmul, &shape, scores, row_of(head, x, row), c, err);
}

/* --- forward --- */

INLINE void scale_as(enum dcp_dtype dtype, int64_t n, const float *x, float factor,
                     void *out)
{
    OPS_SIMD
    for (int64_t j = 0; j < n; j++)
        value_put(dtype, out, j, x[j] * factor);
}

/* Elements begin .. end of a T array. */
static void zero(enum dcp_dtype dtype, void *array, int64_t begin, int64_t end)
{
    memset(at(dtype, array, begin), 0, (size_t)(end - begin) * dcp_dtype_size(dtype));
}

/* Softmax of the first n of `keys` scores, zeros behind; p may be the scores. Returns the
 * logarithm of the sum of exponentials. */
DCP_VECTORS
static float softmax_row(enum dcp_dtype dtype, float *scores, int64_t n, int64_t keys,
                         float scale, void *p)
{
    float max = scores[0], sum = 0;
    OPS_SIMD_MAX(max)
    for (int64_t j = 0; j < n; j++)
        max = scores[j] > max ? scores[j] : max;
    OPS_SIMD_SUM(sum)
    for (int64_t j = 0; j < n; j++) {
        scores[j] = ops_exp(scale * (scores[j] - max));
        sum += scores[j];
    }
    BY_DTYPE(dtype, scale_as, n, scores, 1 / sum, p);
    zero(dtype, p, n, keys);
    return scale * max + logf(sum);
}

static int forward_head(struct ops_dnn_worker *worker, struct head *head, void *out,
                        float *lse)
{
    const struct ops_attention *s = head->shape;
    bool is_cast = s->dtype != DCP_F32;
    for (int64_t row = s->begin; row < s->seq_len; row += ROWS) {
        int64_t rows = row + ROWS < s->seq_len ? ROWS : s->seq_len - row;
        int64_t keys = padded(s, row + rows);
        DCP_TRY(product_scores(worker->matmul, head, head->q, row, rows, head->k, keys,
                               head->scores, &worker->error));
        for (int64_t r = 0; r < rows; r++)
            lse[lse_at(head, row + r)] =
                softmax_row(s->dtype, head->scores + r * keys, row + r + 1, keys,
                            head->scale, at(s->dtype, head->p, r * keys));
        float *c = is_cast ? head->block : (float *)out + row_at(head, row);
        DCP_TRY(product_rows(worker->matmul, head, head->p, rows, keys, head->v, c,
                             is_cast ? s->head_size : head->width, &worker->error));
        if (is_cast)
            cast_rows(s->dtype, rows, s->head_size, c, s->head_size,
                      (uint16_t *)out + row_at(head, row), head->width);
    }
    return DCP_OK;
}

/* --- backward --- */

INLINE void softmax_grads_as(enum dcp_dtype dtype, int64_t n, const float *scores,
                             const float *dscores, float scale, float d, void *p,
                             void *ds)
{
    OPS_SIMD
    for (int64_t j = 0; j < n; j++) {
        if (dtype != DCP_F32) /* else p is the scores */
            value_put(dtype, p, j, scores[j]);
        value_put(dtype, ds, j, scale * scores[j] * (dscores[j] - d));
    }
}

/* From scores and dscores = dout · v: p, the softmax again, and ds, the gradient of the
 * unscaled scores (formula in ops/cpu/cpu.c); zeros behind the first n. */
DCP_VECTORS
static void softmax_row_backward(enum dcp_dtype dtype, float *scores, float *dscores,
                                 int64_t n, int64_t keys, float scale, float lse, void *p,
                                 void *ds)
{
    float d = 0;
    OPS_SIMD_SUM(d)
    for (int64_t j = 0; j < n; j++) {
        scores[j] = ops_exp(scale * scores[j] - lse);
        d += scores[j] * dscores[j];
    }
    BY_DTYPE(dtype, softmax_grads_as, n, scores, dscores, scale, d, p, ds);
    zero(dtype, p, n, keys);
    zero(dtype, ds, n, keys);
}

/* One block of rows. dq, dk, dv: where products go, rows ld apart. */
static int backward_block(struct ops_dnn_worker *worker, struct head *head, int64_t row,
                          const float *lse, struct part dout, float *dq, float *dk,
                          float *dv, int64_t ld)
{
    const struct ops_attention *s = head->shape;
    struct matmul *matmul = worker->matmul;
    struct dcp_error *err = &worker->error;
    int64_t rows = row + ROWS < s->seq_len ? ROWS : s->seq_len - row;
    int64_t keys = padded(s, row + rows);
    bool accumulate = row + rows < s->seq_len; /* the last block comes first */
    DCP_TRY(product_scores(matmul, head, head->q, row, rows, head->k, keys, head->scores,
                           err));
    DCP_TRY(
        product_scores(matmul, head, dout, row, rows, head->v, keys, head->dscores, err));
    for (int64_t r = 0; r < rows; r++)
        softmax_row_backward(s->dtype, head->scores + r * keys, head->dscores + r * keys,
                             row + r + 1, keys, head->scale, lse[lse_at(head, row + r)],
                             at(s->dtype, head->p, r * keys),
                             at(s->dtype, head->ds, r * keys));
    DCP_TRY(product_keys(matmul, head, head->p, rows, keys, dout, row, accumulate, dv, ld,
                         err));
    DCP_TRY(product_keys(matmul, head, head->ds, rows, keys, head->q, row, accumulate, dk,
                         ld, err));
    return product_rows(matmul, head, head->ds, rows, keys, head->k, dq, ld, err);
}

static int backward_head(struct ops_dnn_worker *worker, struct head *head,
                         const float *lse, const float *dout, void *dqkv)
{
    const struct ops_attention *s = head->shape;
    int64_t size = s->head_size, ld = 3 * head->width;
    int64_t last = (s->seq_len - 1) / ROWS * ROWS;
    int64_t first_out = row_at(head, 0);
    int64_t first = 3 * head->batch * s->seq_len * head->width + head->index * size;
    struct part dout_part = part_of(head, dout + first_out, head->width, head->packed[3]);
    if (s->dtype == DCP_F32) {
        float *dq = (float *)dqkv + first, *dk = dq + head->width, *dv = dk + head->width;
        int rc = DCP_OK;
        for (int64_t row = last; row >= 0 && !rc; row -= ROWS)
            rc = backward_block(worker, head, row, lse, dout_part, dq + row * ld, dk, dv,
                                ld);
        return rc;
    }
    uint16_t *dq = (uint16_t *)dqkv + first;
    for (int64_t row = last; row >= 0; row -= ROWS) {
        int64_t rows = row + ROWS < s->seq_len ? ROWS : s->seq_len - row;
        int rc = backward_block(worker, head, row, lse, dout_part, head->block, head->dk,
                                head->dv, size);
        if (rc)
            return rc;
        cast_rows(s->dtype, rows, size, head->block, size, dq + row * ld, ld);
    }
    cast_rows(s->dtype, s->seq_len, size, head->dk, size, dq + head->width, ld);
    cast_rows(s->dtype, s->seq_len, size, head->dv, size, dq + 2 * head->width, ld);
    return DCP_OK;
}

/* --- all heads --- */

/* The first failure of the workers. */
static int gather(struct ops_dnn *dnn, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (size_t i = 0; i < dnn->n_workers; i++) {
        struct ops_dnn_worker *worker = &dnn->workers[i];
        if (worker->rc && !rc) {
            rc = worker->rc;
            if (err)
                *err = worker->error;
        }
        worker->rc = DCP_OK;
        worker->error = (struct dcp_error){ 0 };
    }
    return rc;
}

int ops_dnn_attention(void *ctx, const struct ops_attention *shape, const float *qkv,
                      void *out, float *lse, struct dcp_error *err)
{
    struct ops_dnn *dnn = ctx;
    DCP_TRY(reserve_workers(dnn, shape, err));
    matlib_region_begin();
    OPS_PARALLEL_FOR(true)
    for (int64_t i = 0; i < shape->batch * shape->n_head; i++) {
        struct ops_dnn_worker *worker = &dnn->workers[OPS_THREAD()];
        if (!worker->rc) {
            struct head head = head_init(shape, i, qkv, worker);
            worker->rc = forward_head(worker, &head, out, lse);
        }
    }
    matlib_region_end();
    return gather(dnn, err);
}

int ops_dnn_attention_backward(void *ctx, const struct ops_attention *shape,
                               const float *qkv, const void *out, const float *lse,
                               const float *dout, void *dqkv, struct dcp_error *err)
{
    (void)out;
    struct ops_dnn *dnn = ctx;
    DCP_TRY(reserve_workers(dnn, shape, err));
    matlib_region_begin();
    OPS_PARALLEL_FOR(true)
    for (int64_t i = 0; i < shape->batch * shape->n_head; i++) {
        struct ops_dnn_worker *worker = &dnn->workers[OPS_THREAD()];
        if (!worker->rc) {
            struct head head = head_init(shape, i, qkv, worker);
            worker->rc = backward_head(worker, &head, lse, dout, dqkv);
        }
    }
    matlib_region_end();
    return gather(dnn, err);
}

#endif
