/* Every kernel of ops_best() against ops_cpu(), which computes in double: odd sizes, both
 * dtypes, fresh random inputs, outputs poisoned before. */
#include "base/mem.h"
#include "ops.h"
#include "ops_bf16.h"
#include "ops_simd.h"
#include "rng.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static uint64_t seed; /* printed, and taken from DCP_TEST_SEED when that is set */
static uint64_t stream;

/* A random array: its values in fp32, and the same in the compute dtype. */
struct array {
    int64_t n;
    enum dcp_dtype dtype;
    float *f32;
    void *t;
};

static void *bytes(int64_t n, size_t size)
{
    void *p = dcp_mem_aligned(64, (size_t)n * size + 64);
    assert_non_null(p);
    memset(p, 0xff, (size_t)n * size + 64);
    return p;
}

static struct array poisoned(enum dcp_dtype dtype, int64_t n)
{
    struct array a = { n, dtype, bytes(n, 4), NULL };
    a.t = dtype == DCP_BF16 ? bytes(n, 2) : a.f32;
    return a;
}

static struct array normal(enum dcp_dtype dtype, int64_t n, double std)
{
    struct array a = poisoned(dtype, n);
    stream++;
    for (int64_t i = 0; i < n; i++) {
        float value = (float)(std * rng_normal(seed, stream, (uint64_t)i));
        uint16_t half = bf16_from_f32(value);
        a.f32[i] = dtype == DCP_BF16 ? bf16_to_f32(half) : value;
        if (dtype == DCP_BF16)
            ((uint16_t *)a.t)[i] = half;
    }
    return a;
}

static struct array copy(const struct array *a)
{
    struct array b = poisoned(a->dtype, a->n);
    memcpy(b.f32, a->f32, (size_t)a->n * 4);
    if (a->dtype == DCP_BF16)
        memcpy(b.t, a->t, (size_t)a->n * 2);
    return b;
}

static void array_fini(struct array *a)
{
    if (a->t != a->f32)
        free(a->t);
    free(a->f32);
}

/* After a kernel wrote the dtype side. */
static void widen(struct array *a)
{
    for (int64_t i = 0; a->dtype == DCP_BF16 && i < a->n; i++)
        a->f32[i] = bf16_to_f32(((uint16_t *)a->t)[i]);
}

/* The norm of the difference within bound × the norm. */
static void assert_near(const char *what, struct array *got, struct array *want,
                        double bound)
{
    widen(got);
    widen(want);
    double off = 0, squares = 0;
    for (int64_t i = 0; i < want->n; i++) {
        double difference = (double)got->f32[i] - (double)want->f32[i];
        off += difference * difference;
        squares += (double)want->f32[i] * (double)want->f32[i];
    }
    if (!(sqrt(off) <= bound * sqrt(squares)))
        fail_msg("%s is off by %.3g of its norm (seed %llu)", what, sqrt(off / squares),
                 (unsigned long long)seed);
}

/* Every element within bound × (its size + the root mean square of all + the size of the
 * terms that it is the sum of: they may cancel). */
static void assert_sum_close(const char *what, struct array *got, struct array *want,
                             double bound, double terms)
{
    widen(got);
    widen(want);
    double squares = 0;
    for (int64_t i = 0; i < want->n; i++)
        squares += (double)want->f32[i] * (double)want->f32[i];
    double rms = sqrt(squares / (double)want->n);
    for (int64_t i = 0; i < want->n; i++) {
        double g = (double)got->f32[i], w = (double)want->f32[i];
        if (!(fabs(g - w) <= bound * (fabs(w) + rms + terms)))
            fail_msg("%s[%lld] is %.9g, should be %.9g (seed %llu)", what, (long long)i,
                     g, w, (unsigned long long)seed);
    }
}

static void assert_close(const char *what, struct array *got, struct array *want,
                         double bound)
{
    assert_sum_close(what, got, want, bound, 0);
}

/* fp32 outputs differ by the order of sums; bf16 ones by a rounding at the end too. */
#define F32_BOUND 2e-6
#define BF16_BOUND 0x1p-7
static double bound_of(enum dcp_dtype dtype)
{
    return dtype == DCP_BF16 ? BF16_BOUND : F32_BOUND;
}

