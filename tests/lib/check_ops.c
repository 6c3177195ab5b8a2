/* cmocka wants these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "arrays.h"
#include "base/mem.h"
#include "check_ops_own.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

struct pair both;
double f32_bound;

/* fp32 outputs differ by the order of sums; 16-bit ones by a rounding at the end too. */
double bound_of(enum dcp_dtype dtype)
{
    return dtype == DCP_BF16 ? 0x1p-7 : dtype == DCP_F16 ? 0x1p-10 : f32_bound;
}

static int open_both(void **state)
{
    (void)state;
    print_message("kernels by %s, seed %llu\n", both.fast->name,
                  (unsigned long long)array_seed());
    return both.fast->open(&both.fast_ctx, NULL) ||
           both.oracle->open(&both.oracle_ctx, NULL);
}

static int close_both(void **state)
{
    (void)state;
    int failed = both.fast->sync(both.fast_ctx, NULL);
    both.fast->close(both.fast_ctx);
    both.oracle->close(both.oracle_ctx);
    return failed;
}

/* Weights lie one behind the other, so their operands begin anywhere: `shift`. */
static void *shifted(const struct array *a, int64_t shift)
{
    return (char *)a->t + (size_t)shift * dcp_dtype_size(a->dtype);
}

static void one_matmul(enum dcp_dtype dtype, int64_t m, int64_t n, int64_t k, bool ta,
                       bool tb, bool with_bias, int with_add, int64_t shift)
{
    struct ops_matmul shape = { dtype, m, n, k, ta, tb };
    struct array whole_a = array_normal(dtype, shift + m * k, 1);
    struct array whole_b = array_normal(dtype, shift + k * n, 1);
    struct array whole_bias = array_normal(dtype, shift + n, 1);
    const void *a = shifted(&whole_a, shift), *b = shifted(&whole_b, shift);
    const void *bias = with_bias ? shifted(&whole_bias, shift) : NULL;
    struct array add = array_normal(DCP_F32, m * n, 1);
    struct array got = with_add == 2 ? array_copy(&add) : array_poisoned(DCP_F32, m * n);
    struct array want = array_poisoned(DCP_F32, m * n);
    const float *add_got = with_add == 2 ? got.f32 : with_add == 1 ? add.f32 : NULL;
    assert_int_equal(
        both.fast->matmul(both.fast_ctx, &shape, a, b, bias, add_got, got.f32, NULL), 0);
    assert_int_equal(both.oracle->matmul(both.oracle_ctx, &shape, a, b, bias,
                                         with_add ? add.f32 : NULL, want.f32, NULL),
                     0);
    assert_array_sum("matmul", &got, &want, f32_bound, sqrt((double)k));
    struct array *all[] = { &whole_a, &whole_b, &whole_bias, &add, &got, &want };
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
                       flags & 4, flags / 8, (int64_t)i % 3);
}

/* Large enough to be cut in blocks where the dtype is not the product's own. */
static void test_large_matmul(void **state)
{
    (void)state;
    EACH_DTYPE(dtype)
    for (int flags = 0; flags < 4; flags++) {
        one_matmul(dtype, 3, 901, 1201, flags & 1, flags & 2, false, 0, 1);
        one_matmul(dtype, 901, 3, 1201, flags & 1, flags & 2, false, 2, 0);
    }
}

static void one_embed(int64_t rows, int64_t seq_len, int64_t begin, int64_t width,
                      int32_t vocab)
{
    int32_t *tokens = array_tokens(rows, vocab);
    EACH_DTYPE(dtype)
    {
        struct array wte = array_normal(dtype, vocab * width, 1);
        struct array wpe = array_normal(dtype, (begin + seq_len) * width, 1);
        struct array out[2] = { array_poisoned(DCP_F32, rows * width),
                                array_poisoned(DCP_F32, rows * width) };
        both.fast->embed(both.fast_ctx, dtype, rows, seq_len, begin, width, tokens, wte.t,
                         wpe.t, out[0].f32);
        both.oracle->embed(both.oracle_ctx, dtype, rows, seq_len, begin, width, tokens,
                           wte.t, wpe.t, out[1].f32);
        assert_array("embed", &out[0], &out[1], f32_bound);
        array_fini(&wte), array_fini(&wpe), array_fini(&out[0]), array_fini(&out[1]);
    }
    struct array dout = array_normal(DCP_F32, rows * width, 1);
    struct array dwte = array_normal(DCP_F32, vocab * width, 1),
                 dwte2 = array_copy(&dwte);
    struct array dwpe = array_normal(DCP_F32, seq_len * width, 1),
                 dwpe2 = array_copy(&dwpe);
    both.fast->embed_backward(both.fast_ctx, rows, seq_len, width, tokens, dout.f32,
                              dwte.f32, dwpe.f32);
    both.oracle->embed_backward(both.oracle_ctx, rows, seq_len, width, tokens, dout.f32,
                                dwte2.f32, dwpe2.f32);
    double terms = sqrt((double)rows);
    assert_array_sum("dwte", &dwte, &dwte2, f32_bound, terms);
    assert_array_sum("dwpe", &dwpe, &dwpe2, f32_bound, terms);
    array_free(tokens);
    array_fini(&dout), array_fini(&dwte), array_fini(&dwte2);
    array_fini(&dwpe), array_fini(&dwpe2);
}

