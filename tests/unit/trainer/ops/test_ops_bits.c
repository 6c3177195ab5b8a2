/* The bits of kernels: rounding, and what they must not depend on: where a range is cut,
 * where arrays lie, how many threads there are, how often it is tried. */
#include "base/mem.h"
#include "lib/arrays.h"
#include "lib/check_ops.h"
#include "trainer/ops/norm.h"
#include "trainer/ops/ops.h"
#include "trainer/ops/simd.h"
#include "trainer/ops/value.h"
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
    ops_to_16bit(DCP_BF16, x, out, (int64_t)DCP_ARRAY_LEN(cases));
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++)
        assert_int_equal(out[i], cases[i].out);
}

static float f32_of(uint32_t bits)
{
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static uint16_t f16_of(float x)
{
    uint16_t out;
    ops_to_16bit(DCP_F16, &x, &out, 1);
    return out;
}

/* As its definition reads. */
static double f16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    double value =
        exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -value : value;
}

/* Every number there is; what lies between two goes to the nearer, ties to even. */
static void test_f16_rounding(void **state)
{
    (void)state;
    static uint16_t all[1 << 16], back[1 << 16];
    static float wide[1 << 16];
    for (int i = 0; i < 1 << 16; i++)
        all[i] = (uint16_t)i;
    ops_from_16bit(DCP_F16, all, wide, 1 << 16);
    ops_to_16bit(DCP_F16, wide, back, 1 << 16);
    for (int i = 0; i < 1 << 16; i++) {
        bool is_nan = (i & 0x7fff) > 0x7c00;
        assert_int_equal(back[i], is_nan ? i | 0x200 : i);
        if ((i & 0x7c00) == 0x7c00) {
            assert_true(is_nan ? isnan(wide[i]) : isinf(wide[i]));
            assert_int_equal(!!signbit(wide[i]), i >> 15);
            continue;
        }
        assert_true((double)wide[i] == f16_value((uint16_t)i));
        assert_int_equal(!!signbit(wide[i]), i >> 15);
        uint16_t next = (uint16_t)(i + 1); /* away from zero */
        double far =
            (i & 0x7fff) == 0x7bff ? ldexp(i >> 15 ? -1 : 1, 16) : f16_value(next);
        float middle = (float)(((double)wide[i] + far) / 2); /* exact */
        assert_int_equal(f16_of(middle), i & 1 ? next : i);
        assert_int_equal(f16_of(nextafterf(middle, 0)), i);
        assert_int_equal(f16_of(nextafterf(middle, (float)far)), next);
    }
    /* What torch 2 makes of them. */
    static const struct {
        uint32_t in;
        uint16_t out;
    } cases[] = {
        { 0x7fc00000, 0x7e00 }, { 0xffc00000, 0xfe00 }, { 0x7f800001, 0x7e00 },
        { 0xff812345, 0xfe09 }, { 0x7fffffff, 0x7fff }, { 0x7fabc123, 0x7f5e },
        { 0x477fefff, 0x7bff }, { 0x477ff000, 0x7c00 }, { 0x7f7fffff, 0x7c00 },
        { 0x33000000, 0x0000 }, { 0x33000001, 0x0001 }, { 0x00000001, 0x0000 },
        { 0x80000001, 0x8000 }, { 0x387fe000, 0x0400 },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++)
        assert_int_equal(f16_of(f32_of(cases[i].in)), cases[i].out);
}

/* An element's result must not depend on where its range was cut. */
static void cut_anywhere(enum dcp_dtype dtype)
{
    enum { N = 1003 };
    struct array x = array_normal(DCP_F32, N, 1), y = array_normal(DCP_F32, N, 1);
    const struct ops *ops = ops_best();
    uint16_t whole16[N], cut16[N], one[2];
    float whole[N], cut[N], back[N];
    ops->cast(ctx, dtype, N, x.f32, whole16);
    ops->widen(ctx, dtype, N, whole16, back);
    for (int i = 0; i < N; i++)
        assert_true(back[i] == value_get(dtype, whole16, i));
    const void *parts[] = { y.f32, x.f32 }, *parts16[] = { whole16 };
    ops->sum(ctx, DCP_F32, N, x.f32, parts, 2, whole);
    ops->sum(ctx, dtype, N, y.f32, parts16, 1, whole16);
    for (int i = 0; i < N; i++) {
        assert_true(whole[i] == (x.f32[i] + y.f32[i]) + x.f32[i]);
        value_put(dtype, one, 0, y.f32[i] + back[i]);
        assert_int_equal(whole16[i], one[0]);
    }
    for (int64_t step = 1; step < 40; step++) {
        memcpy(cut, x.f32, sizeof cut); /* the sum may go where a summand is */
        ops->cast(ctx, dtype, N, x.f32, cut16);
        for (int64_t i = 0; i < N; i += step) {
            int64_t n = i + step < N ? step : N - i;
            const void *at[] = { y.f32 + i, x.f32 + i }, *at16[] = { cut16 + i };
            ops->sum(ctx, DCP_F32, n, cut + i, at, 2, cut + i);
            ops->sum(ctx, dtype, n, y.f32 + i, at16, 1, cut16 + i);
        }
        assert_memory_equal(cut16, whole16, sizeof whole16);
        assert_memory_equal(cut, whole, sizeof whole);
    }
    array_fini(&x), array_fini(&y);
}

