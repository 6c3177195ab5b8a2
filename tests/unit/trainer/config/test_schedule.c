/* schedule: rates that DeepSpeed 0.19.8 and PyTorch 2.13 gave, and the shape of every
 * schedule.
 *
 * `test_unit_schedule rates FILE STEPS` prints the rate and the betas of each step of a
 * configuration, for the test against them. */
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
            double rate = schedule_lr(rows[i].scheduler, BASE_LR, step, NULL);
            if (rate < rows[i].rates[step - 1] || rate > rows[i].rates[step - 1])
                fail_msg("row %zu, step %d: %.17g", i, step, rate);
        }
}

static const struct settings_scheduler one_cycle = { .type = SCHEDULE_ONE_CYCLE,
                                                     .cycle_min_lr = 1e-4,
                                                     .cycle_max_lr = 1e-3,
                                                     .cycle_first_step_size = 4,
                                                     .cycle_second_step_size = 7,
                                                     .decay_step_size = 3,
                                                     .decay_lr_rate = 0.5,
                                                     .cycle_momentum = true,
                                                     .cycle_min_mom = 0.8,
                                                     .cycle_max_mom = 0.9,
                                                     .decay_mom_rate = -0.001 };
static const struct settings_scheduler stairs = { .type = SCHEDULE_ONE_CYCLE,
                                                  .cycle_min_lr = 1e-4,
                                                  .cycle_max_lr = 1e-3,
                                                  .cycle_first_step_size = 9,
                                                  .cycle_second_step_size = 9,
                                                  .cycle_first_stair_count = 3,
                                                  .cycle_second_stair_count = 2 };
static const struct settings_scheduler range_test = { .type = SCHEDULE_LR_RANGE_TEST,
                                                      .lr_range_test_min_lr = 1e-4,
                                                      .lr_range_test_step_size = 7,
                                                      .lr_range_test_step_rate = 3.3 };
static const struct settings_scheduler staircase = { .type = SCHEDULE_LR_RANGE_TEST,
                                                     .lr_range_test_min_lr = 1e-4,
                                                     .lr_range_test_step_size = 7,
                                                     .lr_range_test_step_rate = 3.3,
                                                     .lr_range_test_staircase = true };
static const struct settings_scheduler decays = { .type = SCHEDULE_STEP,
                                                  .step_size = 5,
                                                  .gamma = 0.7 };
static const struct settings_scheduler annealing = { .type = SCHEDULE_COSINE_ANNEALING,
                                                     .t_max = 7,
                                                     .eta_min = 1e-5 };
static const struct settings_scheduler constant = { .type = SCHEDULE_CONSTANT,
                                                    .factor = 0.3,
                                                    .total_iters = 4 };
#define N_AT 15
static const int64_t at[N_AT] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 20, 100, 500, 2000 };

static bool is(double a, double b)
{
    return a >= b && a <= b;
}

static void test_rates_of_a_long_run(void **state)
{
    static const struct {
        const struct settings_scheduler *scheduler;
        double rates[N_AT];
    } rows[] = {
        { &one_cycle,
          { 0.0001, 0.0003249999999999998, 0.0005500000000000001, 0.000775,
            0.0009999999999999998, 0.0008714285714285714, 0.000742857142857143,
            0.0006142857142857145, 0.00048571428571428566, 0.0001, 8.571428571428571e-05,
            4.285714285714286e-05, 6.3829787234042555e-06, 1.2145748987854253e-06,
            3.0090270812437316e-07 } },
        { &stairs,
          { 0.0001, 0.0001, 0.0001, 0.00039999999999999996, 0.00039999999999999996,
            0.00039999999999999996, 0.0007, 0.0007, 0.0007, 0.00055, 0.00055, 0.0001,
            0.0001, 0.0001, 0.0001 } },
        { &range_test,
          { 0.0001, 0.00014714285714285713, 0.00019428571428571428,
            0.00024142857142857142, 0.00028857142857142856, 0.00033571428571428576,
            0.00038285714285714285, 0.00043, 0.0004771428571428571, 0.0006185714285714285,
            0.0006657142857142856, 0.0009957142857142858, 0.004767142857142857,
            0.023624285714285716, 0.09433857142857142 } },
        { &staircase,
          { 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.00043, 0.00043,
            0.00043, 0.00043, 0.00076, 0.004719999999999999, 0.02353, 0.09415 } },
        { &decays,
          { 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.00020999999999999998,
            0.00020999999999999998, 0.00020999999999999998, 0.00020999999999999998,
            0.00014699999999999997, 0.00014699999999999997, 0.00010289999999999997,
            3.4196685556119375e-07, 1.386204218410602e-19, 4.6907168757260883e-66 } },
        { &annealing,
          { 0.0003, 0.00028564048584585073, 0.0002454060212695163, 0.00018726553542366555,
            0.0001227344645763344, 6.459397873048363e-05, 2.4359514154149237e-05, 1e-05,
            2.4359514154149223e-05, 0.00018726553542366544, 0.0002454060212695163,
            6.45939787304837e-05, 0.0002856404858458525, 6.459397873048684e-05,
            0.00018726553542368726 } },
        { &constant,
          { 8.999999999999999e-05, 8.999999999999999e-05, 8.999999999999999e-05,
            8.999999999999999e-05, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003,
            0.0003, 0.0003, 0.0003, 0.0003 } },
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        struct schedule_place place = { 0 };
        for (size_t k = 0; k < N_AT; k++) {
            double whole = schedule_lr(rows[i].scheduler, BASE_LR, at[k], NULL);
            double on = schedule_lr(rows[i].scheduler, BASE_LR, at[k], &place);
            if (!is(whole, rows[i].rates[k]) || !is(on, whole))
                fail_msg("row %zu, step %d: %.17g, %.17g", i, (int)at[k], whole, on);
        }
        /* A place behind the step is none. */
        assert_true(
            is(schedule_lr(rows[i].scheduler, BASE_LR, at[4], &place), rows[i].rates[4]));
    }
}

