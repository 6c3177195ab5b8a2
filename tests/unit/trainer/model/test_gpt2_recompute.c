/* Activation checkpointing: whatever is computed again, losses and gradients have the
 * bits of a model that keeps everything; memory goes down by what is not kept; and a rank
 * without work makes the same calls as one that works. */
#include "base/mem.h"
#include "lib/whole_model.h"
#include "trainer/ops/ops.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 5, C = 24, HEADS = 3, T = 9, BATCH = 2, ROWS = BATCH * T, VOCAB = 31 };
enum { N_BATCHES = 2 };

static const struct model_config config = { .family = "gpt2",
                                            .n_layer = LAYERS,
                                            .n_head = HEADS,
                                            .n_embd = C,
                                            .n_positions = T,
                                            .vocab_size = VOCAB };
static const struct model_recompute ways[] = {
    { .attention = true },
    { .every = 1 },
    { .every = 2 },
    { .every = 3 },
    { .every = 4 },
    { .every = 5 },
    { .every = 9 },
    { .attention = true, .host = true },
    { .every = 1, .host = true },
    { .every = 2, .host = true },
    { .every = 3, .host = true },
    { .every = 4, .host = true },
    { .every = 9, .host = true },
};

static struct model_options options_of(enum dcp_dtype dtype, struct model_recompute way)
{
    return (struct model_options){
        .dtype = dtype, .batch = BATCH, .seq_len = T, .recompute = way
    };
}

static void make(struct whole_model *w, const struct ops *ops, enum dcp_dtype dtype,
                 struct model_recompute way)
{
    const struct model_options options = options_of(dtype, way);
    whole_model_make(w, &config, &options, ops);
    whole_model_shake(w, 5, 0.3);
}

/* The second batch finds what the first one left; its rows are fewer. */
static void train(struct whole_model *w, double losses[N_BATCHES])
{
    int32_t tokens[ROWS], targets[ROWS];
    for (int i = 0; i < N_BATCHES; i++) {
        for (int r = 0; r < ROWS; r++) {
            tokens[r] = (7 * r + 5 * i + 3) % VOCAB;
            targets[r] = (11 * r + 2 * i + 1) % VOCAB;
        }
        assert_int_equal(model_train(w->model, &w->hooks, tokens, targets, BATCH, T - i,
                                     0.5f, &losses[i], NULL),
                         0);
    }
}

static void same_bits(const struct ops *ops, enum dcp_dtype dtype)
{
    struct whole_model all;
    double losses[N_BATCHES], again[N_BATCHES];
    make(&all, ops, dtype, (struct model_recompute){ 0 });
    train(&all, losses);
    for (size_t i = 0; i < DCP_ARRAY_LEN(ways); i++) {
        struct whole_model w;
        make(&w, ops, dtype, ways[i]);
        train(&w, again);
        assert_memory_equal(again, losses, sizeof losses);
        for (int p = 0; p < w.n_params; p++)
            if (memcmp(w.grads[p], all.grads[p],
                       (size_t)w.params[p].n_elems * sizeof(float)))
                fail_msg("%s, way %zu: the gradient of %s is another", ops->name, i,
                         w.params[p].name);
        whole_model_fini(&w);
    }
    whole_model_fini(&all);
}

static void test_same_bits(void **state)
{
    (void)state;
    const struct ops *const tables[] = { ops_cpu(), ops_best() };
    for (size_t i = 0; i < DCP_ARRAY_LEN(tables); i++) {
        same_bits(tables[i], DCP_F32);
        same_bits(tables[i], DCP_BF16);
    }
}

/* --- memory --- */

static uint64_t bytes_of(enum dcp_dtype dtype, struct model_recompute way, bool plan)
{
    struct model_options options = options_of(dtype, way);
    struct model *model;
    options.plan = plan;
    assert_int_equal(model_make(&config, &options, ops_cpu(), &model, NULL), 0);
    uint64_t bytes = model_activation_bytes(model);
    model_free(model);
    return bytes;
}

/* What is given out in parts of 64 bytes is off by less than a part for each array. */
static void near(uint64_t got, int64_t want)
{
    int64_t off = (int64_t)got - want, most = 64 * 13 * LAYERS;
    if (off > most || off < -most)
        fail_msg("%lld bytes, not %lld", (long long)got, (long long)want);
}

static void test_memory(void **state)
{
    (void)state;
    const enum dcp_dtype dtypes[] = { DCP_F32, DCP_BF16 };
    for (int i = 0; i < 2; i++) {
        int64_t t = dtypes[i] == DCP_F32 ? 4 : 2;
        int64_t attention = ROWS * ((2 * t + 12) * C + 4 * HEADS + 8);
        int64_t mlp = ROWS * ((20 + 5 * t) * C + 8), input = ROWS * 4 * C;
        int64_t all = (int64_t)bytes_of(dtypes[i], (struct model_recompute){ 0 }, false);
        int64_t rest = all - LAYERS * (input + attention + mlp);
        assert_true(rest > 0);
        for (size_t k = 0; k < DCP_ARRAY_LEN(ways); k++) {
            bool only_attention = ways[k].attention;
            int n = only_attention ? 1 : ways[k].every < LAYERS ? ways[k].every : LAYERS;
            int64_t inputs = (LAYERS + n - 1) / n + n - 1;
            if (ways[k].host)
                inputs = n > 1 ? n : 2;
            near(bytes_of(dtypes[i], ways[k], false),
                 rest + inputs * input + n * attention +
                     (only_attention ? LAYERS : n) * mlp);
        }
        for (size_t k = 0; k < DCP_ARRAY_LEN(ways); k++)
            assert_true(bytes_of(dtypes[i], ways[k], true) ==
                        bytes_of(dtypes[i], ways[k], false));
    }
}

