/* LAMB over 2,000 steps, each against the formula of DeepSpeed's FusedLamb in double
 * precision, from the state before it. */
#include "trainer/model/model.h"
#include "trainer/shard/shard.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 2000 };

static const struct model_config config = { .family = "gpt2",
                                            .n_layer = 1,
                                            .n_head = 1,
                                            .n_embd = 4,
                                            .n_positions = 4,
                                            .vocab_size = 8,
                                            .layer_norm_epsilon = 1e-5 };

static float gradient(int64_t step, int param, int64_t i)
{
    return (float)((step * 7919 + param * 31 + i * 1047) % 2003 - 1001) / 512;
}

static void compute(struct shard *shard, const struct model *model, int step)
{
    struct model_hooks hooks;
    float *grads[MODEL_MAX_UNIT_PARAMS];
    int n;
    const struct model_param *params = model_params(model, &n);
    shard_hooks(shard, &hooks);
    shard_begin(shard);
    for (int u = model_n_units(model) - 1; u >= 0; u--) {
        assert_int_equal(hooks.grad_begin(hooks.self, u, grads, NULL), 0);
        for (int p = 0, k = 0; p < n; p++) {
            if (params[p].unit != u)
                continue;
            for (int64_t i = 0; i < params[p].n_elems; i++)
                grads[k][i] = gradient(step, p, i);
            k++;
        }
        assert_int_equal(hooks.grad_end(hooks.self, u, NULL), 0);
    }
    assert_int_equal(shard_end_micro(shard, NULL), 0);
}

static double length(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* What a parameter becomes. */
struct next {
    double w[256], m[256], v[256];
};

static void foresee(const struct shard *shard, int param, const struct model_param *of,
                    const struct optim_params *o, int step, struct next *out)
{
    struct shard_range w, m, v;
    double direction[256], old[256], decay = of->decay ? o->weight_decay : 0;
    int64_t n = of->n_elems;
    assert_in_range(n, 1, 256);
    shard_weights(shard, param, &w);
    shard_state(shard, 0, param, &m);
    shard_state(shard, 1, param, &v);
    for (int64_t i = 0; i < n; i++) {
        double g = (double)gradient(step, param, i);
        old[i] = (double)((float *)w.data)[i];
        out->m[i] = o->beta1 * (double)((float *)m.data)[i] + (1 - o->beta1) * g;
        out->v[i] = o->beta2 * (double)((float *)v.data)[i] + (1 - o->beta2) * g * g;
        direction[i] = out->m[i] / (sqrt(out->v[i]) + o->eps) + decay * old[i];
    }
    double weights = length(old, n), by = length(direction, n), trust = 1;
    if (weights > 0 && by > 0)
        trust = fmin(fmax(weights / by, o->min_trust), o->max_trust);
    double rate = o->lr * sqrt(1 - pow(o->beta2, step)) / (1 - pow(o->beta1, step));
    for (int64_t i = 0; i < n; i++)
        out->w[i] = old[i] - rate * trust * direction[i];
}

static double off(const float *got, const double *want, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double size = fabs(want[i]) > 1e-3 ? fabs(want[i]) : 1e-3;
        worst = fmax(worst, fabs((double)got[i] - want[i]) / size);
    }
    return worst;
}

static void follows_the_formula(void **state)
{
    (void)state;
    struct model *model;
    struct shard *shard;
    struct coll coll;
    const struct model_options made = { .dtype = DCP_F32, .batch = 1, .seq_len = 4 };
    const struct shard_options cut = {
        .stage = 2, .dtype = DCP_F32, .optimizer = OPTIM_LAMB, .n_micros = 1
    };
    struct optim_params o = { .type = OPTIM_LAMB,
                              .lr = 1e-2,
                              .weight_decay = 0.1,
                              .beta1 = 0.9,
                              .beta2 = 0.99,
                              .eps = 1e-6,
                              .min_trust = 0.05,
                              .max_trust = 2,
                              .bias_correction = true,
                              .grad_scale = 1 };
    int n;
    assert_int_equal(model_make(&config, &made, ops_cpu(), &model, NULL), 0);
    const struct model_param *params = model_params(model, &n);
    struct next *next = calloc((size_t)n, sizeof *next);
    coll_self(&coll);
    assert_int_equal(shard_new(model, &cut, &coll, &shard, NULL), 0);
    assert_int_equal(shard_init(shard, 7, NULL), 0);
    for (int step = 1; step <= STEPS; step++) {
        double norm;
        bool again;
        compute(shard, model, step);
        assert_int_equal(shard_reduce(shard, &norm, &again, NULL), 0);
        o.step = step;
        for (int p = 0; p < n; p++)
            foresee(shard, p, &params[p], &o, step, &next[p]);
        assert_int_equal(shard_update(shard, &o, NULL), 0);
        for (int p = 0; p < n; p++) {
            struct shard_range w, m, v;
            shard_weights(shard, p, &w);
            shard_state(shard, 0, p, &m);
            shard_state(shard, 1, p, &v);
            double worst = fmax(off(w.data, next[p].w, params[p].n_elems),
                                fmax(off(m.data, next[p].m, params[p].n_elems),
                                     off(v.data, next[p].v, params[p].n_elems)));
            if (!(worst < 2e-5))
                fail_msg("step %d, %s: off by %g", step, params[p].name, worst);
        }
    }
    free(next);
    shard_free(shard);
    coll_free(&coll);
    model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
