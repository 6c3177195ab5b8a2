/* The bits of kernels: rounding, and what they must not depend on: where a range is cut,
 * where arrays lie, how many threads there are, how often it is tried. */
#include "base/mem.h"
#include "lib/arrays.h"
#include "trainer/ops/bf16.h"
#include "trainer/ops/norm.h"
#include "trainer/ops/ops.h"
#include "trainer/ops/simd.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void *ctx; /* of ops_best() */

static int open_ops(void **state)
{
    (void)state;
    print_message("kernels by %s, seed %llu\n", ops_best()->name,
                  (unsigned long long)array_seed());
    return ops_best()->open(&ctx, NULL);
}

static int close_ops(void **state)
{
    (void)state;
    ops_best()->close(ctx);
    return 0;
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
    struct array x = array_normal(DCP_F32, N, 1), y = array_normal(DCP_F32, N, 1);
    const struct ops *ops = ops_best();
    uint16_t whole16[N], cut16[N];
    float whole[N], cut[N], back[N];
    ops->cast(ctx, DCP_BF16, N, x.f32, whole16);
    ops->widen(ctx, DCP_BF16, N, whole16, back);
    for (int i = 0; i < N; i++)
        assert_true(back[i] == bf16_to_f32(whole16[i]));
    memcpy(whole, x.f32, sizeof whole);
    ops->round(ctx, N, whole);
    assert_memory_equal(whole, back, sizeof whole);
    const void *parts[] = { y.f32, x.f32 }, *parts16[] = { whole16 };
    ops->sum(ctx, DCP_F32, N, x.f32, parts, 2, whole);
    ops->sum(ctx, DCP_BF16, N, y.f32, parts16, 1, whole16);
    for (int i = 0; i < N; i++) {
        assert_true(whole[i] == (x.f32[i] + y.f32[i]) + x.f32[i]);
        assert_int_equal(whole16[i], bf16_from_f32(y.f32[i] + back[i]));
    }
    for (int64_t step = 1; step < 40; step++) {
        memcpy(cut, x.f32, sizeof cut); /* the sum may go where a summand is */
        ops->cast(ctx, DCP_BF16, N, x.f32, cut16);
        for (int64_t i = 0; i < N; i += step) {
            int64_t n = i + step < N ? step : N - i;
            const void *at[] = { y.f32 + i, x.f32 + i }, *at16[] = { cut16 + i };
            ops->sum(ctx, DCP_F32, n, cut + i, at, 2, cut + i);
            ops->sum(ctx, DCP_BF16, n, y.f32 + i, at16, 1, cut16 + i);
        }
        assert_memory_equal(cut16, whole16, sizeof whole16);
        assert_memory_equal(cut, whole, sizeof whole);
    }
    array_fini(&x), array_fini(&y);
}

/* The norm of a range has the same bits at any cut, alignment and number of threads, and
 * those of norm.h. */
static void test_norm(void **state)
{
    (void)state;
    enum { N = 600011, CUT = 262147 };
    const struct ops *ops = ops_best();
    EACH_DTYPE(dtype)
    {
        struct array x = array_normal(DCP_F32, N, 1), t = array_poisoned(dtype, N);
        struct norm want = { { 0 } }, cut = { { 0 } }, whole = { { 0 } };
        float peak = 0.5f, want_peak;
        ops->cast(ctx, dtype, N, x.f32, t.t);
        ops->widen(ctx, dtype, N, t.t, x.f32);
        want_peak = norm_peak(peak, x.f32, N);
        norm_add(&want, want_peak, x.f32, N);
        char *rest = (char *)t.t + CUT * dcp_dtype_size(dtype);
        ops->norm_peak(ctx, dtype, CUT, t.t, &peak);
        ops->norm_peak(ctx, dtype, N - CUT, rest, &peak);
        assert_true(peak == want_peak);
        ops->norm_add(ctx, dtype, N, t.t, peak, whole.digits);
        ops->norm_add(ctx, dtype, CUT, t.t, peak, cut.digits);
        ops->norm_add(ctx, dtype, N - CUT, rest, peak, cut.digits);
        ops->norm_add(ctx, dtype, 0, t.t, peak, cut.digits);
        assert_memory_equal(&whole, &want, sizeof want);
        assert_memory_equal(&cut, &want, sizeof want);
        array_fini(&x), array_fini(&t);
    }
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
    struct array a = array_normal(DCP_F32, M * K, 1), b = array_normal(DCP_F32, K * N, 1);
    struct array c1 = array_poisoned(DCP_F32, M * N), c2 = array_poisoned(DCP_F32, M * N);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ops_best()->matmul(ctx, &shape, a.t, b.t, NULL, NULL,
                                            i ? c2.f32 : c1.f32, NULL),
                         0);
        if (i)
            assert_memory_equal(c1.f32, c2.f32, M * N * 4);
    }
    struct array s1 = array_normal(DCP_F32, N, 1), s2 = array_copy(&s1);
    int threads = ops_threads();
    ops_set_threads(1);
    ops_best()->sum_rows(ctx, DCP_F32, M, N, c1.f32, s1.f32);
    ops_set_threads(3);
    ops_best()->sum_rows(ctx, DCP_F32, M, N, c1.f32, s2.f32);
    ops_set_threads(threads);
    assert_memory_equal(s1.f32, s2.f32, N * 4);
    array_fini(&a), array_fini(&b), array_fini(&c1), array_fini(&c2);
    array_fini(&s1), array_fini(&s2);
}

