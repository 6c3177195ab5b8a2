/* Optimizers over 2,000 steps against values of torch.optim (Lion: of the formulas of
 * DeepSpeed's FusedLion) that tests/oracle/test_optim_torch.py made. With the argument
 * "print" the parameters of all cases, and what they lead to here. */
#include "trainer/ops/optim.h"

#include "base/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 4, STEPS = 2000 };

struct case_of {
    const char *name;
    struct optim_params params;
    float w[N], state[N]; /* at the end; of Adam the second moment */
};

#define COMMON .grad_scale = 1, .bias_correction = true, .eps = 1e-8
static const struct case_of cases[] = {
    { "sgd",
      { COMMON, .type = OPTIM_SGD, .lr = 0.01, .weight_decay = 0.1 },
      { 0.0448189899f, 0.0260740295f, 0.0659843683f, 0.0807399079f },
      { 0.0f, 0.0f, 0.0f, 0.0f } },
    { "sgd-momentum",
      { COMMON, .type = OPTIM_MOMENTUM, .lr = 0.01, .momentum = 0.9 },
      { -0.608033538f, 0.535368323f, -0.731169462f, 0.282051206f },
      { -3.62223887f, 3.82833505f, -2.45786953f, 3.54624033f } },
    { "sgd-dampening",
      { COMMON, .type = OPTIM_MOMENTUM, .lr = 0.01, .momentum = 0.5, .dampening = 0.3,
        .weight_decay = 0.1 },
      { 0.0204639435f, -0.0136580728f, -0.00553743308f, 0.0123287272f },
      { -1.72117865f, 1.12602746f, -1.46982789f, 1.36305189f } },
    { "sgd-nesterov",
      { COMMON, .type = OPTIM_MOMENTUM, .lr = 0.01, .momentum = 0.9, .nesterov = true,
        .weight_decay = 1e-3 },
      { -0.489941865f, 0.374159783f, -0.668734312f, 0.136949092f },
      { -3.62737608f, 3.83270717f, -2.46430302f, 3.54785323f } },
    { "lion",
      { COMMON, .type = OPTIM_LION, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99,
        .weight_decay = 0.1 },
      { -0.0968466029f, 0.128991544f, 0.281040281f, 0.501776397f },
      { -0.0175209939f, 0.0256894827f, -0.00101212226f, 0.0195175707f } },
    { "lion-defaults",
      { COMMON, .type = OPTIM_LION, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999 },
      { 0.183999866f, 0.47200036f, 0.67000103f, 0.940000772f },
      { -0.00110186287f, 0.00415255083f, 0.00354156876f, 0.00544597814f } },
    { "adagrad",
      { COMMON, .type = OPTIM_ADAGRAD, .lr = 0.01, .weight_decay = 0.1 },
      { 0.214247167f, 0.524740756f, 0.673716962f, 0.964561999f },
      { 2546.41235f, 2560.56055f, 2558.44214f, 2575.79785f } },
    { "adagrad-decay",
      { COMMON, .type = OPTIM_ADAGRAD, .lr = 0.1, .lr_decay = 0.01 },
      { 0.0338591859f, 1.11004198f, 0.495195061f, 1.46336865f },
      { 2545.0918f, 2554.30957f, 2546.95605f, 2553.97363f } },
    { "adam",
      { COMMON, .type = OPTIM_ADAM, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95,
        .weight_decay = 0.1 },
      { 0.0458953269f, 0.129797652f, 0.102797382f, 0.194665581f },
      { 1.09130287f, 1.42711425f, 1.04375076f, 1.48207486f } },
    { "adamw",
      { COMMON, .type = OPTIM_ADAM, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95,
        .weight_decay = 0.1, .decoupled = true },
      { 0.0370840169f, 0.101882003f, 0.0735918283f, 0.15228115f },
      { 1.09116375f, 1.42056918f, 1.04393339f, 1.47399855f } },
};

/* Exact in fp32. */
static float gradient(int64_t step, int i)
{
    return (float)((step * 7919 + i * 1047) % 2003 - 1001 + i) / 512;
}

static void train(const struct optim_params *params, float w[N], float states[2][N])
{
    struct optim_params p = *params;
    memset(states, 0, 2 * sizeof states[0]);
    for (int i = 0; i < N; i++)
        w[i] = (float)(i + 1) / 4;
    for (p.step = 1; p.step <= STEPS; p.step++) {
        float grad[N];
        for (int i = 0; i < N; i++)
            grad[i] = gradient(p.step, i);
        const struct optim_range range = { .master = w,
                                           .state = { states[0], states[1] },
                                           .grad = grad,
                                           .grad_dtype = DCP_F32,
                                           .n = N };
        optim_step(&range, &p);
    }
}

static void assert_near(float got, float want)
{
    assert_true(fabsf(got - want) <= 2e-5f * (fabsf(want) + 0.1f));
}

static void is_torch(void **state)
{
    (void)state;
    for (size_t c = 0; c < DCP_ARRAY_LEN(cases); c++) {
        const struct case_of *k = &cases[c];
        float w[N], states[2][N];
        int last = optim_n_states(k->params.type) - 1;
        train(&k->params, w, states);
        for (int i = 0; i < N; i++) {
            assert_near(w[i], k->w[i]);
            if (last >= 0)
                assert_near(states[last][i], k->state[i]);
        }
    }
}

static void print_cases(void)
{
    for (size_t c = 0; c < DCP_ARRAY_LEN(cases); c++) {
        const struct optim_params *p = &cases[c].params;
        float w[N], states[2][N];
        int n_states = optim_n_states(p->type);
        train(p, w, states);
        printf(
            "{\"name\": \"%s\", \"lr\": %.17g, \"weight_decay\": %.17g, \"betas\": "
            "[%.17g, %.17g], \"eps\": %.17g, \"momentum\": %.17g, \"dampening\": "
            "%.17g, \"nesterov\": %d, \"lr_decay\": %.17g, \"decoupled\": %d, \"w\": [",
            cases[c].name, p->lr, p->weight_decay, p->beta1, p->beta2, p->eps,
            p->momentum, p->dampening, p->nesterov, p->lr_decay, p->decoupled);
        for (int i = 0; i < N; i++)
            printf("%s%.9g", i ? ", " : "", (double)w[i]);
        printf("], \"states\": {");
        for (int k = 0; k < n_states; k++) {
            printf("%s\"%s\": [", k ? ", " : "", optim_states[p->type][k]);
            for (int i = 0; i < N; i++)
                printf("%s%.9g", i ? ", " : "", (double)states[k][i]);
            printf("]");
        }
        printf("}}\n");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(is_torch) };
    if (argc == 2 && !strcmp(argv[1], "print")) {
        print_cases();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
