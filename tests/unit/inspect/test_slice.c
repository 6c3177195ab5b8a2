#include "inspect/slice.h"

#include "base/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const int64_t shape[] = { 10, 4, 6 };

static struct inspect_range range(int64_t first, int64_t step, int64_t n, bool single)
{
    return (struct inspect_range){ first, step, n, single };
}

static void slices_are_those_of_numpy(void **state)
{
    (void)state;
    const struct inspect_range all[] = { range(0, 1, 10, false), range(0, 1, 4, false),
                                         range(0, 1, 6, false) };
    const struct {
        const char *text;
        struct inspect_range ranges[3];
    } cases[] = {
        { "", { all[0], all[1], all[2] } },
        { "[]", { all[0], all[1], all[2] } },
        { "[:]", { all[0], all[1], all[2] } },
        { "[...]", { all[0], all[1], all[2] } },
        { "[3]", { range(3, 1, 1, true), all[1], all[2] } },
        { "[-1]", { range(9, 1, 1, true), all[1], all[2] } },
        { "[2:5, :2]", { range(2, 1, 3, false), range(0, 1, 2, false), all[2] } },
        { "[ 2 : 5 , 1 ]", { range(2, 1, 3, false), range(1, 1, 1, true), all[2] } },
        { "[..., -2:]", { all[0], all[1], range(4, 1, 2, false) } },
        { "[1, ..., 0]", { range(1, 1, 1, true), all[1], range(0, 1, 1, true) } },
        { "[::3]", { range(0, 3, 4, false), all[1], all[2] } },
        { "[1:8:3]", { range(1, 3, 3, false), all[1], all[2] } },
        { "[5:2]", { range(5, 1, 0, false), all[1], all[2] } },
        { "[-100:100]", { all[0], all[1], all[2] } },
        { "[100:]", { range(10, 1, 0, false), all[1], all[2] } },
        { "[-9223372036854775808:]", { all[0], all[1], all[2] } },
        { "[::9223372036854775807]", { range(0, INT64_MAX, 1, false), all[1], all[2] } },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct inspect_slice slice;
        struct dcp_error err = { 0 };
        if (inspect_slice_parse(cases[i].text, 3, shape, &slice, &err))
            fail_msg("%s: %s", cases[i].text, err.message);
        for (int d = 0; d < 3; d++) {
            assert_int_equal(slice.ranges[d].first, cases[i].ranges[d].first);
            assert_int_equal(slice.ranges[d].step, cases[i].ranges[d].step);
            assert_int_equal(slice.ranges[d].n, cases[i].ranges[d].n);
            assert_int_equal(slice.ranges[d].single, cases[i].ranges[d].single);
        }
    }
}

static void what_is_no_slice_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "[10]",      "[-11]", "[1,2,3,4]",  "[a]",
        "[1:b]",     "[::0]", "[::-1]",     "[...,...]",
        "[1.5]",     "[",     "x",          "[1][2]",
        "[1:2:3:4]", "[0x1]", "[1,,2,3,4]", "[99999999999999999999]",
    };
    char longer[200] = "[";
    struct inspect_slice slice;
    for (size_t i = 0; i < DCP_ARRAY_LEN(texts); i++) {
        struct dcp_error err = { 0 };
        if (inspect_slice_parse(texts[i], 3, shape, &slice, &err) != DCP_E_USAGE)
            fail_msg("%s is taken", texts[i]);
        assert_true(err.message[0]);
    }
    memset(longer + 1, '1', sizeof longer - 3);
    longer[sizeof longer - 2] = ']';
    assert_int_equal(inspect_slice_parse(longer, 3, shape, &slice, NULL), DCP_E_USAGE);
    assert_int_equal(inspect_slice_parse("[0]", 0, NULL, &slice, NULL), DCP_E_USAGE);
}

static void the_name_ends_where_the_last_bracket_opens(void **state)
{
    (void)state;
    assert_int_equal(inspect_slice_name("a.b"), 3);
    assert_int_equal(inspect_slice_name("a.b[0:4,:8]"), 3);
    assert_int_equal(inspect_slice_name("a[1][2]"), 4);
    assert_int_equal(inspect_slice_name("a]"), 2);
    assert_int_equal(inspect_slice_name("[1]"), 0);
    assert_int_equal(inspect_slice_name(""), 0);
}

static void the_answer_has_a_shape(void **state)
{
    (void)state;
    struct inspect_slice slice;
    int64_t out[DCP_MAX_NDIM];
    assert_int_equal(inspect_slice_parse("[2:5, 1]", 3, shape, &slice, NULL), 0);
    assert_int_equal(inspect_slice_elems(&slice), 18);
    assert_int_equal(inspect_slice_shape(&slice, out), 2);
    assert_int_equal(out[0], 3);
    assert_int_equal(out[1], 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_are_those_of_numpy),
        cmocka_unit_test(what_is_no_slice_is_refused),
        cmocka_unit_test(the_name_ends_where_the_last_bracket_opens),
        cmocka_unit_test(the_answer_has_a_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
