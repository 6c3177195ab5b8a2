/* The model: its parameters, its protocol with the hooks, errors, precision, generation
 * with kept keys and values, and the configuration as JSON. */
#include "base/mem.h"
#include "lib/whole_model.h"
#include "trainer/ops/ops.h"
#include "trainer/ops/rng.h"
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 3, T = 70, VOCAB = 97 };
static const struct model_config config = { .family = "gpt2",
                                            .n_layer = 2,
                                            .n_head = 3,
                                            .n_embd = 48,
                                            .n_positions = 80,
                                            .vocab_size = VOCAB };

static int32_t tokens[BATCH * T], targets[BATCH * T];

static int make_tokens(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < BATCH * T; i++) {
        tokens[i] = (int32_t)(rng_uniform(1, 1, i) * VOCAB);
        targets[i] = (int32_t)(rng_uniform(1, 2, i) * VOCAB);
    }
    return 0;
}

static double train_scaled(struct whole_model *w, float grad_scale)
{
    double loss;
    struct dcp_error err = { 0 };
    whole_model_zero_grads(w);
    if (model_train(w->model, &w->hooks, tokens, targets, BATCH, T, grad_scale, &loss,
                    &err))
        fail_msg("%s", err.message);
    return loss;
}

static double train(struct whole_model *w)
{
    return train_scaled(w, 1);
}

/* The norm of the difference of two arrays, relative to that of the second. */
static double distance(const float *a, const float *b, int64_t n)
{
    double off = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        squares += (double)b[i] * (double)b[i];
    }
    return sqrt(off / squares);
}

/* The biases of keys have a gradient of zero but for rounding. */
static double grad_distance(struct whole_model *a, const struct whole_model *b, int k)
{
    if (strstr(a->params[k].name, "c_attn.bias"))
        memcpy(a->grads[k] + 48, b->grads[k] + 48, 48 * sizeof(float));
    return distance(a->grads[k], b->grads[k], a->params[k].n_elems);
}

static void test_parameters(void **state)
{
    (void)state;
    struct model_config gpt2 = config; /* the 124 M one, but for its activations */
    gpt2.n_layer = 12, gpt2.n_head = 12, gpt2.n_embd = 768, gpt2.n_positions = 1024;
    gpt2.vocab_size = 50257;
    struct model *model;
    assert_int_equal(model_new(&gpt2, DCP_F32, ops_best(), 1, 1, &model, NULL), 0);
    int n;
    const struct model_param *p = model_params(model, &n);
    assert_int_equal(n, 2 + 12 * 12 + 2);
    assert_int_equal(model_n_units(model), 14);
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += p[i].n_elems;
        assert_int_equal(p[i].decay, p[i].ndim == 2);
        assert_int_equal(p[i].n_elems,
                         p[i].shape[0] * (p[i].ndim == 2 ? p[i].shape[1] : 1));
        assert_true(i == 0 || p[i].unit == p[i - 1].unit ||
                    p[i].unit == p[i - 1].unit + 1);
    }
    assert_int_equal(sum, 124439808);
    assert_string_equal(p[0].name, "transformer.wte.weight");
    assert_string_equal(p[1].name, "transformer.wpe.weight");
    assert_string_equal(p[2 + 12 * 11 + 10].name, "transformer.h.11.mlp.c_proj.weight");
    assert_int_equal(p[2 + 12 * 11 + 10].shape[0], 3072);
    assert_int_equal(p[2 + 12 * 11 + 10].shape[1], 768);
    assert_true(fabsf(p[2 + 10].init_std - 0.02f / sqrtf(24)) < 1e-9f);
    assert_string_equal(p[n - 2].name, "transformer.ln_f.weight");
    assert_string_equal(p[n - 1].name, "transformer.ln_f.bias");
    model_free(model);
}

