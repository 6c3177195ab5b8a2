#include "base/hex.h"
#include "base/str.h"

#include "base/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void utf8(void **state)
{
    (void)state;
    static const char *const good[] = {
        "", "a", "é", "…", "𝄞", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"
    };
    static const char *const bad[] = {
        "\x80",             /* a follower alone */
        "\xc3",             /* cut off */
        "\xc0\x80",         /* NUL in two bytes */
        "\xc1\xbf",         /* an ASCII character in two bytes */
        "\xe0\x9f\xbf",     /* too long a form */
        "\xed\xa0\x80",     /* a surrogate */
        "\xf0\x8f\xbf\xbf", /* too long a form */
        "\xf4\x90\x80\x80", /* beyond U+10FFFF */
        "\xf5\x80\x80\x80",
        "\xff",
        "a\xe2\x80",
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(good); i++)
        assert_true(dcp_str_utf8_ok(good[i], strlen(good[i])));
    for (size_t i = 0; i < DCP_ARRAY_LEN(bad); i++)
        assert_false(dcp_str_utf8_ok(bad[i], strlen(bad[i])));
    assert_false(dcp_str_utf8_ok("a\0b", 3));
}

static void escape(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        { "h.0.weight", "h.0.weight" },
        { "a\nb\tc\r", "a\\nb\\tc\\r" },
        { "\x1b[2J\x7f\x01", "\\x1b[2J\\x7f\\x01" },
        { "\xc2\x9b", "\\u{9b}" }, /* C1: a CSI of one character */
        { "a\xe2\x80\xae"
          "b",
          "a\\u{202e}b" },                               /* right to left override */
        { "\xe2\x81\xa6\xd8\x9c", "\\u{2066}\\u{61c}" }, /* isolate, letter mark */
        { "\xff\xc3", "\\xff\\xc3" },
        { "größe", "größe" },
        { "back\\slash", "back\\slash" },
    };
    char out[64];
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        assert_ptr_equal(dcp_str_escape(out, sizeof out, cases[i].in), out);
        assert_string_equal(out, cases[i].out);
        char again[64];
        assert_string_equal(dcp_str_escape(again, sizeof again, out), out);
    }
}

/* Whatever the room: terminated, valid, and the dots only when something was cut. */
static void escape_cuts(void **state)
{
    (void)state;
    const char *text = "ab\x01…é\xff"
                       "xyz";
    char whole[64];
    dcp_str_escape(whole, sizeof whole, text);
    size_t n = strlen(whole);
    for (size_t cap = 1; cap < sizeof whole; cap++) {
        char out[64];
        memset(out, '#', sizeof out);
        dcp_str_escape(out, cap, text);
        size_t m = strlen(out);
        assert_true(m < cap);
        assert_true(dcp_str_utf8_ok(out, m));
        assert_int_equal(out[cap], '#');
        if (cap > n)
            assert_string_equal(out, whole);
        else if (cap >= sizeof "…")
            assert_true(dcp_str_ends(out, "…"));
    }
    char none = '#';
    dcp_str_escape(&none, 0, text);
    assert_int_equal(none, '#');
}

static void glob(void **state)
{
    (void)state;
    static const struct {
        const char *glob, *text;
        bool match;
    } cases[] = {
        { "*", "", true },
        { "*", "h.0.attn.weight", true },
        { "h.*.weight", "h.0.attn.c_attn.weight", true },
        { "h.*.weight", "h.0.attn.c_attn.bias", false },
        { "h.?.bias", "h.1.bias", true },
        { "h.?.bias", "h.10.bias", false },
        { "?", "é", true },
        { "h.[0-3].*", "h.3.x", true },
        { "h.[0-3].*", "h.4.x", false },
        { "[!a-z]x", "Ax", true },
        { "[^a-z]x", "ax", false },
        { "[]a]", "]", true },
        { "[a", "[a", true },
        { "[é-ü]", "ö", true },
        { "{wte,wpe}.weight", "wpe.weight", true },
        { "{wte,wpe}.weight", "wxe.weight", false },
        { "h.{1,2{3,4}}.x", "h.24.x", true },
        { "h.{1,2{3,4}}.x", "h.1.x", true },
        { "h.{1,2{3,4}}.x", "h.2.x", false },
        { "{a,}b", "b", true },
        { "{,a*}", "", true },
        { "{a*,b*c}d", "bxxcd", true },
        { "{a,b}", "{a", false },
        { "{a,b}", "a,b", false },
        { "{a,b},c}", "b,c}", true },
        { "{a", "{a", true },
        { "{a,b", "a", false },
        { "a,b}", "a,b}", true },
        { "{{a,b}", "{b", true },
        { "\\*", "*", true },
        { "\\*", "x", false },
        { "\\{a,b\\}", "{a,b}", true },
        { "a\\", "a\\", true },
        { "[{]", "{", true },
        { "a**b", "ab", true },
        { "\xff*", "\xff\xfe", true },
        { "", "", true },
        { "", "a", false },
        { "abc", "ab", false },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++)
        if (dcp_str_glob(cases[i].glob, cases[i].text) != cases[i].match)
            fail_msg("'%s' against '%s'", cases[i].glob, cases[i].text);
}

