/* Activation checkpointing as a configuration asks for it: DeepSpeed's section, FSDP's
 * switch, and our own key. Each does something, is told to do nothing, or is refused. */
#include "lib/parsed.h"

#include "base/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

/* A model of 12 layers with this in its section "model", and beside it. */
static int parse_model(const char *model, const char *beside)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"data\": {\"train\": \"a\"}, \"train_batch_size\": 4, "
             "\"model\": {\"n_layer\": 12%s}%s}",
             model, beside);
    return read_settings(text, NULL, 1);
}

static void want(const char *model, const char *beside, int every, bool attention,
                 const char *said)
{
    if (parse_model(model, beside))
        fail_msg("%s%s: %s", model, beside, why.message);
    if (got.recompute.every != every || got.recompute.attention != attention ||
        (said ? !strstr(logged, said) : *logged))
        fail_msg("%s%s: every %d, attention %d, said '%s'", model, beside,
                 got.recompute.every, got.recompute.attention, logged);
}

#define KEY(value) ", \"activation_checkpointing\": " value
#define SECTION(inside) ", \"activation_checkpointing\": {" inside "}"

static void test_own_key(void **state)
{
    (void)state;
    want("", "", 0, false, NULL);
    want(KEY("\"none\""), "", 0, false, NULL);
    want(KEY("false"), "", 0, false, NULL);
    want(KEY("0"), "", 0, false, NULL);
    want(KEY("\"full\""), "", 1, false, NULL);
    want(KEY("true"), "", 1, false, NULL);
    want(KEY("1"), "", 1, false, NULL);
    want(KEY("4"), "", 4, false, NULL);
    want(KEY("\"Selective\""), "", 0, true, NULL);
    want(KEY("null"), "", 0, false, NULL);
    want(KEY("12"), "", 12, false, "no activations are computed again");
    const char *const wrong[] = { "\"some\"", "-1", "1.5", "[1]", "1e12" };
    for (size_t i = 0; i < DCP_ARRAY_LEN(wrong); i++) {
        char model[80];
        snprintf(model, sizeof model, KEY("%s"), wrong[i]);
        assert_int_equal(parse_model(model, ""), DCP_E_USAGE);
        assert_non_null(strstr(why.message, "'model.activation_checkpointing' is"));
        assert_non_null(strstr(why.message, "none, full, selective, or n"));
    }
    assert_int_equal(parse_model(KEY("\"auto\""), ""), DCP_E_USAGE);
}

static void test_section(void **state)
{
    (void)state;
    want("", SECTION(""), 0, false, NULL);
    want("", KEY("false"), 0, false, NULL);
    want("", KEY("true"), 1, false, NULL);
    want("", SECTION("\"number_checkpoints\": null"), 0, false, NULL);
    want("", SECTION("\"number_checkpoints\": 12"), 1, false, NULL);
    want("", SECTION("\"number_checkpoints\": 100"), 1, false, NULL);
    want("", SECTION("\"number_checkpoints\": 5"), 3, false, NULL);
    want("", SECTION("\"number_checkpoints\": 3"), 4, false, NULL);
    want("", SECTION("\"number_checkpoints\": 1"), 12, false, "no activations");
    /* As DeepSpeed's tutorial has it: all is off, and nothing is said. */
    want("",
         SECTION("\"partition_activations\": false, \"cpu_checkpointing\": false, "
                 "\"contiguous_memory_optimization\": false, \"profile\": false, "
                 "\"synchronize_checkpoint_boundary\": false"),
         0, false, NULL);
    assert_int_equal(parse_model("", KEY("3")), DCP_E_USAGE);
    assert_non_null(strstr(why.message, "an object { }, true or false"));
    assert_int_equal(parse_model("", SECTION("\"number_checkpoints\": -1")), DCP_E_USAGE);
    assert_int_equal(parse_model("", SECTION("\"number_checkpoint\": 1")), DCP_E_USAGE);
    assert_non_null(strstr(why.hint, "number_checkpoints"));
}

static void test_own_key_counts_more(void **state)
{
    (void)state;
    const char *const three = SECTION("\"number_checkpoints\": 3");
    want(KEY("4"), three, 4, false, NULL);
    want(KEY("\"none\""), three, 0, false,
         "activation_checkpointing.number_checkpoints does not count");
    want(KEY("\"selective\""), three, 0, true, "does not count");
    want(KEY("\"full\""), KEY("true"), 1, false, NULL);
    want(KEY("\"none\""), KEY("true"), 0, false,
         "activation_checkpointing true does not count");
}

/* Whoever asks for what cannot matter here is told why. */
static void test_nothing_in_silence(void **state)
{
    (void)state;
    const char *const keys[] = { "partition_activations",
                                 "contiguous_memory_optimization",
                                 "synchronize_checkpoint_boundary", "profile" };
    for (size_t i = 0; i < DCP_ARRAY_LEN(keys); i++) {
        char beside[128], said[128];
        snprintf(beside, sizeof beside, SECTION("\"%s\": true"), keys[i]);
        snprintf(said, sizeof said,
                 "activation_checkpointing: without effect here: %s: ", keys[i]);
        want("", beside, 0, false, said);
    }
    want("", SECTION("\"cpu_checkpointing\": true"), 0, false,
         "turns nothing on without model.activation_checkpointing");
    assert_true(got.cpu_checkpointing);
    want(KEY("\"full\""), SECTION("\"cpu_checkpointing\": true"), 1, false, NULL);
}

/* The text of the settings asks for the same, and says nothing more. */
static void test_text(void **state)
{
    (void)state;
    const char *const models[] = { "", KEY("\"selective\""), KEY("3"), KEY("true") };
    for (size_t i = 0; i < DCP_ARRAY_LEN(models); i++) {
        struct settings again;
        assert_int_equal(
            parse_model(models[i], i ? "" : SECTION("\"number_checkpoints\": 6")), 0);
        logged[0] = '\0';
        assert_int_equal(settings_parse(got.text, strlen(got.text), "text", "/", NULL, 1,
                                        &keep_log, &again, NULL),
                         0);
        assert_memory_equal(&again.recompute, &got.recompute, sizeof again.recompute);
        assert_string_equal(again.text, got.text);
        assert_string_equal(logged, "");
        settings_fini(&again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_key),
        cmocka_unit_test(test_section),
        cmocka_unit_test(test_own_key_counts_more),
        cmocka_unit_test(test_nothing_in_silence),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, forget_parsed);
}
