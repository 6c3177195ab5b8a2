/* scheduler: the object of a checkpoint: what is written, what is read from anybody's,
 * and what is told when it is another one than the configuration's. */
#include "base/mem.h"
#include "trainer/state/compare.h"
#include "trainer/state/scheduler.h"
#include <dcp/training.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct settings got;
static char logged[2048];

static void keep(void *self, enum dcp_log_level level, const char *message)
{
    (void)self;
    (void)level;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%s\n", message);
}

/* The settings with lr 0.5 and this section. */
static void configure(const char *scheduler)
{
    struct dcp_error err = { 0 };
    char text[512];
    snprintf(text, sizeof text,
             "{\"data\": {\"train\": \"a\"}, \"train_batch_size\": 1, \"optimizer\": "
             "{\"params\": {\"lr\": 0.5}}, \"scheduler\": %s}",
             scheduler);
    settings_fini(&got);
    if (settings_parse(text, strlen(text), "c.json", "/", NULL, 1, NULL, &got, &err))
        fail_msg("%s", err.message);
}

static struct dcp_catalog *catalog_of(const char *scheduler, const char *config)
{
    struct dcp_catalog *catalog;
    const char *const rows[][2] = { { DCP_TRAINING_SCHEDULER, scheduler },
                                    { DCP_TRAINING_DEEPSPEED_CONFIG, config } };
    assert_int_equal(dcp_catalog_new(&catalog, NULL), DCP_OK);
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        const struct dcp_object object = { .name = rows[i][0],
                                           .kind = DCP_OBJECT_JSON,
                                           .data = rows[i][1],
                                           .size_bytes =
                                               rows[i][1] ? strlen(rows[i][1]) : 0 };
        if (rows[i][1])
            assert_int_equal(dcp_catalog_add_object(catalog, &object, NULL), DCP_OK);
    }
    return catalog;
}

static void test_what_is_written(void **state)
{
    static const struct {
        const char *section;
        int64_t done;
        const char *text;
    } rows[] = {
        { "{\"type\": \"none\"}", 7, "{\"type\":\"none\",\"last_batch_iteration\":6}" },
        { "{\"type\": \"WarmupLR\"}", 0,
          "{\"type\":\"WarmupLR\",\"last_batch_iteration\":-1}" },
        { "{\"type\": \"StepLR\", \"params\": {\"step_size\": 2, \"gamma\": 0.5}}", 4,
          "{\"type\":\"StepLR\",\"step_size\":2,\"gamma\":0.5,\"base_lrs\":[0.5,0.5],"
          "\"last_epoch\":4,\"_step_count\":5,\"_last_lr\":[0.125,0.125]}" },
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        configure(rows[i].section);
        char *text = scheduler_text(&got, rows[i].done);
        assert_string_equal(text, rows[i].text);
        free(text);
    }
}

static void test_where_it_was(void **state)
{
    static const struct {
        const char *object;
        int64_t done; /* of 9 updates */
    } rows[] = {
        { NULL, 9 },
        { "{}", 9 },
        { "[3]", 9 },
        { "{\"last_batch_iteration\":-1}", 0 },
        { "{\"type\":\"mine\",\"last_batch_iteration\":3}", 4 },
        { "{\"last_batch_iteration\":-2}", 9 },
        { "{\"last_batch_iteration\":3.5}", 9 },
        { "{\"last_batch_iteration\":9223372036854775807}", 9 },
        { "{\"type\":\"StepLR\",\"last_epoch\":3}", 3 },
        { "{\"type\":\"StepLR\",\"last_epoch\":-1}", 9 },
        { "{\"last_epoch\":3}", 9 }, /* it may have been stepped once in an epoch */
        { "{\"type\":\"LambdaLR\",\"last_epoch\":3}", 9 },
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        struct dcp_catalog *catalog = catalog_of(rows[i].object, NULL);
        assert_int_equal(scheduler_done(catalog, 9), rows[i].done);
        dcp_catalog_free(catalog);
    }
    struct dcp_catalog *catalog = catalog_of(NULL, NULL);
    assert_int_equal(scheduler_done(catalog, -4), 0);
    assert_true(scheduler_done(catalog, INT64_MAX) <= INT64_C(1) << 32);
    dcp_catalog_free(catalog);
}

