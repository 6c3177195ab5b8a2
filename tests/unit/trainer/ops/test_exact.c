/* Sums that no order changes. */
#include "trainer/ops/exact.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static void powers_and_exponents(void **state)
{
    (void)state;
    static const float values[] = { 1,       0.5f, 0.75f,   -3,           1e-30f,
                                    FLT_MIN, 7,    FLT_MAX, FLT_TRUE_MIN, FLT_MIN / 2,
                                    1e-40f };
    for (int e = -1022; e < 1024; e++)
        assert_true(exact_power(e) == ldexp(1, e));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        int want;
        frexp((double)values[i], &want);
        assert_int_equal(exact_exponent(values[i]), want);
        assert_int_equal(exact_exponent(-values[i]), want);
    }
    assert_int_equal(exact_exponent(0), -20);
}

/* What fits is rounded to the nearest unit, ties to even; what does not is none. */
static void units(void **state)
{
    (void)state;
    int shift = exact_shift(1.5f, 64);
    double scale = ldexp(1, shift), back = ldexp(1, -shift);
    assert_int_equal(shift, 42);
    assert_int_equal(exact_units(1, scale), INT64_C(1) << 42);
    assert_int_equal(exact_units(-1, scale), -(INT64_C(1) << 42));
    assert_int_equal(exact_units(0x1.8p-42f, scale), 2);
    assert_int_equal(exact_units(0x1p-43f, scale), 0);
    assert_int_equal(exact_units(0x1.8p-43f, scale), 1);
    assert_int_equal(exact_units(-0x1.4p-41f, scale), -2);
    assert_true(exact_value(exact_units(-511.99997f, scale), back) == -511.99997f);
    assert_false(exact_overflows(1.5f, 511.99997f));
    assert_true(exact_overflows(1.5f, 512));
    assert_true(exact_overflows(1.5f, NAN));
    assert_true(exact_overflows(1.5f, INFINITY));
    assert_int_equal(exact_units(512, scale), 0);
    assert_int_equal(exact_units(NAN, scale), 0);
    assert_int_equal(exact_units(-INFINITY, scale), 0);
}

/* So many of the largest values have a sum. */
static void sums_fit(void **state)
{
    (void)state;
    static const int counts[] = { 1, 2, 2048, 2049, 1 << 20, EXACT_MAX_VALUES };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        double scale = ldexp(1, exact_shift(1, counts[i]));
        int64_t largest = exact_units(nextafterf(2 * EXACT_HEADROOM, 0), scale), sum;
        assert_true(largest > 0);
        assert_false(__builtin_mul_overflow(largest, (int64_t)counts[i], &sum));
    }
}

/* References at the ends of the range: no unit is so small or large that it is lost. */
static void extremes(void **state)
{
    (void)state;
    static const float references[] = { FLT_TRUE_MIN, FLT_MIN, 1e-20f, 1, FLT_MAX };
    for (size_t i = 0; i < sizeof references / sizeof *references; i++) {
        float x = references[i];
        int shift = exact_shift(x, 7);
        double scale = exact_power(shift), back = exact_power(-shift);
        assert_true(exact_value(exact_units(x, scale), back) == x);
        assert_true(exact_value(exact_units(-x / 3, scale), back) == -x / 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(powers_and_exponents),
        cmocka_unit_test(units),
        cmocka_unit_test(sums_fit),
        cmocka_unit_test(extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
