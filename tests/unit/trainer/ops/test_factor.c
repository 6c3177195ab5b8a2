/* Sums of squares in integers: small values keep their digits beside large ones, any
 * order gives the same, and nothing overflows. */
#include "trainer/ops/factor.h"

#include "base/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

enum { N = 1000 };

static void add(struct factor_sum *sum, float x, struct factor_units units)
{
    struct factor_sum one = factor_count(x, units);
    sum->high += one.high;
    sum->low += one.low;
}

static void keeps_small_values(void **state)
{
    (void)state;
    static const float peaks[] = { 1, 3e-30f, 7e18f, 0x1p-140f };
    for (size_t p = 0; p < DCP_ARRAY_LEN(peaks); p++) {
        struct factor_units units = factor_units(peaks[p], N);
        struct factor_sum there = { 0, 0 }, back = { 0, 0 }, one = { 0, 0 };
        double want = 0, small = p == 3 ? 1 : 0x1p-28;
        for (int i = 0; i < N; i++) {
            float x = peaks[p] * (float)(small * (N - i) / N);
            add(&there, x, units);
            add(&back, peaks[p] * (float)(small * (i + 1) / N), units);
            want += (double)x * (double)x;
        }
        assert_memory_equal(&there, &back, sizeof there);
        assert_true(fabs(factor_value(there, units) - want) <= 0x1p-24 * want);
        add(&one, -peaks[p], units);
        assert_true(factor_value(one, units) == (double)peaks[p] * (double)peaks[p]);
    }
}

/* As many of the largest as there may be. */
static void does_not_overflow(void **state)
{
    (void)state;
    for (int64_t n = 1; n < INT64_C(1) << 40; n *= 7) {
        const float peak = 1.99999f;
        struct factor_units units = factor_units(peak, n);
        struct factor_sum one = factor_count(peak, units);
        assert_true(one.high <= INT64_MAX / n && one.low <= INT64_MAX / n);
        struct factor_sum all = { one.high * n, one.low * n };
        double want = (double)n * (double)peak * (double)peak;
        assert_true(fabs(factor_value(all, units) - want) <= 0x1p-20 * want);
    }
    struct factor_units none = factor_units(0, 3);
    assert_true(factor_value(factor_count(0, none), none) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_small_values),
        cmocka_unit_test(does_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
