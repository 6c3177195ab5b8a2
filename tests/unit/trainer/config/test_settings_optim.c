/* The optimizers: their defaults, and what they do not take. */
#include "base/mem.h"
#include "lib/parsed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

/* Defaults of their classes, and parameters that these do not take. */
static void test_other_optimizers(void **state)
{
    static const struct {
        const char *optimizer;
        enum optim_type type;
        double lr, eps;
    } rows[] = {
        { "{\"type\": \"sgd\"}", OPTIM_SGD, 1e-3, 1e-8 },
        { "{\"type\": \"SGD\", \"params\": {\"momentum\": 0.9, \"nesterov\": true}}",
          OPTIM_MOMENTUM, 1e-3, 1e-8 },
        { "{\"type\": \"Lion\", \"params\": {\"lr\": \"auto\"}}", OPTIM_LION, 1e-3,
          1e-8 },
        { "{\"type\": \"Adagrad\"}", OPTIM_ADAGRAD, 1e-2, 1e-10 },
        { "{\"type\": \"Lamb\"}", OPTIM_LAMB, 1e-3, 1e-8 },
    };
    static const char *const not_taken[][2] = {
        { "SGD\", \"params\": {\"betas\": [0.9, 0.99]", "betas' is no parameter of SGD" },
        { "Lion\", \"params\": {\"eps\": 1e-8", "eps' is no parameter of Lion" },
        { "AdamW\", \"params\": {\"momentum\": 0.9", "is no parameter of AdamW" },
        { "Adagrad\", \"params\": {\"nesterov\": true", "is no parameter of Adagrad" },
        { "SGD\", \"params\": {\"nesterov\": true", "needs a momentum above 0" },
        { "AdamW\", \"params\": {\"max_coeff\": 3", "is no parameter of AdamW" },
        { "Lamb\", \"params\": {\"max_coeff\": 0.001", "min_coeff' is above max_coeff" },
        { "SGD\", \"params\": {\"nesterov\": true, \"momentum\": 0.9, \"dampening\": 0.1",
          "and a dampening of 0" },
        { "SGD\", \"params\": {\"adam_lr\": 0.1", "adam_lr' is no parameter of SGD" },
        { "Muon\", \"params\": {\"dampening\": 0.1", "is no parameter of Muon" },
        { "Muon\", \"params\": {\"ns_coefficients\": [1, 2]", "three numbers in" },
        { "Muon\", \"params\": {\"adjust_lr_fn\": \"none\"", "original or match_rms" },
    };
    char text[256];
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        snprintf(text, sizeof text, "{" NEEDED BATCH "\"optimizer\": %s}",
                 rows[i].optimizer);
        expect_read(text);
        assert_int_equal(got.optimizer, rows[i].type);
        assert_true(is(got.lr, rows[i].lr) && is(got.eps, rows[i].eps));
        assert_true(is(got.beta1, 0.9) && is(got.beta2, 0.999));
        assert_true(is(got.weight_decay, 0) && !got.decay_all && !got.decoupled_decay);
    }
    for (size_t i = 0; i < DCP_ARRAY_LEN(not_taken); i++) {
        snprintf(text, sizeof text, "{" NEEDED BATCH "\"optimizer\": {\"type\": \"%s}}}",
                 not_taken[i][0]);
        expect_refused(text, DCP_E_USAGE, not_taken[i][1], "");
    }
    expect_refused("{" NEEDED BATCH "\"optimizer\": {\"type\": \"Adagrad\", \"params\": "
                   "{\"initial_accumulator_value\": 0.1}}}",
                   DCP_E_UNSUPPORTED, "sums of squares begin at zero", "");
    expect_read("{" NEEDED BATCH "\"optimizer\": {\"decay_all\": true}}");
    assert_true(got.decay_all);
    expect_read("{" NEEDED BATCH
                "\"optimizer\": {\"type\": \"SGD\"}, \"scheduler\": {\"type\": "
                "\"OneCycle\", \"params\": {\"cycle_min_lr\": 0, \"cycle_max_lr\": 1}}}");
    assert_false(got.scheduler.cycle_momentum);
    assert_non_null(strstr(logged, "OneCycle cycles no momentum"));
}

