/* Codecs: every block comes back, never larger than it was, and bytes that are none are
 * refused. */
#include "core/files/codec.h"
#include "lib/acts.h"
#include "lib/exact.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zstd.h>

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
    assert_true(round_trip(*state, DCP_CODEC_SPLIT, 4, raw, DCP_BLOCK_BYTES) < planes);
    free(raw);
    raw = make(NOISE, DCP_BLOCK_BYTES, 7);
    for (int codec = DCP_CODEC_ZSTD; codec < DCP_N_CODECS; codec++)
        assert_int_equal(
            round_trip(*state, (enum dcp_codec)codec, 4, raw, DCP_BLOCK_BYTES),
            DCP_BLOCK_BYTES);
    free(raw);
}

/* Same block in, same bytes out, whatever came before. */
static void coders_have_no_memory(void **state)
{
    unsigned char *raw = make(WEIGHTS, 100000, 8), *other = make(NOISE, 5000, 9);
    const void *stored;
    size_t n, again;

    for (enum dcp_codec codec = DCP_CODEC_ZSTD; codec < DCP_N_CODECS; codec++) {
        dcp_coder_encode(*state, codec, 4, raw, 100000, &stored, &n, NULL);
        unsigned char *first = exact(stored, n);
        round_trip(*state, DCP_CODEC_ZSTD, 2, other, 5000);
        dcp_coder_encode(*state, codec, 4, raw, 100000, &stored, &again, NULL);
        assert_int_equal(n, again);
        assert_memory_equal(first, stored, n);
        free(first);
    }
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

/* -- split ------------------------------------------------------------------------- */

#define N 100 /* numbers of two bytes: */
enum { HEAD, SIZE_0 = 1, SIZE_1 = 5, PLANE_0 = 9, PLANE_1 = PLANE_0 + N, END };

static void make_pairs(unsigned char raw[2 * N])
{
    for (int i = 0; i < N; i++) {
        raw[2 * i] = (unsigned char)i;
        raw[2 * i + 1] = 9;
    }
}

/* The layout of docs/FORMAT.md: a plane as it is, and one whose bytes are all the same.
 */
static void split_layout(void **state)
{
    unsigned char raw[2 * N], want[END] = { 0, N, 0, 0, 0, 1, 0, 0, 0 };
    const void *stored;
    size_t stored_n;

    make_pairs(raw);
    for (int i = 0; i < N; i++)
        want[PLANE_0 + i] = (unsigned char)i;
    want[PLANE_1] = 9;
    assert_int_equal(dcp_coder_encode(*state, DCP_CODEC_SPLIT, 2, raw, sizeof raw,
                                      &stored, &stored_n, NULL),
                     0);
    assert_int_equal(stored_n, END);
    assert_memory_equal(stored, want, END);
    round_trip(*state, DCP_CODEC_SPLIT, 2, raw, sizeof raw);
}

/* Turned numbers come back by a rotation to the right. */
static void split_turned(void **state)
{
    unsigned char raw[2 * N], out[2 * N];
    const void *stored;
    size_t stored_n;

    make_pairs(raw);
    dcp_coder_encode(*state, DCP_CODEC_SPLIT, 2, raw, sizeof raw, &stored, &stored_n,
                     NULL);
    unsigned char *in = exact(stored, stored_n);
    in[HEAD] = 1;
    assert_int_equal(
        dcp_coder_decode(*state, DCP_CODEC_SPLIT, 2, in, stored_n, out, sizeof out, NULL),
        0);
    for (int i = 0; i < N; i++) {
        unsigned x = (unsigned)raw[2 * i] | 9u << 8;
        x = x >> 1 | (x & 1) << 15;
        assert_int_equal(out[2 * i] | out[2 * i + 1] << 8, x);
    }
    free(in);
}

static void check_split(struct dcp_coder *coder, const unsigned char *block, size_t n,
                        size_t width, size_t raw_n, const char *why)
{
    unsigned char *in = exact(block, n), *out = malloc(raw_n);
    struct dcp_error err = { 0 };

    assert_non_null(out);
    assert_int_equal(
        dcp_coder_decode(coder, DCP_CODEC_SPLIT, width, in, n, out, raw_n, &err),
        DCP_E_CORRUPT);
    if (!strstr(err.message, why))
        fail_msg("'%s' instead of '%s'", err.message, why);
    free(in);
    free(out);
}

/* One byte of the block is another one, or it is cut, or said to hold something else. */
static void split_refused(void **state)
{
    static const struct {
        size_t at;
        unsigned char value;
        size_t n, width, raw_n;
        const char *why;
    } cases[] = {
        { HEAD, 2, END, 2, 2 * N, "the head of a block says 2" },
        { HEAD, 1, END, 1, 2 * N, "the head of a block says 1" },
        { SIZE_0, N + 1, END, 2, 2 * N, "plane 0 of a block is not one frame" },
        { SIZE_0, N + 2, END, 2, 2 * N, "plane 0 of a block reaches past its end" },
        { SIZE_0 + 3, 255, END, 2, 2 * N, "plane 0 of a block reaches past its end" },
        { SIZE_0, 1, END, 2, 2 * N, "a block has 99 bytes behind its planes" },
        { SIZE_0, 0, END, 2, 2 * N, "plane 0 of a block is not one frame" },
        { SIZE_1, 0, END, 2, 2 * N, "plane 1 of a block is not one frame" },
        { SIZE_1, 2, END, 2, 2 * N, "plane 1 of a block reaches past its end" },
        { SIZE_1, 1, END + 1, 2, 2 * N, "a block has 1 bytes behind its planes" },
        { SIZE_1, 1, PLANE_0 - 1, 2, 2 * N, "a block of 8 bytes cannot hold 200" },
        { SIZE_1, 1, 0, 2, 2 * N, "a block of 0 bytes cannot hold 200" },
        { SIZE_1, 1, END, 2, 2 * N - 1, "a block of 110 bytes cannot hold 199" },
        { SIZE_1, 1, END, 2, END - 2, "a block of 110 bytes cannot hold 108" },
        { SIZE_1, 1, END, 2, 2 * N + 2, "plane 0 of a block is not one frame" },
        { SIZE_1, 1, END, 8, 2 * N, "plane 0 of a block reaches past its end" },
    };
    unsigned char raw[2 * N], block[END + 1] = { 0 };
    const void *stored;
    size_t n;

    make_pairs(raw);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dcp_coder_encode(*state, DCP_CODEC_SPLIT, 2, raw, sizeof raw, &stored, &n, NULL);
        memcpy(block, stored, n);
        block[cases[i].at] = cases[i].value;
        check_split(*state, block, cases[i].n, cases[i].width, cases[i].raw_n,
                    cases[i].why);
    }
}

