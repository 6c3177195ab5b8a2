/* The section "scheduler": its types, what they must be given, and their defaults. */
#include "base/mem.h"
#include "lib/parsed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The section is this text. */
static void accept_scheduler(const char *scheduler)
{
    char text[512];
    snprintf(text, sizeof text, "{" NEEDED BATCH "\"scheduler\": %s}", scheduler);
    expect_read(text);
}

static void refuse_scheduler(const char *scheduler, const char *message, const char *hint)
{
    char text[512];
    snprintf(text, sizeof text, "{" NEEDED BATCH "\"scheduler\": %s}", scheduler);
    expect_refused(text, DCP_E_USAGE, message, hint);
}

static void test_warmups(void **state)
{
    (void)state;
    expect_refused("{" NEEDED BATCH "\"scheduler\": {\"type\": \"Polynomial\"}}",
                   DCP_E_UNSUPPORTED, "Polynomial", "CosineAnnealingLR or ConstantLR");
    expect_refused("{" NEEDED BATCH "\"scheduler\": {\"type\": \"OneCycleLR\"}}",
                   DCP_E_UNSUPPORTED, "OneCycleLR", "did you mean OneCycle?");
    expect_refused("{" NEEDED BATCH "\"scheduler\": {\"type\": \"WarmupLR\","
                   "\"params\": {\"total_num_steps\": 9}}}",
                   DCP_E_USAGE,
                   "'scheduler.params.total_num_steps' is no parameter of WarmupLR", "");
    expect_refused("{" NEEDED BATCH "\"scheduler\": {\"type\": \"WarmupCosineLR\","
                   "\"params\": {\"total_num_steps\": 9, \"warmup_min_lr\": \"auto\"}}}",
                   DCP_E_USAGE, "warmup_min_lr' is no parameter of WarmupCosineLR", "");
    expect_refused("{" NEEDED BATCH "\"scheduler\": {\"type\": \"WarmupDecayLR\"}}",
                   DCP_E_USAGE, "'scheduler.params.total_num_steps' must be given",
                   "--steps");
    expect_refused("{" NEEDED BATCH "\"scheduler\": {\"type\": \"WarmupLR\","
                   "\"params\": {\"warmup_num_steps\": 0}}}",
                   DCP_E_USAGE, "is 0; it must be a whole number from 1", "");
    /* Its own default does not follow the optimizer's rate: people should know. */
    expect_read("{" NEEDED BATCH "\"optimizer\": {\"params\": {\"lr\": 5e-4}},"
                "\"scheduler\": {\"type\": \"WarmupDecayLR\","
                "\"params\": {\"total_num_steps\": 9000}}}");
    assert_true(is(got.scheduler.warmup_max_lr, 1e-3));
    assert_non_null(strstr(logged, "WarmupDecayLR warms up to 0.001"));
    expect_read("{" NEEDED BATCH "\"optimizer\": {\"params\": {\"lr\": 5e-4}},"
                "\"scheduler\": {\"type\": \"WarmupLR\"}}");
    assert_true(is(got.scheduler.warmup_max_lr, 5e-4));
    expect_read("{" NEEDED BATCH "\"scheduler\": {\"type\": \"none\","
                "\"params\": {\"warmup_num_steps\": 9}}}");
    assert_int_equal(got.scheduler.type, SCHEDULE_NONE);
}

static void test_without_a_type_it_would_do_nothing(void **state)
{
    (void)state;
    expect_read("{" NEEDED BATCH "\"seed\": 1}");
    assert_int_equal(got.scheduler.type, SCHEDULE_NONE);
    accept_scheduler("{}");
    assert_int_equal(got.scheduler.type, SCHEDULE_NONE);
    refuse_scheduler("{\"params\": {\"gamma\": 0.5}}", "'scheduler' has no type",
                     "give \"type\": \"WarmupLR\", \"WarmupDecayLR\", "
                     "\"WarmupCosineLR\", \"OneCycle\", \"LRRangeTest\", \"StepLR\", "
                     "\"CosineAnnealingLR\", \"ConstantLR\", or \"none\"");
    assert_int_equal(dcp_error_exit(why.code), 2);
}

