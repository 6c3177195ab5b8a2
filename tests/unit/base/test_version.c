#include <dcp/dcp.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void version_is_that_of_the_header(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", DCP_VERSION_MAJOR, DCP_VERSION_MINOR,
             DCP_VERSION_PATCH);
    assert_string_equal(dcp_version(), text);
}

static void libraries_are_one_a_line(void **state)
{
    (void)state;
    static const char *const names[] = { "jansson", "xxHash",     "zstd",
                                         "ISA-L",   "libarchive", "OpenSSL" };
    const char *at = dcp_version_libraries();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char name[32];
        int major, minor;
        assert_int_equal(sscanf(at, "%31s %d.%d", name, &major, &minor), 3);
        assert_string_equal(name, names[i]);
        at += strcspn(at, "\n") + 1;
    }
    assert_string_equal(at, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_is_that_of_the_header),
        cmocka_unit_test(libraries_are_one_a_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