static void test_embed(void **state)
{
    (void)state;
    one_embed(1, 1, 0, 1, 1);
    one_embed(39, 13, 2, 301, 7);
    one_embed(700, 350, 0, 5, 3);
}

double norm_condition(int64_t rows, const float *mean, const float *rstd)
{
    double condition = 1;
    for (int64_t i = 0; i < rows; i++) {
        double scale = (double)rstd[i];
        condition =
            fmax(condition, scale * (1 + (mean ? fabs((double)mean[i]) * scale : 0)));
    }
    return condition;
}

static void one_layer_norm(enum dcp_dtype dtype, int64_t rows, int64_t width)
{
    struct array x = array_normal(DCP_F32, rows * width, 3),
                 w = array_normal(dtype, width, 1);
    struct array b = array_normal(dtype, width, 1),
                 dout = array_normal(DCP_F32, rows * width, 1);
    struct array out[2], mean[2], rstd[2], dx[2], dw[2], db[2];
    dx[0] = array_normal(DCP_F32, rows * width, 1);
    dw[0] = array_normal(DCP_F32, width, 1);
    db[0] = array_normal(DCP_F32, width, 1);
    dx[1] = array_copy(&dx[0]), dw[1] = array_copy(&dw[0]), db[1] = array_copy(&db[0]);
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(dtype, rows * width);
        mean[i] = array_poisoned(DCP_F32, rows);
        rstd[i] = array_poisoned(DCP_F32, rows);
        ops[i]->layer_norm(ctx[i], dtype, rows, width, 1e-5, x.f32, w.t, b.t, out[i].t,
                           mean[i].f32, rstd[i].f32);
        ops[i]->layer_norm_backward(ctx[i], dtype, rows, width, dout.f32, x.f32, w.t,
                                    mean[i].f32, rstd[i].f32, dx[i].f32, dw[i].f32,
                                    db[i].f32);
    }
    double condition = norm_condition(rows, mean[1].f32, rstd[1].f32);
    assert_array("layer_norm", &out[0], &out[1], bound_of(dtype) * condition);
    assert_array_sum("mean", &mean[0], &mean[1], f32_bound, 3);
    assert_array("rstd", &rstd[0], &rstd[1], f32_bound * condition);
    assert_array_sum("dx", &dx[0], &dx[1], f32_bound * condition, 2);
    assert_array_sum("dweight", &dw[0], &dw[1], f32_bound * condition, 2);
    assert_array_sum("dbias", &db[0], &db[1], f32_bound, 2);
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

/* x times 1 plus 0 is x: what linear_gelu makes of single numbers. */
static void gelu_of(const struct ops *ops, void *ctx, enum dcp_dtype dtype, int64_t n,
                    const struct array *x, struct array *kept, struct array *out)
{
    const struct ops_matmul shape = { dtype, n, 1, 1, false, false };
    struct array one = array_constant(dtype, 1, 1), zero = array_constant(dtype, 1, 0);
    assert_int_equal(
        ops->linear_gelu(ctx, &shape, x->t, one.t, zero.t, kept->f32, out->t, NULL), 0);
    array_fini(&one), array_fini(&zero);
}