static void test_one_cycle(void **state)
{
    const struct settings_scheduler *s = &got.scheduler;
    (void)state;
    accept_scheduler("{\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0.1,"
                     "\"cycle_max_lr\": 0.5, \"cycle_first_stair_count\": 3}}");
    assert_int_equal(s->type, SCHEDULE_ONE_CYCLE);
    assert_true(is(s->cycle_min_lr, 0.1) && is(s->cycle_max_lr, 0.5));
    assert_int_equal(s->cycle_first_step_size, 2000);
    assert_int_equal(s->cycle_second_step_size, 2000);
    assert_int_equal(s->cycle_first_stair_count, 3);
    assert_int_equal(s->cycle_second_stair_count, 3);
    assert_int_equal(s->decay_step_size, 0);
    assert_true(s->cycle_momentum && is(s->cycle_min_mom, 0.8) &&
                is(s->cycle_max_mom, 0.9));
    assert_string_equal(logged, "");
    accept_scheduler("{\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0.1,"
                     "\"cycle_max_lr\": 0.5, \"cycle_second_step_size\": 0,"
                     "\"cycle_first_step_size\": 10, \"cycle_second_stair_count\": 0,"
                     "\"decay_step_size\": 9, \"decay_mom_rate\": 0.5}}");
    assert_int_equal(s->cycle_second_step_size, 0);
    assert_int_equal(s->cycle_second_stair_count, 0);
    assert_non_null(strstr(logged, "beta1 is no number from 0 to below 1 from about step "
                                   "12 on"));
    refuse_scheduler("{\"type\": \"OneCycle\", \"params\": {\"cycle_max_lr\": 1}}",
                     "'scheduler.params.cycle_min_lr' must be given for OneCycle", "");
    refuse_scheduler("{\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1,"
                     "\"cycle_max_lr\": \"auto\"}}",
                     "'scheduler.params.cycle_max_lr' must be given for OneCycle", "");
    refuse_scheduler("{\"type\": \"OneCycle\", \"params\": {\"cycle_max_mom\": 1}}",
                     "'scheduler.params.cycle_max_mom' is 1; it must be", "");
    refuse_scheduler(
        "{\"type\": \"OneCycle\", \"params\": {\"cycle_second_step_size\": -1}}",
        "is -1; it must be a whole number from 0", "");
}

static void test_range_test(void **state)
{
    const struct settings_scheduler *s = &got.scheduler;
    (void)state;
    accept_scheduler("{\"type\": \"LRRangeTest\"}");
    assert_int_equal(s->type, SCHEDULE_LR_RANGE_TEST);
    assert_int_equal(s->lr_range_test_step_size, 2000);
    assert_true(is(s->lr_range_test_min_lr, 1e-3) && is(s->lr_range_test_step_rate, 1));
    assert_false(s->lr_range_test_staircase);
    refuse_scheduler(
        "{\"type\": \"LRRangeTest\", \"params\": {\"lr_range_test_step_size\": 0}}",
        "is 0; it must be a whole number from 1", "");
}

static void test_those_of_pytorch(void **state)
{
    const struct settings_scheduler *s = &got.scheduler;
    (void)state;
    accept_scheduler("{\"type\": \"StepLR\", \"params\": {\"step_size\": 5}}");
    assert_int_equal(s->type, SCHEDULE_STEP);
    assert_true(s->step_size == 5 && is(s->gamma, 0.1));
    accept_scheduler("{\"type\": \"CosineAnnealingLR\", \"params\": {\"T_max\": 7,"
                     "\"last_epoch\": -1}}");
    assert_int_equal(s->type, SCHEDULE_COSINE_ANNEALING);
    assert_true(s->t_max == 7 && is(s->eta_min, 0));
    expect_read("{" NEEDED BATCH "\"steps\": 40, \"scheduler\": {\"type\": "
                "\"CosineAnnealingLR\", \"params\": {\"T_max\": \"auto\"}}}");
    assert_int_equal(s->t_max, 40);
    accept_scheduler("{\"type\": \"ConstantLR\"}");
    assert_int_equal(s->type, SCHEDULE_CONSTANT);
    assert_true(s->total_iters == 5 && is(s->factor, 1.0 / 3));
    refuse_scheduler("{\"type\": \"StepLR\", \"params\": {\"gamma\": 1}}",
                     "'scheduler.params.step_size' must be given for StepLR", "");
    refuse_scheduler("{\"type\": \"CosineAnnealingLR\", \"params\": {}}",
                     "'scheduler.params.T_max' must be given for CosineAnnealingLR",
                     "\"auto\"");
    refuse_scheduler("{\"type\": \"ConstantLR\", \"params\": {\"factor\": 0}}",
                     "'scheduler.params.factor' is 0, by which ConstantLR divides", "");
    refuse_scheduler("{\"type\": \"StepLR\", \"params\": {\"T_max\": 1}}",
                     "'scheduler.params.T_max' is no parameter of StepLR", "");
    expect_refused("{" NEEDED BATCH "\"scheduler\": {\"type\": \"StepLR\", \"params\": "
                   "{\"last_epoch\": 3}}}",
                   DCP_E_UNSUPPORTED, "follows the step of the checkpoint", "");
}

/* The resolved section is one that resolves to itself. */
static void test_the_text_is_a_fixed_point(void **state)
{
    static const char *const sections[] = {
        ("{\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1e-4,"
         "\"cycle_max_lr\": 0.1, \"cycle_first_step_size\": 7}}"),
        "{\"type\": \"LRRangeTest\"}",
        "{\"type\": \"StepLR\", \"params\": {\"step_size\": 5, \"gamma\": 0.3}}",
        "{\"type\": \"CosineAnnealingLR\", \"params\": {\"T_max\": 7}}",
        "{\"type\": \"ConstantLR\"}",
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(sections); i++) {
        char first[4096];
        accept_scheduler(sections[i]);
        snprintf(first, sizeof first, "%s", got.text);
        expect_read(first);
        assert_string_equal(got.text, first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmups),
        cmocka_unit_test(test_without_a_type_it_would_do_nothing),
        cmocka_unit_test(test_one_cycle),
        cmocka_unit_test(test_range_test),
        cmocka_unit_test(test_those_of_pytorch),
        cmocka_unit_test(test_the_text_is_a_fixed_point),
    };
    return cmocka_run_group_tests(tests, NULL, forget_parsed);
}
