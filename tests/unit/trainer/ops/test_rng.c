/* rng: the published vectors of Philox, and what permutations and distributions must be.
 */
#include "trainer/ops/rng.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* Known answers of Random123 1.14, kat_vectors, "philox4x32 10". */
static void test_words_are_philox(void **state)
{
    static const struct {
        uint64_t key, stream, index;
        uint32_t words[4];
    } vectors[] = {
        { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { UINT64_MAX,
          UINT64_MAX,
          UINT64_MAX,
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { UINT64_C(0x299f31d0a4093822),
          UINT64_C(0x0370734413198a2e),
          UINT64_C(0x85a308d3243f6a88),
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        uint32_t words[4];
        rng_words(vectors[i].key, vectors[i].stream, vectors[i].index, words);
        assert_memory_equal(words, vectors[i].words, sizeof words);
    }
}

static void test_uniform_fills_the_interval(void **state)
{
    enum { N = 100000, BINS = 20 };
    int bins[BINS] = { 0 };
    double sum = 0;
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(7, 3, i);
        assert_true(u >= 0 && u < 1);
        bins[(int)(u * BINS)]++;
        sum += u;
    }
    assert_true(fabs(sum / N - 0.5) < 0.005);
    for (int b = 0; b < BINS; b++)
        assert_true(abs(bins[b] - N / BINS) < 400);
}

static void test_normal_has_the_moments_of_one(void **state)
{
    enum { N = 200000 };
    double sum = 0, squares = 0, cubes = 0, fourths = 0;
    int beyond_two = 0;
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_normal(1337, 5, i);
        assert_true(isfinite(x));
        sum += x;
        squares += x * x;
        cubes += x * x * x;
        fourths += x * x * x * x;
        beyond_two += fabs(x) > 2;
    }
    assert_true(fabs(sum / N) < 0.01);
    assert_true(fabs(squares / N - 1) < 0.015);
    assert_true(fabs(cubes / N) < 0.04);
    assert_true(fabs(fourths / N - 3) < 0.1);
    assert_true(fabs((double)beyond_two / N - 0.0455) < 0.003);
}

static void test_streams_and_keys_differ(void **state)
{
    (void)state;
    int same = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        same += rng_uniform(1, 0, i) == rng_uniform(2, 0, i);
        same += rng_uniform(1, 0, i) == rng_uniform(1, 1, i);
    }
    assert_int_equal(same, 0);
}

static void check_bijection(int64_t n, uint64_t key, uint64_t stream)
{
    bool *seen = calloc((size_t)n, sizeof *seen);
    assert_non_null(seen);
    for (int64_t i = 0; i < n; i++) {
        int64_t to = rng_permute(key, stream, n, i);
        assert_in_range(to, 0, n - 1);
        assert_false(seen[to]);
        seen[to] = true;
    }
    free(seen);
}

static void test_permute_is_a_bijection(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 130; n++)
        check_bijection(n, 42, (uint64_t)n);
    static const int64_t sizes[] = { 255, 256, 257, 1000, 4095, 4096, 4097, 65537 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint64_t stream = 0; stream < 3; stream++)
            check_bijection(sizes[i], 99, stream);
}

static void test_permute_reaches_the_largest_n(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 100; i++) {
        int64_t to = rng_permute(3, 1, INT64_MAX, INT64_MAX - 1 - i);
        assert_true(to >= 0 && to < INT64_MAX);
    }
}

/* Over many streams each element goes everywhere equally often, for the smallest n too,
 * and neighbours do not stay neighbours. */
static void test_permute_shuffles(void **state)
{
    enum { STREAMS = 6000, MAX_N = 7 };
    (void)state;
    for (int64_t n = 2; n <= MAX_N; n++) {
        int count[MAX_N][MAX_N] = { 0 };
        for (uint64_t stream = 0; stream < STREAMS; stream++)
            for (int64_t i = 0; i < n; i++)
                count[i][rng_permute(11, stream, n, i)]++;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                assert_true(fabs((double)count[i][j] * (double)n / STREAMS - 1) < 0.2);
    }
    int neighbours = 0;
    for (int64_t i = 0; i + 1 < 10000; i++)
        neighbours +=
            llabs(rng_permute(5, 0, 10000, i) - rng_permute(5, 0, 10000, i + 1)) == 1;
    assert_true(neighbours < 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_are_philox),
        cmocka_unit_test(test_uniform_fills_the_interval),
        cmocka_unit_test(test_normal_has_the_moments_of_one),
        cmocka_unit_test(test_streams_and_keys_differ),
        cmocka_unit_test(test_permute_is_a_bijection),
        cmocka_unit_test(test_permute_reaches_the_largest_n),
        cmocka_unit_test(test_permute_shuffles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
