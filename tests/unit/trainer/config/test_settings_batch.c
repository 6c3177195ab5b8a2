/* Batch, micro-batch, accumulation and ranks: what follows from what, and what cannot be.
 */
#include "base/mem.h"
#include "lib/parsed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_batch_sizes(void **state)
{
    static const struct {
        int train, micro, steps, world_size; /* 0: not given */
        int want_train, want_micro, want_steps;
    } rows[] = {
        { 32, 4, 2, 4, 32, 4, 2 }, { 32, 4, 0, 4, 32, 4, 2 },   { 32, 0, 2, 4, 32, 4, 2 },
        { 0, 4, 2, 4, 32, 4, 2 },  { 32, 0, 0, 4, 32, 8, 1 },   { 0, 4, 0, 4, 16, 4, 1 },
        { 1, 1, 1, 1, 1, 1, 1 },   { 64, 64, 0, 1, 64, 64, 1 }, { 7, 0, 0, 7, 7, 1, 1 },
        { 24, 1, 0, 5, 24, 1, 5 }, { 32, 4, 1, 8, 32, 4, 1 },   { 32, 4, 1, 3, 32, 4, 3 },
        { 2, 1, 0, 7, 2, 1, 1 },   { 64, 2, 4, 3, 64, 2, 11 },
    };
    static const char *const names[] = { "train_batch_size",
                                         "train_micro_batch_size_per_gpu",
                                         "gradient_accumulation_steps" };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        char text[256] = "{" NEEDED "\"seed\": 1";
        const int given[] = { rows[i].train, rows[i].micro, rows[i].steps };
        for (size_t k = 0; k < 3; k++)
            if (given[k])
                snprintf(text + strlen(text), sizeof text - strlen(text), ", \"%s\": %d",
                         names[k], given[k]);
        snprintf(text + strlen(text), sizeof text - strlen(text), "}");
        expect_read_by(text, rows[i].world_size);
        assert_int_equal(got.train_batch_size, rows[i].want_train);
        assert_int_equal(got.micro_batch, rows[i].want_micro);
        assert_int_equal(got.n_micros, rows[i].want_train / rows[i].want_micro);
        assert_int_equal(got.accumulation, rows[i].want_steps);
        assert_int_equal(got.batch_inferred, !rows[i].train);
    }
}

static void test_impossible_batch_sizes_name_all_numbers(void **state)
{
    (void)state;
    expect_refused(
        "{" NEEDED "\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4,"
        "\"gradient_accumulation_steps\": 3}",
        DCP_E_USAGE,
        "train_batch_size 32 is not micro batch 4 × accumulation 3 × a number of",
        "24 or 36 would do");
    expect_refused(
        "{" NEEDED "\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 5}",
        DCP_E_USAGE,
        "train_batch_size 32 is not a multiple of train_micro_batch_size_per_gpu 5",
        "30 or 35 would do");
    expect_refused("{" NEEDED
                   "\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 5}",
                   DCP_E_USAGE, "not a multiple", "train_batch_size 5 would do");
    expect_refused("{" NEEDED "\"train_batch_size\": 1}", DCP_E_USAGE,
                   "train_batch_size 1 is not a multiple of the 2 ranks",
                   "give train_micro_batch_size_per_gpu");
    expect_refused("{" NEEDED "\"gradient_accumulation_steps\": 3}", DCP_E_USAGE,
                   "either train_batch_size or train_micro_batch_size_per_gpu", "");
    expect_refused("{" NEEDED "\"train_micro_batch_size_per_gpu\": 2147483647,"
                   "\"gradient_accumulation_steps\": 2147483647}",
                   DCP_E_USAGE, "too large", "");
    expect_refused("{" NEEDED "\"train_batch_size\": 9e15}", DCP_E_USAGE, "too large",
                   "");
}

static void test_ranks_that_do_not_divide_the_batch(void **state)
{
    (void)state;
    static const struct {
        const char *batch;
        int world_size, micro, rounds;
    } rows[] = {
        { "6", 3, 2, 1 },
        { "6", 4, 1, 2 },
        { "16", 6, 2, 2 },
        { "14", 4, 2, 2 },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        char text[128];
        snprintf(text, sizeof text, "{" NEEDED "\"train_batch_size\": %s}",
                 rows[i].batch);
        expect_read_by(text, rows[i].world_size);
        assert_int_equal(got.micro_batch, rows[i].micro);
        assert_int_equal(got.accumulation, rows[i].rounds);
    }
    assert_non_null(strstr(logged, "4 ranks do not divide train_batch_size 14"));
    assert_int_equal(read_settings("{" NEEDED "\"train_batch_size\": 3}", NULL, 4),
                     DCP_E_USAGE);
}

/* What is dealt out unevenly is printed with the rounds it takes, and read again. */
static void test_a_printed_batch_is_read_again(void **state)
{
    (void)state;
    for (int world_size = 1; world_size <= 9; world_size++)
        for (int train = world_size; train <= 20; train++)
            for (int micro = 0; micro <= 3; micro++) {
                char text[256], printed[8192];
                if (micro && train % micro)
                    continue;
                snprintf(text, sizeof text, "{" NEEDED "\"train_batch_size\": %d%s%.0d}",
                         train, micro ? ", \"train_micro_batch_size_per_gpu\": " : "",
                         micro);
                expect_read_by(text, world_size);
                snprintf(printed, sizeof printed, "%s", got.text);
                expect_read_by(printed, world_size);
                assert_string_equal(got.text, printed);
                assert_string_equal(logged, "");
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_sizes),
        cmocka_unit_test(test_impossible_batch_sizes_name_all_numbers),
        cmocka_unit_test(test_ranks_that_do_not_divide_the_batch),
        cmocka_unit_test(test_a_printed_batch_is_read_again),
    };
    return cmocka_run_group_tests(tests, NULL, forget_parsed);
}
