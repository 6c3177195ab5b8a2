#include "attention_cudnn.h"

#define SCORES_TILE 128 /* rows and columns of scores, as far as cuDNN rounds them up */

/* Shapes that occur, [batch,n_head,…]. */
struct shapes {
    struct cudnn_shape part, turned; /* of qkv: [seq_len,head_size], and transposed */
    struct cudnn_shape heads;        /* out: likewise, packed */
    struct cudnn_shape scores;       /* [seq_len,seq_len] of fp32 */
    struct cudnn_shape p, p_turned;  /* the same in 16 bits, and transposed */
    struct cudnn_shape seen, index;  /* likewise */
    struct cudnn_shape row;          /* [seq_len,1] of fp32 */
    struct cudnn_shape products;     /* [seq_len,head_size] of fp32 */
};

static struct cudnn_shape of(cudnnDataType_t dtype, const struct cudnn_attention *a,
                             int64_t rows, int64_t columns, int64_t batch_stride,
                             int64_t head_stride, int64_t row_stride,
                             int64_t column_stride)
{
    return (struct cudnn_shape){
        dtype,
        { a->batch, a->n_head, rows, columns },
        { batch_stride, head_stride, row_stride, column_stride },
    };
}

static struct shapes shapes_of(const struct cudnn_attention *a)
{
    int64_t t = a->seq_len, h = a->n_head, c = a->head_size;
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    const cudnnDataType_t half =
        a->dtype == DCP_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
    return (struct shapes){
        .part = of(half, a, t, c, t * 3 * h * c, c, 3 * h * c, 1),
        .turned = of(half, a, c, t, t * 3 * h * c, c, 1, 3 * h * c),
        .heads = of(half, a, t, c, t * h * c, c, h * c, 1),
        .scores = of(f32, a, t, t, h * t * t, t * t, t, 1),
        .p = of(half, a, t, t, h * t * t, t * t, t, 1),
        .p_turned = of(half, a, t, t, h * t * t, t * t, 1, t),
        .seen = of(CUDNN_DATA_BOOLEAN, a, t, t, h * t * t, t * t, t, 1),
        .index = of(CUDNN_DATA_INT32, a, t, t, h * t * t, t * t, t, 1),
        .row = of(f32, a, t, 1, h * t, t, 1, 1),
        .products = of(f32, a, t, c, h * t * c, t * c, c, 1),
    };
}

/* --- in short --- */

#define TENSOR(shape, id) cudnn_tensor(g, &s->shape, CUDNN_ATTENTION_##id)
#define NUMBER(id) cudnn_number(g, CUDNN_ATTENTION_##id)
#define UNARY(mode, x, shape) \
    cudnn_pointwise(g, CUDNN_POINTWISE_##mode, x, NULL, NULL, cudnn_virtual(g, &s->shape))
#define BINARY(mode, x, b, shape) \
    cudnn_pointwise(g, CUDNN_POINTWISE_##mode, x, b, NULL, cudnn_virtual(g, &s->shape))

/* Row r of the scores sees columns 0 to r. */
static cudnn_node causal(struct cudnn_graph *g, const struct shapes *s, cudnn_node scores,
                         cudnn_node unseen)
{
    cudnn_node row = cudnn_index(g, 2, scores, cudnn_virtual(g, &s->index));
    cudnn_node column = cudnn_index(g, 3, scores, cudnn_virtual(g, &s->index));
    cudnn_node seen = BINARY(CMP_GE, row, column, seen);
    return cudnn_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, scores, unseen, seen,
                           cudnn_virtual(g, &s->scores));
}

/* softmax(q k^T × scale) v */
static void forward(struct cudnn_graph *g, const struct shapes *s)
{
    cudnn_node q = TENSOR(part, Q), k = TENSOR(turned, K), v = TENSOR(part, V);
    cudnn_node scores = cudnn_matmul(g, q, k, cudnn_virtual(g, &s->scores));
    scores = BINARY(MUL, scores, NUMBER(SCALE), scores);
    scores = causal(g, s, scores, NUMBER(UNSEEN));

    cudnn_node peak =
        cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, scores, cudnn_virtual(g, &s->row));
    cudnn_node e = UNARY(EXP, BINARY(SUB, scores, peak, scores), scores);
    cudnn_node sum =
        cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, cudnn_virtual(g, &s->row));
    cudnn_pointwise(g, CUDNN_POINTWISE_ADD, peak, UNARY(LOG, sum, row), NULL,
                    TENSOR(row, LSE));
    cudnn_matmul(g, BINARY(DIV, e, sum, p), v, TENSOR(heads, OUT));
}

/* p is made again from the scores and lse; delta is the sum of dout × out of a row, and
 * the gradient of the scores p × (dout v^T - delta). */
static void backward(struct cudnn_graph *g, const struct shapes *s)
{
    cudnn_node q = TENSOR(part, Q), k = TENSOR(turned, K), v = TENSOR(turned, V);
    cudnn_node out = TENSOR(heads, OUT), dout = TENSOR(heads, DOUT);
    cudnn_node scale = NUMBER(SCALE), lse = TENSOR(row, LSE);

    cudnn_node delta =
        cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, BINARY(MUL, dout, out, products),
                     cudnn_virtual(g, &s->row));
    delta = cudnn_pointwise(g, CUDNN_POINTWISE_MUL, delta, NUMBER(ONE), NULL,
                            TENSOR(row, DELTA));

    cudnn_node scores = cudnn_matmul(g, q, k, cudnn_virtual(g, &s->scores));
    scores = BINARY(SUB, BINARY(MUL, scores, scale, scores), lse, scores);
    cudnn_node p = UNARY(EXP, causal(g, s, scores, NUMBER(UNSEEN)), scores);
    cudnn_matmul(g, cudnn_reshape(g, p, cudnn_virtual(g, &s->p_turned)), dout,
                 TENSOR(part, DV));

    cudnn_node dp = cudnn_matmul(g, dout, v, cudnn_virtual(g, &s->scores));
    cudnn_node ds = BINARY(MUL, BINARY(SUB, dp, delta, scores), p, scores);
    ds = BINARY(MUL, ds, scale, scores);
    cudnn_matmul(g, cudnn_reshape(g, ds, cudnn_virtual(g, &s->p_turned)), q,
                 TENSOR(part, DK));
    cudnn_matmul(g, ds, cudnn_reshape(g, k, cudnn_virtual(g, &s->part)),
                 TENSOR(part, DQ));
}

static int64_t padded(int64_t n)
{
    return (n + SCORES_TILE - 1) / SCORES_TILE * SCORES_TILE;
}

int64_t cudnn_attention_bytes(const struct cudnn_attention *shape)
{
    int64_t scores = shape->n_head * padded(shape->seq_len) * padded(shape->seq_len);
    return shape->backward ? 2 * scores : 0;
}

int cudnn_attention_plan(const struct cudnn_attention *shape,
                         const struct cudnn_target *target, struct cudnn_plan *out_plan,
                         struct dcp_error *err)
{
    struct cudnn_graph graph = { .n_ops = 0 };
    struct shapes shapes = shapes_of(shape);
    (shape->backward ? backward : forward)(&graph, &shapes);
    int rc = cudnn_plan_init(&graph, target, out_plan, err);
    cudnn_graph_fini(&graph);
    return rc;
}