static void test_momentum_of_a_long_run(void **state)
{
    static const double betas[] = { 0.95, 0.999 };
    static const double momentum[N_AT] = { 0.8,
                                           0.875,
                                           0.85,
                                           0.8250000000000001,
                                           0.8,
                                           0.8142857142857143,
                                           0.8285714285714286,
                                           0.8428571428571429,
                                           0.8571428571428572,
                                           0.9,
                                           0.8997,
                                           0.8976,
                                           0.8736,
                                           0.7536,
                                           0.30360000000000004 };
    double got[2];
    (void)state;
    for (size_t k = 0; k < N_AT; k++) {
        schedule_betas(&one_cycle, betas, at[k], got);
        if (!is(got[0], momentum[k]) || !is(got[1], 0.99))
            fail_msg("step %d: %.17g, %.17g", (int)at[k], got[0], got[1]);
        schedule_betas(&stairs, betas, at[k], got); /* cycles none */
        assert_true(is(got[0], 0.95) && is(got[1], 0.999));
        schedule_betas(&decays, betas, at[k], got);
        assert_true(is(got[0], 0.95) && is(got[1], 0.999));
    }
}

/* Step 1 is made before the scheduler's first call, step 2 with its iteration 0. */
static void test_the_first_two_steps_stay_low(void **state)
{
    (void)state;
    assert_true(schedule_lr(&log_warmup, BASE_LR, 1, NULL) <= 1e-5);
    assert_true(schedule_lr(&log_warmup, BASE_LR, 2, NULL) <= 1e-5);
    assert_true(schedule_lr(&log_warmup, BASE_LR, 3, NULL) > 1e-5);
    assert_true(fabs(schedule_lr(&cosine, BASE_LR, 1, NULL)) <= 0);
    assert_true(schedule_lr(&cosine, BASE_LR, 2, NULL) <= BASE_LR * 0.1);
}

static void test_rates_rise_fall_and_stay(void **state)
{
    static const struct settings_scheduler *const all[] = { &log_warmup, &linear_decay,
                                                            &cosine };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(all); i++) {
        double before = schedule_lr(all[i], BASE_LR, 2, NULL);
        for (int64_t step = 3; step <= all[i]->warmup_num_steps + 1; step++) {
            double rate = schedule_lr(all[i], BASE_LR, step, NULL);
            assert_true(rate > before);
            before = rate;
        }
        double last = schedule_lr(all[i], BASE_LR, 100, NULL);
        assert_true(fabs(schedule_lr(all[i], BASE_LR, INT64_MAX, NULL) - last) <= 0);
    }
    assert_true(fabs(schedule_lr(&linear_decay, BASE_LR, 100, NULL) - 1e-5) <= 0);
    assert_true(fabs(schedule_lr(&cosine, BASE_LR, 100, NULL) - BASE_LR * 0.01) <= 0);
}

static int print_rates(const char *path, const char *steps)
{
    struct settings settings;
    struct schedule_place place = { 0 };
    struct dcp_error err = { 0 };
    int64_t n;
    if (!dcp_str_parse_i64(steps, &n))
        return 2;
    int rc = settings_read(path, NULL, 1, NULL, &settings, &err);
    if (rc)
        fprintf(stderr, "%s\n", err.message);
    for (int64_t step = 1; !rc && step <= n; step++) {
        double betas[2];
        schedule_betas(&settings.scheduler,
                       (const double[]){ settings.beta1, settings.beta2 }, step, betas);
        printf("%.17g %.17g %.17g\n",
               schedule_lr(&settings.scheduler, settings.lr, step, &place), betas[0],
               betas[1]);
    }
    settings_fini(&settings);
    return dcp_error_exit(rc);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates_of_deepspeed),
        cmocka_unit_test(test_rates_of_a_long_run),
        cmocka_unit_test(test_momentum_of_a_long_run),
        cmocka_unit_test(test_the_first_two_steps_stay_low),
        cmocka_unit_test(test_rates_rise_fall_and_stay),
    };
    if (argc == 4 && strcmp(argv[1], "rates") == 0)
        return print_rates(argv[2], argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