static void test_initial_values(void **state)
{
    (void)state;
    struct whole_model w;
    whole_model_init(&w, &config, DCP_F32, 1, 8);
    for (int k = 0; k < w.n_params; k++) {
        const struct model_param *p = &w.params[k];
        float *values = dcp_mem_calloc((size_t)p->n_elems, sizeof *values);
        double squares = 0, sum = 0;
        for (int64_t i = 0, n; i < p->n_elems; i += n) { /* cut anywhere */
            n = i + 100 < p->n_elems ? 100 : p->n_elems - i;
            model_init_values(w.model, k, 1, i, n, values + i);
        }
        assert_memory_equal(values, w.weights[k], (size_t)p->n_elems * 4);
        for (int64_t i = 0; i < p->n_elems; i++) {
            squares += (double)values[i] * (double)values[i];
            sum += (double)values[i];
        }
        double n = (double)p->n_elems, std = (double)p->init_std;
        if (strstr(p->name, "bias"))
            assert_true(squares == 0);
        else if (strstr(p->name, "ln_"))
            assert_true(sum == n && squares == n);
        else
            assert_true(fabs(sqrt(squares / n) - std) < 4 * std / sqrt(2 * n) &&
                        fabs(sum / n) < 4 * std / sqrt(n));
        model_init_values(w.model, k, 2, 0, p->n_elems, values); /* another seed */
        if (p->init == MODEL_INIT_NORMAL)
            assert_memory_not_equal(values, w.weights[k], (size_t)p->n_elems * 4);
        free(values);
    }
    assert_memory_not_equal(w.weights[2 + 8], w.weights[14 + 8], 64);
    whole_model_fini(&w);
}

/* Every unit's gradients once; all that was acquired is released. */
static void test_hooks(void **state)
{
    (void)state;
    struct whole_model w;
    whole_model_init(&w, &config, DCP_F32, BATCH, T);
    train(&w);
    for (int unit = 0; unit < model_n_units(w.model); unit++) {
        assert_int_equal(w.acquired[unit], 0);
        assert_int_equal(w.grads_open[unit], 0);
        assert_int_equal(w.grads_done[unit], 1);
    }
    int calls = w.calls;
    for (int i = 1; i <= calls; i++) {
        struct dcp_error err = { 0 };
        double loss;
        memset(w.grads_open, 0, sizeof w.grads_open);
        w.calls = 0, w.fail_at = i;
        assert_int_equal(
            model_train(w.model, &w.hooks, tokens, targets, BATCH, T, 1, &loss, &err),
            DCP_E_COMM);
        assert_non_null(strstr(err.message, "fails"));
        assert_int_equal(w.calls, i); /* nothing is asked for after a failure */
        for (int unit = 0; unit < model_n_units(w.model); unit++)
            assert_int_equal(w.acquired[unit], 0);
    }
    whole_model_fini(&w);
}

/* The same call, the same bits; gradients are added to; a smaller batch is fine. */
static void test_repeat(void **state)
{
    (void)state;
    struct whole_model w, small;
    whole_model_init(&w, &config, DCP_F32, BATCH, T);
    whole_model_init(&small, &config, DCP_F32, 1, T);
    double first = train(&w), sum = 0, loss;
    size_t n = (size_t)w.params[0].n_elems;
    float *grads = dcp_mem_calloc(n, sizeof *grads);
    memcpy(grads, w.grads[0], n * sizeof *grads);
    assert_true(train(&w) == first);
    assert_memory_equal(w.grads[0], grads, n * sizeof *grads);
    for (int b = 0; b < BATCH; b++) {
        assert_int_equal(model_train(small.model, &small.hooks, tokens + b * T,
                                     targets + b * T, 1, T, 1.0f / BATCH, &loss, NULL),
                         0);
        sum += loss / BATCH;
    }
    assert_true(fabs(sum - first) < 1e-6);
    for (int k = 0; k < w.n_params; k++)
        assert_true(grad_distance(&small, &w, k) < 1e-5);
    double again;
    assert_int_equal(model_loss(w.model, &w.hooks, tokens, targets, 1, T, &again, NULL),
                     0);
    assert_int_equal(
        model_loss(small.model, &small.hooks, tokens, targets, 1, T, &loss, NULL), 0);
    assert_true(fabs(loss - again) < 1e-6);
    free(grads);
    whole_model_fini(&w);
    whole_model_fini(&small);
}

