/* attention: each thread takes whole heads. The rows of a head go in blocks; a
 * block's scores against the keys up to its last row are a product, so is everything that
 * is made from them. The backward pass computes them again from the kept row sums (Dao et
 * al., "FlashAttention", arXiv:2205.14135, with blocks over rows only).
 *
 * In F32 products read and write the parts of a head where they lie. In BF16 a head is
 * first copied into dense bf16 arrays, whose keys are padded with zeros to a multiple of
 * KEYS, so that a growing sequence needs few compiled products. */
#include "base/mem.h"
#include "base/part.h"
#include "dnn.h"
#include "matlib.h"
#include "trainer/ops/bf16.h"
#include "trainer/ops/carve.h"
#include "trainer/ops/simd.h"
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
    float *block;            /* BF16: ROWS × head_size, a product before its cast */
    uint16_t *packed[4];     /* BF16: q, k, v, dout */
    float *dk, *dv;          /* BF16: before their cast */
};

/* Keys that a block with this many takes into its products. */
static int64_t padded(const struct ops_attention *shape, int64_t keys)
{
    return shape->dtype == DCP_BF16 ? dcp_part_align(keys, KEYS) : keys;
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

/* Packs n rows of head_size, and zeros behind them up to the padded number. */
OPS_CLONES
static void pack(const float *in, int64_t ld, int64_t n, int64_t n_padded, int64_t size,
                 uint16_t *out)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < size; c++)
            out[i * size + c] = bf16_from_f32(in[i * ld + c]);
    memset(out + n * size, 0, (size_t)((n_padded - n) * size) * sizeof *out);
}

/* Casts n dense rows of head_size into rows that are ld apart. */
OPS_CLONES
static void unpack(const float *in, int64_t n, int64_t size, uint16_t *out, int64_t ld)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < size; c++)
            out[i * ld + c] = bf16_from_f32(in[i * size + c]);
}

static struct part part_of(struct head *head, const float *data, int64_t ld,
                           uint16_t *packed)
{
    const struct ops_attention *s = head->shape;
    if (s->dtype == DCP_F32)
        return (struct part){ data, ld };
    pack(data, ld, s->seq_len, padded(s, s->seq_len), s->head_size, packed);
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
    size_t size_bytes = head->shape->dtype == DCP_BF16 ? 2 : 4;
    return (const char *)part.data + (size_t)(row * part.ld) * size_bytes;
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

/* Softmax of the first n of `keys` scores, zeros behind; p may be the scores. Returns the
 * logarithm of the sum of exponentials. */
OPS_CLONES
static float softmax_row(float *scores, int64_t n, int64_t keys, float scale, bool bf16,
                         void *p)
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
    float inverse = 1 / sum;
    if (bf16) {
        uint16_t *out = p;
        for (int64_t j = 0; j < n; j++)
            out[j] = bf16_from_f32(scores[j] * inverse);
        memset(out + n, 0, (size_t)(keys - n) * sizeof *out);
    } else {
        for (int64_t j = 0; j < n; j++)
            scores[j] *= inverse;
        memset(scores + n, 0, (size_t)(keys - n) * sizeof *scores);
    }
    return scale * max + logf(sum);
}

static int forward_head(struct ops_dnn_worker *worker, struct head *head, void *out,
                        float *lse)
{
    const struct ops_attention *s = head->shape;
    bool bf16 = s->dtype == DCP_BF16;
    for (int64_t row = s->begin; row < s->seq_len; row += ROWS) {
        int64_t rows = row + ROWS < s->seq_len ? ROWS : s->seq_len - row;
        int64_t keys = padded(s, row + rows);
        DCP_TRY(product_scores(worker->matmul, head, head->q, row, rows, head->k, keys,
                               head->scores, &worker->error));
        for (int64_t r = 0; r < rows; r++)
            lse[lse_at(head, row + r)] =
                softmax_row(head->scores + r * keys, row + r + 1, keys, head->scale, bf16,
                            (uint16_t *)head->p + r * keys);
        float *c = bf16 ? head->block : (float *)out + row_at(head, row);
        DCP_TRY(product_rows(worker->matmul, head, head->p, rows, keys, head->v, c,
                             bf16 ? s->head_size : head->width, &worker->error));
        if (bf16)
            unpack(c, rows, s->head_size, (uint16_t *)out + row_at(head, row),
                   head->width);
    }
    return DCP_OK;
}

/* --- backward --- */

/* From scores and dscores = dout · v: p, the softmax again, and ds, the gradient of the
 * unscaled scores (formula in ops/cpu/cpu.c); zeros behind the first n. */
OPS_CLONES
static void softmax_row_backward(float *scores, float *dscores, int64_t n, int64_t keys,
                                 float scale, float lse, bool bf16, void *p, void *ds)
{
    float d = 0;
    OPS_SIMD_SUM(d)
    for (int64_t j = 0; j < n; j++) {
        scores[j] = ops_exp(scale * scores[j] - lse);
        d += scores[j] * dscores[j];
    }
    if (bf16) {
        uint16_t *out_p = p, *out_ds = ds;
        OPS_SIMD
        for (int64_t j = 0; j < n; j++) {
            out_p[j] = bf16_from_f32(scores[j]);
            out_ds[j] = bf16_from_f32(scale * scores[j] * (dscores[j] - d));
        }
        memset(out_p + n, 0, (size_t)(keys - n) * sizeof *out_p);
        memset(out_ds + n, 0, (size_t)(keys - n) * sizeof *out_ds);
    } else {
        OPS_SIMD
        for (int64_t j = 0; j < n; j++)
            dscores[j] = scale * scores[j] * (dscores[j] - d);
        memset(scores + n, 0, (size_t)(keys - n) * sizeof *scores);
        memset(dscores + n, 0, (size_t)(keys - n) * sizeof *dscores);
    }
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
        softmax_row_backward(head->scores + r * keys, head->dscores + r * keys,
                             row + r + 1, keys, head->scale, lse[lse_at(head, row + r)],
                             s->dtype == DCP_BF16, (uint16_t *)head->p + r * keys,
                             (uint16_t *)head->ds + r * keys);
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
        unpack(head->block, rows, size, dq + row * ld, ld);
    }
    unpack(head->dk, s->seq_len, size, dq + head->width, ld);
    unpack(head->dv, s->seq_len, size, dq + 2 * head->width, ld);
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
