#include "inspect/value.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "inspect/summary.h"
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Text of the element whose bits are the lowest of v. */
static const char *format(enum dcp_dtype dtype, uint64_t v, int digits)
{
    static struct inspect_value value;
    unsigned char raw[16] = { 0 };
    dcp_put_le64(raw, v);
    value = inspect_value_format(dtype, raw, digits);
    return value.text;
}

static void elements_read_back(void **state)
{
    (void)state;
    assert_string_equal(format(DCP_F32, 0x3dcccccd, 0), "0.1");
    assert_string_equal(format(DCP_F32, 0x3dcccccd, 9), "0.100000001");
    assert_string_equal(format(DCP_F32, 0x00000001, 0), "1e-45");
    assert_string_equal(format(DCP_F64, 0x3fb999999999999a, 0), "0.1");
    assert_string_equal(format(DCP_BF16, 0x3f80, 0), "1");
    assert_string_equal(format(DCP_BF16, 0x3dcd, 0), "0.1");
    assert_string_equal(format(DCP_F16, 0x2e66, 0), "0.1");
    assert_string_equal(format(DCP_F16, 0x8000, 0), "-0");
    assert_string_equal(format(DCP_F8_E4M3, 0x7f, 0), "nan");
    assert_string_equal(format(DCP_F32, 0x7f800000, 0), "inf");
    assert_string_equal(format(DCP_F32, 0xff800000, 0), "-inf");
    assert_string_equal(format(DCP_F32, 0xffc00001, 0), "nan");
}

static void integers_are_exact(void **state)
{
    (void)state;
    assert_string_equal(format(DCP_I64, 9007199254740993, 0), "9007199254740993");
    assert_string_equal(format(DCP_I64, UINT64_MAX, 0), "-1");
    assert_string_equal(format(DCP_U64, UINT64_MAX, 0), "18446744073709551615");
    assert_string_equal(format(DCP_I8, 0x80, 0), "-128");
    assert_string_equal(format(DCP_U8, 0x80, 0), "128");
    assert_string_equal(format(DCP_I16, 0xffff, 0), "-1");
    assert_string_equal(format(DCP_U16, 0xffff, 0), "65535");
    assert_string_equal(format(DCP_I32, 0x80000000, 0), "-2147483648");
    assert_string_equal(format(DCP_U32, 0x80000000, 0), "2147483648");
    assert_string_equal(format(DCP_BOOL, 0, 0), "False");
    assert_string_equal(format(DCP_BOOL, 1, 0), "True");
}

static void complex_numbers_have_two_parts(void **state)
{
    (void)state;
    assert_string_equal(format(DCP_C64, 0xc00000003f800000, 0), "1-2j");
    assert_string_equal(format(DCP_C64, 0x400000003f800000, 0), "1+2j");
    assert_int_equal(inspect_value_parts(DCP_C64), 2);
    assert_int_equal(inspect_value_part(DCP_C128), DCP_F64);
    assert_int_equal(inspect_value_parts(DCP_F32), 1);
}

static void documents_have_words_for_all_numbers(void **state)
{
    (void)state;
    static const struct {
        enum dcp_dtype dtype;
        uint64_t bits;
        const char *json;
    } cases[] = {
        { DCP_F32, 0x7fc00000, "\"NaN\"" },
        { DCP_F32, 0xff800000, "\"-Infinity\"" },
        { DCP_F32, 0x3f000000, "0.5" },
        { DCP_I64, 9007199254740993, "9007199254740993" },
        { DCP_U64, UINT64_MAX, "\"18446744073709551615\"" },
        { DCP_BOOL, 1, "true" },
        { DCP_C64, 0x400000003f000000, "[0.5,2.0]" },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        unsigned char raw[16] = { 0 };
        dcp_put_le64(raw, cases[i].bits);
        json_t *value = inspect_value_json(cases[i].dtype, raw);
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        assert_string_equal(text, cases[i].json);
        free(text);
        json_decref(value);
    }
}

