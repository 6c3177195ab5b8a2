/* Blocks of deltas: every one comes back, the way that fits is found, and bytes that are
 * none are refused. */
#include "base/bytes.h"
#include "core/delta/block.h"
#include "lib/acts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int setup(void **state)
{
    struct dcp_delta_coder *coder = NULL;
    int rc = dcp_delta_coder_new(&coder, NULL);

    *state = coder;
    return rc;
}

static int teardown(void **state)
{
    dcp_delta_coder_free(*state);
    dcp_delta_coder_free(NULL);
    return 0;
}

/* Bytes, and the same with one of `every` elements changed in its lowest bits. */
static void make(unsigned char *base, unsigned char *target, size_t n, size_t width,
                 uint64_t every, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        target[i] = base[i] = (unsigned char)acts_random(&seed);
    for (size_t i = 0; every && i + width <= n; i += width)
        if (acts_random(&seed) % every == 0)
            target[i] ^= (unsigned char)(1 + acts_random(&seed) % 3);
}

/* Codes, decodes in memory of exactly the size, and compares. */
static struct dcp_delta_coded round_trip(struct dcp_delta_coder *coder,
                                         const unsigned char *base,
                                         const unsigned char *target, size_t n, int width)
{
    struct dcp_delta_coded coded;

    assert_int_equal(dcp_delta_encode(coder, base, target, n, width, &coded, NULL), 0);
    assert_true(coded.size_bytes <= n);
    unsigned char *stored = malloc(coded.size_bytes + 1), *bytes = malloc(n);
    assert_true(stored && bytes);
    if (coded.size_bytes)
        memcpy(stored, coded.data, coded.size_bytes);
    memcpy(bytes, base, n);
    assert_int_equal(dcp_delta_decode(coder, coded.method, (unsigned)coded.width, stored,
                                      coded.size_bytes, bytes, n, NULL),
                     0);
    assert_memory_equal(bytes, target, n);
    free(stored);
    free(bytes);
    return coded;
}

static void all_come_back(void **state)
{
    static const size_t sizes[] = { 1, 7, 8, 100, 4096, 40001, DCP_DELTA_BLOCK_BYTES };
    static const uint64_t every[] = { 0, 1, 3, 20, 200, 100000 };
    unsigned char *base = malloc(DCP_DELTA_BLOCK_BYTES),
                  *target = malloc(DCP_DELTA_BLOCK_BYTES);

    assert_true(base && target);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t e = 0; e < sizeof every / sizeof *every; e++)
            for (size_t width = 1; width <= 8; width *= 2) {
                make(base, target, sizes[s], width, every[e], s * 100 + e * 10 + width);
                struct dcp_delta_coded coded =
                    round_trip(*state, base, target, sizes[s], 0);
                bool same = !memcmp(base, target, sizes[s]);
                assert_int_equal(coded.method == DCP_DELTA_UNCHANGED, same);
                assert_int_equal(coded.n_changed == 0, same);
                round_trip(*state, base, target, sizes[s], (int)width);
            }
    free(base);
    free(target);
}

/* Steps of reinforcement learning: fewer than 1 % of 16-bit weights move, by little. */
static void few_changes_take_little(void **state)
{
    size_t n = DCP_DELTA_BLOCK_BYTES;
    unsigned char *base = malloc(n), *target = malloc(n);

    assert_true(base && target);
    make(base, target, n, 2, 100, 1);
    struct dcp_delta_coded coded = round_trip(*state, base, target, n, 0);
    assert_int_equal(coded.method, DCP_DELTA_SPARSE);
    assert_int_equal(coded.width, 2);
    assert_in_range(coded.n_changed, n / 2 / 110, n / 2 / 90);
    assert_true(coded.size_bytes * 100 < n);
    make(base, target, n, 4, 1, 2); /* every float, in its lowest bits */
    coded = round_trip(*state, base, target, n, 0);
    assert_int_equal(coded.method, DCP_DELTA_PLANES);
    assert_int_equal(coded.width, 4);
    assert_true(coded.size_bytes * 8 < n);
    for (size_t i = 0; i < n; i++)
        target[i] = (unsigned char)(base[i] + i % 251 * i % 241);
    uint64_t seed = 3;
    for (size_t i = 0; i < n; i++)
        target[i] = (unsigned char)acts_random(&seed);
    coded = round_trip(*state, base, target, n, 0);
    assert_int_equal(coded.method, DCP_DELTA_RAW);
    assert_int_equal(coded.size_bytes, n);
    free(base);
    free(target);
}

static int decode(struct dcp_delta_coder *coder, unsigned method, unsigned width,
                  const void *stored, size_t stored_n, size_t n)
{
    unsigned char *bytes = calloc(1, n), *exact = malloc(stored_n + !stored_n);
    struct dcp_error err = { 0 };

    assert_true(bytes && exact);
    if (stored_n)
        memcpy(exact, stored, stored_n);
    int rc = dcp_delta_decode(coder, method, width, exact, stored_n, bytes, n, &err);
    assert_int_equal(!rc, !err.message[0]);
    free(bytes);
    free(exact);
    return rc;
}

/* Everything in a stored block that can say something else. */
static void others_are_refused(void **state)
{
    enum { N = 4096 };
    unsigned char base[N], target[N], stored[N];
    struct dcp_delta_coded coded;

    make(base, target, N, 2, 50, 4);
    assert_int_equal(dcp_delta_encode(*state, base, target, N, 2, &coded, NULL), 0);
    assert_int_equal(coded.method, DCP_DELTA_SPARSE);
    size_t n = coded.size_bytes;
    memcpy(stored, coded.data, n);
    assert_int_equal(decode(*state, DCP_DELTA_SPARSE, 2, stored, n, N), 0);
    assert_int_equal(decode(*state, DCP_DELTA_SPARSE, 2, stored, n, N / 64),
                     DCP_E_CORRUPT);  /* places outside */
    for (size_t i = 0; i < 12; i++) { /* the three numbers */
        stored[i] ^= 0x11;
        assert_int_equal(decode(*state, DCP_DELTA_SPARSE, 2, stored, n, N),
                         DCP_E_CORRUPT);
        stored[i] ^= 0x11;
    }
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(decode(*state, DCP_DELTA_SPARSE, 2, stored, cut, N),
                         DCP_E_CORRUPT);
    const struct {
        unsigned method, width;
        size_t n;
    } none[] = { { DCP_DELTA_UNCHANGED, 0, 1 }, { DCP_DELTA_UNCHANGED, 1, 0 },
                 { DCP_DELTA_RAW, 0, N - 1 },   { DCP_DELTA_RAW, 2, N },
                 { DCP_DELTA_PLANES, 3, 100 },  { DCP_DELTA_PLANES, 0, 100 },
                 { DCP_DELTA_PLANES, 2, N },    { DCP_DELTA_SPARSE, 16, 100 },
                 { DCP_DELTA_N_METHODS, 0, 0 }, { 255, 255, 10 } };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(
            decode(*state, none[i].method, none[i].width, target, none[i].n, N),
            DCP_E_CORRUPT);
    assert_int_equal(decode(*state, DCP_DELTA_PLANES, 2, stored, n, 4095), DCP_E_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(few_changes_take_little, setup, teardown),
        cmocka_unit_test_setup_teardown(others_are_refused, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