static void one_gelu(enum dcp_dtype dtype, int64_t n, double std, float extreme)
{
    struct array x = array_normal(dtype, n, std), dout = array_normal(DCP_F32, n, 1);
    array_set(&x, 0, 0), array_set(&x, 1, 40), array_set(&x, 2, -40);
    array_set(&x, 3, extreme), array_set(&x, 4, -extreme);
    struct array out[2], kept[2], dy[2];
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(dtype, n);
        kept[i] = array_poisoned(DCP_F32, n);
        dy[i] = array_poisoned(dtype, n);
        gelu_of(ops[i], ctx[i], dtype, n, &x, &kept[i], &out[i]);
        ops[i]->gelu_backward(ctx[i], dtype, n, kept[i].f32, dout.f32, dy[i].t);
        array_widen(&out[i]), array_widen(&dy[i]);
        assert_true(out[i].f32[3] == x.f32[3] || extreme < 10);
        assert_true(fabsf(out[i].f32[4]) < 1e-6f || extreme < 10);
        if (extreme > 10) { /* else the mean hides all others */
            array_set(&out[i], 3, 0);
            array_set(&dy[i], 3, 0), array_set(&dy[i], 4, 0);
        }
    }
    assert_array("gelu", &out[0], &out[1], bound_of(dtype));
    assert_array("gelu_backward", &dy[0], &dy[1], bound_of(dtype));
    if (dtype == DCP_F32 && extreme < 10) {
        both.fast->gelu_backward(both.fast_ctx, dtype, n, kept[0].f32, dout.f32,
                                 dout.f32);
        assert_array("gelu_backward in place", &dout, &dy[1], bound_of(dtype));
    }
    array_fini(&x), array_fini(&dout);
    for (int i = 0; i < 2; i++)
        array_fini(&out[i]), array_fini(&kept[i]), array_fini(&dy[i]);
}

static void one_linear_gelu(enum dcp_dtype dtype, int64_t m, int64_t n, int64_t k)
{
    const struct ops_matmul shape = { dtype, m, n, k, false, false };
    struct array x = array_normal(dtype, m * k, 1), w = array_normal(dtype, k * n, 0.1);
    struct array bias = array_normal(dtype, n, 1), dout = array_normal(DCP_F32, m * n, 1);
    struct array out[2], kept[2], dy[2];
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(dtype, m * n);
        kept[i] = array_poisoned(DCP_F32, m * n);
        dy[i] = array_poisoned(dtype, m * n);
        assert_int_equal(ops[i]->linear_gelu(ctx[i], &shape, x.t, w.t, bias.t,
                                             kept[i].f32, out[i].t, NULL),
                         0);
        ops[i]->gelu_backward(ctx[i], dtype, m * n, kept[i].f32, dout.f32, dy[i].t);
    }
    assert_array_sum("linear_gelu", &out[0], &out[1], bound_of(dtype), 1);
    assert_array_sum("linear_gelu's gradient", &dy[0], &dy[1], bound_of(dtype), 1);
    array_fini(&x), array_fini(&w), array_fini(&bias), array_fini(&dout);
    for (int i = 0; i < 2; i++)
        array_fini(&out[i]), array_fini(&kept[i]), array_fini(&dy[i]);
}

static void test_gelu(void **state)
{
    (void)state;
    EACH_DTYPE(dtype)
    {
        one_gelu(dtype, 20001, 4, 5);
        one_gelu(dtype, 1003, 1, dtype == DCP_F16 ? 6e4f : 1e30f);
        one_linear_gelu(dtype, 1, 7, 3);
        one_linear_gelu(dtype, 33, 96, 24);
        one_linear_gelu(dtype, 50, 131, 67);
    }
}

