#include "cli/text.h"

#include "base/mem.h"
#include "cli/human.h"
#include "cli/shorten.h"
#include "cli/table.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void width_is_that_of_the_terminal(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int width;
    } cases[] = {
        { "", 0 },     { "abc", 3 },      { "é…×", 3 },   { "e\xcc\x81", 1 },
        { "日本", 4 }, { "\xff\xfe", 2 }, { "a\xc3", 2 }, { "▁█", 2 },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++)
        assert_int_equal(dcp_text_width(cases[i].text), cases[i].width);
}

static void cutting_keeps_both_ends(void **state)
{
    (void)state;
    static const struct {
        const char *text, *cut;
        int width;
    } cases[] = {
        { "abcdefgh", "abcdefgh", 8 }, { "abcdefgh", "abc…fgh", 7 },
        { "abcdefgh", "ab…fgh", 6 },   { "abcdefgh", "…h", 2 },
        { "abcdefgh", "…", 1 },        { "abcdefgh", "", 0 },
        { "日本日本", "日…本", 5 },    { "日本日本", "…本", 4 },
        { "éééé", "é…é", 3 },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        DCP_CLEANUP_BUF struct dcp_buf out = { 0 };
        dcp_buf_add_text(&out, "");
        dcp_text_add_cut(&out, cases[i].text, cases[i].width, cases[i].width / 2);
        assert_string_equal((const char *)out.data, cases[i].cut);
        assert_true(dcp_text_width((const char *)out.data) <= cases[i].width);
    }
}

/* Names of one table are shortened by their parts, and differ after it. */
static void short_names_stay_distinct(void **state)
{
    (void)state;
    static const struct {
        const char *names[4], *shown[4];
        int width;
    } cases[] = {
        { { "transformer.h.0.attn.c_attn.weight", "transformer.h.1.attn.c_attn.weight",
            "transformer.h.10.attn.c_attn.weight", "transformer.wte.weight" },
          { "…h.0.attn.c_attn.weight", "…h.1.attn.c_attn.weight",
            "…h.10.attn.c_attn.weight", "transformer.wte.weight" },
          26 },
        { { "optimizer.exp_avg.transformer.h.0.ln_1.weight",
            "optimizer.exp_avg_sq.transformer.h.0.ln_1.weight",
            "optimizer.master.transformer.h.0.ln_1.weight", "x" },
          { "optimizer.exp_avg.…ln_1.weight", "optimizer.exp_avg_sq.…weight",
            "optimizer.master.…0.ln_1.weight", "x" },
          31 },
        { { "aaaaaaaaaaaaaaaa", "baaaaaaaaaaaaaaa", "a", "b" },
          { "aaaaaaaaaaaaaaaa", "baaaaaaaaaaaaaaa", "a", "b" },
          8 }, /* it takes all of them */
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct dcp_shortener how = dcp_shorten_choose(cases[i].names, 4, cases[i].width);
        for (int k = 0; k < 4; k++) {
            DCP_CLEANUP_BUF struct dcp_buf out = { 0 };
            dcp_shorten_add(&out, cases[i].names[k], &how);
            assert_string_equal((const char *)out.data, cases[i].shown[k]);
        }
    }
}

/* Names come from strangers: one of a million parts takes no longer than any other of its
 * length. */
static void names_of_many_parts(void **state)
{
    (void)state;
    const size_t n = (size_t)2 << 20;
    char *names[2] = { calloc(1, n + 1), calloc(1, n + 1) };
    assert_true(names[0] && names[1]);
    for (size_t i = 0; i < n; i++)
        names[0][i] = names[1][i] = i % 2 ? '.' : 'a';
    names[1][n - 2] = 'b';
    struct dcp_shortener how = dcp_shorten_choose((const char *const *)names, 2, 9);
    assert_int_equal(how.width, 9);
    for (int k = 0; k < 2; k++) {
        DCP_CLEANUP_BUF struct dcp_buf out = { 0 };
        dcp_shorten_add(&out, names[k], &how);
        assert_string_equal((const char *)out.data, k ? "…a.a.a.b." : "…a.a.a.a.");
        free(names[k]);
    }
}

static void lines_end_before_the_width(void **state)
{
    (void)state;
    DCP_CLEANUP_BUF struct dcp_buf out = { 0 };
    dcp_text_add_wrapped(&out, "one two  three\nfour fivefivefive six", 3, 2, 12);
    assert_string_equal((const char *)out.data,
                        "one two\n  three\n  four\n  fivefivefive\n  six");
}

static void escaping_is_never_cut(void **state)
{
    (void)state;
    char raw[300];
    memset(raw, '\033', sizeof raw - 1);
    raw[sizeof raw - 1] = '\0';
    DCP_CLEANUP_BUF struct dcp_buf out = { 0 };
    dcp_text_add_escaped(&out, raw);
    assert_int_equal(out.size_bytes, 4 * (sizeof raw - 1));
    assert_null(memchr(out.data, '\033', out.size_bytes));
}

