/* The record of a training state: written, read back, changed, and given odd JSON. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

struct row {
    const char *name, *text;
};

static struct dcp_catalog *catalog_of(const struct row *rows, size_t n)
{
    struct dcp_catalog *catalog;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        const struct dcp_object object = { .name = rows[i].name,
                                           .kind = DCP_OBJECT_JSON,
                                           .data = rows[i].text,
                                           .size_bytes = strlen(rows[i].text) };
        assert_int_equal(dcp_catalog_add_object(catalog, &object, NULL), 0);
    }
    return catalog;
}

static int parse(const struct row *rows, size_t n, struct dcp_training *out,
                 struct dcp_error *err)
{
    struct dcp_catalog *catalog = catalog_of(rows, n);
    int rc = dcp_training_parse(catalog, out, err);

    dcp_catalog_free(catalog); /* the record borrows nothing */
    return rc;
}

static void assert_objects(struct dcp_training *training, const struct row *rows,
                           size_t n)
{
    const struct dcp_object *objects;
    size_t n_objects;

    assert_int_equal(dcp_training_format(training, &objects, &n_objects, NULL), 0);
    assert_int_equal(n_objects, n);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(objects[i].name, rows[i].name);
        assert_string_equal(objects[i].data, rows[i].text);
        assert_int_equal(objects[i].size_bytes, strlen(rows[i].text));
    }
}

#define ROWS(rows) rows, sizeof(rows) / sizeof *(rows)

/* Every member, in the order in which they are written. */
static const struct row whole[] = {
    { "model_config", "{\"n_layer\":2}" },
    { "trainer", "{\"step\":9007199254740993,\"samples\":2,\"tokens\":3,"
                 "\"skipped_steps\":0,\"seed\":-5}" },
    { "optimizer",
      "{\"type\":\"AdamW\",\"step\":7,\"param_groups\":[{\"lr\":0.10000000000000001,"
      "\"initial_lr\":0.5,\"betas\":[0.90000000000000002,0.999],\"eps\":1e-8,"
      "\"weight_decay\":0.0,\"bias_correction\":true,\"params\":[\"a\",\"b\"]},"
      "{\"lr\":1.0,\"params\":[]}]}" },
    { "scheduler", "{\"type\":\"WarmupLR\",\"last_batch_iteration\":-1}" },
    { "loss_scaler", "{\"type\":\"static\",\"scale\":65536.0}" },
    { "rng", "{\"algorithm\":\"philox4x32-10\",\"seed\":9223372036854775807}" },
    { "data", "{\"cursor\":2,\"digest\":\"00000000000000ff\",\"seq_len\":8}" },
    { "deepspeed_config", "{\"fp16\":{}}" },
};

static void written(void **state)
{
    static const char *const params[] = { "a", "b" };
    static const struct dcp_training_group groups[] = {
        { 0.1, 0.5, { 0.9, 0.999 }, 1e-8, 0, 1, params, 2 },
        { 1, NAN, { NAN, NAN }, NAN, NAN, -1, NULL, 0 },
    };
    struct dcp_training t;

    (void)state;
    dcp_training_init(&t);
    assert_objects(&t, NULL, 0);
    dcp_training_fini(&t);
    dcp_training_init(&t);
    t.step = 9007199254740993;
    t.samples = 2;
    t.tokens = 3;
    t.skipped_steps = 0;
    t.seed = -5;
    t.optimizer = "AdamW";
    t.updates = 7;
    t.groups = groups;
    t.n_groups = 2;
    t.scheduler = "WarmupLR";
    t.last_batch_iteration = -1;
    t.loss_scaler = "static";
    t.loss_scale = 65536;
    t.rng = "philox4x32-10";
    t.rng_seed = INT64_MAX;
    t.cursor = 2;
    t.data_digest = "00000000000000ff";
    t.seq_len = 8;
    t.model_config = "{ \"n_layer\": 2 }"; /* gets the one spelling */
    t.deepspeed_config = "{\"fp16\": {}}";
    assert_objects(&t, ROWS(whole));
    dcp_training_fini(&t);
}

static void read_back(void **state)
{
    struct dcp_training t;

    (void)state;
    assert_int_equal(parse(ROWS(whole), &t, NULL), 0);
    assert_int_equal(dcp_training_check(&t, NULL), DCP_E_CORRUPT); /* a seed below 0 */
    assert_true(t.step == 9007199254740993 && t.samples == 2 && t.tokens == 3);
    assert_true(t.skipped_steps == 0 && t.seed == -5 && t.updates == 7);
    assert_string_equal(t.optimizer, "AdamW");
    assert_int_equal(t.n_groups, 2);
    assert_true(t.groups[0].lr == 0.1 && t.groups[0].betas[1] == 0.999);
    assert_true(t.groups[0].bias_correction == 1 && t.groups[0].n_params == 2);
    assert_string_equal(t.groups[0].params[1], "b");
    assert_true(isnan(t.groups[1].eps) && t.groups[1].bias_correction == -1);
    assert_true(t.last_batch_iteration == -1 && t.rng_seed == INT64_MAX);
    assert_true(t.loss_scale == 65536 && t.cursor == 2 && t.seq_len == 8);
    assert_string_equal(t.data_digest, "00000000000000ff");
    assert_string_equal(t.deepspeed_config, "{\"fp16\":{}}");
    assert_objects(&t, ROWS(whole));
    dcp_training_fini(&t);
}

/* What was not changed keeps its very text; of what was, the members that nobody knows.
 */