/* A plan of any size takes no memory; the sum may be more than memory can be. */
static void test_plan(void **state)
{
    (void)state;
    struct model_config huge = { .family = "gpt2",
                                 .n_layer = 128,
                                 .n_head = 160,
                                 .n_embd = 25600,
                                 .n_positions = 2048,
                                 .vocab_size = 50257 };
    struct model_options options = {
        .dtype = DCP_BF16, .batch = 1024, .seq_len = 2048, .plan = true
    };
    struct model *model;
    assert_int_equal(model_make(&huge, &options, ops_cpu(), &model, NULL), 0);
    assert_true(model_activation_bytes(model) > UINT64_C(1) << 48);
    model_free(model);
    huge.n_layer = 1 << 16;
    huge.n_embd = huge.n_head = 1 << 20;
    options.batch = 1 << 20;
    options.seq_len = 2000;
    assert_int_equal(model_make(&huge, &options, ops_cpu(), &model, NULL), 0);
    assert_true(model_activation_bytes(model) == UINT64_MAX);
    model_free(model);
}

/* --- calls --- */

/* Writes down what is asked for, of hooks or for nothing. */
struct diary {
    struct whole_model *w;
    char text[4096];
    size_t used;
};

static void note(struct diary *d, char what, int unit)
{
    d->used += (size_t)snprintf(d->text + d->used, sizeof d->text - d->used, "%c%d ",
                                what, unit);
}

static int acquire(void *self, int unit, const void **out, struct dcp_error *err)
{
    struct diary *d = self;
    note(d, 'a', unit);
    return d->w ? d->w->hooks.acquire(d->w, unit, out, err) : 0;
}

static void release(void *self, int unit)
{
    struct diary *d = self;
    note(d, 'r', unit);
    if (d->w)
        d->w->hooks.release(d->w, unit);
}

static int grad_begin(void *self, int unit, float **out, struct dcp_error *err)
{
    struct diary *d = self;
    note(d, 'b', unit);
    return d->w ? d->w->hooks.grad_begin(d->w, unit, out, err) : 0;
}

static int grad_end(void *self, int unit, struct dcp_error *err)
{
    struct diary *d = self;
    note(d, 'e', unit);
    return d->w ? d->w->hooks.grad_end(d->w, unit, err) : 0;
}

static void test_idle_asks_alike(void **state)
{
    (void)state;
    const int32_t ids[ROWS] = { 1 };
    for (size_t i = 0; i < DCP_ARRAY_LEN(ways); i++) {
        struct whole_model w;
        struct diary works = { .w = &w }, idles = { .w = NULL };
        struct model_hooks hooks = { &works, acquire, release, grad_begin, grad_end };
        double loss;
        make(&w, ops_cpu(), DCP_F32, ways[i]);
        assert_int_equal(model_train(w.model, &hooks, ids, ids, BATCH, T, 1, &loss, NULL),
                         0);
        hooks.self = &idles;
        assert_int_equal(model_idle(w.model, &hooks, NULL), 0);
        assert_string_equal(works.text, idles.text);
        if (ways[i].every == 3) /* the second segment is as forward left it */
            assert_non_null(strstr(works.text, "e4 a1 r1 a2 r2 a3 b3 r3 e3 a2 b2"));
        whole_model_fini(&w);
    }
}

/* A hook that fails anywhere ends the call, and nothing stays acquired. */
static void test_hooks_that_fail(void **state)
{
    (void)state;
    const int32_t ids[ROWS] = { 1 };
    struct whole_model w;
    struct dcp_error err = { 0 };
    double loss;
    int n;
    make(&w, ops_cpu(), DCP_F32, (struct model_recompute){ .every = 2 });
    model_train(w.model, &w.hooks, ids, ids, BATCH, T, 1, &loss, NULL);
    n = w.calls;
    for (int i = 1; i <= n; i++) {
        w.calls = 0;
        w.fail_at = i;
        assert_int_equal(
            model_train(w.model, &w.hooks, ids, ids, BATCH, T, 1, &loss, &err),
            DCP_E_COMM);
        for (int u = 0; u < LAYERS + 2; u++) {
            assert_int_equal(w.acquired[u], 0);
            w.grads_open[u] = 0;
        }
    }
    whole_model_fini(&w);
}

/* Keys and values are not kept, so nobody goes on from them. */
static void test_no_next(void **state)
{
    (void)state;
    const int32_t ids[] = { 3, 1, 4 };
    float want[VOCAB], got[VOCAB];
    struct whole_model all;
    make(&all, ops_cpu(), DCP_F32, (struct model_recompute){ 0 });
    assert_int_equal(model_logits(all.model, &all.hooks, ids, 3, want, NULL), 0);
    for (size_t i = 0; i < DCP_ARRAY_LEN(ways); i++) {
        struct whole_model w;
        struct dcp_error err = { 0 };
        make(&w, ops_cpu(), DCP_F32, ways[i]);
        assert_int_equal(model_logits(w.model, &w.hooks, ids, 3, got, NULL), 0);
        assert_memory_equal(got, want, sizeof want);
        assert_int_equal(model_logits_next(w.model, &w.hooks, 1, got, &err), DCP_E_USAGE);
        whole_model_fini(&w);
    }
    whole_model_fini(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_idle_asks_alike),
        cmocka_unit_test(test_hooks_that_fail),
        cmocka_unit_test(test_no_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