static const enum dcp_dtype dtypes[] = { DCP_F32, DCP_BF16 };
#define EACH_DTYPE(dtype)                                                      \
    for (size_t dtype##_i = 0; dtype##_i < DCP_ARRAY_LEN(dtypes); dtype##_i++) \
        for (enum dcp_dtype dtype = dtypes[dtype##_i], once_ = 1; once_; once_ = 0)

/* Both implementations, opened once. */
struct pair {
    const struct ops *fast, *oracle;
    void *fast_ctx, *oracle_ctx;
};
static struct pair both;

static int open_both(void **state)
{
    (void)state;
    both.fast = ops_best();
    both.oracle = ops_cpu();
    print_message("kernels by %s, seed %llu\n", both.fast->name,
                  (unsigned long long)seed);
    return both.fast->open(&both.fast_ctx, NULL) ||
           both.oracle->open(&both.oracle_ctx, NULL);
}

static int close_both(void **state)
{
    (void)state;
    both.fast->close(both.fast_ctx);
    both.oracle->close(both.oracle_ctx);
    return 0;
}

static void one_matmul(enum dcp_dtype dtype, int64_t m, int64_t n, int64_t k, bool ta,
                       bool tb, bool with_bias, int with_add)
{
    struct ops_matmul shape = { dtype, m, n, k, ta, tb };
    struct array a = normal(dtype, m * k, 1), b = normal(dtype, k * n, 1);
    struct array bias = normal(dtype, n, 1), add = normal(DCP_F32, m * n, 1);
    struct array got = with_add == 2 ? copy(&add) : poisoned(DCP_F32, m * n);
    struct array want = poisoned(DCP_F32, m * n);
    const float *add_got = with_add == 2 ? got.f32 : with_add == 1 ? add.f32 : NULL;
    assert_int_equal(both.fast->matmul(both.fast_ctx, &shape, a.t, b.t,
                                       with_bias ? bias.t : NULL, add_got, got.f32, NULL),
                     0);
    assert_int_equal(both.oracle->matmul(both.oracle_ctx, &shape, a.t, b.t,
                                         with_bias ? bias.t : NULL,
                                         with_add ? add.f32 : NULL, want.f32, NULL),
                     0);
    assert_sum_close("matmul", &got, &want, F32_BOUND, sqrt((double)k));
    struct array *all[] = { &a, &b, &bias, &add, &got, &want };
    for (size_t i = 0; i < DCP_ARRAY_LEN(all); i++)
        array_fini(all[i]);
}

static void test_matmul(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = { { 1, 1, 1 },    { 1, 50, 33 },  { 7, 1, 65 },
                                        { 33, 17, 5 },  { 64, 96, 48 }, { 101, 67, 129 },
                                        { 5, 1030, 31 } };
    EACH_DTYPE(dtype)
    for (size_t i = 0; i < DCP_ARRAY_LEN(sizes); i++)
        for (int flags = 0; flags < 24; flags++)
            one_matmul(dtype, sizes[i][0], sizes[i][1], sizes[i][2], flags & 1, flags & 2,
                       flags & 4, flags / 8);
}

static void tokens_init(int32_t *tokens, int64_t n, int32_t vocab_size)
{
    stream++;
    for (int64_t i = 0; i < n; i++)
        tokens[i] =
            (int32_t)(rng_uniform(seed, stream, (uint64_t)i) * (double)vocab_size);
}

static void test_embed(void **state)
{
    (void)state;
    enum { ROWS = 39, SEQ_LEN = 13, BEGIN = 2, WIDTH = 301, VOCAB = 7 };
    int32_t tokens[ROWS];
    tokens_init(tokens, ROWS, VOCAB);
    EACH_DTYPE(dtype)
    {
        struct array wte = normal(dtype, VOCAB * WIDTH, 1);
        struct array wpe = normal(dtype, (BEGIN + SEQ_LEN) * WIDTH, 1);
        struct array out[2] = { poisoned(DCP_F32, ROWS * WIDTH),
                                poisoned(DCP_F32, ROWS * WIDTH) };
        both.fast->embed(both.fast_ctx, dtype, ROWS, SEQ_LEN, BEGIN, WIDTH, tokens, wte.t,
                         wpe.t, out[0].f32);
        both.oracle->embed(both.oracle_ctx, dtype, ROWS, SEQ_LEN, BEGIN, WIDTH, tokens,
                           wte.t, wpe.t, out[1].f32);
        assert_close("embed", &out[0], &out[1], F32_BOUND);
        array_fini(&wte), array_fini(&wpe), array_fini(&out[0]), array_fini(&out[1]);
    }
    struct array dout = normal(DCP_F32, ROWS * WIDTH, 1);
    struct array dwte = normal(DCP_F32, VOCAB * WIDTH, 1), dwte2 = copy(&dwte);
    struct array dwpe = normal(DCP_F32, SEQ_LEN * WIDTH, 1), dwpe2 = copy(&dwpe);
    both.fast->embed_backward(both.fast_ctx, ROWS, SEQ_LEN, WIDTH, tokens, dout.f32,
                              dwte.f32, dwpe.f32);
    both.oracle->embed_backward(both.oracle_ctx, ROWS, SEQ_LEN, WIDTH, tokens, dout.f32,
                                dwte2.f32, dwpe2.f32);
    assert_sum_close("dwte", &dwte, &dwte2, F32_BOUND, 2);
    assert_sum_close("dwpe", &dwpe, &dwpe2, F32_BOUND, 2);
    array_fini(&dout), array_fini(&dwte), array_fini(&dwte2);
    array_fini(&dwpe), array_fini(&dwpe2);
}

static void one_layer_norm(enum dcp_dtype dtype, int64_t rows, int64_t width)
{
    struct array x = normal(DCP_F32, rows * width, 3), w = normal(dtype, width, 1);
    struct array b = normal(dtype, width, 1), dout = normal(DCP_F32, rows * width, 1);
    struct array out[2], mean[2], rstd[2], dx[2], dw[2], db[2];
    dx[0] = normal(DCP_F32, rows * width, 1);
    dw[0] = normal(DCP_F32, width, 1);
    db[0] = normal(DCP_F32, width, 1);
    dx[1] = copy(&dx[0]), dw[1] = copy(&dw[0]), db[1] = copy(&db[0]);
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    for (int i = 0; i < 2; i++) {
        out[i] = poisoned(dtype, rows * width);
        mean[i] = poisoned(DCP_F32, rows);
        rstd[i] = poisoned(DCP_F32, rows);
        ops[i]->layer_norm(ctx[i], dtype, rows, width, 1e-5, x.f32, w.t, b.t, out[i].t,
                           mean[i].f32, rstd[i].f32);
        ops[i]->layer_norm_backward(ctx[i], dtype, rows, width, dout.f32, x.f32, w.t,
                                    mean[i].f32, rstd[i].f32, dx[i].f32, dw[i].f32,
                                    db[i].f32);
    }
    assert_close("layer_norm", &out[0], &out[1], bound_of(dtype));
    assert_sum_close("mean", &mean[0], &mean[1], F32_BOUND, 3);
    assert_close("rstd", &rstd[0], &rstd[1], F32_BOUND);
    assert_sum_close("dx", &dx[0], &dx[1], F32_BOUND, 2);
    assert_sum_close("dweight", &dw[0], &dw[1], F32_BOUND, 2);
    assert_sum_close("dbias", &db[0], &db[1], F32_BOUND, 2);
    array_fini(&x), array_fini(&w), array_fini(&b), array_fini(&dout);
    for (int i = 0; i < 2; i++) {
        array_fini(&out[i]), array_fini(&mean[i]), array_fini(&rstd[i]);
        array_fini(&dx[i]), array_fini(&dw[i]), array_fini(&db[i]);
    }
}

static void test_layer_norm(void **state)
{
    (void)state;
    EACH_DTYPE(dtype)
    {
        one_layer_norm(dtype, 1, 3);
        one_layer_norm(dtype, 3, 129);
        one_layer_norm(dtype, 131, 257);
        one_layer_norm(dtype, 50, 768);
    }
}

static void test_gelu(void **state)
{
    (void)state;
    enum { N = 70001 };
    struct array x = normal(DCP_F32, N, 4), dout = normal(DCP_F32, N, 1);
    x.f32[0] = 0, x.f32[1] = 40, x.f32[2] = -40, x.f32[3] = 1e30f, x.f32[4] = -1e30f;
    EACH_DTYPE(dtype)
    {
        struct array got = poisoned(dtype, N), want = poisoned(dtype, N);
        both.fast->gelu(both.fast_ctx, dtype, N, x.f32, got.t);
        both.oracle->gelu(both.oracle_ctx, dtype, N, x.f32, want.t);
        widen(&got);
        assert_true(got.f32[3] == (dtype == DCP_F32 ? 1e30f : got.f32[3]));
        assert_true(got.f32[4] == 0 || fabsf(got.f32[4]) < 1e-6f);
        got.f32[3] = want.f32[3] = 0; /* else the mean hides all others */
        if (dtype == DCP_BF16)
            ((uint16_t *)got.t)[3] = ((uint16_t *)want.t)[3] = 0;
        assert_close("gelu", &got, &want, bound_of(dtype));
        array_fini(&got), array_fini(&want);
    }
    x.f32[3] = 5, x.f32[4] = -5;
    EACH_DTYPE(dtype)
    {
        struct array got = poisoned(dtype, N), want = poisoned(dtype, N);
        both.fast->gelu_backward(both.fast_ctx, dtype, N, x.f32, dout.f32, got.t);
        both.oracle->gelu_backward(both.oracle_ctx, dtype, N, x.f32, dout.f32, want.t);
        assert_close("gelu_backward", &got, &want, bound_of(dtype));
        array_fini(&got), array_fini(&want);
    }
    struct array in_place = copy(&dout), want = poisoned(DCP_F32, N);
    both.fast->gelu_backward(both.fast_ctx, DCP_F32, N, x.f32, in_place.f32,
                             in_place.f32);
    both.oracle->gelu_backward(both.oracle_ctx, DCP_F32, N, x.f32, dout.f32, want.f32);
    assert_close("gelu_backward in place", &in_place, &want, F32_BOUND);
    array_fini(&in_place), array_fini(&want), array_fini(&x), array_fini(&dout);
}

static void one_attention(enum dcp_dtype dtype, int64_t batch, int64_t seq_len,
                          int64_t n_head, int64_t head_size, int64_t begin)
{
    struct ops_attention shape = { dtype, batch, seq_len, n_head, head_size, begin };
    int64_t width = n_head * head_size, rows = batch * seq_len;
    struct array qkv = normal(DCP_F32, rows * 3 * width, 1);
    struct array dout = normal(DCP_F32, rows * width, 1);
    struct array out[2], lse[2], dqkv[2];
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    for (int i = 0; i < 2; i++) {
        out[i] = poisoned(dtype, rows * width);
        lse[i] = poisoned(DCP_F32, batch * n_head * seq_len);
        dqkv[i] = poisoned(dtype, rows * 3 * width);
        assert_int_equal(
            ops[i]->attention(ctx[i], &shape, qkv.f32, out[i].t, lse[i].f32, NULL), 0);
        if (begin == 0)
            assert_int_equal(ops[i]->attention_backward(ctx[i], &shape, qkv.f32,
                                                        lse[i].f32, dout.f32, dqkv[i].t,
                                                        NULL),
                             0);
    }
    for (int i = 0; begin > 0 && i < 2; i++) { /* rows before begin are not written */
        memset(out[i].t, 0, (size_t)(begin * width) * (dtype == DCP_BF16 ? 2 : 4));
        for (int64_t h = 0; h < n_head; h++)
            memset(lse[i].f32 + h * seq_len, 0, (size_t)begin * 4);
    }
    for (int i = 0; i < (begin == 0 ? 3 : 2); i++) {
        static const char *const names[] = { "attention", "lse", "attention_backward" };
        struct array *arrays[] = { out, lse, dqkv };
        if (dtype == DCP_BF16) /* products of rounded operands: a bound in the norm */
            assert_near(names[i], &arrays[i][0], &arrays[i][1], 0.02);
        else
            assert_sum_close(names[i], &arrays[i][0], &arrays[i][1], F32_BOUND, 1);
    }
    array_fini(&qkv), array_fini(&dout);
    for (int i = 0; i < 2; i++)
        array_fini(&out[i]), array_fini(&lse[i]), array_fini(&dqkv[i]);
}

static void test_attention(void **state)
{
    (void)state;
    EACH_DTYPE(dtype)
    {
        one_attention(dtype, 1, 1, 1, 1, 0);
        one_attention(dtype, 2, 5, 3, 7, 0);
        one_attention(dtype, 1, 64, 2, 16, 0);
        one_attention(dtype, 2, 65, 3, 8, 0);
        one_attention(dtype, 1, 201, 2, 33, 0);
        one_attention(dtype, 1, 77, 3, 12, 76);
        one_attention(dtype, 1, 150, 2, 12, 20);
    }
}

static void one_cross_entropy(enum dcp_dtype dtype, int64_t rows, int64_t n)
{
    int32_t targets[64];
    tokens_init(targets, rows, (int32_t)n);
    struct array logits = normal(DCP_F32, rows * n, 5), again = copy(&logits);
    struct array got = poisoned(dtype, rows * n), want = poisoned(dtype, rows * n);
    double losses[3][64];
    both.fast->cross_entropy(both.fast_ctx, dtype, rows, n, logits.f32, targets, 0.25f,
                             losses[0], got.t);
    both.oracle->cross_entropy(both.oracle_ctx, dtype, rows, n, logits.f32, targets,
                               0.25f, losses[1], want.t);
    both.fast->cross_entropy(both.fast_ctx, dtype, rows, n, logits.f32, targets, 0.25f,
                             losses[2], NULL);
    for (int64_t r = 0; r < rows; r++) {
        assert_true(fabs(losses[0][r] - losses[1][r]) <= 1e-6 * (1 + losses[1][r]));
        assert_true(losses[2][r] == losses[0][r]);
    }
    assert_close("dlogits", &got, &want, bound_of(dtype));
    if (dtype == DCP_F32) {
        both.fast->cross_entropy(both.fast_ctx, dtype, rows, n, again.f32, targets, 0.25f,
                                 losses[2], again.f32);
        assert_memory_equal(again.f32, got.f32, (size_t)(rows * n) * 4);
    }
    array_fini(&logits), array_fini(&again), array_fini(&got), array_fini(&want);
}

static void test_cross_entropy(void **state)
{
    (void)state;
    EACH_DTYPE(dtype)
    {
        one_cross_entropy(dtype, 1, 1);
        one_cross_entropy(dtype, 64, 257);
        one_cross_entropy(dtype, 5, 20011);
    }
}

static void test_sums_and_casts(void **state)
{
    (void)state;
    enum { ROWS = 131, N = 389 };
    EACH_DTYPE(dtype)
    {
        struct array x = normal(dtype, ROWS * N, 1);
        struct array got = normal(DCP_F32, N, 1), want = copy(&got);
        both.fast->sum_rows(both.fast_ctx, dtype, ROWS, N, x.t, got.f32);
        both.oracle->sum_rows(both.oracle_ctx, dtype, ROWS, N, x.t, want.f32);
        assert_sum_close("sum_rows", &got, &want, F32_BOUND, 2);
        array_fini(&got), array_fini(&want), array_fini(&x);

        x = normal(DCP_F32, ROWS * N, 1);
        got = poisoned(dtype, ROWS * N), want = poisoned(dtype, ROWS * N);
        both.fast->cast(both.fast_ctx, dtype, ROWS * N, x.f32, got.t);
        both.oracle->cast(both.oracle_ctx, dtype, ROWS * N, x.f32, want.t);
        assert_memory_equal(got.t, want.t, (size_t)(ROWS * N) * dcp_dtype_size(dtype));
        array_fini(&got), array_fini(&want), array_fini(&x);
    }
}

static void test_bf16_rounding(void **state)
{
    (void)state;
    static const struct {
        uint32_t in;
        uint16_t out;
    } cases[] = {
        { 0x3f800000, 0x3f80 }, { 0x3f808000, 0x3f80 }, /* tie, to even */
        { 0x3f818000, 0x3f82 }, { 0x3f808001, 0x3f81 }, { 0x80000000, 0x8000 },
        { 0x7f7fffff, 0x7f80 }, /* above the largest */
        { 0xff800000, 0xff80 }, { 0x7f800001, 0x7fc0 }, { 0xffffffff, 0x7fc0 },
        { 0x00000001, 0x0000 }, { 0x00008001, 0x0001 },
    };
    float x[DCP_ARRAY_LEN(cases)];
    uint16_t out[DCP_ARRAY_LEN(cases)];
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++)
        memcpy(&x[i], &cases[i].in, 4);
    ops_to_bf16(x, out, (int64_t)DCP_ARRAY_LEN(cases));
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++)
        assert_int_equal(out[i], cases[i].out);
}

/* An element's result must not depend on where its range was cut. */
static void test_cuts(void **state)
{
    (void)state;
    enum { N = 1003 };
    struct array x = normal(DCP_F32, N, 1), y = normal(DCP_F32, N, 1);
    uint16_t whole16[N], cut16[N];
    struct array whole = copy(&y), whole_b = copy(&y);
    ops_to_bf16(x.f32, whole16, N);
    ops_add(whole.f32, x.f32, N);
    ops_add_bf16(whole_b.f32, whole16, N);
    for (int64_t step = 1; step < 40; step++) {
        struct array cut = copy(&y), cut_b = copy(&y);
        for (int64_t i = 0; i < N; i += step) {
            int64_t n = i + step < N ? step : N - i;
            ops_to_bf16(x.f32 + i, cut16 + i, n);
            ops_add(cut.f32 + i, x.f32 + i, n);
            ops_add_bf16(cut_b.f32 + i, whole16 + i, n);
        }
        assert_memory_equal(cut16, whole16, sizeof whole16);
        assert_memory_equal(cut.f32, whole.f32, N * 4);
        assert_memory_equal(cut_b.f32, whole_b.f32, N * 4);
        array_fini(&cut), array_fini(&cut_b);
    }
    float back[N];
    ops_from_bf16(whole16, back, N);
    for (int i = 0; i < N; i++)
        assert_true(back[i] == bf16_to_f32(whole16[i]));
    array_fini(&x), array_fini(&y), array_fini(&whole), array_fini(&whole_b);
}

static void test_sumsq(void **state)
{
    (void)state;
    enum { N = 600011 };
    struct array x = normal(DCP_F32, N + 1, 1);
    long double want = 0;
    for (int64_t i = 0; i < N; i++)
        want += (long double)x.f32[i] * (long double)x.f32[i];
    double first = ops_sumsq(x.f32, N);
    assert_true(fabsl(first - want) <= 1e-13L * want);
    memmove(x.f32 + 1, x.f32, N * 4); /* another alignment */
    assert_true(ops_sumsq(x.f32 + 1, N) == first);
    int threads = ops_threads();
    ops_set_threads(threads == 1 ? 3 : 1);
    assert_true(ops_sumsq(x.f32 + 1, N) == first);
    ops_set_threads(threads);
    assert_true(ops_sumsq(x.f32, 0) == 0);
    array_fini(&x);
}

static void test_exp(void **state)
{
    (void)state;
    for (double x = -87; x <= 88; x += 0.0137) {
        double want = exp((double)(float)x), got = (double)ops_exp((float)x);
        if (!(fabs(got - want) <= 2.4e-7 * want)) /* 2 units in the last place */
            fail_msg("exp(%.9g) is %.9g, should be %.9g", x, got, want);
    }
    assert_true(ops_exp(-1e30f) < 2e-38f);
    assert_true(isnan(ops_exp(NAN)));
}

/* With the same threads the same bits; rows and columns do not feel the number at all. */
static void test_deterministic(void **state)
{
    (void)state;
    enum { M = 150, N = 230, K = 170 };
    struct ops_matmul shape = { DCP_F32, M, N, K, false, true };
    struct array a = normal(DCP_F32, M * K, 1), b = normal(DCP_F32, K * N, 1);
    struct array c1 = poisoned(DCP_F32, M * N), c2 = poisoned(DCP_F32, M * N);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(both.fast->matmul(both.fast_ctx, &shape, a.t, b.t, NULL, NULL,
                                           i ? c2.f32 : c1.f32, NULL),
                         0);
        if (i)
            assert_memory_equal(c1.f32, c2.f32, M * N * 4);
    }
    struct array s1 = normal(DCP_F32, N, 1), s2 = copy(&s1);
    int threads = ops_threads();
    ops_set_threads(1);
    both.fast->sum_rows(both.fast_ctx, DCP_F32, M, N, c1.f32, s1.f32);
    ops_set_threads(3);
    both.fast->sum_rows(both.fast_ctx, DCP_F32, M, N, c1.f32, s2.f32);
    ops_set_threads(threads);
    assert_memory_equal(s1.f32, s2.f32, N * 4);
    array_fini(&a), array_fini(&b), array_fini(&c1), array_fini(&c2);
    array_fini(&s1), array_fini(&s2);
}

static int one_thread(void **state)
{
    (void)state;
    ops_set_threads(1);
    return 0;
}

static int three_threads(void **state)
{
    (void)state;
    ops_set_threads(3);
    return 0;
}

#define WITH_THREADS(test)                                    \
    cmocka_unit_test_setup(test, one_thread),                 \
    {                                                         \
#test " (3 threads)", test, three_threads, NULL, NULL \
    }

int main(void)
{
    const char *given = getenv("DCP_TEST_SEED");
    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    const struct CMUnitTest tests[] = {
        WITH_THREADS(test_matmul),
        WITH_THREADS(test_embed),
        WITH_THREADS(test_layer_norm),
        WITH_THREADS(test_gelu),
        WITH_THREADS(test_attention),
        WITH_THREADS(test_cross_entropy),
        WITH_THREADS(test_sums_and_casts),
        WITH_THREADS(test_deterministic),
        cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_sumsq),
        cmocka_unit_test(test_exp),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