/* A vocabulary for which the head takes the rows in several shares. */
static void test_large_vocabulary(void **state)
{
    (void)state;
    enum { ROWS = 700, HALF = 350 };
    struct model_config large = config;
    large.vocab_size = 50257, large.n_embd = 6, large.n_layer = 1;
    large.n_positions = ROWS;
    struct whole_model one, two;
    whole_model_init(&one, &large, DCP_F32, 2, HALF);
    whole_model_init(&two, &large, DCP_F32, 1, HALF);
    int32_t in[ROWS], out[ROWS];
    for (uint64_t i = 0; i < ROWS; i++) {
        in[i] = (int32_t)(rng_uniform(1, 3, i) * large.vocab_size);
        out[i] = (int32_t)(rng_uniform(1, 4, i) * large.vocab_size);
    }
    double whole, halves[2];
    assert_int_equal(
        model_train(one.model, &one.hooks, in, out, 2, HALF, 1, &whole, NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(model_train(two.model, &two.hooks, in + i * HALF, out + i * HALF,
                                     1, HALF, 0.5f, &halves[i], NULL),
                         0);
    assert_true(fabs((halves[0] + halves[1]) / 2 - whole) < 1e-6);
    assert_true(distance(one.grads[0], two.grads[0], one.params[0].n_elems) < 1e-5);
    assert_true(distance(one.grads[2], two.grads[2], one.params[2].n_elems) < 1e-5);
    whole_model_fini(&one);
    whole_model_fini(&two);
}

/* The bounds of the 16-bit paths: the same weights, so only activations and gradients on
 * their way are rounded. In fp16 a loss scale keeps these above its smallest numbers. */
static void check_16bit(enum dcp_dtype dtype, float scale, double loss_bound,
                        double grad_bound)
{
    struct whole_model half, full;
    whole_model_init(&half, &config, dtype, BATCH, T);
    whole_model_init(&full, &config, DCP_F32, BATCH, T);
    whole_model_shake(&half, 3, 0.05);
    for (int k = 0; k < half.n_params; k++)
        memcpy(full.weights[k], half.weights[k], (size_t)half.params[k].n_elems * 4);
    double a = train_scaled(&half, scale), b = train(&full), worst = 0;
    for (int k = 0; k < half.n_params; k++) {
        for (int64_t i = 0; i < half.params[k].n_elems; i++)
            half.grads[k][i] /= scale;
        double off = grad_distance(&half, &full, k);
        if (!(off < grad_bound))
            fail_msg("the gradient of %s is off by %g", half.params[k].name, off);
        worst = fmax(worst, off);
    }
    print_message("loss %.6f in %s, %.6f in fp32; gradients within %.2g\n", a,
                  dcp_dtype_name(dtype), b, worst);
    assert_true(fabs(a - b) < loss_bound * b);
    whole_model_fini(&half);
    whole_model_fini(&full);
}

static void test_16bit(void **state)
{
    (void)state;
    check_16bit(DCP_BF16, 1, 2e-3, 0.03);
    check_16bit(DCP_F16, 1024, 2.5e-4, 0.003);
}

/* The fast kernels and the readable ones train alike, with any number of threads. */
static void test_kernels_agree(void **state)
{
    (void)state;
    int threads = ops_threads();
    for (int i = 0; i < 6; i++) {
        static const enum dcp_dtype dtypes[] = { DCP_F32, DCP_BF16, DCP_F16 };
        static const double bounds[][2] = { { 2e-6, 1e-5 },
                                            { 1e-3, 0.03 },
                                            { 1e-4, 0.003 } };
        enum dcp_dtype dtype = dtypes[i / 2];
        float scale = dtype == DCP_F16 ? 1024 : 1;
        ops_set_threads(i & 1 ? 3 : 1);
        struct whole_model fast, plain;
        whole_model_init(&fast, &config, dtype, BATCH, T);
        whole_model_init_with(&plain, &config, dtype, ops_cpu(), BATCH, T);
        whole_model_shake(&fast, 4, 0.05);
        whole_model_shake(&plain, 4, 0.05);
        double a = train_scaled(&fast, scale), b = train_scaled(&plain, scale);
        assert_true(fabs(a - b) < bounds[i / 2][0] * b);
        for (int k = 0; k < fast.n_params; k++)
            assert_true(grad_distance(&fast, &plain, k) < bounds[i / 2][1]);
        whole_model_fini(&fast);
        whole_model_fini(&plain);
    }
    ops_set_threads(threads);
}

/* Token by token with kept keys and values, as all at once. */
static void test_generation(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct whole_model w;
        enum dcp_dtype dtype = i == 1 ? DCP_BF16 : i == 2 ? DCP_F16 : DCP_F32;
        static const double bounds[] = { 1e-5, 0.02, 0.0025 };
        float whole[VOCAB], grown[VOCAB];
        whole_model_init(&w, &config, dtype, 2, T);
        whole_model_shake(&w, 6, 0.1);
        assert_int_equal(model_logits_next(w.model, &w.hooks, 0, grown, NULL),
                         DCP_E_USAGE);
        assert_int_equal(model_logits(w.model, &w.hooks, tokens, T, whole, NULL), 0);
        assert_int_equal(model_logits(w.model, &w.hooks, tokens, 5, grown, NULL), 0);
        for (int n = 6; n <= T; n++)
            assert_int_equal(
                model_logits_next(w.model, &w.hooks, tokens[n - 1], grown, NULL), 0);
        assert_true(distance(grown, whole, VOCAB) < bounds[i]);
        assert_int_equal(model_logits_next(w.model, &w.hooks, 0, grown, NULL),
                         DCP_E_USAGE); /* full */
        /* Longer texts are seen by their end. */
        assert_int_equal(model_logits(w.model, &w.hooks, tokens, T + 9, whole, NULL), 0);
        assert_int_equal(model_logits(w.model, &w.hooks, tokens + 9, T, grown, NULL), 0);
        assert_memory_equal(whole, grown, sizeof whole);
        assert_int_equal(model_logits(w.model, &w.hooks, tokens, 0, whole, NULL),
                         DCP_E_USAGE);
        /* Training takes the memory of what was kept. */
        assert_int_equal(model_logits(w.model, &w.hooks, tokens, 5, whole, NULL), 0);
        double loss;
        assert_int_equal(
            model_loss(w.model, &w.hooks, tokens, targets, 2, T, &loss, NULL), 0);
        assert_int_equal(model_logits_next(w.model, &w.hooks, 0, grown, NULL),
                         DCP_E_USAGE);
        whole_model_fini(&w);
    }
}

static void refuse(struct model_config bad, int batch, int seq_len, int code,
                   const char *why)
{
    struct model *model;
    struct dcp_error err = { 0 };
    assert_int_equal(model_new(&bad, DCP_F32, ops_best(), batch, seq_len, &model, &err),
                     code);
    if (!strstr(err.message, why))
        fail_msg("'%s' says nothing of '%s'", err.message, why);
}

static void test_refusals(void **state)
{
    (void)state;
    struct model_config bad = config;
    bad.n_head = 5;
    refuse(bad, 1, 8, DCP_E_USAGE, "multiple of n_head 5");
    bad = config, bad.n_layer = 0;
    refuse(bad, 1, 8, DCP_E_USAGE, "n_layer is 0");
    bad = config, bad.vocab_size = -3;
    refuse(bad, 1, 8, DCP_E_USAGE, "vocab_size is -3");
    bad = config, bad.layer_norm_epsilon = -1;
    refuse(bad, 1, 8, DCP_E_USAGE, "layer_norm_epsilon");
    bad = config, snprintf(bad.family, sizeof bad.family, "llama");
    refuse(bad, 1, 8, DCP_E_UNSUPPORTED, "llama");
    refuse(config, 0, 8, DCP_E_USAGE, "micro-batch of 0");
    refuse(config, 1, 81, DCP_E_USAGE, "n_positions 80");
    refuse(config, 1 << 30, 80, DCP_E_USAGE, "too large");
    bad = config, bad.n_layer = 2000, bad.n_embd = 1 << 20, bad.n_head = 1;
    refuse(bad, 1 << 20, 80, DCP_E_MEMORY, "activations");

    struct model *model;
    struct dcp_error err = { 0 };
    assert_int_equal(model_new(&config, DCP_F64, ops_best(), 1, 8, &model, &err),
                     DCP_E_USAGE);
    assert_non_null(strstr(err.message, "float16, not float64"));
    err = (struct dcp_error){ 0 };

    struct whole_model w;
    whole_model_init(&w, &config, DCP_F32, 1, 8);
    int32_t in[9] = { 0 }, out[9] = { 0 };
    double loss;
    in[5] = VOCAB;
    assert_int_equal(model_train(w.model, &w.hooks, in, out, 1, 8, 1, &loss, &err),
                     DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "token 5 has the id 97"));
    in[5] = 0, out[7] = -1;
    assert_int_equal(model_loss(w.model, &w.hooks, in, out, 1, 8, &loss, NULL),
                     DCP_E_CORRUPT);
    assert_int_equal(model_loss(w.model, &w.hooks, in, out, 1, 9, &loss, NULL),
                     DCP_E_USAGE);
    assert_int_equal(w.calls, 0);
    whole_model_fini(&w);
}