static void test_cuts(void **state)
{
    (void)state;
    EACH_16BIT_DTYPE(dtype)
    cut_anywhere(dtype);
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

/* What kernels make of the same arrays, a fresh one for each. */
static struct array made_by(int threads, int kernel, enum dcp_dtype dtype,
                            const struct array *x, const struct array *t)
{
    enum { ROWS = 601, N = 1009, HEADS = 4, SIZE = 20 };
    const struct ops *ops = ops_best();
    const struct ops_attention shape = { dtype, 1, ROWS, HEADS, SIZE, 0 };
    static const struct {
        int64_t m, n, k;
        bool trans_a, trans_b;
    } shapes[] = { { 300, 400, N, true, false },   { 601, 640, 900, false, false },
                   { 64, 2000, 250, false, true }, { 2000, 70, 250, true, false },
                   { 48, 80, 7000, true, false },  { 70, 90, 6000, false, true } };
    int64_t n = (int64_t)ROWS * N;
    struct array out = array_poisoned(DCP_F32, n + 2 * N), more;
    memset(out.f32, 0, (size_t)out.n * 4);
    more = array_copy(&out);
    const void *parts[] = { t->t };
    ops_set_threads(threads);
    if (kernel == 0)
        ops->cast(ctx, dtype, n, x->f32, out.f32);
    else if (kernel == 1)
        ops->widen(ctx, dtype, n, t->t, out.f32);
    else if (kernel == 2)
        ops->sum(ctx, dtype, n, x->f32, parts, 1, out.f32);
    else if (kernel == 3)
        ops->layer_norm(ctx, dtype, ROWS, N, 1e-5, x->f32, t->t, t->t, out.f32,
                        out.f32 + n, out.f32 + n + N);
    else if (kernel == 4)
        ops->layer_norm_backward(ctx, dtype, ROWS, N, x->f32, x->f32 + N, t->t, x->f32,
                                 x->f32 + N, out.f32, out.f32 + n, out.f32 + n + N);
    else if (kernel == 5)
        ops->gelu_backward(ctx, dtype, n, x->f32, x->f32 + N, out.f32);
    else if (kernel == 6)
        ops->sum_rows(ctx, dtype, ROWS, N, t->t, out.f32);
    else if (kernel == 7)
        assert_int_equal(ops->attention(ctx, &shape, x->f32, out.f32, more.f32, NULL), 0);
    else if (kernel == 8)
        assert_int_equal(ops->attention_backward(ctx, &shape, x->f32, t->t, x->f32,
                                                 x->f32, out.f32, NULL),
                         0);
    else {
        const struct ops_matmul product = { dtype,
                                            shapes[kernel - 9].m,
                                            shapes[kernel - 9].n,
                                            shapes[kernel - 9].k,
                                            shapes[kernel - 9].trans_a,
                                            shapes[kernel - 9].trans_b };
        assert_int_equal(
            ops->matmul(ctx, &product, t->t, t->t, NULL, NULL, out.f32, NULL), 0);
    }
    array_fini(&more);
    return out;
}

/* All kernels give the same bits with any number of threads. (Without OpenMP a library's
 * own threads make products as they like.) */
static void test_threads(void **state)
{
    (void)state;
    enum { N = 603 * 1009, KERNELS = 15, PRODUCT = 9 };
    int threads = ops_threads();
    ops_set_threads(2);
    bool has_threads = ops_threads() == 2;
    EACH_DTYPE(dtype)
    {
        struct array x = array_normal(DCP_F32, N, 1), t = array_normal(dtype, N, 1);
        int n_kernels = has_threads ? KERNELS : PRODUCT;
        for (int kernel = 0; kernel < n_kernels; kernel++) {
            struct array one = made_by(1, kernel, dtype, &x, &t);
            for (int n = 2; n <= 4; n++) {
                struct array more = made_by(n, kernel, dtype, &x, &t);
                if (memcmp(one.f32, more.f32, (size_t)one.n * 4) != 0)
                    fail_msg("kernel %d in %s differs with %d threads", kernel,
                             dcp_dtype_name(dtype), n);
                array_fini(&more);
            }
            array_fini(&one);
        }
        array_fini(&x), array_fini(&t);
    }
    ops_set_threads(threads);
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

#define WITH_THREADS(test)                                              \
    cmocka_unit_test_setup(test, check_ops_one_thread),                 \
    {                                                                   \
#test " (3 threads)", test, check_ops_three_threads, NULL, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_THREADS(test_deterministic),     WITH_THREADS(test_alignment),
        cmocka_unit_test(test_bf16_rounding), cmocka_unit_test(test_f16_rounding),
        cmocka_unit_test(test_cuts),          WITH_THREADS(test_norm),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_exp),
    };
    return cmocka_run_group_tests(tests, open_ops, close_ops);
}