/* Of DeepSpeed's class, and of torch's where that has more. */
static void test_muon(void **state)
{
    (void)state;
#define MUON "{" NEEDED BATCH "\"optimizer\": {\"type\": \"muon\", \"params\": {"
    expect_read(MUON "}}}");
    assert_int_equal(got.optimizer, OPTIM_MUON);
    assert_true(is(got.lr, 0.02) && is(got.adam_lr, 3e-4) && is(got.eps, 1e-10));
    assert_true(is(got.beta1, 0.9) && is(got.beta2, 0.95) && is(got.momentum, 0.95));
    assert_true(got.nesterov && got.decoupled_decay && !got.match_rms);
    assert_true(is(got.weight_decay, 0) && is(got.newton_schulz.eps, 1e-7));
    assert_int_equal(got.newton_schulz.steps, 5);
    assert_true(is(got.newton_schulz.coefficients[0], 3.4445));
    assert_true(is(got.newton_schulz.coefficients[2], 2.0315));
    expect_read(MUON "\"lr\": 0.1, \"adam_lr\": 0.2, \"nesterov\": false, "
                     "\"adjust_lr_fn\": \"match_rms_adamw\", "
                     "\"ns_coefficients\": [1.5, -0.5, 0], \"ns_method\": \"gram\"}}}");
    assert_true(is(got.lr, 0.1) && is(got.adam_lr, 0.2) && !got.nesterov);
    assert_true(got.match_rms && is(got.newton_schulz.coefficients[1], -0.5));
    assert_non_null(strstr(logged, "ns_method: matrices are made orthogonal in fp32"));
    assert_non_null(strstr(got.text, "\"muon_lr\": 0.1"));
    assert_non_null(strstr(got.text, "\"ns_coefficients\": [1.5, -0.5, 0"));
    expect_read(MUON "\"lr\": 0.1, \"muon_lr\": 0.3}}, \"scheduler\": "
                     "{\"type\": \"WarmupLR\"}}");
    assert_true(is(got.lr, 0.3) && is(got.adam_lr, 0.1));
    assert_true(got.scheduler.warmup_max_lr < 0); /* each group's own */
    assert_null(strstr(got.text, "warmup_max_lr"));
}

/* Of torch's class, by some names of transformers', too. */
static void test_adafactor(void **state)
{
    (void)state;
#define ADAFACTOR \
    "{" NEEDED BATCH "\"optimizer\": {\"type\": \"Adafactor\", \"params\": {"
    expect_read(ADAFACTOR "}}}");
    assert_int_equal(got.optimizer, OPTIM_ADAFACTOR);
    assert_true(is(got.lr, 0.01) && isnan(got.eps) && is(got.eps_scale, 1e-3));
    assert_true(is(got.beta2_decay, -0.8) && is(got.clip_threshold, 1));
    assert_true(got.scale_parameter && got.relative_step && is(got.weight_decay, 0));
    assert_non_null(strstr(got.text, "\"eps\": [null, 0.001"));
    expect_read(ADAFACTOR "\"lr\": null, \"eps\": [1e-30, 0.01], \"beta1\": null, "
                          "\"decay_rate\": -0.7, \"clip_threshold\": 2, "
                          "\"scale_parameter\": false, \"relative_step\": false, "
                          "\"warmup_init\": false}}}");
    assert_true(is(got.eps, 1e-30) && is(got.eps_scale, 0.01));
    assert_true(is(got.beta2_decay, -0.7) && is(got.clip_threshold, 2));
    assert_true(!got.scale_parameter && !got.relative_step);
    assert_non_null(strstr(got.text, "\"beta2_decay\": -0.7"));
    expect_refused(ADAFACTOR "\"beta1\": 0.9}}}", DCP_E_UNSUPPORTED,
                   "Adafactor keeps no first moment", "");
    expect_refused(ADAFACTOR "\"warmup_init\": true}}}", DCP_E_UNSUPPORTED,
                   "rates begin where the schedule says", "WarmupLR");
    expect_refused(ADAFACTOR "\"d\": 0.5}}}", DCP_E_USAGE, "must be a number, 1 or more",
                   "");
    expect_refused(ADAFACTOR "\"beta2_decay\": 0.8}}}", DCP_E_USAGE, "is above 0", "");
    expect_refused(ADAFACTOR "\"eps\": 1e-8}}}", DCP_E_USAGE, "two numbers", "");
    expect_refused(ADAFACTOR "\"betas\": [0.9, 0.9]}}}", DCP_E_USAGE,
                   "betas' is no parameter of Adafactor", "");
    expect_refused("{" NEEDED BATCH "\"optimizer\": {\"params\": {\"eps\": [0, 0.1]}}}",
                   DCP_E_USAGE, "it must be a number", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_optimizers),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_adafactor),
    };
    return cmocka_run_group_tests(tests, NULL, forget_parsed);
}
