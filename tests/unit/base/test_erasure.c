#include "base/erasure.h"
#include "lib/acts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 67 }; /* of a unit: no multiple of what vectors take */

/* The product in GF(256) modulo 0x11d, bit by bit. */
static unsigned char multiply(unsigned a, unsigned b)
{
    unsigned product = 0;

    for (; b; b >>= 1, a = a << 1 ^ (a & 0x80 ? 0x11d : 0))
        product ^= b & 1 ? a : 0;
    return (unsigned char)product;
}

static unsigned char inverse(unsigned a)
{
    for (unsigned b = 1; b < 256; b++)
        if (multiply(a, b) == 1)
            return (unsigned char)b;
    fail();
    return 0;
}

static void fill(unsigned char units[][BYTES], int n, uint64_t *random)
{
    for (int i = 0; i < n; i++)
        for (int b = 0; b < BYTES; b++)
            units[i][b] = (unsigned char)acts_pick(random, 256);
}

static void encode(const struct dcp_erasure *code, unsigned char units[][BYTES], int k,
                   int m)
{
    const unsigned char *data[DCP_ERASURE_MAX_UNITS];
    unsigned char *parity[DCP_ERASURE_MAX_UNITS];

    for (int i = 0; i < k; i++)
        data[i] = units[i];
    for (int i = 0; i < m; i++)
        parity[i] = units[k + i];
    dcp_erasure_encode(code, BYTES, data, parity);
}

/* What the header says the code is. */
static void parity_is_the_product_with_a_cauchy_matrix(void **state)
{
    static unsigned char units[DCP_ERASURE_MAX_UNITS][BYTES];
    enum { K = 9, M = 4 };
    uint64_t random = 1;
    struct dcp_erasure *code;

    (void)state;
    assert_int_equal(dcp_erasure_new(K, M, &code, NULL), 0);
    fill(units, K, &random);
    encode(code, units, K, M);
    for (unsigned i = K; i < K + M; i++)
        for (int b = 0; b < BYTES; b++) {
            unsigned char want = 0;
            for (unsigned c = 0; c < K; c++)
                want ^= multiply(inverse(i ^ c), units[c][b]);
            assert_int_equal(units[i][b], want);
        }
    dcp_erasure_free(code);
}

static void try_loss(const struct dcp_erasure *code, unsigned char units[][BYTES], int n,
                     const bool *good)
{
    static unsigned char again[DCP_ERASURE_MAX_UNITS][BYTES];
    unsigned char *pointers[DCP_ERASURE_MAX_UNITS] = { NULL };

    for (int i = 0; i < n; i++) {
        pointers[i] = again[i];
        if (good[i])
            memcpy(again[i], units[i], BYTES);
        else
            memset(again[i], 0xee, BYTES);
    }
    assert_int_equal(dcp_erasure_rebuild(code, BYTES, pointers, good, NULL), 0);
    for (int i = 0; i < n; i++)
        assert_memory_equal(again[i], units[i], BYTES);
}

static void any_loss_up_to_m_is_rebuilt(void **state)
{
    static unsigned char units[DCP_ERASURE_MAX_UNITS][BYTES];
    static const int sizes[][2] = { { 1, 1 }, { 1, 3 },    { 5, 3 },   { 8, 2 },
                                    { 3, 5 }, { 128, 32 }, { 223, 32 } };
    uint64_t random = 2;

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        int k = sizes[s][0], m = sizes[s][1], n = k + m;
        struct dcp_erasure *code;
        assert_int_equal(dcp_erasure_new(k, m, &code, NULL), 0);
        fill(units, k, &random);
        encode(code, units, k, m);
        for (unsigned set = 0; n <= 10 && set < 1u << n; set++) {
            bool good[DCP_ERASURE_MAX_UNITS];
            if (__builtin_popcount(set) > m)
                continue;
            for (int i = 0; i < n; i++)
                good[i] = !(set >> i & 1);
            try_loss(code, units, n, good);
        }
        for (int trial = 0; n > 10 && trial < 20; trial++) {
            bool good[DCP_ERASURE_MAX_UNITS];
            memset(good, true, sizeof good);
            for (int lost = 0; lost < m; lost++)
                good[acts_pick(&random, n)] = false;
            try_loss(code, units, n, good);
        }
        dcp_erasure_free(code);
    }
}

static void more_is_refused(void **state)
{
    static unsigned char units[5][BYTES];
    unsigned char *pointers[5];
    const bool good[5] = { true, false, false, true, false };
    struct dcp_erasure *code;
    struct dcp_error err = { 0 };

    (void)state;
    for (int i = 0; i < 5; i++)
        pointers[i] = units[i];
    assert_int_equal(dcp_erasure_new(3, 2, &code, NULL), 0);
    assert_int_equal(dcp_erasure_rebuild(code, BYTES, pointers, good, &err),
                     DCP_E_CORRUPT);
    dcp_erasure_free(code);
    assert_int_equal(dcp_erasure_new(0, 1, &code, NULL), DCP_E_USAGE);
    assert_int_equal(dcp_erasure_new(1, 0, &code, NULL), DCP_E_USAGE);
    assert_int_equal(dcp_erasure_new(224, 32, &code, NULL), DCP_E_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parity_is_the_product_with_a_cauchy_matrix),
        cmocka_unit_test(any_loss_up_to_m_is_rebuilt),
        cmocka_unit_test(more_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
