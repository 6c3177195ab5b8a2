/* labels: tsan */
/* Adafactor over 2,000 steps, each against the formula of torch.optim.Adafactor in double
 * precision, from the state before it; the same bits at every world size and stage. With
 * the argument "print" what becomes of some parameters, for
 * tests/oracle/test_matrices_torch.py. */
#include "base/mem.h"
#include "lib/steps.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 1000, MOST = 64, PRINTED = 5 /* parameters, each another kind */ };

static struct optim_params adafactor(void)
{
    return (struct optim_params){
        .type = OPTIM_ADAFACTOR,
        .lr = 0.02,
        .weight_decay = 0.1,
        .eps = NAN,
        .variance_decay = -0.8,
        .eps_scale = 1e-3,
        .clip = 1,
        .scale_parameter = true,
        .relative_step = true,
        .grad_scale = 0.75f,
    };
}

/* --- the formula --- */

/* What a parameter becomes. */
struct next {
    double w[MOST], state[2][MOST];
};

static double g_of(const struct steps *s, int param, int64_t i)
{
    return (double)steps_gradient(s, param, i) * (double)s->params.grad_scale;
}

/* Variances of a matrix, by rows and columns. */
static void factor(const struct steps *s, int param, const float *const before[2],
                   struct next *out, double *variance)
{
    const int64_t *shape = s->model_params[param].shape;
    double newest = pow((double)s->params.step, s->params.variance_decay), mean = 0;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < shape[k]; i++) {
            double squares = 0;
            for (int64_t j = 0; j < shape[1 - k]; j++) {
                double g = g_of(s, param, k ? j * shape[1] + i : i * shape[1] + j);
                squares += g * g;
            }
            out->state[k][i] = (double)before[k][i] * (1 - newest) +
                               squares / (double)shape[1 - k] * newest;
            mean += k ? 0 : out->state[0][i] / (double)shape[0];
        }
    for (int64_t i = 0; i < shape[0] * shape[1]; i++)
        variance[i] = out->state[0][i / shape[1]] * out->state[1][i % shape[1]] /
                      fmax(mean, (double)FLT_EPSILON);
}

static void foresee_param(const struct steps *s, int param, const float *w,
                          const float *const before[2], struct next *out)
{
    const struct optim_params *o = &s->params;
    const struct model_param *p = &s->model_params[param];
    double on[MOST], weights = 0, step = 0, n = (double)p->n_elems;
    double newest = pow((double)o->step, o->variance_decay);
    double decay = p->decay || o->decay_all ? o->weight_decay : 0;
    if (p->ndim == 2)
        factor(s, param, before, out, on);
    for (int64_t i = 0; i < p->n_elems; i++) {
        double g = g_of(s, param, i);
        if (p->ndim < 2)
            on[i] = out->state[0][i] =
                (double)before[0][i] * (1 - newest) + g * g * newest;
        on[i] = g / sqrt(fmax(on[i], (double)FLT_EPSILON * (double)FLT_EPSILON));
        weights += (double)w[i] * (double)w[i];
        step += on[i] * on[i];
    }
    double rate = o->relative_step ? fmin(o->lr, 1 / sqrt((double)o->step)) : o->lr;
    if (o->scale_parameter)
        rate *= fmax(o->eps_scale, sqrt(weights / n));
    rate /= fmax(1, sqrt(step / n) / o->clip);
    for (int64_t i = 0; i < p->n_elems; i++)
        out->w[i] = (double)w[i] * (1 - o->lr * decay) - rate * on[i];
}

static void foresee(struct steps *s, const struct shard *shard)
{
    struct next *next = s->self;
    for (int p = 0; p < s->n_params; p++) {
        const float *before[] = { steps_array(shard, 0, p), NULL };
        assert_in_range(s->model_params[p].n_elems, 1, MOST);
        if (s->model_params[p].ndim == 2)
            before[1] = steps_array(shard, 1, p);
        foresee_param(s, p, steps_array(shard, -1, p), before, &next[p]);
    }
}