/* Globs that take a backtracking matcher until the end of time. */
static void glob_is_never_slow(void **state)
{
    (void)state;
    char glob_text[1024] = "", text[1024];
    for (int i = 0; i < 40; i++)
        memcpy(glob_text + strlen(glob_text), "{a*,*a}*", sizeof "{a*,*a}*");
    memcpy(glob_text + strlen(glob_text), "b", sizeof "b");
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_false(dcp_str_glob(glob_text, text));
    text[sizeof text - 2] = 'b';
    assert_true(dcp_str_glob(glob_text, text));

    static char deep[4097];
    memset(deep, '{', sizeof deep - 1);
    assert_false(dcp_str_glob(deep, "x")); /* too long */
    for (size_t i = 0; i + 3 < 4095; i += 3)
        memcpy(deep + i, "{,{", 3);
    deep[4095] = '\0';
    assert_false(dcp_str_glob(deep, "x"));
    memset(deep, 0, sizeof deep);
    for (size_t i = 0; i < 1300; i++)
        memcpy(deep + 2 * i, "{,", 2);
    memset(deep + 2600, '}', 1300);
    assert_true(dcp_str_glob(deep, ""));
    assert_false(dcp_str_glob(deep, "x"));
}

static void natural_order(void **state)
{
    (void)state;
    static const char *const sorted[] = {
        "",     "a",  "h.0",      "h.1",      "h.01", "h.2", "h.10", "h.10a",
        "h.11", "ha", "rank_002", "rank_010", "x",    "xa",  "\xff"
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(sorted); i++)
        for (size_t j = 0; j < DCP_ARRAY_LEN(sorted); j++) {
            int order = dcp_str_natural_cmp(sorted[i], sorted[j]);
            /* "h.01" is 1 too; then bytes decide, '0' before '1' */
            bool twin = (i == 3 && j == 4) || (i == 4 && j == 3);
            int wanted = (i > j) - (i < j);
            assert_int_equal(order, twin ? -wanted : wanted);
        }
    assert_int_equal(
        dcp_str_natural_cmp("a99999999999999999999999", "a100000000000000000000000"), -1);
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        { "0", 0 },
        { "64", 64 },
        { "4k", 4096 },
        { "256M", UINT64_C(256) << 20 },
        { "1.5GiB", UINT64_C(3) << 29 },
        { "2T", UINT64_C(2) << 40 },
        { "10KB", 10240 },
        { "7B", 7 },
        { "0.5k", 512 },
        { "1.0000000001G", UINT64_C(1) << 30 },
        { "18446744073709551615", UINT64_MAX },
    };
    static const char *const bad[] = {
        "",          "M",   "-1",   "1.5", "1.M",  ".5M", "1 M",
        "1MM",       "1e6", "0x10", "1P",  "1Mi ", " 1",  "18446744073709551616",
        "16777216T",
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(good); i++) {
        uint64_t bytes = 1;
        assert_true(dcp_str_parse_size(good[i].text, &bytes));
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < DCP_ARRAY_LEN(bad); i++) {
        uint64_t bytes = 1;
        if (dcp_str_parse_size(bad[i], &bytes))
            fail_msg("'%s' is taken for a size", bad[i]);
        assert_int_equal(bytes, 1);
    }
}

