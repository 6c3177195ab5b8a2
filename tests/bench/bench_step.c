/* A training step (forward, backward, AdamW) in turn with its matrix products alone, at
 * the shape of GPT-2 124M and of the demo. usage: bench_step [NAME [RUNS]], NAME one of
 * the table below */
#include "base/mem.h"
#include "lib/bench.h"
#include "lib/whole_model.h"
#include "trainer/ops/ops.h"
#include "trainer/ops/optim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RUNS 32

static const struct shape {
    const char *name;
    int n_layer, n_head, n_embd, vocab_size, batch, seq_len, threads;
    enum dcp_dtype dtype;
    double aim; /* of step / products */
} shapes[] = {
    { "demo-fp32", 4, 4, 128, 256, 4, 128, 1, DCP_F32, 1.6 },
    { "demo-bf16", 4, 4, 128, 256, 4, 128, 1, DCP_BF16, 2.0 },
    { "demo-fp16", 4, 4, 128, 256, 4, 128, 1, DCP_F16, 2.0 },
    { "gpt2-fp32-1", 12, 12, 768, 50257, 4, 64, 1, DCP_F32, 1.3 },
    { "gpt2-bf16-1", 12, 12, 768, 50257, 4, 64, 1, DCP_BF16, 1.6 },
    { "gpt2-fp16-1", 12, 12, 768, 50257, 4, 64, 1, DCP_F16, 1.4 },
    { "gpt2-fp32-2", 12, 12, 768, 50257, 4, 64, 2, DCP_F32, 1.4 },
    { "gpt2-bf16-2", 12, 12, 768, 50257, 4, 64, 2, DCP_BF16, 1.8 },
    { "gpt2-fp16-2", 12, 12, 768, 50257, 4, 64, 2, DCP_F16, 1.5 },
    { "gpt2-long-bf16-2", 12, 12, 768, 50257, 1, 1024, 2, DCP_BF16, 1.8 },
};

struct run {
    const struct shape *shape;
    struct whole_model whole;
    float **m, **v;
    int32_t *tokens;
    int64_t step;
    double seconds[MAX_RUNS + 1];
    int n;
    /* The products alone. */
    void *ctx;
    void *a, *b;
    float *c;
};

static double step_s(void *arg)
{
    struct run *r = arg;
    struct whole_model *w = &r->whole;
    double loss, started = bench_now();
    whole_model_zero_grads(w);
    if (model_train(w->model, &w->hooks, r->tokens, r->tokens + 1, r->shape->batch,
                    r->shape->seq_len, 1, &loss, NULL))
        return -1;
    struct optim_params params = { .lr = 1e-4,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .step = ++r->step,
                                   .bias_correction = true,
                                   .decoupled = true,
                                   .grad_scale = 1 };
    for (int k = 0; k < w->n_params; k++) {
        const struct optim_range range = {
            .master = w->weights[k],
            .state = { r->m[k], r->v[k] },
            .grad = w->grads[k],
            .grad_dtype = DCP_F32,
            .weights = w->dtype == DCP_F32 ? NULL : w->compute[k],
            .weight_dtype = w->dtype,
            .n = w->params[k].n_elems,
        };
        optim_step(&range, &params);
    }
    return r->seconds[r->n++ % MAX_RUNS] = bench_now() - started;
}

/* x · w, and the two products of its gradients. */
static int products(struct run *r, int64_t rows, int64_t n_in, int64_t n_out)
{
    const struct ops *ops = ops_best();
    enum dcp_dtype t = r->shape->dtype;
    const struct ops_matmul three[] = {
        { .dtype = t, .m = rows, .n = n_out, .k = n_in },
        { .dtype = t, .m = rows, .n = n_in, .k = n_out, .trans_b = true },
        { .dtype = t, .m = n_in, .n = n_out, .k = rows, .trans_a = true },
    };
    int rc = 0;
    for (int i = 0; i < 3; i++)
        rc |= ops->matmul(r->ctx, &three[i], r->a, r->b, NULL, NULL, r->c, NULL);
    return rc;
}