static void steps_are_those_of_the_dtype(void **state)
{
    (void)state;
    assert_true(inspect_value_ulp(DCP_F32, 1) == 0x1p-23);
    assert_true(inspect_value_ulp(DCP_F32, 3) == 0x1p-22);
    assert_true(inspect_value_ulp(DCP_F32, 0) == 0x1p-149);
    assert_true(inspect_value_ulp(DCP_F64, 1) == DBL_EPSILON);
    assert_true(inspect_value_ulp(DCP_F64, 0) == 0x1p-1074);
    assert_true(inspect_value_ulp(DCP_BF16, 1) == 0x1p-7);
    assert_true(inspect_value_ulp(DCP_F16, 1) == 0x1p-10);
    assert_true(inspect_value_ulp(DCP_F16, 0) == 0x1p-24);
    assert_true(inspect_value_ulp(DCP_I32, 5) == 0);
    assert_true(inspect_value_ulp(DCP_F32, INFINITY) == 0);
}

static struct inspect_summary *new_summary(void)
{
    struct inspect_summary *s = calloc(1, sizeof *s);
    assert_non_null(s);
    inspect_summary_init(s);
    return s;
}

static void summaries_leave_odd_numbers_out(void **state)
{
    (void)state;
    const double values[] = { 3, NAN, -4, INFINITY, 0, -INFINITY, 1 };
    struct inspect_summary *s = new_summary();
    inspect_summary_add(s, values, DCP_ARRAY_LEN(values));
    assert_int_equal(s->n, 7);
    assert_int_equal(s->n_nan, 1);
    assert_int_equal(s->n_inf, 2);
    assert_int_equal(s->n_zero, 1);
    assert_true(s->min == -4 && s->max == 3);
    assert_true(inspect_summary_mean(s) == 0);
    assert_true(fabs(inspect_summary_norm(s) - sqrt(26)) < 1e-12);
    assert_true(fabs(inspect_summary_deviation(s) - sqrt(6.5)) < 1e-12);
    free(s);
}

static void squares_may_leave_the_range_of_double(void **state)
{
    (void)state;
    const double values[] = { 3e200, 4e200 };
    struct inspect_summary *s = new_summary();
    inspect_summary_add(s, values, 2);
    assert_true(fabs(inspect_summary_norm(s) / 5e200 - 1) < 1e-12);
    assert_int_equal(s->n_inf, 0);
    free(s);
}

/* Every count, exactly, in bins whose bounds are told. */
static void histograms_count_exactly(void **state)
{
    (void)state;
    struct inspect_summary *s = new_summary();
    uint64_t counts[16], all = 0;
    double low, width;
    double values[2001];
    for (int i = 0; i <= 2000; i++)
        values[i] = (i - 1000) * 0.37 * (i % 3 ? 1 : 1e-3);
    inspect_summary_add(s, values, 2001);
    size_t n = inspect_histogram_view(&s->histogram, 16, counts, &low, &width);
    assert_in_range(n, 8, 16);
    for (size_t i = 0; i < n; i++) {
        uint64_t want = 0;
        for (int k = 0; k <= 2000; k++)
            want += values[k] >= low + (double)i * width &&
                    values[k] < low + (double)(i + 1) * width;
        assert_int_equal(counts[i], want);
        all += counts[i];
    }
    assert_int_equal(all, 2001);
    assert_true(low <= s->min && low + (double)n * width > s->max);
    free(s);
}

static void histograms_of_extremes(void **state)
{
    (void)state;
    static const double ends[] = { DBL_MAX, -DBL_MAX, 0x1p-1074, -0x1p-1074, 0 };
    struct inspect_summary *s = new_summary();
    uint64_t counts[8], all = 0;
    double low, width;
    assert_int_equal(inspect_histogram_view(&s->histogram, 8, counts, &low, &width), 0);
    for (size_t i = DCP_ARRAY_LEN(ends);
         i-- > 0;) /* the least first, then the greatest */
        inspect_summary_add(s, &ends[i], 1);
    size_t n = inspect_histogram_view(&s->histogram, 8, counts, &low, &width);
    for (size_t i = 0; i < n; i++)
        all += counts[i];
    assert_int_equal(all, 5);
    assert_int_equal(counts[0], 1);
    assert_int_equal(counts[n - 1], 1);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_read_back),
        cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(complex_numbers_have_two_parts),
        cmocka_unit_test(documents_have_words_for_all_numbers),
        cmocka_unit_test(steps_are_those_of_the_dtype),
        cmocka_unit_test(summaries_leave_odd_numbers_out),
        cmocka_unit_test(squares_may_leave_the_range_of_double),
        cmocka_unit_test(histograms_count_exactly),
        cmocka_unit_test(histograms_of_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
