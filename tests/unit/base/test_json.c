#include "base/json.h"

#include "base/mem.h"
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static int parse(const char *text, json_t **out, struct dcp_error *err)
{
    return dcp_json_parse(text, strlen(text), "it", out, err);
}

static void good(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{}",
        "[]",
        " [1, 2.5, \"a\\u00e9\", null, true] \n",
        "3",
        "\"x\"",
        "-0.0",
        "{\"a\": {\"b\": [{}]}}",
        "\"[[[[\\\"{{{{\"",
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(texts); i++) {
        DCP_CLEANUP_JSON json_t *value = NULL;
        assert_int_equal(parse(texts[i], &value, NULL), DCP_OK);
        assert_non_null(value);
    }
}

static void bad(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "{",
        "[1,]",
        "{} {}",
        "[] x",
        "NaN",
        "Infinity",
        "{\"a\":1,\"a\":2}",
        "[1e999]",
        "'x'",
        "{\"a\"}",
        "\"\xff\"",
        "\"\n\"",
        "01",
        "[99999999999999999999]",
        "\"\\ud800\"",
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(texts); i++) {
        json_t *value = NULL;
        struct dcp_error err = { 0 };
        if (parse(texts[i], &value, &err) != DCP_E_CORRUPT)
            fail_msg("accepted: %s", texts[i]);
        assert_null(value);
        assert_non_null(strstr(err.message, "it: "));
    }
    json_t *value;
    assert_int_equal(dcp_json_parse("[1]\0", 4, "it", &value, NULL), DCP_E_CORRUPT);
    assert_int_equal(parse("\"a\\u0000b\"", &value, NULL), DCP_E_UNSUPPORTED);
}

static void nested(char *text, size_t depth, char open, char close)
{
    memset(text, open, depth);
    memset(text + depth, close, depth);
    text[2 * depth] = '\0';
}

static void depth_is_limited(void **state)
{
    (void)state;
    static char text[400001];
    json_t *value;
    struct dcp_error err = { 0 };
    nested(text, 64, '[', ']');
    assert_int_equal(parse(text, &value, NULL), DCP_OK);
    json_decref(value);
    nested(text, 65, '[', ']');
    assert_int_equal(parse(text, &value, &err), DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "deeper than 64"));
    memcpy(text, "\"\\\"",
           3); /* brackets in a string, behind a quote in it, count nothing */
    memset(text + 3, '[', 100);
    memcpy(text + 103, "\"", 2);
    assert_int_equal(parse(text, &value, NULL), DCP_OK);
    json_decref(value);
    nested(text, 200000, '[', ']');
    assert_int_equal(parse(text, &value, NULL), DCP_E_CORRUPT);
    size_t n = 0;
    for (int i = 0; i < 65; i++, n += 5)
        memcpy(text + n, "{\"a\":", 5);
    text[n] = '\0';
    err = (struct dcp_error){ 0 };
    assert_int_equal(parse(text, &value, &err), DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "deeper than 64"));
}

static void typed_members(void **state)
{
    (void)state;
    DCP_CLEANUP_JSON json_t *o = NULL;
    assert_int_equal(
        parse("{\"n\": 7, \"m\": -7, \"r\": 7.0, \"s\": \"text\", \"o\": {}, "
              "\"a\": [], \"h\": \"00000000000000ff\"}",
              &o, NULL),
        DCP_OK);
    uint64_t u = 0;
    int64_t i = 0;
    const char *text = NULL;
    json_t *value = NULL;
    assert_int_equal(dcp_json_get_u64(o, "n", "it", &u, NULL), 0);
    assert_int_equal(u, 7);
    assert_int_equal(dcp_json_get_i64(o, "m", "it", &i, NULL), 0);
    assert_int_equal(i, -7);
    assert_int_equal(dcp_json_get_text(o, "s", "it", &text, NULL), 0);
    assert_string_equal(text, "text");
    assert_int_equal(dcp_json_get_hex64(o, "h", "it", &u, NULL), 0);
    assert_int_equal(u, 255);
    assert_int_equal(dcp_json_get_object(o, "o", "it", &value, NULL), 0);
    assert_true(json_is_object(value));
    assert_int_equal(dcp_json_get_array(o, "a", "it", &value, NULL), 0);
    assert_true(json_is_array(value));

    static const char *const keys[] = { "n", "m", "r", "s", "o", "a", "h", "absent" };
    for (size_t k = 0; k < DCP_ARRAY_LEN(keys); k++) {
        const char *key = keys[k];
        bool is_int = *key == 'n' || *key == 'm';
        struct dcp_error err = { 0 };
        if (*key != 'n')
            assert_int_equal(dcp_json_get_u64(o, key, "it", &u, &err), DCP_E_CORRUPT);
        if (!is_int)
            assert_int_equal(dcp_json_get_i64(o, key, "it", &i, NULL), DCP_E_CORRUPT);
        if (*key != 's' && *key != 'h')
            assert_int_equal(dcp_json_get_text(o, key, "it", &text, NULL), DCP_E_CORRUPT);
        if (*key != 'h')
            assert_int_equal(dcp_json_get_hex64(o, key, "it", &u, NULL), DCP_E_CORRUPT);
        if (*key != 'o')
            assert_int_equal(dcp_json_get_object(o, key, "it", &value, NULL),
                             DCP_E_CORRUPT);
        if (strcmp(key, "a") != 0)
            assert_int_equal(dcp_json_get_array(o, key, "it", &value, NULL),
                             DCP_E_CORRUPT);
        if (err.code)
            assert_non_null(strstr(err.message, "it: '"));
    }
    assert_int_equal(dcp_json_get_u64(NULL, "n", "it", &u, NULL), DCP_E_CORRUPT);
}

static void text_reads_back_equal(void **state)
{
    (void)state;
    static const double numbers[] = { 0.1,     1.0 / 3,       1e300,  5e-324, -0.0,
                                      DBL_MAX, 123456789.125, 2.5e-8, 1.0,    1e17 };
    for (size_t i = 0; i < DCP_ARRAY_LEN(numbers); i++) {
        DCP_CLEANUP_JSON json_t *value = json_real(numbers[i]);
        DCP_CLEANUP_FREE char *text = dcp_json_text(value, 0);
        assert_non_null(text);
        DCP_CLEANUP_JSON json_t *again = NULL;
        assert_int_equal(parse(text, &again, NULL), 0);
        double read = json_real_value(again);
        assert_memory_equal(&read, &numbers[i], sizeof read);
    }
    const char *in = "{\"z\":1,\"a\":[1,2,{\"b\":\"é\\n\"}],\"m\":-3}";
    DCP_CLEANUP_JSON json_t *value = NULL;
    assert_int_equal(parse(in, &value, NULL), 0);
    DCP_CLEANUP_FREE char *text = dcp_json_text(value, 0);
    assert_string_equal(text, in);
    DCP_CLEANUP_FREE char *wide = dcp_json_text(value, 2);
    assert_true(strncmp(wide, "{\n  \"z\": 1,", 11) == 0);
    DCP_CLEANUP_FREE char *wider = dcp_json_text(value, 1000);
    assert_non_null(wider);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good),
        cmocka_unit_test(bad),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(typed_members),
        cmocka_unit_test(text_reads_back_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
