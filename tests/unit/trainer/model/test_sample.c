/* Choosing tokens: the limits of each parameter, and frequencies. */
#include "lib/whole_model.h"
#include "trainer/model/sample.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { N = 8, DRAWS = 40000 };
/* Probabilities, in no order; two are equal. */
static const double p[N] = { 0.05, 0.30, 0.02, 0.20, 0.20, 0.13, 0.09, 0.01 };

static void make_logits(float logits[N], double temperature)
{
    for (int i = 0; i < N; i++)
        logits[i] = (float)(temperature * log(p[i]) + 17);
}

static struct sampler *make_sampler(const struct sample_params *params)
{
    struct sampler *sampler;
    assert_int_equal(sampler_new(params, N, &sampler, NULL), 0);
    return sampler;
}

/* The frequencies are those of the kept tokens, which `kept` marks with 1. */
static void check_frequencies(struct sample_params params, const int kept[N])
{
    double temperature = params.temperature, total = 0;
    float logits[N];
    int counts[N] = { 0 };
    make_logits(logits, temperature);
    struct sampler *sampler = make_sampler(&params);
    for (uint64_t draw = 0; draw < DRAWS; draw++) {
        int32_t token;
        assert_int_equal(sampler_pick(sampler, logits, draw, &token, NULL), 0);
        counts[token]++;
    }
    for (int i = 0; i < N; i++)
        total += kept[i] ? p[i] : 0;
    for (int i = 0; i < N; i++) {
        double want = kept[i] ? p[i] / total : 0;
        double sigma = sqrt(want * (1 - want) / DRAWS);
        assert_true(fabs((double)counts[i] / DRAWS - want) <= 5 * sigma);
    }
    sampler_free(sampler);
}

static void test_frequencies(void **state)
{
    (void)state;
    const struct sample_params plain = { .temperature = 1, .seed = 3 };
    struct sample_params params = plain;
    check_frequencies(params, (int[N]){ 1, 1, 1, 1, 1, 1, 1, 1 });
    params.temperature = 0.5; /* the logits are scaled too */
    check_frequencies(params, (int[N]){ 1, 1, 1, 1, 1, 1, 1, 1 });
    params = plain, params.top_k = 2; /* of two equal ones the lower id */
    check_frequencies(params, (int[N]){ 0, 1, 0, 1, 0, 0, 0, 0 });
    params.top_k = 100;
    check_frequencies(params, (int[N]){ 1, 1, 1, 1, 1, 1, 1, 1 });
    params = plain, params.top_p = 0.75; /* 0.30 0.20 0.20 0.13 */
    check_frequencies(params, (int[N]){ 0, 1, 0, 1, 1, 1, 0, 0 });
    params.top_p = 1e-9; /* at least one */
    check_frequencies(params, (int[N]){ 0, 1, 0, 0, 0, 0, 0, 0 });
    params.top_p = 1;
    check_frequencies(params, (int[N]){ 1, 1, 1, 1, 1, 1, 1, 1 });
    params.top_k = 3, params.top_p = 0.6; /* of the three's 0.7: 0.30 0.20 reach 0.42 */
    check_frequencies(params, (int[N]){ 0, 1, 0, 1, 0, 0, 0, 0 });
}

static void test_greedy(void **state)
{
    (void)state;
    float logits[N] = { -3, 1, 1, -INFINITY, 0, 1, -7, 0.5f };
    struct sampler *sampler = make_sampler(&(struct sample_params){ .seed = 1 });
    int32_t token;
    for (uint64_t draw = 0; draw < 20; draw++) {
        assert_int_equal(sampler_pick(sampler, logits, draw, &token, NULL), 0);
        assert_int_equal(token, 1);
    }
    sampler_free(sampler);
    /* A temperature near 0 is the same, without a division of infinities. */
    sampler = make_sampler(&(struct sample_params){ .temperature = 1e-300 });
    assert_int_equal(sampler_pick(sampler, logits, 0, &token, NULL), 0);
    assert_true(token == 1 || token == 2 || token == 5);
    for (int i = 0; i < N; i++)
        logits[i] = -INFINITY;
    assert_int_equal(sampler_pick(sampler, logits, 0, &token, NULL), 0);
    assert_int_equal(token, 0);
    sampler_free(sampler);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        struct sample_params params;
        const char *why;
    } bad[] = {
        { { .temperature = -1 }, "temperature" },
        { { .temperature = NAN }, "temperature" },
        { { .temperature = INFINITY }, "temperature" },
        { { .top_k = -1 }, "top_k" },
        { { .top_p = 1.5 }, "top_p" },
        { { .top_p = NAN }, "top_p" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sampler *sampler;
        struct dcp_error err = { 0 };
        assert_int_equal(sampler_new(&bad[i].params, N, &sampler, &err), DCP_E_USAGE);
        assert_non_null(strstr(err.message, bad[i].why));
    }
    float logits[N] = { 0 };
    int32_t token;
    struct sampler *sampler = make_sampler(&(struct sample_params){ .temperature = 1 });
    logits[6] = NAN;
    assert_int_equal(sampler_pick(sampler, logits, 0, &token, NULL), DCP_E_CORRUPT);
    logits[6] = INFINITY;
    assert_int_equal(sampler_pick(sampler, logits, 0, &token, NULL), DCP_E_CORRUPT);
    sampler_free(sampler);
}

