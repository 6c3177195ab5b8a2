/* Rules for the names of tensors. */
#include "core/catalog/rename.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void becomes(const char *rules, const char *name, const char *want)
{
    struct dcp_rename_rules *rename;
    char *now;

    assert_int_equal(dcp_rename_new(rules, "rules", &rename, NULL), 0);
    assert_int_equal(dcp_rename_apply(rename, name, &now, NULL), 0);
    assert_string_equal(now, want);
    free(now);
    dcp_rename_free(rename);
}

static void each_rule(void **state)
{
    (void)state;
    becomes("", "a.b", "a.b");
    becomes("\r\n \r\r\n", "a.b", "a.b");
    becomes("strip model.", "model.a", "a");
    becomes("strip model.", "a.model.b", "a.model.b");
    becomes("prefix module.", "a", "module.a");
    becomes("s/^h\\.([0-9]+)\\./blk.\\1./", "h.11.x", "blk.11.x");
    becomes("s/a/b/", "banana", "bbnana");
    becomes("s/a/b/g", "banana", "bbnbnb");
    becomes("s|a/b|c|", "x.a/b", "x.c");
    becomes("s/a\\/b/c/", "x.a/b", "x.c");
    becomes("s/x*/-/g", "abc", "-a-b-c");
    becomes("s/(a)|(b)/[\\1\\2\\0]/g", "ab", "[aa][bb]");
    becomes("s/a/\\\\/", "a", "\\");
}

static void rules_follow_each_other(void **state)
{
    (void)state;
    becomes(
        "# what FSDP adds\n\n  strip model.\r\ns/_fsdp_wrapped_module\\.//g\nprefix x.",
        "model._fsdp_wrapped_module.a._fsdp_wrapped_module.b", "x.a.b");
}

static void refused(const char *rules, const char *why)
{
    struct dcp_error err = { 0 };
    struct dcp_rename_rules *rename;

    assert_int_equal(dcp_rename_new(rules, "names.txt", &rename, &err), DCP_E_USAGE);
    assert_null(rename);
    assert_non_null(strstr(err.message, "names.txt, line 2"));
    assert_non_null(strstr(err.message, why));
}

static void bad_rules_name_their_line(void **state)
{
    (void)state;
    refused("strip a\nremove b", "is no rule");
    refused("strip a\nstrip", "is no rule");
    refused("strip a\ns/a/b", "s/REGEX/TEXT/");
    refused("strip a\ns/a/b/x", "s/REGEX/TEXT/");
    refused("strip a\ns/(/b/", "regular expression");
    refused("strip a\npreset nobody", "no preset");
}

static void nothing_left_of_a_name(void **state)
{
    (void)state;
    struct dcp_error err = { 0 };
    struct dcp_rename_rules *rename;
    char *now;

    assert_int_equal(dcp_rename_new("s/.*//", "rules", &rename, NULL), 0);
    assert_int_equal(dcp_rename_apply(rename, "a", &now, &err), DCP_E_MISMATCH);
    assert_null(now);
    dcp_rename_free(rename);
}

/* What is named after a weight is renamed with it, and so are lists of weights. */
static void a_parameter_keeps_together(void **state)
{
    (void)state;
    static const char text[] = "{\"param_groups\":[{\"params\":[\"model.a\",\"b\"]}]}";
    struct dcp_catalog *catalog;
    struct dcp_rename_rules *rename;
    struct dcp_tensor moment = { .name = "optimizer.exp_avg.model.a",
                                 .param = "model.a",
                                 .role = DCP_ROLE_EXP_AVG };
    struct dcp_tensor other = moment;
    struct dcp_object object = { .name = "optimizer",
                                 .kind = DCP_OBJECT_JSON,
                                 .data = text,
                                 .size_bytes = sizeof text - 1 };

    other.name = "model.odd";
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    assert_int_equal(dcp_rename_new("strip model.", "rules", &rename, NULL), 0);
    assert_int_equal(dcp_rename_tensor(rename, catalog, &moment, NULL), 0);
    assert_string_equal(moment.name, "optimizer.exp_avg.a");
    assert_string_equal(moment.param, "a");
    assert_int_equal(dcp_rename_tensor(rename, catalog, &other, NULL), 0);
    assert_string_equal(other.name, "odd");
    assert_int_equal(dcp_rename_object(rename, catalog, &object, NULL), 0);
    assert_string_equal(catalog->objects[0].data,
                        "{\"param_groups\":[{\"params\":[\"a\",\"b\"]}]}");
    dcp_rename_free(rename);
    dcp_catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule),
        cmocka_unit_test(rules_follow_each_other),
        cmocka_unit_test(bad_rules_name_their_line),
        cmocka_unit_test(nothing_left_of_a_name),
        cmocka_unit_test(a_parameter_keeps_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
