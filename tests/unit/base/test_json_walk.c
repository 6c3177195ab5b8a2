#include "base/json_walk.h"

#include "base/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* All members, as "key=value;", or the failure. */
static int walk_all(const char *text, char open, char *out, size_t cap,
                    struct dcp_error *err)
{
    const struct dcp_json_span doc = { text, strlen(text) };
    DCP_CLEANUP_WALK struct dcp_json_walk walk;
    size_t n = 0;
    out[0] = '\0';
    int rc = dcp_json_walk_init(&walk, doc, doc, open, "it", err);
    while (!rc && dcp_json_walk_next(&walk, err)) {
        DCP_CLEANUP_JSON json_t *value = NULL;
        rc = dcp_json_walk_parse(&walk, &value, err);
        if (rc)
            break;
        DCP_CLEANUP_FREE char *shown = dcp_json_text(value, 0);
        n +=
            (size_t)snprintf(out + n, cap - n, "%s=%s;", dcp_json_walk_key(&walk), shown);
    }
    return rc ? rc : walk.rc;
}

static void members_one_by_one(void **state)
{
    (void)state;
    static const struct {
        const char *text, *members;
    } rows[] = {
        { "{}", "" },
        { " [ ] \n", "" },
        { "[1,[2,{}],\"a]\\\"\",true]", "=1;=[2,{}];=\"a]\\\"\";=true;" },
        { "{\"a\" : 1 ,\n\"b}\":{\"c\":[{}]}, \"\":null}", "a=1;b}={\"c\":[{}]};=null;" },
        { "{\"\\u00e9\\n\":\"\xc3\xa9\"}", "\xc3\xa9\n=\"\xc3\xa9\";" },
        { "[-0.5e3]", "=-500.0;" },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        char out[256];
        struct dcp_error err = { 0 };
        if (walk_all(rows[i].text, rows[i].text[rows[i].text[0] == ' '], out, sizeof out,
                     &err))
            fail_msg("%s: %s", rows[i].text, err.message);
        assert_string_equal(out, rows[i].members);
    }
}

/* What dcp_json_parse refuses is refused here, too. */
static void bad_texts(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",           "[",
        "[1",         "[1,]",
        "[,1]",       "[1 2]",
        "[1]x",       "[] []",
        "[nul]",      "[01]",
        "[1:2]",      "[\"a]",
        "[{]",        "[}]",
        "[{\"a\"}]",  "['a']",
        "[\"\xff\"]", "[1e999]",
        "{",          "{\"a\"}",
        "{\"a\":}",   "{\"a\":1,}",
        "{a:1}",      "{1:1}",
        "{\"a\" 1}",  "{\"\xff\":1}",
        "{\"\n\":1}", "{\"a\":1}}",
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(texts); i++) {
        char out[256];
        json_t *value = NULL;
        struct dcp_error err = { 0 };
        const char *text = texts[i];
        assert_int_equal(dcp_json_parse(text, strlen(text), "it", &value, NULL),
                         DCP_E_CORRUPT);
        if (walk_all(text, *text ? *text : '{', out, sizeof out, &err) != DCP_E_CORRUPT)
            fail_msg("accepted: %s", text);
        assert_non_null(strstr(err.message, "it: not valid JSON at line "));
        assert_int_equal(walk_all(text, *text ? *text : '{', out, sizeof out, NULL),
                         DCP_E_CORRUPT);
    }
}

/* JSON may have it; a name or a text that ends at it is another one. */
static void no_text_has_a_nul(void **state)
{
    (void)state;
    char out[256];
    assert_int_equal(walk_all("[\"a\\u0000\"]", '[', out, sizeof out, NULL),
                     DCP_E_UNSUPPORTED);
    assert_int_equal(walk_all("{\"a\\u0000\":1}", '{', out, sizeof out, NULL),
                     DCP_E_UNSUPPORTED);
}

static void lines_are_those_of_the_document(void **state)
{
    (void)state;
    char out[256];
    struct dcp_error err = { 0 };
    walk_all("{\n  \"a\": 1,\n  \"b\": [1, x]\n}", '{', out, sizeof out, &err);
    assert_non_null(strstr(err.message, "at line 3, column 12"));
    err = (struct dcp_error){ 0 };
    walk_all("[]", '{', out, sizeof out, &err);
    assert_non_null(strstr(err.message, "line 1, column 1: there must be an object"));
}

static void depth_is_limited(void **state)
{
    (void)state;
    char text[200], out[256];
    struct dcp_error err = { 0 };
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    text[130] = '\0';
    assert_int_equal(walk_all(text, '[', out, sizeof out, &err), DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "deeper than 64"));
    memmove(text + 64, text + 66, 65);
    assert_int_equal(walk_all(text, '[', out, sizeof out, NULL), DCP_OK);
}

static void large_members_are_left(void **state)
{
    (void)state;
    static const char *const large[] = { "list", "absent", NULL };
    static const char text[] = "{\"a\":1,\"list\":[1,2],\"b\":{}}",
                      twice[] = "{\"a\":1,\"a\":2}", lists[] = "{\"list\":1,\"list\":2}";
    struct dcp_json_span found[2];
    DCP_CLEANUP_JSON json_t *root = NULL;
    json_t *none;
    assert_int_equal(dcp_json_walk_root((struct dcp_json_span){ text, strlen(text) },
                                        "it", large, found, &root, NULL),
                     DCP_OK);
    assert_int_equal(json_object_size(root), 2);
    assert_int_equal(found[0].size_bytes, 5);
    assert_memory_equal(found[0].text, "[1,2]", 5);
    assert_null(found[1].text);
    assert_int_equal(dcp_json_walk_root((struct dcp_json_span){ twice, strlen(twice) },
                                        "it", large, found, &none, NULL),
                     DCP_E_CORRUPT);
    assert_int_equal(dcp_json_walk_root((struct dcp_json_span){ lists, strlen(lists) },
                                        "it", large, found, &none, NULL),
                     DCP_E_CORRUPT);
}

/* A value that would take many times its text is refused before it is parsed. */
static void values_that_grow(void **state)
{
    (void)state;
    size_t n = (size_t)4 << 20;
    DCP_CLEANUP_FREE char *text = malloc(3 * n + 8);
    char out[64];
    struct dcp_error err = { 0 };
    assert_non_null(text);
    memcpy(text, "[[", 2);
    for (size_t i = 0; i < n; i++)
        memcpy(text + 2 + 3 * i, "{},", 3);
    memcpy(text + 2 + 3 * n - 1, "]]", 3);
    assert_int_equal(walk_all(text, '[', out, sizeof out, &err), DCP_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "much more memory than its text"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_one_by_one),
        cmocka_unit_test(bad_texts),
        cmocka_unit_test(no_text_has_a_nul),
        cmocka_unit_test(lines_are_those_of_the_document),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(large_members_are_left),
        cmocka_unit_test(values_that_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
