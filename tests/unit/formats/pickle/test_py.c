/* Python values as JSON: made, tested, and taken apart; odd ones are no such. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "formats/pickle/py.h"
#include <cmocka.h>

static json_t *parse(const char *text)
{
    json_t *value;

    assert_int_equal(dcp_json_parse(text, strlen(text), "a value", &value, NULL), 0);
    return value;
}

static void assert_text(json_t *value, const char *text)
{
    char *got = dcp_json_text(value, 0);

    assert_string_equal(got, text);
    free(got);
    json_decref(value);
}

static void made(void **state)
{
    (void)state;
    assert_text(dcp_py_new(DCP_PY_TUPLE, json_pack("[i]", 1)), "{\"$tuple\":[1]}");
    assert_text(dcp_py_name(DCP_PY_TENSOR, "w"), "{\"$tensor\":\"w\"}");
    assert_text(dcp_py_hex(DCP_PY_BYTES, "\0\xff", 2), "{\"$bytes\":\"00ff\"}");
    assert_text(dcp_py_object("m.C", "state", json_null()),
                "{\"$object\":\"m.C\",\"state\":null}");
    assert_text(dcp_py_ordered(json_pack("[[i,i]]", 1, 2)),
                "{\"$object\":\"collections.OrderedDict\",\"pairs\":[[1,2]]}");
    assert_null(dcp_py_new(DCP_PY_TUPLE, NULL));
    assert_null(dcp_py_object("m.C", "state", NULL));
}

/* The answers of all questions about a value, in this order. */
static void assert_is(const char *text, const char *tensor, const char *value,
                      const char *class, const char *global, bool dict, bool pairs)
{
    json_t *json = parse(text);
    const char *got[] = { dcp_py_tensor(json), dcp_py_value(json), dcp_py_class(json),
                          dcp_py_global(json) };
    const char *wanted[] = { tensor, value, class, global };

    for (size_t i = 0; i < 4; i++)
        assert_true(!got[i] == !wanted[i] && (!got[i] || !strcmp(got[i], wanted[i])));
    assert_int_equal(dcp_py_is_dict(json), dict);
    assert_int_equal(dcp_py_pairs(json) != NULL, pairs);
    json_decref(json);
}

static void tested(void **state)
{
    (void)state;
    assert_is("{\"$tensor\":\"w\"}", "w", NULL, NULL, NULL, false, false);
    assert_is("{\"$again\":\"w\",\"grad\":true}", "w", NULL, NULL, NULL, false, false);
    assert_is("{\"grad\":true,\"$tensor\":\"w\"}", NULL, NULL, NULL, NULL, true, false);
    assert_is("{\"$tensor\":1}", NULL, NULL, NULL, NULL, false, false);
    assert_is("{\"$value\":\"o\"}", NULL, "o", NULL, NULL, false, false);
    assert_is("{\"$value\":\"o\",\"x\":1}", NULL, NULL, NULL, NULL, false, false);
    assert_is("{\"$object\":\"m.C\",\"args\":[]}", NULL, NULL, "m.C", NULL, false, false);
    assert_is("{\"$object\":\"C\"}", NULL, NULL, NULL, NULL, false, false);
    assert_is("{\"$global\":\"m:A.b\"}", NULL, NULL, NULL, "m:A.b", false, false);
    assert_is("{\"$global\":\"m.b\",\"x\":1}", NULL, NULL, NULL, NULL, false, false);
    assert_is("{\"$dict\":[[1,2]]}", NULL, NULL, NULL, NULL, false, true);
    assert_is("{\"$object\":\"collections.OrderedDict\",\"pairs\":[]}", NULL, NULL,
              "collections.OrderedDict", NULL, false, true);
    assert_is("{}", NULL, NULL, NULL, NULL, true, false);
    assert_is("[]", NULL, NULL, NULL, NULL, false, false);
    assert_is("\"$tensor\"", NULL, NULL, NULL, NULL, false, false);
}

/* "name=value" of each part, and what the value is when each is replaced by 0. */
static void assert_parts(const char *text, const char *parts, const char *zeros)
{
    json_t *json = parse(text);
    char got[200] = "";

    for (struct dcp_py_parts p = dcp_py_parts(json); dcp_py_next(&p);) {
        char *value = dcp_json_text(p.value, 0);
        size_t n = strlen(got);
        snprintf(got + n, sizeof got - n, "%s%s=%s;", p.is_word ? "!" : "",
                 p.name ? p.name : "?", value);
        free(value);
        assert_true(dcp_py_put(&p, json_integer(0)));
    }
    assert_string_equal(got, parts);
    assert_text(json, zeros);
}

static void taken_apart(void **state)
{
    (void)state;
    assert_parts("[3,[4]]", "0=3;1=[4];", "[0,0]");
    assert_parts("{\"$tuple\":[3,4]}", "0=3;1=4;", "{\"$tuple\":[0,0]}");
    assert_parts("{\"a\":1,\"b\":{}}", "a=1;b={};", "{\"a\":0,\"b\":0}");
    assert_parts("{\"$dict\":[[1,2],[\"a\",3],[true,4],[null,5],[[],6]]}",
                 "1=2;a=3;!True=4;!None=5;?=6;",
                 "{\"$dict\":[[1,0],[\"a\",0],[true,0],[null,0],[[],0]]}");
    assert_parts("{\"$set\":[1]}", "$set=[1];", "{\"$set\":0}");
    assert_parts("{\"$tuple\":3}", "", "{\"$tuple\":3}");
    assert_parts("{\"$dict\":{}}", "", "{\"$dict\":{}}");
    assert_parts("7", "", "7");
    assert_parts("{}", "", "{}");
}

static void children(void **state)
{
    json_t *json = parse("{\"$tuple\":[3,4]}");
    struct dcp_py_parts p = dcp_py_children(json);

    (void)state;
    assert_true(dcp_py_next(&p) && json_array_size(p.value) == 2);
    assert_string_equal(p.name, "$tuple");
    assert_false(dcp_py_next(&p));
    assert_ptr_equal(dcp_py_untuple(json), json_object_get(json, "$tuple"));
    assert_ptr_equal(dcp_py_untuple(json_object_get(json, "$tuple")),
                     json_object_get(json, "$tuple"));
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made),
        cmocka_unit_test(tested),
        cmocka_unit_test(taken_apart),
        cmocka_unit_test(children),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