/* A block whose plane 0 is frames of zstd with so many zeros each, and plane 1 is zero.
 */
static void check_frames(struct dcp_coder *coder, size_t first, size_t second,
                         const char *why)
{
    unsigned char zeros[2 * N] = { 0 }, block[200] = { 0, 0, 0, 0, 0, 1 };
    size_t at = PLANE_0, counts[] = { first, second };

    for (int i = 0; i < 2; i++)
        if (counts[i])
            at += ZSTD_compress(block + at, sizeof block - at, zeros, counts[i], 1);
    block[SIZE_0] = (unsigned char)(at - PLANE_0);
    if (why)
        check_split(coder, block, at + 1, 2, 2 * N, why);
    else
        assert_int_equal(dcp_coder_decode(coder, DCP_CODEC_SPLIT, 2, block, at + 1, zeros,
                                          sizeof zeros, NULL),
                         0);
}

static void split_frames(void **state)
{
    check_frames(*state, N, 0, NULL);
    check_frames(*state, N - 1, 0, "plane 0 of a block has another number of bytes");
    check_frames(*state, N + 1, 0, "plane 0 of a block does not decompress");
    check_frames(*state, N / 2, N / 2, "plane 0 of a block is not one frame of zstd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips),           cmocka_unit_test(weights_become_smaller),
        cmocka_unit_test(coders_have_no_memory), cmocka_unit_test(corrupt_blocks),
        cmocka_unit_test(split_layout),          cmocka_unit_test(split_turned),
        cmocka_unit_test(split_refused),         cmocka_unit_test(split_frames),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