static void unknown_members(void **state)
{
    static const struct row read[] = {
        { "trainer", "{ \"epoch\": 1.10, \"step\": 3 }" },
        { "optimizer", "{\"later\":[1e2],\"param_groups\":[{\"amsgrad\":false,\"lr\":1,"
                       "\"params\":[0,1],\"eps\":2}],\"step\":3.0}" },
        { "scheduler", "{\"base_lrs\":[1E-1], \"last_batch_iteration\":2}" },
    };
    static const struct row changed[] = {
        { "trainer", "{ \"epoch\": 1.10, \"step\": 3 }" },
        { "optimizer", "{\"type\":\"Adam\",\"step\":3.0,\"param_groups\":[{\"lr\":1,"
                       "\"eps\":0.5,\"params\":[0,1],\"amsgrad\":false}],"
                       "\"later\":[100.0]}" },
        { "scheduler",
          "{\"last_batch_iteration\":3,\"base_lrs\":[0.10000000000000001]}" },
    };
    struct dcp_training_group group;
    struct dcp_training t;

    (void)state;
    assert_int_equal(parse(ROWS(read), &t, NULL), 0);
    assert_true(t.step == 3 && t.updates == DCP_TRAINING_UNKNOWN);
    assert_true(t.groups[0].n_params == 2 && !t.groups[0].params[0]);
    assert_objects(&t, ROWS(read));
    t.optimizer = "Adam";
    t.last_batch_iteration = 3;
    group = t.groups[0];
    group.eps = 0.5;
    t.groups = &group;
    assert_objects(&t, ROWS(changed));
    dcp_training_fini(&t);
}

static void odd_json(void **state)
{
    static const char *const texts[] = {
        "[]",
        "{}",
        "null",
        "3",
        "\"x\"",
        "{\"step\":{}}",
        "{\"param_groups\":{}}",
        "{\"param_groups\":[]}",
        "{\"param_groups\":[3,null,[],{\"params\":3}]}",
        "{\"param_groups\":[{\"betas\":[1],\"lr\":\"1\",\"params\":[null,[],{},1.5]}]}",
        "{\"type\":3,\"scale\":\"1\",\"seed\":1.5,\"digest\":\"FF\",\"cursor\":true}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t o = 1; o < sizeof whole / sizeof *whole - 1; o++) {
            const struct row row = { whole[o].name, texts[i] };
            struct dcp_training t;
            assert_int_equal(parse(&row, 1, &t, NULL), 0);
            assert_true(t.step == DCP_TRAINING_UNKNOWN && !t.optimizer && !t.data_digest);
            assert_true(isnan(t.loss_scale) && t.cursor == DCP_TRAINING_UNKNOWN);
            for (size_t g = 0; g < t.n_groups; g++)
                assert_true(isnan(t.groups[g].lr) && t.groups[g].bias_correction == -1);
            assert_objects(&t, &row, 1);
            t.updates = t.step = 1;
            const struct dcp_object *objects;
            size_t n;
            assert_int_equal(dcp_training_format(&t, &objects, &n, NULL), 0);
            dcp_training_fini(&t);
        }
}

/* Where weights have different counts there is none that could be gone on from. */
static void counts_that_differ(void **state)
{
    static const struct row row = { "optimizer", "{\"steps\":[2,3]}" };
    struct dcp_training t;

    (void)state;
    assert_int_equal(parse(&row, 1, &t, NULL), 0);
    assert_true(t.updates == DCP_TRAINING_UNKNOWN);
    assert_int_equal(dcp_training_check(&t, NULL), DCP_E_MISMATCH);
    dcp_training_fini(&t);
}

static void corrupt(void **state)
{
    static const struct row rows[] = {
        { "trainer", "{\"step\":-1}" },
        { "trainer", "{\"samples\":1.0}" },
        { "trainer", "{\"seed\":\"1\"}" },
        { "data", "{\"cursor\":-1}" },
        { "data", "{\"digest\":\"ff\"}" },
        { "data", "{\"seq_len\":[]}" },
        { "trainer", "{\"step\":1e400}" },
        { "trainer", "{\"step\":1" },
        { "optimizer", "{\"a\":1,\"a\":2}" },
        { "rng", "{\"seed\":99999999999999999999}" },
    };
    struct dcp_training t;
    struct dcp_error err = { 0 };

    (void)state;
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(parse(&rows[i], 1, &t, NULL), 0);
        assert_int_equal(dcp_training_check(&t, NULL), DCP_E_CORRUPT);
        dcp_training_fini(&t);
    }
    for (size_t i = 6; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(parse(&rows[i], 1, &t, NULL), DCP_E_CORRUPT);
    assert_int_equal(parse(&rows[0], 1, &t, NULL), 0);
    dcp_training_check(&t, &err);
    assert_string_equal(err.message, "trainer: 'step' is -1");
    dcp_training_fini(&t);
    t.deepspeed_config = "{";
    const struct dcp_object *objects;
    size_t n;
    assert_int_equal(dcp_training_format(&t, &objects, &n, NULL), DCP_E_CORRUPT);
    dcp_training_fini(&t);
}

static void names(void **state)
{
    (void)state;
    assert_true(dcp_training_is_state("trainer") && dcp_training_is_state("data"));
    assert_false(dcp_training_is_state("model_config"));
    assert_false(dcp_training_is_state("deepspeed_config"));
    assert_false(dcp_training_is_state("lineage"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written),
        cmocka_unit_test(read_back),
        cmocka_unit_test(odd_json),
        cmocka_unit_test(unknown_members),
        cmocka_unit_test(counts_that_differ),
        cmocka_unit_test(corrupt),
        cmocka_unit_test(names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
