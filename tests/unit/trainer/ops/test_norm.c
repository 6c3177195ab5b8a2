#include "trainer/ops/norm.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N 100003

static float x[N];

/* Magnitudes over many orders, as gradients have. */
static void fill(float scale)
{
    uint64_t state = 12345;
    for (int i = 0; i < N; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double v = (double)(state >> 33) / (double)(1u << 30) - 1.0;
        x[i] = scale * (float)(v * pow(10, -(i % 9)));
    }
}

/* The norm of x as it comes from `world_size` ranks with uneven parts. */
static double norm_over(int world_size)
{
    struct norm sum = { { 0 } };
    float peak = 0;
    int64_t cuts[65] = { 0 };
    for (int r = 1; r < world_size; r++)
        cuts[r] = (int64_t)N * r * r / (world_size * world_size);
    cuts[world_size] = N;
    for (int r = 0; r < world_size; r++)
        peak = norm_peak(peak, x + cuts[r], cuts[r + 1] - cuts[r]);
    for (int r = world_size - 1; r >= 0; r--) { /* and added in any order */
        struct norm part = { { 0 } };
        int64_t half = (cuts[r] + cuts[r + 1]) / 2;
        norm_add(&part, peak, x + half, cuts[r + 1] - half);
        norm_add(&part, peak, x + cuts[r], half - cuts[r]);
        for (int d = 0; d < NORM_DIGITS; d++)
            sum.digits[d] += part.digits[d];
    }
    return norm_value(&sum, peak);
}

static void is_right(void **state)
{
    (void)state;
    static const float scales[] = { 1e-36f, 1e-20f, 1, 1e10f, 3e37f };
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        fill(scales[s]);
        long double sum = 0;
        for (int i = 0; i < N; i++)
            sum += (long double)x[i] * x[i];
        double want = (double)sqrtl(sum), got = norm_over(1);
        assert_true(fabs(got - want) <= 1e-13 * want);
    }
}

static void does_not_depend_on_cuts(void **state)
{
    (void)state;
    fill(1e-3f);
    double want = norm_over(1);
    static const int world_sizes[] = { 2, 3, 7, 8, 64 };
    for (size_t w = 0; w < sizeof world_sizes / sizeof *world_sizes; w++)
        assert_true(norm_over(world_sizes[w]) == want);
}

static void keeps_small_ones_beside_a_large_one(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = 1e-4f;
    x[7] = 1000.0f;
    double want = sqrt(1e6 + (N - 1) * (double)1e-4f * 1e-4f);
    assert_true(fabs(norm_over(3) - want) < 1e-10 * want);
    assert_true(norm_over(3) > 1000.0000004);
}

static void zeros(void **state)
{
    (void)state;
    memset(x, 0, sizeof x);
    assert_true(norm_over(2) == 0);
    x[5] = -0.0f;
    assert_true(norm_over(1) == 0);
}

static void not_finite(void **state)
{
    (void)state;
    fill(1);
    x[4] = -INFINITY;
    assert_true(isinf(norm_peak(0, x, N)));
    x[9] = NAN;
    assert_true(isnan(norm_peak(0, x, N)));
    assert_true(isnan(norm_peak(NAN, x, 3)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_right),
        cmocka_unit_test(does_not_depend_on_cuts),
        cmocka_unit_test(keeps_small_ones_beside_a_large_one),
        cmocka_unit_test(zeros),
        cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
