/* schedule: rates that DeepSpeed 0.19.8 gave, and the shape of every schedule.
 *
 * `test_unit_schedule rates FILE STEPS` prints the rate of each step of a configuration,
 * for the test against DeepSpeed itself. */
#include "base/mem.h"
#include "base/str.h"
#include "trainer/config/schedule.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BASE_LR 3e-4

static const struct settings_scheduler none = { .type = SCHEDULE_NONE };
static const struct settings_scheduler log_warmup = { .type = SCHEDULE_WARMUP,
                                                      .warmup_min_lr = 1e-5,
                                                      .warmup_max_lr = -1,
                                                      .warmup_num_steps = 5 };
static const struct settings_scheduler linear_decay = { .type = SCHEDULE_WARMUP_DECAY,
                                                        .warmup_min_lr = 1e-5,
                                                        .warmup_max_lr = 1e-3,
                                                        .warmup_num_steps = 4,
                                                        .total_num_steps = 9,
                                                        .warmup_linear = true };
static const struct settings_scheduler cosine = { .type = SCHEDULE_WARMUP_COSINE,
                                                  .warmup_num_steps = 4,
                                                  .total_num_steps = 9,
                                                  .warmup_min_ratio = 0.1,
                                                  .cos_min_ratio = 0.01 };

static void test_rates_of_deepspeed(void **state)
{
    static const struct {
        const struct settings_scheduler *scheduler;
        double rates[12]; /* of steps 1, 2, … */
    } rows[] = {
        { &none, { BASE_LR, BASE_LR, BASE_LR } },
        { &log_warmup,
          { 1e-05, 1e-05, 0.00013489620184128397, 0.00020795579640093571,
            0.00025979240368256796, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003,
            0.0003 } },
        { &linear_decay,
          { 1e-05, 1e-05, 0.0002575, 0.000505, 0.0007525, 0.001, 0.0008020000000000001,
            0.000604, 0.00040600000000000006, 0.00020800000000000001, 1e-05, 1e-05 } },
        { &cosine,
          { 0.0, 2.9999999999999997e-05, 0.000165, 0.00024396993759735606, 0.0003,
            0.00027163902366467965, 0.00019738902366467966, 0.0001056109763353203,
            3.1360976335320314e-05, 2.9999999999999997e-06, 2.9999999999999997e-06,
            2.9999999999999997e-06 } },
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++)
        for (int step = 1; step <= 12 && (i || step <= 3); step++) {
            double rate = schedule_lr(rows[i].scheduler, BASE_LR, step);
            if (rate < rows[i].rates[step - 1] || rate > rows[i].rates[step - 1])
                fail_msg("row %zu, step %d: %.17g", i, step, rate);
        }
}

/* Step 1 is made before the scheduler's first call, step 2 with its iteration 0. */
static void test_the_first_two_steps_stay_low(void **state)
{
    (void)state;
    assert_true(schedule_lr(&log_warmup, BASE_LR, 1) <= 1e-5);
    assert_true(schedule_lr(&log_warmup, BASE_LR, 2) <= 1e-5);
    assert_true(schedule_lr(&log_warmup, BASE_LR, 3) > 1e-5);
    assert_true(fabs(schedule_lr(&cosine, BASE_LR, 1)) <= 0);
    assert_true(schedule_lr(&cosine, BASE_LR, 2) <= BASE_LR * 0.1);
}

static void test_rates_rise_fall_and_stay(void **state)
{
    static const struct settings_scheduler *const all[] = { &log_warmup, &linear_decay,
                                                            &cosine };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(all); i++) {
        double before = schedule_lr(all[i], BASE_LR, 2);
        for (int64_t step = 3; step <= all[i]->warmup_num_steps + 1; step++) {
            double rate = schedule_lr(all[i], BASE_LR, step);
            assert_true(rate > before);
            before = rate;
        }
        double last = schedule_lr(all[i], BASE_LR, 100);
        assert_true(fabs(schedule_lr(all[i], BASE_LR, INT64_MAX) - last) <= 0);
    }
    assert_true(fabs(schedule_lr(&linear_decay, BASE_LR, 100) - 1e-5) <= 0);
    assert_true(fabs(schedule_lr(&cosine, BASE_LR, 100) - BASE_LR * 0.01) <= 0);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(schedule_name(SCHEDULE_NONE), "none");
    assert_string_equal(schedule_name(SCHEDULE_WARMUP), "WarmupLR");
    assert_string_equal(schedule_name(SCHEDULE_WARMUP_DECAY), "WarmupDecayLR");
    assert_string_equal(schedule_name(SCHEDULE_WARMUP_COSINE), "WarmupCosineLR");
}

static int print_rates(const char *path, const char *steps)
{
    struct settings settings;
    struct dcp_error err = { 0 };
    int64_t n;
    if (!dcp_str_parse_i64(steps, &n))
        return 2;
    int rc = settings_read(path, NULL, 1, NULL, &settings, &err);
    if (rc)
        fprintf(stderr, "%s\n", err.message);
    for (int64_t step = 1; !rc && step <= n; step++)
        printf("%.17g\n", schedule_lr(&settings.scheduler, settings.lr, step));
    settings_fini(&settings);
    return dcp_error_exit(rc);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates_of_deepspeed),
        cmocka_unit_test(test_the_first_two_steps_stay_low),
        cmocka_unit_test(test_rates_rise_fall_and_stay),
        cmocka_unit_test(test_names),
    };
    if (argc == 4 && strcmp(argv[1], "rates") == 0)
        return print_rates(argv[2], argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