/* --- configuration --- */

static void test_config_round(void **state)
{
    (void)state;
    struct model_config odd = config, back;
    odd.layer_norm_epsilon = 1.5e-6;
    char *json = model_config_json(&odd, DCP_BF16);
    assert_non_null(json);
    assert_non_null(strstr(json, "\"torch_dtype\": \"bfloat16\""));
    assert_int_equal(model_config_parse(json, strlen(json), &back, NULL), 0);
    assert_memory_equal(&odd, &back, sizeof odd);
    free(json);
}

/* One member of a good configuration is replaced, or with NULL left out. */
static void change(const char *key, const char *value, int code)
{
    char *good = model_config_json(&config, DCP_F32);
    json_t *json = json_loads(good, 0, NULL);
    struct model_config out;
    struct dcp_error err = { 0 };
    if (value)
        json_object_set_new(json, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(json, key);
    char *text = json_dumps(json, 0);
    int rc = model_config_parse(text, strlen(text), &out, &err);
    if (rc != code)
        fail_msg("%s = %s gives %d: %s", key, value ? value : "(none)", rc, err.message);
    if (rc && !strstr(err.message, key))
        fail_msg("'%s' says nothing of %s", err.message, key);
    free(text);
    json_decref(json);
    free(good);
}

static void test_config_refusals(void **state)
{
    (void)state;
    change("n_inner", "192", 0);
    change("n_inner", "100", DCP_E_UNSUPPORTED);
    change("n_inner", NULL, 0);
    change("activation_function", "\"gelu_pytorch_tanh\"", 0);
    change("activation_function", NULL, 0);
    change("activation_function", "\"relu\"", DCP_E_UNSUPPORTED);
    change("tie_word_embeddings", NULL, 0);
    change("tie_word_embeddings", "false", DCP_E_UNSUPPORTED);
    change("scale_attn_weights", "false", DCP_E_UNSUPPORTED);
    change("scale_attn_by_inverse_layer_idx", "true", DCP_E_UNSUPPORTED);
    change("add_cross_attention", "true", DCP_E_UNSUPPORTED);
    change("layer_norm_epsilon", NULL, 0);
    change("layer_norm_epsilon", "\"small\"", DCP_E_CORRUPT);
    change("layer_norm_epsilon", "-1", DCP_E_CORRUPT);
    change("n_layer", NULL, DCP_E_CORRUPT);
    change("n_layer", "0", DCP_E_CORRUPT);
    change("n_layer", "1e99", DCP_E_CORRUPT);
    change("n_embd", "99999999999", DCP_E_CORRUPT);
    change("n_head", "7", DCP_E_CORRUPT);
    change("vocab_size", "\"many\"", DCP_E_CORRUPT);

    struct dcp_error err = { 0 };
    struct model_config out;
    const char *llama = "{\"model_type\": \"lla\\u001bma\"}";
    assert_int_equal(model_config_parse(llama, strlen(llama), &out, &err),
                     DCP_E_UNSUPPORTED);
    assert_null(strchr(err.message, '\033')); /* names from files are escaped */
    assert_int_equal(model_config_parse("{", 1, &out, NULL), DCP_E_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_initial_values),
        cmocka_unit_test(test_hooks),
        cmocka_unit_test(test_repeat),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_16bit),
        cmocka_unit_test(test_kernels_agree),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_config_round),
        cmocka_unit_test(test_config_refusals),
    };
    return cmocka_run_group_tests(tests, make_tokens, NULL);
}
