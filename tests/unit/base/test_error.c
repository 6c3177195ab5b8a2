#include "base/mem.h"
#include "base/str.h"
#include <dcp/error.h>
#include <dcp/log.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void first_failure_wins(void **state)
{
    (void)state;
    struct dcp_error err = { 0 };
    assert_int_equal(dcp_error_set(&err, DCP_E_CORRUPT, "file %d is torn", 3),
                     DCP_E_CORRUPT);
    assert_int_equal(err.code, DCP_E_CORRUPT);
    assert_int_equal(err.rank, -1);
    assert_int_equal(dcp_error_set(&err, DCP_E_IO, "later"), DCP_E_IO);
    assert_int_equal(dcp_error_sys(&err, DCP_E_IO, EIO, "later"), DCP_E_IO);
    assert_int_equal(dcp_error_memory(&err, "later"), DCP_E_MEMORY);
    assert_int_equal(err.code, DCP_E_CORRUPT);
    assert_string_equal(err.message, "file 3 is torn");
}

static void null_and_ok_do_nothing(void **state)
{
    (void)state;
    assert_int_equal(dcp_error_set(NULL, DCP_E_IO, "x"), DCP_E_IO);
    assert_int_equal(dcp_error_sys(NULL, DCP_E_IO, ENOSPC, "x"), DCP_E_NO_SPACE);
    dcp_error_hint(NULL, "x");
    dcp_error_tensor(NULL, "x");
    dcp_error_prefix(NULL, "x");
    struct dcp_error err = { 0 };
    dcp_error_hint(&err, "x");
    dcp_error_prefix(&err, "x");
    assert_int_equal(dcp_error_set(&err, DCP_OK, "x"), DCP_OK);
    const struct dcp_error zero = { 0 };
    assert_memory_equal(&err, &zero, sizeof err);
}

static void a_tensor_is_named_before_or_after(void **state)
{
    (void)state;
    for (int before = 0; before < 2; before++) {
        struct dcp_error err = { 0 };
        if (before)
            dcp_error_tensor(&err, "w");
        dcp_error_set(&err, DCP_E_CORRUPT, "it is corrupt");
        if (!before)
            dcp_error_tensor(&err, "w");
        assert_string_equal(err.tensor, "w");
        assert_string_equal(err.message, "it is corrupt");
    }
}

static void a_sentence_of_a_tensor(void **state)
{
    (void)state;
    struct dcp_error err = { 0 };
    const char *name = "w\n";
    assert_int_equal(dcp_error_of_tensor(&err, DCP_E_CORRUPT, name, "'%s' has %d parts",
                                         DCP_SHOWN(name), 3),
                     DCP_E_CORRUPT);
    assert_int_equal(err.code, DCP_E_CORRUPT);
    assert_string_equal(err.tensor, "w\\n");
    assert_string_equal(err.message, "'w\\n' has 3 parts");
    assert_int_equal(dcp_error_of_tensor(&err, DCP_E_IO, "v", "later"), DCP_E_IO);
    assert_string_equal(err.message, "'w\\n' has 3 parts");
    assert_int_equal(dcp_error_of_tensor(NULL, DCP_E_IO, "v", "x"), DCP_E_IO);
}

static void a_name_is_shown_escaped_and_cut(void **state)
{
    (void)state;
    char name[400] = { 0 };
    memset(name, 'n', sizeof name - 1);
    const char *cut = DCP_SHOWN(name), *escaped = DCP_SHOWN("a\x1b");
    assert_int_equal(strlen(cut), DCP_SHOWN_BYTES - 1);
    assert_string_equal(cut + strlen(cut) - strlen("…"), "…");
    assert_string_equal(escaped, "a\\x1b");
}

static int count_call(int *calls, int rc)
{
    ++*calls;
    return rc;
}

static int try_two(int *calls, int first, int second)
{
    if (*calls == 0)
        DCP_TRY(count_call(calls, first));
    else
        return 1;
    DCP_TRY(count_call(calls, second));
    return DCP_OK;
}

