/* labels: tsan */
/* LAMB over 2,000 steps, each against the formula of DeepSpeed's FusedLamb in double
 * precision, from the state before it; the same bits at every world size and stage. */
#include "base/mem.h"
#include "lib/steps.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

enum { STEPS = 2000, MOST = 256 };

static struct optim_params lamb(void)
{
    return (struct optim_params){
        .type = OPTIM_LAMB,
        .lr = 1e-2,
        .weight_decay = 0.1,
        .beta1 = 0.9,
        .beta2 = 0.99,
        .eps = 1e-6,
        .min_trust = 0.05,
        .max_trust = 2,
        .bias_correction = true,
        .grad_scale = 1,
    };
}

/* What a parameter's array becomes, and how large the terms are whose sum each element
 * is: fp32 rounds these. */
struct next {
    double want[MOST], size[MOST];
};

/* Weights, and both states. */
enum { ARRAYS = 3 };

static double length(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void sum_up(struct next *next, int64_t i, double kept, double gained)
{
    next->want[i] = kept + gained;
    next->size[i] = fabs(kept) + fabs(gained);
}

static void foresee_param(const struct steps *s, const struct shard *shard, int param,
                          struct next *out)
{
    const struct optim_params *o = &s->params;
    const struct model_param *of = &s->model_params[param];
    const float *w = steps_array(shard, -1, param), *m = steps_array(shard, 0, param),
                *v = steps_array(shard, 1, param);
    struct next by;
    double old[MOST], decay = of->decay ? o->weight_decay : 0, step = (double)o->step;
    int64_t n = of->n_elems;
    assert_in_range(n, 1, MOST);
    for (int64_t i = 0; i < n; i++) {
        double g = (double)steps_gradient(s, param, i);
        old[i] = (double)w[i];
        sum_up(&out[1], i, o->beta1 * (double)m[i], (1 - o->beta1) * g);
        sum_up(&out[2], i, o->beta2 * (double)v[i], (1 - o->beta2) * g * g);
        double below = sqrt(out[2].want[i]) + o->eps;
        by.want[i] = out[1].want[i] / below + decay * old[i];
        by.size[i] = out[1].size[i] / below + fabs(decay * old[i]);
    }
    double weights = length(old, n), length_by = length(by.want, n), trust = 1;
    if (weights > 0 && length_by > 0)
        trust = fmin(fmax(weights / length_by, o->min_trust), o->max_trust);
    double rate = o->lr * sqrt(1 - pow(o->beta2, step)) / (1 - pow(o->beta1, step));
    for (int64_t i = 0; i < n; i++) {
        out[0].want[i] = old[i] - rate * trust * by.want[i];
        out[0].size[i] = fabs(old[i]) + rate * trust * by.size[i];
    }
}

static void foresee(struct steps *s, const struct shard *shard)
{
    for (int p = 0; p < s->n_params; p++)
        foresee_param(s, shard, p, (struct next *)s->self + p * ARRAYS);
}

/* Element by element. */
static double off(const float *got, const struct next *next, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double by = fabs((double)got[i] - next->want[i]);
        worst = fmax(worst, isfinite(got[i]) ? by / (next->size[i] + 1e-30) : INFINITY);
    }
    return worst;
}

static void compare(struct steps *s, const struct shard *shard)
{
    const struct next *next = s->self;
    for (int p = 0; p < s->n_params; p++) {
        const struct model_param *param = &s->model_params[p];
        for (int i = 0; i < ARRAYS; i++, next++) {
            double worst = off(steps_array(shard, i - 1, p), next, param->n_elems);
            if (!(worst < 1e-6))
                fail_msg("step %d, %s, array %d: off by %g", (int)s->params.step,
                         param->name, i, worst);
        }
    }
}

static void follows_the_formula(void **state)
{
    (void)state;
    DCP_CLEANUP_FREE struct next *next = dcp_mem_calloc(64 * ARRAYS, sizeof *next);
    struct steps s = { .config = steps_model,
                       .options = { .stage = 2, .dtype = DCP_F32, .n_micros = 1 },
                       .params = lamb(),
                       .world_size = 1,
                       .n_steps = STEPS,
                       .before = foresee,
                       .after = compare,
                       .self = next };
    steps_run(&s);
    steps_fini(&s);
}

static void same_bits_everywhere(void **state)
{
    (void)state;
    const struct optim_params params = lamb();
    steps_check_ranks(&params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_formula),
        cmocka_unit_test(same_bits_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
