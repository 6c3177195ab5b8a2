/* The gradient of every parameter against central differences of a loss computed in
 * double, by code that shares nothing with the model: the definition, written down. */
#include "base/mem.h"
#include "lib/whole_model.h"
#include "trainer/ops/ops.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 2, C = 6, T = 5, BATCH = 2, VOCAB = 11, SIZE = C / HEADS };

static const struct model_config config = { .family = "gpt2",
                                            .n_layer = LAYERS,
                                            .n_head = HEADS,
                                            .n_embd = C,
                                            .n_positions = 7,
                                            .vocab_size = VOCAB };
static const int32_t tokens[BATCH * T] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3 };
static const int32_t targets[BATCH * T] = { 1, 4, 1, 5, 10, 2, 6, 5, 3, 0 };

/* --- the definition --- */

static void norm(const double *x, const double *weight, const double *bias, double *out)
{
    double mean = 0, variance = 0;
    for (int i = 0; i < C; i++)
        mean += x[i] / C;
    for (int i = 0; i < C; i++)
        variance += (x[i] - mean) * (x[i] - mean) / C;
    for (int i = 0; i < C; i++)
        out[i] = (x[i] - mean) / sqrt(variance + 1e-5) * weight[i] + bias[i];
}

static void linear(const double *x, int n_in, int n_out, const double *weight,
                   const double *bias, double *out)
{
    for (int o = 0; o < n_out; o++) {
        out[o] = bias[o];
        for (int i = 0; i < n_in; i++)
            out[o] += x[i] * weight[i * n_out + o];
    }
}

static void attend(double qkv[T][3 * C], double out[T][C])
{
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < T; t++) {
            double p[T], sum = 0;
            for (int s = 0; s <= t; s++) {
                double dot = 0;
                for (int i = 0; i < SIZE; i++)
                    dot += qkv[t][h * SIZE + i] * qkv[s][C + h * SIZE + i];
                p[s] = exp(dot / sqrt(SIZE));
                sum += p[s];
            }
            for (int i = 0; i < SIZE; i++) {
                out[t][h * SIZE + i] = 0;
                for (int s = 0; s <= t; s++)
                    out[t][h * SIZE + i] += p[s] / sum * qkv[s][2 * C + h * SIZE + i];
            }
        }
}

/* p: all parameters, in the order of the model. */
static double loss_of_sequence(double *const *p, const int32_t *in, const int32_t *want)
{
    double *const *final = p + 2 + 12 * LAYERS;
    double x[T][C], y[C], qkv[T][3 * C], att[T][C], wide[4 * C], loss = 0;
    for (int t = 0; t < T; t++)
        for (int i = 0; i < C; i++)
            x[t][i] = p[0][in[t] * C + i] + p[1][t * C + i];
    for (int l = 0; l < LAYERS; l++) {
        double *const *w = p + 2 + 12 * l;
        for (int t = 0; t < T; t++) {
            norm(x[t], w[0], w[1], y);
            linear(y, C, 3 * C, w[2], w[3], qkv[t]);
        }
        attend(qkv, att);
        for (int t = 0; t < T; t++) {
            linear(att[t], C, C, w[4], w[5], y);
            for (int i = 0; i < C; i++)
                x[t][i] += y[i];
            norm(x[t], w[6], w[7], y);
            linear(y, C, 4 * C, w[8], w[9], wide);
            for (int i = 0; i < 4 * C; i++) {
                double z = wide[i], cube = z * z * z;
                wide[i] = z / 2 * (1 + tanh(sqrt(2 / M_PI) * (z + 0.044715 * cube)));
            }
            linear(wide, 4 * C, C, w[10], w[11], y);
            for (int i = 0; i < C; i++)
                x[t][i] += y[i];
        }
    }
    for (int t = 0; t < T; t++) {
        double logits[VOCAB], sum = 0;
        norm(x[t], final[0], final[1], y);
        for (int v = 0; v < VOCAB; v++) {
            logits[v] = 0;
            for (int i = 0; i < C; i++)
                logits[v] += y[i] * p[0][v * C + i];
            sum += exp(logits[v]);
        }
        loss += log(sum) - logits[want[t]];
    }
    return loss / T;
}

static double loss_of(double *const *p)
{
    double loss = 0;
    for (int b = 0; b < BATCH; b++)
        loss += loss_of_sequence(p, tokens + b * T, targets + b * T) / BATCH;
    return loss;
}

/* --- the comparison --- */

static void check(const struct ops *ops)
{
    struct whole_model w;
    whole_model_init_with(&w, &config, DCP_F32, ops, BATCH, T);
    whole_model_shake(&w, 5, 0.3);
    double *p[2 + 12 * LAYERS + 2];
    assert_int_equal(w.n_params, DCP_ARRAY_LEN(p));
    for (int k = 0; k < w.n_params; k++) {
        p[k] = dcp_mem_calloc((size_t)w.params[k].n_elems, sizeof *p[k]);
        assert_non_null(p[k]);
        for (int64_t i = 0; i < w.params[k].n_elems; i++)
            p[k][i] = (double)w.weights[k][i];
    }
    const float scale = 0.5f;
    double loss, loss_alone;
    assert_int_equal(
        model_loss(w.model, &w.hooks, tokens, targets, BATCH, T, &loss_alone, NULL), 0);
    assert_int_equal(
        model_train(w.model, &w.hooks, tokens, targets, BATCH, T, scale, &loss, NULL), 0);
    assert_true(loss == loss_alone);
    assert_true(fabs(loss - loss_of(p)) < 2e-6);

    int64_t checked = 0;
    for (int k = 0; k < w.n_params; k++) {
        double largest = 0, off = 0;
        for (int64_t i = 0; i < w.params[k].n_elems; i++) {
            double at = p[k][i], step = 1e-5 * (1 + fabs(at));
            p[k][i] = at + step;
            double up = loss_of(p);
            p[k][i] = at - step;
            double down = loss_of(p);
            p[k][i] = at;
            double want = (up - down) / (2 * step), got = (double)w.grads[k][i] / 0.5;
            largest = fmax(largest, fabs(want));
            off = fmax(off, fabs(got - want));
            checked++;
        }
        if (!(off <= 1e-5 * largest + 1e-9))
            fail_msg("%s: the gradient of %s is off by %g, the largest is %g", ops->name,
                     w.params[k].name, off, largest);
        assert_true(largest > 1e-6); /* none is compared with zeros alone */
    }
    assert_int_equal(checked, whole_model_elems(&w));
    print_message("%s: %lld gradients\n", ops->name, (long long)checked);
    for (int k = 0; k < w.n_params; k++)
        free(p[k]);
    whole_model_fini(&w);
}

static void test_plain(void **state)
{
    (void)state;
    check(ops_cpu());
}

static void test_fast(void **state)
{
    (void)state;
    check(ops_best());
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_plain),
                                        cmocka_unit_test(test_fast) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
