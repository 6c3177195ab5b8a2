/* settings_load: comments, last commas, places of errors, overrides. */
#include "base/json.h"
#include "base/mem.h"
#include "trainer/config/draft.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void accept(const char *text, const char *const *overrides, const char *want)
{
    json_t *root = NULL;
    struct dcp_error err = { 0 };
    if (settings_load(text, strlen(text), "c.json", overrides, &root, &err))
        fail_msg("%s\n%s", text, err.message);
    char *found = dcp_json_text(root, 0);
    json_decref(root);
    assert_non_null(found);
    assert_string_equal(found, want);
    free(found);
}

static void refuse(const char *text, const char *override, int code, const char *message)
{
    json_t *root = NULL;
    struct dcp_error err = { 0 };
    const char *const overrides[] = { override, NULL };
    int rc = settings_load(text, strlen(text), "c.json", overrides, &root, &err);
    if (rc != code || !strstr(err.message, message))
        fail_msg("%s\n%d: %s", text, rc, err.message);
    assert_null(root);
}

static void test_comments(void **state)
{
    (void)state;
    accept("{ // first\n # second\n \"a\": 1, /* \"x\": 2, */ // third\n \"b\": 2 }# end",
           NULL, "{\"a\":1,\"b\":2}");
    accept("/**/{/***//*}*/}//", NULL, "{}");
    accept("{\"a//b\": \"#c/*d*/\\\"//\\\\\"}", NULL, "{\"a//b\":\"#c/*d*/\\\"//\\\\\"}");
    accept("\xef\xbb\xbf{\"a\": 1}", NULL, "{\"a\":1}");
    accept("{\"a\": 1} /* never ends", NULL, "{\"a\":1}");
    refuse("{\"a\": 1 /* never ends }", NULL, DCP_E_USAGE, "line 1");
    refuse("{\"a\": 1 / 2}", NULL, DCP_E_USAGE, "line 1");
}

static void test_last_commas(void **state)
{
    (void)state;
    accept("{\"a\": [1, 2, ], \"b\": {\"c\": 3,}, // d\n }", NULL,
           "{\"a\":[1,2],\"b\":{\"c\":3}}");
    accept("{\"a\": \",]\", \"b\": \",}\"}", NULL, "{\"a\":\",]\",\"b\":\",}\"}");
    refuse("{\"a\": [1,,]}", NULL, DCP_E_USAGE, "line 1");
    refuse("{\"a\": 1,, \"b\": 2}", NULL, DCP_E_USAGE, "line 1");
}

static void test_broken_json_has_a_place(void **state)
{
    (void)state;
    refuse("{\n  \"a\": 1,\n  \"b\" 2\n}", NULL, DCP_E_USAGE, "line 3, column 7");
    refuse("{ # a comment\n /* and\n one more */ \"a\": ]}", NULL, DCP_E_USAGE,
           "line 3, column 19");
    refuse("[1]", NULL, DCP_E_USAGE, "must be an object");
    refuse("", NULL, DCP_E_USAGE, "c.json");
    refuse("{\"a\": 1, \"a\": 2}", NULL, DCP_E_USAGE, "duplicate");
    refuse("{\"a\": 1} 2", NULL, DCP_E_USAGE, "line 1");
    refuse("{\"a\": NaN}", NULL, DCP_E_USAGE, "line 1");
}

static void test_overrides(void **state)
{
    static const char *const overrides[] = {
        "a.b.c=1",           "a.b.d=x=y",  "e=[1, 2]", "f=", "g=null",
        "a.h={\"i\": true}", "a.h.j=1e-3", "k=01",     NULL
    };
    (void)state;
    accept("{\"a\": {\"b\": {\"c\": 0}}, \"e\": 5}", overrides,
           "{\"a\":{\"b\":{\"c\":1,\"d\":\"x=y\"},\"h\":{\"i\":true,"
           "\"j\":0.001}},\"e\":[1,2],\"f\":\"\",\"g\":null,\"k\":\"01\"}");
    refuse("{}", "stage", DCP_E_USAGE, "'stage' is no key.path=value");
    refuse("{}", "=3", DCP_E_USAGE, "is no key.path=value");
    refuse("{}", "a..b=3", DCP_E_USAGE, "is no key.path=value");
    refuse("{}", ".a=3", DCP_E_USAGE, "is no key.path=value");
    refuse("{}", "a.=3", DCP_E_USAGE, "is no key.path=value");
    refuse("{\"a\": 1}", "a.b=3", DCP_E_USAGE, "through a value that is not an object");
    refuse("{}", "a=\xff", DCP_E_USAGE, "is not UTF-8");
    refuse("{}", "\xff=1", DCP_E_USAGE, "is not UTF-8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comments),
        cmocka_unit_test(test_last_commas),
        cmocka_unit_test(test_broken_json_has_a_place),
        cmocka_unit_test(test_overrides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
