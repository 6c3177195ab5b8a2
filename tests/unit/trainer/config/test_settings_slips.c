/* What would train another thing than was meant: slips, and switches that are "auto". */
#include "lib/parsed.h"
#include "trainer/config/draft.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* At the top level, where other keys are ignored, what can only be a slip is none. */
static void test_slips(void **state)
{
    static const char *const rows[][2] = {
        { "gradient_cliping", "gradient_clipping" },
        { "optimzer", "optimizer" },
        { "zero_optimisation", "zero_optimization" },
        { "Optimizer", "optimizer" },
        { "bfloat_16", "bfloat16" },
        { "gradient_accumulation", "gradient_accumulation_steps" },
        { "modle", "model" },
        { "datas", "data" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256], message[96], hint[96];
        snprintf(text, sizeof text, "{" NEEDED BATCH "\"%s\": {}}", rows[i][0]);
        snprintf(message, sizeof message, "c.json: unknown key '%s'", rows[i][0]);
        snprintf(hint, sizeof hint, "did you mean '%s'?", rows[i][1]);
        expect_refused(text, DCP_E_USAGE, message, hint);
    }
}

/* What nobody can choose here is not silently off. */
static void test_auto_that_would_be_off(void **state)
{
    static const char *const paths[][2] = {
        { "zero_optimization", "stage" },
        { "checkpoint", "parity" },
        { "checkpoint", "codec" },
        { "data", "val" },
        { "model", "init" },
        { "scheduler", "type" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char text[256], message[96];
        snprintf(text, sizeof text, "{%s%s\"%s\": {\"%s\": \"auto\"}}",
                 strcmp(paths[i][0], "data") ? NEEDED : "", BATCH, paths[i][0],
                 paths[i][1]);
        snprintf(message, sizeof message, "'%s.%s' is \"auto\", and nothing here",
                 paths[i][0], paths[i][1]);
        expect_refused(text, DCP_E_USAGE, message, "give a value");
    }
    expect_refused("{" NEEDED BATCH
                   "\"scheduler\": {\"params\": {\"warmup_num_steps\": 4}}}",
                   DCP_E_USAGE, "c.json: 'scheduler' has no type", "\"WarmupLR\"");
    expect_read("{" NEEDED BATCH "\"scheduler\": {}}");
}

/* Nothing is without effect and without a reason. */
static void check_reasons(const struct settings_key *keys)
{
    for (const struct settings_key *key = keys; key->name; key++) {
        if (key->kind == KEY_SECTION)
            check_reasons(key->keys);
        else if (key->use == KEY_NO_EFFECT && !settings_reason(key->name))
            fail_msg("%s: no reason", key->name);
    }
}

static void test_all_have_reasons(void **state)
{
    (void)state;
    check_reasons(settings_root);
    for (size_t i = 0; settings_reason_at(i); i++)
        assert_true(strlen(settings_reason_at(i)) > 10);
    assert_null(settings_reason("lr"));
    expect_read("{" NEEDED BATCH "\"zero_optimization\": {\"reduce_scatter\": false, "
                "\"param_persistence_threshold\": 7, \"allgather_bucket_size\": 5}}");
    assert_non_null(
        strstr(logged, ": reduce_scatter, allgather_bucket_size: a layer at"));
    assert_non_null(strstr(logged, ": param_persistence_threshold: a layer is"));
    expect_read("{" NEEDED BATCH "\"zero_optimization\": {\"overlap_comm\": true, "
                "\"max_live_parameters\": 7, \"stage3_max_live_parameters\": 8, "
                "\"max_reuse_distance\": 9, \"reduce_bucket_size\": 5}}");
    assert_int_equal(got.overlap, 1);
    assert_int_equal(got.max_live, 8);
    assert_int_equal(got.max_reuse, 9);
    assert_int_equal(got.reduce_bucket, 5);
    assert_int_equal(got.prefetch, -1);
    expect_read("{" NEEDED BATCH
                "\"fsdp_config\": {\"sharding_strategy\": \"FULL_SHARD\", "
                "\"backward_prefetch\": \"no_prefetch\", \"min_num_params\": 100, "
                "\"reshard_after_forward\": false, \"use_orig_params\": true}}");
    assert_int_equal(got.stage, 3);
    assert_int_equal(got.backward_prefetch, 0);
    assert_int_equal(got.forward_prefetch, -1);
    assert_true(got.max_live > 1000000000000);
    assert_non_null(strstr(logged, ": min_num_params: a layer is"));
    expect_read("{" NEEDED BATCH "\"fsdp_config\": {\"activation_checkpointing\": true, "
                "\"backward_prefetch\": \"backward_post\"}}");
    assert_true(got.stage == 3 && got.recompute.every == 1);
    expect_read("{" NEEDED BATCH "\"fsdp_config\": {\"reshard_after_forward\": true}, "
                "\"zero_optimization\": {\"stage\": 2}}");
    assert_int_equal(got.stage, 2);
    expect_read("{" NEEDED BATCH "\"fsdp_config\": {\"fsdp_sharding_strategy\": "
                "\"SHARD_GRAD_OP\", \"fsdp_version\": 1, \"xla\": false}}");
    assert_int_equal(got.stage, 2);
    expect_refused("{" NEEDED BATCH "\"fsdp_config\": {\"xla\": true}}",
                   DCP_E_UNSUPPORTED, "'fsdp_config.xla'", "");
    expect_read("{" NEEDED BATCH "\"fsdp_config\": {\"min_num_params\": 0}}");
    assert_int_equal(got.stage, 0);
    expect_refused(
        "{" NEEDED BATCH "\"fsdp_config\": {\"sharding_strategy\": \"full_shard\"}, "
        "\"zero_optimization\": {\"stage\": 0}}",
        DCP_E_USAGE, "is ZeRO's stage 3, but zero_optimization.stage is 0", "");
    expect_refused(
        "{" NEEDED BATCH "\"fsdp_config\": {\"sharding_strategy\": \"full_shard\"}, "
        "\"zero_optimization\": {\"stage\": 2}}",
        DCP_E_USAGE, "is ZeRO's stage 3, but zero_optimization.stage is 2", "");
    expect_refused(
        "{" NEEDED BATCH "\"data_types\": {\"param_dtype\": \"bf16\"}}", DCP_E_USAGE,
        "'data_types.param_dtype' is bfloat16, but weights are in", "bf16.enabled");
    expect_read("{" NEEDED BATCH "\"bf16\": {\"enabled\": true}, "
                "\"data_types\": {\"param_dtype\": \"bf16\"}}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slips),
        cmocka_unit_test(test_auto_that_would_be_off),
        cmocka_unit_test(test_all_have_reasons),
    };
    return cmocka_run_group_tests(tests, NULL, forget_parsed);
}
