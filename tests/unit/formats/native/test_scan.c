/* What the scanner takes of a tensor's entry, a JSON parser takes, too, and means the
 * same. */
#include "base/mem.h"
#include "formats/native/native.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *const entries[] = {
    "{\"name\":\"a\",\"role\":\"model\",\"dtype\":\"f32\",\"shape\":[2,3],\"group\":0,"
    "\"crc64\":\"0123456789abcdef\"}",
    "{\"name\":\"optimizer.exp_avg.h.0.w\",\"param\":\"h.0.w\",\"role\":\"exp_avg\","
    "\"dtype\":\"bf16\",\"shape\":[],\"group\":17,\"crc64\":\"ffffffffffffffff\","
    "\"rank\":12}",
    "{\"name\":\"b\",\"role\":\"model\",\"dtype\":\"f32\",\"shape\":[100,8],\"group\":0,"
    "\"crc64\":\"0000000000000000\",\"grid\":{\"cut\":\"flat\",\"lead\":[200],"
    "\"size\":[300],\"first\":0,\"stride\":[1]}}",
    "{\"name\":\"c\",\"role\":\"model\",\"dtype\":\"f32\",\"shape\":[100,8],\"group\":0,"
    "\"crc64\":\"00000000000000ff\",\"grid\":{\"cut\":\"box\",\"lead\":[50,4],"
    "\"size\":[50,4],\"ranks\":[3,1,0,2]}}",
};

static void same_text(const char *a, const char *b)
{
    assert_int_equal(!a, !b);
    if (a)
        assert_string_equal(a, b);
}

static void same(const struct dcp_native_told *a, const struct dcp_native_told *b)
{
    same_text(a->name, b->name);
    same_text(a->param, b->param);
    same_text(a->role, b->role);
    same_text(a->dtype, b->dtype);
    assert_int_equal(a->ndim, b->ndim);
    assert_memory_equal(a->shape, b->shape, sizeof a->shape);
    assert_int_equal(a->group, b->group);
    assert_true(a->crc == b->crc);
    assert_int_equal(a->has_rank, b->has_rank);
    assert_int_equal(a->has_grid, b->has_grid);
    assert_int_equal(a->grid.flat, b->grid.flat);
    assert_int_equal(a->grid.first, b->grid.first);
    assert_memory_equal(a->grid.lead, b->grid.lead, sizeof a->grid.lead);
    assert_memory_equal(a->grid.size, b->grid.size, sizeof a->grid.size);
    assert_memory_equal(a->grid.stride, b->grid.stride, sizeof a->grid.stride);
    assert_int_equal(!a->grid.ranks, !b->grid.ranks);
    assert_int_equal(a->n_ranks, b->n_ranks);
    assert_memory_equal(a->ranks, b->ranks, a->n_ranks * sizeof *a->ranks);
}

/* Whether the scanner takes it; then the parser must. */
static bool both_read(const char *text, size_t n)
{
    DCP_CLEANUP_BUF struct dcp_buf texts = { 0 };
    DCP_CLEANUP_JSON json_t *entry = NULL;
    struct dcp_native_told scanned, parsed;

    if (dcp_native_scan_tensor((struct dcp_json_span){ text, n }, &texts, &scanned) !=
        text + n)
        return false;
    assert_int_equal(dcp_json_parse(text, n, "an entry", &entry, NULL), 0);
    assert_int_equal(dcp_native_parse_tensor(entry, &parsed, NULL), 0);
    same(&scanned, &parsed);
    return true;
}

static void means_what_the_parser_reads(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(entries); i++)
        assert_true(both_read(entries[i], strlen(entries[i])));
}

static void takes_nothing_that_is_no_json(void **state)
{
    (void)state;
    static const char bytes[] = "\"\\,:{}[]0129 -.eatU\n\x01\x7f\xc3";

    for (size_t i = 0; i < DCP_ARRAY_LEN(entries); i++) {
        size_t n = strlen(entries[i]);
        char text[400];
        for (size_t at = 0; at < n; at++) {
            for (size_t b = 0; b < sizeof bytes; b++) { /* another, and one more */
                memcpy(text, entries[i], n);
                text[at] = bytes[b];
                both_read(text, n);
                memcpy(text + at + 1, entries[i] + at, n - at);
                both_read(text, n + 1);
            }
            memcpy(text, entries[i], at); /* one less, and cut off */
            assert_false(both_read(text, at));
            memcpy(text + at, entries[i] + at + 1, n - at - 1);
            both_read(text, n - 1);
        }
    }
}

static void leaves_numbers_that_are_too_large(void **state)
{
    (void)state;
    char text[400];
    static const char *const shapes[] = {
        "9223372036854775807", "9223372036854775808", "01", "-1", "1.0", ""
    };

    for (size_t i = 0; i < DCP_ARRAY_LEN(shapes); i++) {
        int n = snprintf(text, sizeof text,
                         "{\"name\":\"a\",\"role\":\"model\",\"dtype\":\"f32\","
                         "\"shape\":[2,%s],\"group\":0,\"crc64\":\"0123456789abcdef\"}",
                         shapes[i]);
        assert_false(both_read(text, (size_t)n));
    }
    int n = snprintf(text, sizeof text, "%s", entries[1]);
    memcpy(strstr(text, "\"rank\":12") + 7, "4294967296}", 12); /* would be 0 */
    assert_false(both_read(text, (size_t)n + 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_what_the_parser_reads),
        cmocka_unit_test(takes_nothing_that_is_no_json),
        cmocka_unit_test(leaves_numbers_that_are_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