static void the_first_that_fails_is_returned(void **state)
{
    (void)state;
    static const struct {
        int first, second, rc, calls;
    } cases[] = { { 0, 0, 0, 2 },
                  { DCP_E_IO, 0, DCP_E_IO, 1 },
                  { 0, DCP_E_MEMORY, DCP_E_MEMORY, 2 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int calls = 0;
        assert_int_equal(try_two(&calls, cases[i].first, cases[i].second), cases[i].rc);
        assert_int_equal(calls, cases[i].calls);
    }
}

static void errno_chooses_the_code(void **state)
{
    (void)state;
    static const struct {
        int sys_errno, code;
    } cases[] = { { ENOENT, DCP_E_NOT_FOUND },
                  { ENOSPC, DCP_E_NO_SPACE },
                  { EDQUOT, DCP_E_NO_SPACE },
                  { ENOMEM, DCP_E_MEMORY },
                  { EACCES, DCP_E_IO } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dcp_error err = { 0 };
        assert_int_equal(dcp_error_sys(&err, DCP_E_IO, cases[i].sys_errno, "cannot"),
                         cases[i].code);
        assert_int_equal(err.code, cases[i].code);
        assert_int_equal(err.sys_errno, cases[i].sys_errno);
    }
    struct dcp_error err = { 0 };
    dcp_error_sys(&err, DCP_E_IO, EACCES, "cannot open '%s'", "a");
    assert_string_equal(err.message, "cannot open 'a': Permission denied");
}

static void names_from_files_are_escaped(void **state)
{
    (void)state;
    struct dcp_error err = { 0 };
    dcp_error_set(&err, DCP_E_IO, "bad '%s'", "a\x1b[31m\nb");
    assert_string_equal(err.message, "bad 'a\\x1b[31m\\nb'");
    dcp_error_tensor(&err, "t\n\xff");
    assert_string_equal(err.tensor, "t\\n\\xff");
    dcp_error_hint(&err, "try %s", "\x7f");
    assert_string_equal(err.hint, "try \\x7f");
    dcp_error_prefix(&err, "%s", "x\ty");
    assert_string_equal(err.message, "x\\ty: bad 'a\\x1b[31m\\nb'");
}

static void long_texts_are_cut_and_say_so(void **state)
{
    (void)state;
    char name[3000];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    struct dcp_error err = { 0 };
    dcp_error_set(&err, DCP_E_IO, "%s", name);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    assert_string_equal(err.message + strlen(err.message) - strlen("…"), "…");

    /* The reason of the system stays whole. */
    err = (struct dcp_error){ 0 };
    dcp_error_sys(&err, DCP_E_IO, EACCES, "%s", name);
    assert_non_null(strstr(err.message, "…: Permission denied"));
    dcp_error_prefix(&err, "%s", name);
    assert_true(strlen(err.message) < sizeof err.message);
    dcp_error_tensor(&err, name);
    assert_true(strlen(err.tensor) < sizeof err.tensor);
}

static void one_table(void **state)
{
    (void)state;
    static const struct {
        int code, exit;
        const char *name;
    } cases[] = {
#define DCP_X(code, value, exit, text) { DCP_E_##code, exit, #code },
        DCP_ERROR_TABLE(DCP_X)
#undef DCP_X
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(dcp_error_name(cases[i].code), cases[i].name);
        assert_int_equal(dcp_error_exit(cases[i].code), cases[i].exit);
        assert_true(dcp_error_text(cases[i].code)[0] != '\0');
    }
    assert_string_equal(dcp_error_name(-999), "UNKNOWN");
    assert_int_equal(dcp_error_exit(-999), 6);
}

static void take_line(void *self, enum dcp_log_level level, const char *message)
{
    snprintf(self, 100, "%d %s", (int)level, message);
}

static void log_formats_what_the_level_lets_through(void **state)
{
    (void)state;
    char line[100] = "";
    struct dcp_log log = { .write = take_line, .self = line, .level = DCP_LOG_WARN };
    dcp_log_write(&log, DCP_LOG_INFO, "%d", 1);
    assert_string_equal(line, "");
    dcp_log_write(&log, DCP_LOG_WARN, "step %d\n", 2);
    assert_string_equal(line, "1 step 2\\n");
    dcp_log_write(NULL, DCP_LOG_ERROR, "silence");
    struct dcp_log none = { 0 };
    dcp_log_write(&none, DCP_LOG_ERROR, "silence");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_failure_wins),
        cmocka_unit_test(null_and_ok_do_nothing),
        cmocka_unit_test(a_tensor_is_named_before_or_after),
        cmocka_unit_test(a_sentence_of_a_tensor),
        cmocka_unit_test(a_name_is_shown_escaped_and_cut),
        cmocka_unit_test(the_first_that_fails_is_returned),
        cmocka_unit_test(errno_chooses_the_code),
        cmocka_unit_test(names_from_files_are_escaped),
        cmocka_unit_test(long_texts_are_cut_and_say_so),
        cmocka_unit_test(one_table),
        cmocka_unit_test(log_formats_what_the_level_lets_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
