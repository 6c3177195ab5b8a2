/* The rules of partitions: every element is in exactly one part, in order, and parts are
 * as large as the rule says. */
#include "base/part.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST = 70, WORLDS = 12 };

/* Parts of `size` of n elements; what each holds of two neighbours, of which the first
 * has `first` elements, goes together to the same. */
static void check_parts(int64_t size, int64_t w, int64_t n, int64_t first)
{
    int64_t at = 0;

    for (int64_t r = 0; r < w; r++) {
        struct dcp_part part = dcp_part_of(size, r, 0, n);
        struct dcp_part a = dcp_part_of(size, r, 0, first);
        struct dcp_part b = dcp_part_of(size, r, first, n - first);
        int64_t left = n - at, want = left < size ? left : size;
        assert_int_equal(part.begin, at);
        assert_int_equal(part.end, at + want);
        at = part.end;
        assert_int_equal(a.end - a.begin + b.end - b.begin, want);
        if (a.begin < a.end)
            assert_int_equal(a.begin, part.begin);
        if (b.begin < b.end)
            assert_int_equal(first + b.end, part.end);
        if (a.begin < a.end && b.begin < b.end) {
            assert_int_equal(a.end, first);
            assert_int_equal(b.begin, 0);
        }
    }
    assert_int_equal(at, n);
}

static void equal_parts_but_the_last(void **state)
{
    (void)state;
    for (int64_t n = 0; n < MOST; n++)
        for (int64_t w = 1; w < WORLDS; w++) {
            int64_t part = dcp_part_ceil(n, w), zero = dcp_part_zero(n, w);
            assert_in_range(part * w, n, n + w - 1);
            assert_in_range(zero * w, n, n + 2 * w - 1);
            assert_int_equal(zero % 2, 0);
            for (int64_t first = 0; first <= n; first += 1 + n / 5) {
                check_parts(part, w, n, first);
                check_parts(zero, w, n, first);
            }
        }
}

static void parts_as_equal_as_can_be(void **state)
{
    (void)state;
    for (int64_t n = 0; n < MOST; n++)
        for (int64_t w = 1; w < WORLDS; w++) {
            int64_t at = 0, last = INT64_MAX;
            for (int64_t r = 0; r < w; r++) {
                struct dcp_part part = dcp_part_even(n, w, r);
                int64_t size = part.end - part.begin;
                assert_int_equal(part.begin, at);
                assert_true(size == n / w || size == n / w + 1);
                assert_true(size <= last); /* those with one more come first */
                last = size;
                at = part.end;
            }
            assert_int_equal(at, n);
        }
}

static void multiples(void **state)
{
    (void)state;
    for (int64_t n = 0; n < MOST; n++)
        for (int64_t step = 1; step < WORLDS; step++) {
            int64_t aligned = dcp_part_align(n, step);
            assert_int_equal(aligned % step, 0);
            assert_in_range(aligned, n, n + step - 1);
        }
}

/* What a file says may be any number. */
static void nothing_overflows(void **state)
{
    struct dcp_part part = dcp_part_of(dcp_part_ceil(INT64_MAX, 3), 2, 0, INT64_MAX);

    (void)state;
    assert_int_equal(part.end, INT64_MAX);
    assert_int_equal(part.begin, INT64_MAX / 3 * 2 + 2);
    part = dcp_part_of(dcp_part_ceil(5, INT64_MAX), INT64_MAX - 1, 0, 5);
    assert_int_equal(part.begin, 5);
    assert_int_equal(part.end, 5);
    part = dcp_part_of(INT64_MAX, INT64_MAX, 7, 5);
    assert_int_equal(part.begin, 5);
    assert_int_equal(part.end, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_parts_but_the_last),
        cmocka_unit_test(parts_as_equal_as_can_be),
        cmocka_unit_test(multiples),
        cmocka_unit_test(nothing_overflows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