#define STEP2 "{\"type\": \"StepLR\", \"params\": {\"step_size\": 2}}"
#define CYCLE \
    "{\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1, \"cycle_max_lr\": 2}}"

static void test_what_has_changed(void **state)
{
    static const struct {
        const char *section, *object, *config, *told;
    } rows[] = {
        { STEP2, NULL, NULL, "" },
        { STEP2, NULL, "not JSON", "" },
        { STEP2, NULL, "{\"scheduler\": {\"type\": \"Mine\"}}", "" },
        /* Its default is said, and the rate is not: that is no change. */
        { STEP2, NULL, "{\"scheduler\": " STEP2 "}", "" },
        { STEP2, NULL,
          "{\"scheduler\": {\"type\": \"StepLR\", \"params\": {\"step_size\": 3.0, "
          "\"gamma\": 0.2}}, \"optimizer\": {\"type\": \"Lion\", \"params\": {\"lr\": "
          "0.25}}}",
          "optimizer.type was Lion and is AdamW: training goes on with the new value\n"
          "optimizer.params.lr was 0.25 and is 0.5: training goes on with the new value\n"
          "scheduler.params.step_size was 3 and is 2: training goes on with the new "
          "value\n"
          "scheduler.params.gamma was 0.2 and is 0.1: training goes on with the new "
          "value\n" },
        { STEP2, "{\"type\":\"WarmupLR\",\"last_batch_iteration\":3}",
          "{\"scheduler\": {\"type\": \"WarmupLR\"}}",
          "scheduler.type was WarmupLR and is StepLR: training goes on with the new "
          "value\n" },
        { STEP2, NULL,
          "{\"scheduler\": " STEP2
          ", \"zero_optimization\": {\"zero_quantized_weights\": true}}",
          "zero_optimization.zero_quantized_weights was true and is false: training goes "
          "on with the new value\n" },
        { STEP2, NULL, "{}",
          "scheduler.type was none and is StepLR: training goes on with the new "
          "value\n" },
        /* The user's own code made it; the state has its parameters. */
        { STEP2, "{\"step_size\":5,\"gamma\":0.1,\"last_epoch\":3}", "{}",
          "scheduler.params.step_size was 5 and is 2: training goes on with the new "
          "value\n" },
        { STEP2, NULL,
          "{\"scheduler\": " STEP2 ", \"train_batch_size\": 7, \"gradient_clipping\": "
          "\"auto\", \"optimizer\": {\"params\": {\"betas\": [0.9, 0.95], \"eps\": "
          "\"auto\", \"weight_decay\": 0.5}}}",
          "optimizer.params.betas was [0.9, 0.95] and is [0.9, 0.999]: training goes on "
          "with the new value\n"
          "optimizer.params.weight_decay was 0.5 and is 0: training goes on with the new "
          "value\n"
          "train_batch_size was 7 and is 1: training goes on with the new value\n" },
        /* OneCycle's rates are its own. */
        { CYCLE, NULL,
          "{\"scheduler\": " CYCLE ", \"optimizer\": {\"params\": {\"lr\": 9}}}", "" },
    };
    const struct dcp_log log = { .write = keep, .level = DCP_LOG_WARN };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        configure(rows[i].section);
        struct dcp_catalog *catalog = catalog_of(rows[i].object, rows[i].config);
        logged[0] = '\0';
        state_compare(catalog, &got, &log);
        assert_string_equal(logged, rows[i].told);
        dcp_catalog_free(catalog);
    }
}

static int end(void **state)
{
    (void)state;
    settings_fini(&got);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written),
        cmocka_unit_test(test_where_it_was),
        cmocka_unit_test(test_what_has_changed),
    };
    return cmocka_run_group_tests(tests, NULL, end);
}