/* --- generation --- */

static const struct model_config config = { .family = "gpt2",
                                            .n_layer = 2,
                                            .n_head = 2,
                                            .n_embd = 16,
                                            .n_positions = 12,
                                            .vocab_size = 29 };
struct heard {
    int32_t tokens[64];
    int n, stop_after;
};

static bool hear(void *self, int32_t token)
{
    struct heard *heard = self;
    heard->tokens[heard->n++] = token;
    return heard->n != heard->stop_after;
}

/* Beyond the model's length too: as choosing from model_logits of the whole text. */
static void test_generate(void **state)
{
    (void)state;
    enum { PROMPT = 3, NEW = 30 };
    struct whole_model w;
    whole_model_init(&w, &config, DCP_F32, 1, 12);
    whole_model_shake(&w, 9, 0.3);
    const struct sample_params params = { .temperature = 0.9, .top_k = 20, .seed = 4 };
    int32_t text[PROMPT + NEW] = { 5, 6, 7 };
    struct heard heard = { 0 }, again = { 0 }, other = { 0 };
    assert_int_equal(sample_generate(w.model, &w.hooks, &params, text, PROMPT, NEW, hear,
                                     &heard, NULL),
                     0);
    assert_int_equal(heard.n, NEW);
    struct sampler *sampler;
    assert_int_equal(sampler_new(&params, config.vocab_size, &sampler, NULL), 0);
    for (int n = PROMPT; n < PROMPT + NEW; n++) {
        float logits[29];
        assert_int_equal(model_logits(w.model, &w.hooks, text, n, logits, NULL), 0);
        assert_int_equal(sampler_pick(sampler, logits, (uint64_t)n, &text[n], NULL), 0);
        assert_int_equal(text[n], heard.tokens[n - PROMPT]);
    }
    sampler_free(sampler);

    again.stop_after = 7;
    assert_int_equal(sample_generate(w.model, &w.hooks, &params, text, PROMPT, NEW, hear,
                                     &again, NULL),
                     0);
    assert_int_equal(again.n, 7);
    assert_memory_equal(again.tokens, heard.tokens, 7 * sizeof(int32_t));
    struct sample_params seed5 = params;
    seed5.seed = 5;
    assert_int_equal(
        sample_generate(w.model, &w.hooks, &seed5, text, PROMPT, NEW, hear, &other, NULL),
        0);
    assert_memory_not_equal(other.tokens, heard.tokens, sizeof heard.tokens);

    /* Failures: of the hooks, of the prompt. */
    for (int at = 1; at < 20; at++) {
        w.calls = 0, w.fail_at = at;
        assert_int_equal(sample_generate(w.model, &w.hooks, &params, text, PROMPT, NEW,
                                         NULL, NULL, NULL),
                         DCP_E_COMM);
    }
    w.fail_at = 0;
    assert_int_equal(
        sample_generate(w.model, &w.hooks, &params, text, 0, 1, NULL, NULL, NULL),
        DCP_E_USAGE);
    text[1] = 29;
    assert_int_equal(
        sample_generate(w.model, &w.hooks, &params, text, PROMPT, 1, NULL, NULL, NULL),
        DCP_E_CORRUPT);
    whole_model_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_frequencies),
                                        cmocka_unit_test(test_greedy),
                                        cmocka_unit_test(test_refusals),
                                        cmocka_unit_test(test_generate) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