static void numbers(void **state)
{
    (void)state;
    int64_t i = 0;
    assert_true(dcp_str_parse_i64("-9223372036854775808", &i) && i == INT64_MIN);
    assert_true(dcp_str_parse_i64("9223372036854775807", &i) && i == INT64_MAX);
    assert_true(dcp_str_parse_i64("007", &i) && i == 7);
    static const char *const bad_i[] = { "",
                                         "-",
                                         "+1",
                                         "1.0",
                                         " 1",
                                         "1 ",
                                         "0x1",
                                         "9223372036854775808",
                                         "-9223372036854775809" };
    for (size_t k = 0; k < DCP_ARRAY_LEN(bad_i); k++)
        assert_false(dcp_str_parse_i64(bad_i[k], &i));
    double f = 0;
    assert_true(dcp_str_parse_f64("1e-3", &f) && f == 1e-3);
    assert_true(dcp_str_parse_f64("-2.5", &f) && f == -2.5);
    static const char *const bad_f[] = { "",      " 1",    "1 ", "nan", "inf",
                                         "1e999", "0x1p3", "1e", "--1" };
    for (size_t k = 0; k < DCP_ARRAY_LEN(bad_f); k++)
        assert_false(dcp_str_parse_f64(bad_f[k], &f));
}

static void nearest(void **state)
{
    (void)state;
    static const char *const words[] = {
        "train_batch_size", "optimizer", "scheduler", "fp16", "bf16", NULL
    };
    assert_string_equal(dcp_str_nearest("optimiser", words), "optimizer");
    assert_string_equal(dcp_str_nearest("shceduler", words), "scheduler");
    assert_string_equal(dcp_str_nearest("bf61", words), "bf16");
    assert_string_equal(dcp_str_nearest("train_batchsize", words), "train_batch_size");
    assert_null(dcp_str_nearest("zero", words));
    assert_null(dcp_str_nearest("", words));
    static const char *const none[] = { NULL };
    assert_null(dcp_str_nearest("x", none));
    assert_string_equal(dcp_str_slip("optimzer", words), "optimizer");
    assert_string_equal(dcp_str_slip("train_ba", words), "train_batch_size");
    assert_null(dcp_str_slip("train", words));
    assert_null(dcp_str_slip("bfoo", words));
    assert_null(dcp_str_slip("", words));
    char text[200];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_null(dcp_str_nearest(text, words));
}

static void hex(void **state)
{
    (void)state;
    char text[17];
    uint64_t v = 0;
    dcp_str_hex64(text, UINT64_C(0x0123456789abcdef));
    assert_string_equal(text, "0123456789abcdef");
    assert_true(dcp_str_parse_hex64(text, &v) && v == UINT64_C(0x0123456789abcdef));
    assert_false(dcp_str_parse_hex64("0123456789abcde", &v));
    assert_false(dcp_str_parse_hex64("0123456789abcdef0", &v));
    assert_false(dcp_str_parse_hex64("0123456789ABCDEF", &v));
    assert_false(dcp_str_parse_hex64("0123456789abcdeg", &v));
    unsigned char bytes[3] = { 0x00, 0x9a, 0xff }, back[3] = { 1, 1, 1 };
    char *digits = dcp_hex_new(bytes, sizeof bytes);
    assert_string_equal(digits, "009aff");
    assert_true(dcp_hex_parse_all(digits, back) && !memcmp(bytes, back, sizeof back));
    free(digits);
    assert_true(dcp_hex_parse_all("", back));
    assert_false(dcp_hex_parse_all("009af", back));
    assert_false(dcp_hex_parse_all("009AFF", back));
    assert_false(dcp_hex_parse_all("009afg", back));
    assert_true(dcp_str_starts("abc", "ab") && !dcp_str_starts("a", "ab"));
    assert_true(dcp_str_ends("abc", "bc") && !dcp_str_ends("c", "bc"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(utf8),
        cmocka_unit_test(escape),
        cmocka_unit_test(escape_cuts),
        cmocka_unit_test(glob),
        cmocka_unit_test(glob_is_never_slow),
        cmocka_unit_test(natural_order),
        cmocka_unit_test(sizes),
        cmocka_unit_test(numbers),
        cmocka_unit_test(nearest),
        cmocka_unit_test(hex),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