/* A copy that begins `shift` elements after a multiple of 64 bytes. */
static void *shifted(const void *in, int64_t n, size_t size, int shift)
{
    char *p = array_bytes(n + shift, size);
    memcpy(p + (size_t)shift * size, in, (size_t)n * size);
    return p;
}

/* Where arrays lie must not change a bit: it differs from run to run. */
static void one_alignment(enum dcp_dtype dtype, int shift, const struct array in[5],
                          struct array out[6])
{
    enum { ROWS = 66, WIDTH = 70, HEADS = 2 }; /* in: x, y, w, b of 4 × WIDTH columns */
    const struct ops *ops = ops_best();
    size_t t = dcp_dtype_size(dtype);
    char *p[5];
    for (int i = 0; i < 5; i++)
        p[i] = shifted(in[i].t, in[i].n, i < 2 ? 4 : t, shift);
    float *x = (float *)(void *)p[0] + shift, *y = (float *)(void *)p[1] + shift;
    char *w = p[2] + (size_t)shift * t, *b = p[3] + (size_t)shift * t;
    char *xt = p[4] + (size_t)shift * t;
    float *o[6];
    for (int i = 0; i < 6; i++)
        o[i] = (float *)shifted(out[i].f32, out[i].n, 4, shift) + shift;

    struct ops_matmul product = { dtype, ROWS, WIDTH, WIDTH, false, true };
    ops->matmul(ctx, &product, xt, w, b, x, o[0], NULL);
    ops->layer_norm(ctx, dtype, ROWS, WIDTH, 1e-5, x, w, b, o[1], o[2], o[3]);
    ops->layer_norm_backward(ctx, dtype, ROWS, WIDTH, y, x, w, o[2], o[3], o[4], o[5],
                             o[5] + WIDTH);
    ops->sum_rows(ctx, dtype, ROWS, WIDTH, xt, o[5]);
    int32_t targets[ROWS] = { 0 };
    double losses[ROWS];
    ops->cross_entropy(ctx, dtype, ROWS, WIDTH, x, targets, 1, losses,
                       o[1] + ROWS * WIDTH);
    struct ops_attention shape = { dtype, 1, ROWS, HEADS, WIDTH / HEADS / 2, 0 };
    ops->attention(ctx, &shape, x, o[1] + 2 * ROWS * WIDTH, o[2] + ROWS, NULL);
    ops->attention_backward(ctx, &shape, x, o[0], o[2] + ROWS, y, o[1] + 3 * ROWS * WIDTH,
                            NULL);
    for (int r = 0; r < ROWS; r++)
        o[3][ROWS + r] = (float)losses[r];
    for (int i = 0; i < 6; i++) {
        memcpy(out[i].f32, o[i], (size_t)out[i].n * 4);
        free(o[i] - shift);
    }
    for (int i = 0; i < 5; i++)
        free(p[i]);
}

static void test_alignment(void **state)
{
    (void)state;
    enum { N = 66 * 70 };
    EACH_DTYPE(dtype)
    {
        struct array in[5] = { array_normal(DCP_F32, N * 3, 1),
                               array_normal(DCP_F32, N, 1),
                               array_normal(dtype, 70 * 70, 1),
                               array_normal(dtype, 70, 1), array_normal(dtype, N, 1) };
        static const int64_t sizes[6] = { N, 6 * N, 66 * 3, 66 * 2, N, 70 * 2 };
        struct array first[6], again[6];
        for (int shift = 0; shift < 20; shift++) {
            struct array *out = shift ? again : first;
            for (int i = 0; i < 6; i++) {
                out[i] = array_poisoned(DCP_F32, sizes[i]);
                memset(out[i].f32, 0, (size_t)sizes[i] * 4);
            }
            one_alignment(dtype, shift, in, out);
            for (int i = 0; shift && i < 6; i++) {
                assert_memory_equal(first[i].f32, again[i].f32, (size_t)sizes[i] * 4);
                array_fini(&again[i]);
            }
        }
        for (int i = 0; i < 6; i++)
            array_fini(&first[i]);
        for (int i = 0; i < 5; i++)
            array_fini(&in[i]);
    }
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
    const struct CMUnitTest tests[] = {
        WITH_THREADS(test_deterministic),
        WITH_THREADS(test_alignment),
        cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_cuts),
        WITH_THREADS(test_norm),
        cmocka_unit_test(test_exp),
    };
    return cmocka_run_group_tests(tests, open_ops, close_ops);
}