static void numbers_read_well(void **state)
{
    (void)state;
    assert_string_equal(dcp_human_size(0).text, "0 B");
    assert_string_equal(dcp_human_size(1023).text, "1023 B");
    assert_string_equal(dcp_human_size(1024).text, "1 KiB");
    assert_string_equal(dcp_human_size(64 << 20).text, "64 MiB");
    assert_string_equal(dcp_human_size(1739461755).text, "1.62 GiB");
    assert_string_equal(dcp_human_size(218103809).text, "208 MiB");
    assert_string_equal(dcp_human_size((1 << 20) - 1).text, "1.00 MiB");
    assert_string_equal(dcp_human_size(10239).text, "10.0 KiB");
    assert_string_equal(dcp_human_size(UINT64_MAX).text, "16.0 EiB");
    assert_string_equal(dcp_human_rate(1.8 * 1073741824).text, "1.8 GiB/s");
    assert_string_equal(dcp_human_rate(98.4 * 1048576).text, "98 MiB/s");
    assert_string_equal(dcp_human_rate(-1).text, "0 B/s");
    assert_string_equal(dcp_human_count(0).text, "0");
    assert_string_equal(dcp_human_count(999).text, "999");
    assert_string_equal(dcp_human_count(124439808).text, "124,439,808");
    assert_string_equal(dcp_human_count(UINT64_MAX).text, "18,446,744,073,709,551,615");
    assert_string_equal(dcp_human_items(1, "copy", "copies").text, "1 copy");
    assert_string_equal(dcp_human_items(1184, "copy", "copies").text, "1,184 copies");
    assert_string_equal(dcp_human_time(0.041).text, "41 ms");
    assert_string_equal(dcp_human_time(0.9).text, "0.9 s");
    assert_string_equal(dcp_human_time(125).text, "2 min 5 s");
    assert_string_equal(dcp_human_time(3600 * 3 + 60 * 12).text, "3 h 12 min");
    assert_string_equal(dcp_human_clock(0.2).text, "0:00:01");
    assert_string_equal(dcp_human_clock(3661).text, "1:01:01");
    assert_string_equal(dcp_human_clock(1e30).text, "999:00:00");
}

static void shapes_of_any_size_fit(void **state)
{
    (void)state;
    static const int64_t shape[8] = { INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX,
                                      INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX };
    static const int64_t plain[] = { 4, 768 };
    assert_string_equal(dcp_human_shape(2, plain).text, "[4, 768]");
    assert_string_equal(dcp_human_shape(0, NULL).text, "[]");
    struct dcp_human text = dcp_human_shape(8, shape);
    assert_true(strlen(text.text) < sizeof text.text);
    assert_non_null(strstr(text.text, "…]"));
}

/* Prints two rows at a width and gives the text. */
static char *print_table(int width, bool utf8)
{
    static const struct dcp_column columns[] = {
        { .title = "name", .cut = true },
        { .title = "size", .right = true },
        { .title = "" },
    };
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    const struct dcp_term term = { .file = file, .utf8 = utf8, .width = width };
    struct dcp_table *table = dcp_table_new(columns, 3);
    assert_non_null(table);
    dcp_table_name(table, "h.0.attn.c_attn.weight\n");
    dcp_table_cell(table, "%d", 7);
    dcp_table_cell(table, "▁█");
    dcp_table_name(table, "é");
    dcp_table_cell(table, "%d", 12345);
    dcp_table_cell(table, "%s", "");
    assert_int_equal(dcp_table_print(table, &term, 1, NULL), 0);
    dcp_table_free(table);
    fclose(file);
    return text;
}

static void columns_are_aligned_and_cut(void **state)
{
    (void)state;
    static const struct {
        int width;
        bool utf8;
        const char *text;
    } cases[] = {
        { 0, true,
          " name                       size\n"
          " h.0.attn.c_attn.weight\\n      7  ▁█\n"
          " é                         12345\n" },
        { 28, true,
          " name               size\n"
          " …c_attn.weight\\n      7  ▁█\n"
          " é                 12345\n" },
        { 28, false,
          " name               size\n"
          " ~c_attn.weight\\n      7  .#\n"
          " é                 12345\n" },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        char *text = print_table(cases[i].width, cases[i].utf8);
        assert_string_equal(text, cases[i].text);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(width_is_that_of_the_terminal),
        cmocka_unit_test(cutting_keeps_both_ends),
        cmocka_unit_test(short_names_stay_distinct),
        cmocka_unit_test(names_of_many_parts),
        cmocka_unit_test(lines_end_before_the_width),
        cmocka_unit_test(escaping_is_never_cut),
        cmocka_unit_test(numbers_read_well),
        cmocka_unit_test(shapes_of_any_size_fit),
        cmocka_unit_test(columns_are_aligned_and_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
