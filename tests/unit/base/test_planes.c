/* Planes: each byte of each number has its place, turned or not, and comes back from it.
 */
#include "base/planes.h"
#include "lib/acts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 1000

/* Byte b of number i: one bit to the left, the highest comes in again at the right. */
static unsigned char byte_of(const unsigned char *raw, size_t i, size_t b, size_t width,
                             bool turned)
{
    const unsigned char *number = raw + i * width;

    if (!turned)
        return number[b];
    return (unsigned char)(number[b] << 1 | number[(b + width - 1) % width] >> 7);
}

static void check(size_t n, size_t width, bool turned)
{
    unsigned char *raw = malloc(n * width), *planes = malloc(n * width);
    unsigned char *back = malloc(n * width);
    unsigned char *at[DCP_MAX_PLANES];
    uint64_t seed = n * 31 + width;

    assert_true(raw && planes && back);
    for (size_t i = 0; i < n * width; i++)
        raw[i] = (unsigned char)acts_random(&seed);
    for (size_t b = 0; b < width; b++)
        at[b] = planes + b * n;
    dcp_planes_split(raw, n, width, turned, at);
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < width; b++)
            assert_int_equal(planes[b * n + i], byte_of(raw, i, b, width, turned));
    dcp_planes_join((const unsigned char *const *)at, n, width, turned, back);
    assert_memory_equal(back, raw, n * width);
    free(raw);
    free(planes);
    free(back);
}

static void every_width(void **state)
{
    static const size_t counts[] = { 1, 2, 15, 16, 17, 31, 64, 255, MOST };

    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (size_t width = 1; width <= DCP_MAX_PLANES; width++) {
            check(counts[i], width, false);
            if (dcp_planes_can_turn(width))
                check(counts[i], width, true);
        }
}

/* What turning is for: exponents of bfloat16 and float32 fill the highest byte. */
static void exponents(void **state)
{
    static const float numbers[] = { 1.0f, -1.0f, 1.5f, -0.0078125f };
    static const unsigned char wanted[] = { 127, 127, 127, 120 };
    unsigned char bytes[sizeof numbers], halves[8];
    unsigned char *planes[] = { bytes, bytes + 4, bytes + 8, bytes + 12 };

    (void)state;
    dcp_planes_split((const unsigned char *)numbers, 4, 4, true, planes);
    assert_memory_equal(planes[3], wanted, 4);
    for (int i = 0; i < 4; i++)
        memcpy(halves + 2 * i, (const unsigned char *)&numbers[i] + 2, 2);
    dcp_planes_split(halves, 4, 2, true, planes);
    assert_memory_equal(planes[1], wanted, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width),
        cmocka_unit_test(exponents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