static void compare(struct steps *s, const struct shard *shard)
{
    const struct next *next = s->self;
    for (int p = 0; p < s->n_params; p++) {
        const struct model_param *param = &s->model_params[p];
        double off = steps_off(steps_array(shard, -1, p), next[p].w, param->n_elems);
        for (int k = 0; k < param->ndim; k++)
            off = fmax(off, steps_off(steps_array(shard, k, p), next[p].state[k],
                                      param->shape[k]));
        if (!(off < 2e-6))
            fail_msg("step %d, %s: off by %g", (int)s->params.step, param->name, off);
    }
}

static void follows_the_formula(void **state)
{
    (void)state;
    DCP_CLEANUP_FREE struct next *next = dcp_mem_calloc(64, sizeof *next);
    for (int way = 0; way < 2; way++) {
        struct steps s = { .config = steps_model,
                           .options = { .stage = 2, .dtype = DCP_F32, .n_micros = 1 },
                           .params = adafactor(),
                           .world_size = 1,
                           .n_steps = STEPS,
                           .before = foresee,
                           .after = compare,
                           .self = next };
        s.params.decay_all = way;
        s.params.scale_parameter = s.params.relative_step = !way;
        s.params.clip = way ? 1.5 : 1;
        s.params.lr = way ? 1e-3 : 0.02;
        steps_run(&s);
        steps_fini(&s);
    }
}

/* --- ranks --- */

static void same_bits_everywhere(void **state)
{
    (void)state;
    const struct optim_params params = adafactor();
    steps_check_ranks(&params);
}

/* A row and a column of each matrix, and every element of the rest; beside that their
 * sums, and what norms take. */
static void keeps_little(void **state)
{
    (void)state;
    const struct optim_params params = adafactor();
    struct steps s = steps_of(&params, 1, 0, DCP_F32), adam = s;
    uint64_t n = 0, n_sums = 0, most = 4 * 10 * 10;
    s.n_steps = adam.n_steps = 1;
    adam.params.type = OPTIM_ADAM;
    steps_run(&s);
    steps_run(&adam);
    for (int p = 0; p < s.n_params; p++) {
        const struct model_param *param = &s.model_params[p];
        uint64_t sums =
            param->ndim < 2 ? 0 : (uint64_t)(param->shape[0] + param->shape[1]);
        n += param->ndim < 2 ? (uint64_t)param->n_elems : sums;
        n_sums += sums;
    }
    assert_int_equal(s.bytes.optimizer, n * sizeof(float));
    uint64_t norms = 2 * (uint64_t)s.n_params * (sizeof(float) + 4 * sizeof(double));
    assert_int_equal(s.bytes.transient, adam.bytes.transient + 2 * most * sizeof(float) +
                                            norms + n_sums * 2 * sizeof(int64_t));
    steps_fini(&s);
    steps_fini(&adam);
}

/* --- for the oracle --- */

static void print_params(void)
{
    struct steps s = { .config = steps_model,
                       .options = { .dtype = DCP_F32, .n_micros = 1 },
                       .params = adafactor(),
                       .world_size = 1,
                       .n_steps = STEPS };
    struct steps none = s;
    int64_t at = 0;
    s.params.grad_scale = 1;
    s.params.decay_all = true;
    none.n_steps = 0;
    steps_run(&s);
    steps_run(&none);
    for (int p = 0; p < PRINTED; at += s.model_params[p++].n_elems) {
        const struct model_param *param = &s.model_params[p];
        bool matrix = param->ndim == 2;
        printf("{\"optimizer\": \"Adafactor\", \"param\": %d, \"shape\": [%d", p,
               (int)param->shape[0]);
        if (matrix)
            printf(", %d", (int)param->shape[1]);
        printf("], \"steps\": %d, \"lr\": %.17g, \"weight_decay\": %.17g", STEPS,
               s.params.lr, s.params.weight_decay);
        steps_print("begin", none.weights + at, param->n_elems);
        steps_print("w", s.weights + at, param->n_elems);
        steps_print(matrix ? "row_var" : "variance", s.states[0] + at, param->shape[0]);
        if (matrix)
            steps_print("col_var", s.states[1] + at, param->shape[1]);
        printf("}\n");
    }
    steps_fini(&s);
    steps_fini(&none);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_formula),
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(keeps_little),
    };
    if (argc == 2 && !strcmp(argv[1], "print")) {
        print_params();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