static double products_s(void *arg)
{
    struct run *r = arg;
    int64_t rows = r->shape->batch * r->shape->seq_len, c = r->shape->n_embd;
    double started = bench_now();
    int rc = 0;
    for (int l = 0; l < r->shape->n_layer; l++) {
        rc |= products(r, rows, c, 3 * c) | products(r, rows, c, c);
        rc |= products(r, rows, c, 4 * c) | products(r, rows, 4 * c, c);
    }
    rc |= products(r, rows, c, r->shape->vocab_size);
    return rc ? -1 : bench_now() - started;
}

static void *zeros(int64_t n, size_t size_bytes)
{
    void *p = dcp_mem_calloc((size_t)n, size_bytes);
    if (!p)
        exit(9);
    memset(p, 0, (size_t)n * size_bytes);
    return p;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool bench_shape(const struct shape *shape, int runs)
{
    struct run r = { .shape = shape };
    const struct model_config config = { .family = "gpt2",
                                         .n_layer = shape->n_layer,
                                         .n_head = shape->n_head,
                                         .n_embd = shape->n_embd,
                                         .n_positions = shape->seq_len,
                                         .vocab_size = shape->vocab_size };
    int64_t rows = shape->batch * shape->seq_len;
    int64_t wide =
        shape->vocab_size > 4 * shape->n_embd ? shape->vocab_size : 4 * shape->n_embd;
    int64_t tall = rows > shape->n_embd ? rows : shape->n_embd;
    ops_set_threads(shape->threads);
    whole_model_init(&r.whole, &config, shape->dtype, shape->batch, shape->seq_len);
    r.m = zeros(r.whole.n_params, sizeof *r.m);
    r.v = zeros(r.whole.n_params, sizeof *r.v);
    for (int k = 0; k < r.whole.n_params; k++) {
        r.m[k] = zeros(r.whole.params[k].n_elems, sizeof(float));
        r.v[k] = zeros(r.whole.params[k].n_elems, sizeof(float));
    }
    r.tokens = zeros(rows + 1, sizeof *r.tokens);
    for (int64_t i = 0; i <= rows; i++)
        r.tokens[i] = (int32_t)(i * 7919 % shape->vocab_size);
    r.a = zeros(wide * tall, sizeof(float));
    r.b = zeros(wide * tall, sizeof(float));
    r.c = zeros(wide * tall, sizeof(float));
    if (ops_best()->open(&r.ctx, NULL) || step_s(&r) < 0 || products_s(&r) < 0)
        exit(1);
    r.n = 0;
    bool met = bench_run(&(struct bench){ .name = shape->name,
                                          .floor = "its products alone",
                                          .act_s = step_s,
                                          .floor_s = products_s,
                                          .arg = &r,
                                          .aim = shape->aim },
                         runs);
    qsort(r.seconds, (size_t)r.n, sizeof r.seconds[0], by_size);
    double median = r.seconds[r.n / 2];
    printf("    %d x %d tokens, %d thread%s: %.4g ms a step, %.0f tokens/s\n",
           shape->batch, shape->seq_len, shape->threads, shape->threads > 1 ? "s" : "",
           median * 1e3, (double)rows / median);

    ops_best()->close(r.ctx);
    for (int k = 0; k < r.whole.n_params; k++)
        free(r.m[k]), free(r.v[k]);
    free(r.m), free(r.v), free(r.tokens), free(r.a), free(r.b), free(r.c);
    whole_model_fini(&r.whole);
    return met;
}

int main(int argc, char **argv)
{
    int runs = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 5;
    bool met = true;
    runs = runs < 1 ? 1 : runs > MAX_RUNS ? MAX_RUNS : runs;
    bench_header();
    for (size_t i = 0; i < DCP_ARRAY_LEN(shapes); i++)
        if (argc < 2 || strcmp(argv[1], shapes[i].name) == 0)
            met &= bench_shape(&shapes[i], runs);
    return met ? 0 : 1;
}
