/* Codecs: every block comes back, never larger than it was, and bytes that are none are
 * refused. */
#include "core/files/codec.h"
#include "lib/acts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int setup(void **state)
{
    struct dcp_coder *coder = NULL;
    int rc = dcp_coder_new(&coder, NULL);

    *state = coder;
    return rc;
}

static int teardown(void **state)
{
    dcp_coder_free(*state);
    dcp_coder_free(NULL);
    return 0;
}

enum fill { ZEROS, NOISE, WEIGHTS, N_FILLS };

static unsigned char *make(enum fill fill, size_t n, uint64_t seed)
{
    unsigned char *data = malloc(n + 1);

    assert_non_null(data);
    memset(data, 0, n);
    for (size_t i = 0; i < n && fill != ZEROS; i++)
        data[i] = (unsigned char)acts_random(&seed);
    /* The upper two bytes of a float repeat: sign, exponent and the first of the rest. */
    for (size_t i = 2; i < n && fill == WEIGHTS; i += 4) {
        data[i] = (unsigned char)(data[i] & 0x83);
        if (i + 1 < n)
            data[i + 1] = (unsigned char)(0x3b | (data[i + 1] & 0x80));
    }
    return data;
}

/* In memory of exactly the size, so that a sanitizer sees a byte too far. */
static unsigned char *exact(const void *data, size_t n)
{
    unsigned char *copy = malloc(n ? n : 1);

    assert_non_null(copy);
    if (n)
        memcpy(copy, data, n);
    return copy;
}

static size_t round_trip(struct dcp_coder *coder, enum dcp_codec codec, size_t elem,
                         const unsigned char *raw, size_t n)
{
    const void *stored;
    size_t stored_n;

    assert_int_equal(
        dcp_coder_encode(coder, codec, elem, raw, n, &stored, &stored_n, NULL), 0);
    assert_true(stored_n <= n && (stored_n > 0 || n == 0));
    if (stored_n == n && n)
        assert_memory_equal(stored, raw, n);
    unsigned char *in = exact(stored, stored_n), *out = malloc(n ? n : 1);
    assert_non_null(out);
    assert_int_equal(dcp_coder_decode(coder, codec, elem, in, stored_n, out, n, NULL), 0);
    if (n)
        assert_memory_equal(out, raw, n);
    free(in);
    free(out);
    return stored_n;
}

static void round_trips(void **state)
{
    static const size_t elems[] = { 1, 2, 4, 8, 16 };
    static const size_t sizes[] = {
        0, 1, 2, 3, 16, 48, 1000, 4096, 65536, DCP_BLOCK_BYTES - 16, DCP_BLOCK_BYTES
    };

    for (int codec = 0; codec < DCP_N_CODECS; codec++)
        for (int fill = 0; fill < N_FILLS; fill++)
            for (size_t e = 0; e < 5; e++)
                for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                    unsigned char *raw = make((enum fill)fill, sizes[s], s + 1);
                    round_trip(*state, (enum dcp_codec)codec, elems[e], raw, sizes[s]);
                    free(raw);
                }
}

/* What a codec is there for. */
static void weights_become_smaller(void **state)
{
    unsigned char *raw = make(WEIGHTS, DCP_BLOCK_BYTES, 7);

    size_t plain = round_trip(*state, DCP_CODEC_ZSTD, 4, raw, DCP_BLOCK_BYTES);
    size_t planes = round_trip(*state, DCP_CODEC_PLANES, 4, raw, DCP_BLOCK_BYTES);
    assert_true(planes < plain);
    assert_true(planes < DCP_BLOCK_BYTES * 3 / 4);
    free(raw);
    raw = make(NOISE, DCP_BLOCK_BYTES, 7);
    assert_int_equal(round_trip(*state, DCP_CODEC_ZSTD, 4, raw, DCP_BLOCK_BYTES),
                     DCP_BLOCK_BYTES);
    free(raw);
}

/* Same block in, same bytes out, whatever came before. */
static void coders_have_no_memory(void **state)
{
    unsigned char *raw = make(WEIGHTS, 100000, 8), *other = make(NOISE, 5000, 9);
    const void *stored;
    size_t n, again;

    dcp_coder_encode(*state, DCP_CODEC_PLANES, 4, raw, 100000, &stored, &n, NULL);
    unsigned char *first = exact(stored, n);
    round_trip(*state, DCP_CODEC_ZSTD, 2, other, 5000);
    dcp_coder_encode(*state, DCP_CODEC_PLANES, 4, raw, 100000, &stored, &again, NULL);
    assert_int_equal(n, again);
    assert_memory_equal(first, stored, n);
    free(first);
    free(raw);
    free(other);
}

static void corrupt_blocks(void **state)
{
    const size_t n = 20000;
    unsigned char *raw = make(WEIGHTS, n, 10), *out = malloc(n);
    const void *stored;
    size_t stored_n;
    uint64_t seed = 51;

    assert_non_null(out);
    for (int codec = DCP_CODEC_ZSTD; codec < DCP_N_CODECS; codec++) {
        dcp_coder_encode(*state, (enum dcp_codec)codec, 4, raw, n, &stored, &stored_n,
                         NULL);
        assert_true(stored_n < n);
        for (size_t cut = 0; cut < stored_n; cut += 1 + stored_n / 200) {
            unsigned char *in = exact(stored, cut);
            assert_int_equal(
                dcp_coder_decode(*state, (enum dcp_codec)codec, 4, in, cut, out, n, NULL),
                DCP_E_CORRUPT);
            free(in);
        }
        unsigned char *in = exact(stored, stored_n);
        for (int i = 0; i < 500; i++) { /* it may decode to something; never too far */
            size_t at = (size_t)acts_pick(&seed, (int64_t)stored_n);
            in[at] ^= (unsigned char)(1u << acts_pick(&seed, 8));
            dcp_coder_decode(*state, (enum dcp_codec)codec, 4, in, stored_n, out, n,
                             NULL);
        }
        /* Right bytes, wrong sizes. */
        memcpy(in, stored, stored_n);
        struct dcp_error err = { 0 };
        assert_int_equal(dcp_coder_decode(*state, (enum dcp_codec)codec, 4, in, stored_n,
                                          out, n - 4, &err),
                         DCP_E_CORRUPT);
        assert_true(err.message[0]);
        unsigned char *more = malloc(n + 4);
        assert_non_null(more);
        assert_int_equal(dcp_coder_decode(*state, (enum dcp_codec)codec, 4, in, stored_n,
                                          more, n + 4, NULL),
                         DCP_E_CORRUPT);
        free(more);
        free(in);
    }
    assert_int_equal(
        dcp_coder_decode(*state, DCP_CODEC_NONE, 4, raw, n - 1, out, n, NULL),
        DCP_E_CORRUPT);
    free(raw);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips),
        cmocka_unit_test(weights_become_smaller),
        cmocka_unit_test(coders_have_no_memory),
        cmocka_unit_test(corrupt_blocks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
