/* The trial of a block: what it says of numbers whose best coding is known. */
#include "core/files/split.h"
#include "core/files/trial.h"
#include "lib/acts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N ((size_t)100000)

struct numbers {
    ZSTD_CCtx *encoder;
    unsigned char *scratch, data[N * 8];
};

static int setup(void **state)
{
    struct numbers *numbers = malloc(sizeof *numbers);

    *state = numbers;
    if (!numbers)
        return -1;
    numbers->encoder = dcp_split_encoder_new();
    numbers->scratch = malloc(DCP_TRIAL_BYTES);
    return numbers->encoder && numbers->scratch ? 0 : -1;
}

static int teardown(void **state)
{
    struct numbers *numbers = *state;

    ZSTD_freeCCtx(numbers->encoder);
    free(numbers->scratch);
    free(numbers);
    return 0;
}

/* A sum of many small numbers, as trained weights are spread. */
static float normal(uint64_t *seed)
{
    float sum = 0;

    for (int i = 0; i < 12; i++)
        sum += (float)(acts_random(seed) >> 40) * 0x1p-24f;
    return (sum - 6) * 0.02f;
}

static struct dcp_trial run(struct numbers *numbers, size_t n, size_t width)
{
    struct dcp_trial trial;

    dcp_trial_run(numbers->data, n, width, numbers->encoder, numbers->scratch, &trial);
    return trial;
}

static void put_weights(struct numbers *numbers, size_t width, uint64_t seed)
{
    for (size_t i = 0; i < N; i++) {
        float x = normal(&seed);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        bits ^= (uint32_t)acts_random(&seed) & 0xffff; /* sums have fewer digits */
        memcpy(numbers->data + i * width, (char *)&bits + 4 - width, width);
    }
}

/* Exponents are coded, mantissas stay; and the sign is in nobody's way. */
static void weights(void **state)
{
    struct numbers *numbers = *state;

    for (size_t width = 2; width <= 4; width += 2)
        for (size_t n = 1000; n <= N; n *= 10) {
            put_weights(numbers, width, n);
            struct dcp_trial trial = run(numbers, n, width);
            assert_true(trial.turned);
            for (size_t b = 0; b < width; b++)
                assert_int_equal(trial.ways[b],
                                 b + 1 == width ? DCP_PLANE_ENTROPY : DCP_PLANE_RAW);
        }
}

/* Small whole numbers of both signs: turned, their sign would spoil the lowest byte. */
static void whole_numbers(void **state)
{
    struct numbers *numbers = *state;
    uint64_t seed = 5;

    for (size_t i = 0; i < N; i++) {
        int32_t x = (int32_t)acts_pick(&seed, 100) * 2 - 100;
        memcpy(numbers->data + i * 4, &x, 4);
    }
    struct dcp_trial trial = run(numbers, N, 4);
    assert_false(trial.turned);
    assert_int_equal(trial.ways[0], DCP_PLANE_ENTROPY);
}

static void noise(void **state)
{
    struct numbers *numbers = *state;
    uint64_t seed = 6;

    for (size_t i = 0; i < sizeof numbers->data; i++)
        numbers->data[i] = (unsigned char)acts_random(&seed);
    for (size_t width = 1; width <= 8; width *= 2)
        for (size_t n = 1000; n <= N; n *= 10) {
            struct dcp_trial trial = run(numbers, n, width);
            assert_false(trial.turned);
            for (size_t b = 0; b < width; b++)
                assert_int_equal(trial.ways[b], DCP_PLANE_RAW);
        }
}

/* Rows of zeros, as of words that no batch had: their runs are found in every plane. */
static void zero_rows(void **state)
{
    struct numbers *numbers = *state;

    put_weights(numbers, 4, 7);
    for (size_t row = 0; row < N / 100; row++)
        if (row % 3)
            memset(numbers->data + row * 400, 0, 400);
    struct dcp_trial trial = run(numbers, N, 4);
    for (size_t b = 0; b < 4; b++)
        assert_int_equal(trial.ways[b], DCP_PLANE_MATCHES);
}

/* The sample is of all of the block: what is at one end alone is seen. */
static void both_ends(void **state)
{
    struct numbers *numbers = *state;

    for (size_t begin = 0; begin < N; begin += N - N / 8) {
        uint64_t seed = 8;
        for (size_t i = 0; i < N; i++)
            numbers->data[i] = (unsigned char)acts_random(&seed);
        assert_int_equal(run(numbers, N, 1).ways[0], DCP_PLANE_RAW);
        memset(numbers->data + begin, 0, N / 8);
        assert_int_equal(run(numbers, N, 1).ways[0], DCP_PLANE_ENTROPY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights),   cmocka_unit_test(whole_numbers),
        cmocka_unit_test(noise),     cmocka_unit_test(zero_rows),
        cmocka_unit_test(both_ends),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