static void one_attention(enum dcp_dtype dtype, int64_t batch, int64_t seq_len,
                          int64_t n_head, int64_t head_size, int64_t begin)
{
    struct ops_attention shape = { dtype, batch, seq_len, n_head, head_size, begin };
    int64_t width = n_head * head_size, rows = batch * seq_len;
    struct array qkv = array_normal(DCP_F32, rows * 3 * width, 1);
    struct array dout = array_normal(DCP_F32, rows * width, 1);
    struct array out[2], lse[2], dqkv[2];
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(dtype, rows * width);
        lse[i] = array_poisoned(DCP_F32, batch * n_head * seq_len);
        dqkv[i] = array_poisoned(dtype, rows * 3 * width);
        assert_int_equal(
            ops[i]->attention(ctx[i], &shape, qkv.f32, out[i].t, lse[i].f32, NULL), 0);
        if (begin == 0)
            assert_int_equal(ops[i]->attention_backward(ctx[i], &shape, qkv.f32, out[i].t,
                                                        lse[i].f32, dout.f32, dqkv[i].t,
                                                        NULL),
                             0);
    }
    array_sync();
    for (int i = 0; begin > 0 && i < 2; i++) { /* rows before begin are not written */
        memset(out[i].t, 0, (size_t)(begin * width) * dcp_dtype_size(dtype));
        for (int64_t h = 0; h < n_head; h++)
            memset(lse[i].f32 + h * seq_len, 0, (size_t)begin * 4);
    }
    for (int i = 0; i < (begin == 0 ? 3 : 2); i++) {
        static const char *const names[] = { "attention", "lse", "attention_backward" };
        struct array *arrays[] = { out, lse, dqkv };
        if (dtype == DCP_F32)
            assert_array_sum(names[i], &arrays[i][0], &arrays[i][1], f32_bound, 1);
        else /* products of rounded operands: a bound in the norm */
            assert_array_near(names[i], &arrays[i][0], &arrays[i][1],
                              dtype == DCP_BF16 ? 0.01 : 0.00125);
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
    int32_t *targets = array_tokens(rows, (int32_t)n);
    struct array logits = array_normal(DCP_F32, rows * n, 5), again = array_copy(&logits);
    struct array got = array_poisoned(dtype, rows * n),
                 want = array_poisoned(dtype, rows * n);
    double *losses[3];
    for (int i = 0; i < 3; i++)
        losses[i] = array_bytes(rows, sizeof **losses);
    both.fast->cross_entropy(both.fast_ctx, dtype, rows, n, logits.f32, targets, 0.25f,
                             losses[0], got.t);
    both.oracle->cross_entropy(both.oracle_ctx, dtype, rows, n, logits.f32, targets,
                               0.25f, losses[1], want.t);
    both.fast->cross_entropy(both.fast_ctx, dtype, rows, n, logits.f32, targets, 0.25f,
                             losses[2], NULL);
    array_sync();
    for (int64_t r = 0; r < rows; r++) {
        assert_true(fabs(losses[0][r] - losses[1][r]) <= 1e-6 * (1 + losses[1][r]));
        assert_true(losses[2][r] == losses[0][r]);
    }
    /* at the target: a probability less 1 */
    assert_array_sum("dlogits", &got, &want, bound_of(dtype), 0.1);
    if (dtype == DCP_F32) {
        both.fast->cross_entropy(both.fast_ctx, dtype, rows, n, again.f32, targets, 0.25f,
                                 losses[2], again.f32);
        array_sync();
        assert_memory_equal(again.f32, got.f32, (size_t)(rows * n) * 4);
    }
    for (int i = 0; i < 3; i++)
        array_free(losses[i]);
    array_free(targets);
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
        struct array x = array_normal(dtype, ROWS * N, 1);
        struct array got = array_normal(DCP_F32, N, 1), want = array_copy(&got);
        both.fast->sum_rows(both.fast_ctx, dtype, ROWS, N, x.t, got.f32);
        both.oracle->sum_rows(both.oracle_ctx, dtype, ROWS, N, x.t, want.f32);
        assert_array_sum("sum_rows", &got, &want, f32_bound, 2);
        array_fini(&got), array_fini(&want), array_fini(&x);

        x = array_normal(DCP_F32, ROWS * N, 1);
        got = array_poisoned(dtype, ROWS * N), want = array_poisoned(dtype, ROWS * N);
        both.fast->cast(both.fast_ctx, dtype, ROWS * N, x.f32, got.t);
        both.oracle->cast(both.oracle_ctx, dtype, ROWS * N, x.f32, want.t);
        array_sync();
        assert_memory_equal(got.t, want.t, (size_t)(ROWS * N) * dcp_dtype_size(dtype));
        array_fini(&got), array_fini(&want), array_fini(&x);
    }
}

int check_ops_one_thread(void **state)
{
    (void)state;
    ops_set_threads(1);
    return 0;
}

int check_ops_three_threads(void **state)
{
    (void)state;
    ops_set_threads(3);
    return 0;
}

/* The same with one thread of the host, and with three. */
#define ALL_TESTS(TEST)                                                   \
    TEST(check_ops_memory), TEST(check_ops_ranges), TEST(test_matmul),    \
        TEST(test_large_matmul), TEST(test_embed), TEST(test_layer_norm), \
        TEST(test_gelu), TEST(test_attention), TEST(test_cross_entropy),  \
        TEST(test_sums_and_casts), TEST(check_ops_llama), TEST(check_ops_quant)
#define ONE_THREAD(test) cmocka_unit_test_setup(test, check_ops_one_thread)
#define THREE_THREADS(test)                                             \
    {                                                                   \
#test " (3 threads)", test, check_ops_three_threads, NULL, NULL \
    }

int check_ops(const struct ops *ops, double bound, bool threads)
{
    const struct CMUnitTest once[] = { ALL_TESTS(ONE_THREAD) };
    const struct CMUnitTest twice[] = { ALL_TESTS(ONE_THREAD), ALL_TESTS(THREE_THREADS) };
    both = (struct pair){ .fast = ops, .oracle = ops_cpu() };
    f32_bound = bound;
    return threads ? cmocka_run_group_tests(twice, open_both, close_both)
                   : cmocka_run_group_tests(once, open_both, close_both);
}
