/* The optimizer against the formulas in double, and bit for bit against itself however a
 * range is cut. */
#include "base/mem.h"
#include "lib/arrays.h"
#include "trainer/ops/ops.h"
#include "trainer/ops/optim.h"
#include "trainer/ops/optim_element.h"
#include "trainer/ops/rng.h"
#include "trainer/ops/value.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define N 1003
#define SEED 7

struct state {
    float w[N], m[N], v[N], g[N];
    uint16_t g_bf16[N], g_f16[N], w16[N];
};

static void state_init(struct state *s, uint64_t stream)
{
    memset(s, 0, sizeof *s);
    for (uint64_t i = 0; i < N; i++) {
        s->w[i] = (float)rng_normal(SEED, stream, i);
        s->m[i] = 0.1f * (float)rng_normal(SEED, stream + 1, i);
        s->v[i] = (float)pow(rng_normal(SEED, stream + 2, i), 2) * 0.01f;
        s->g_bf16[i] = bf16_from_f32((float)rng_normal(SEED, stream + 3, i));
        s->g[i] = bf16_to_f32(s->g_bf16[i]);
        s->g_f16[i] = f16_from_f32(s->g[i]);
        assert_true(f16_to_f32(s->g_f16[i]) == s->g[i]); /* none is that small */
    }
    s->g[0] = 0, s->g_bf16[0] = 0, s->g_f16[0] = 0; /* what was never touched */
    s->m[0] = 0, s->v[0] = 0;
}

static const struct optim_params typical = { .lr = 3e-3,
                                             .beta1 = 0.9,
                                             .beta2 = 0.95,
                                             .eps = 1e-8,
                                             .weight_decay = 0.1,
                                             .step = 3,
                                             .bias_correction = true,
                                             .decoupled = true,
                                             .grad_scale = 0.75f };

enum { NONE = -1 }; /* weights beside the masters */

/* Elements first .. first + n. */
static void step(struct state *s, enum dcp_dtype grad, int weights, int64_t first,
                 int64_t n, const struct optim_params *p)
{
    const void *grads = grad == DCP_BF16  ? (const void *)(s->g_bf16 + first)
                        : grad == DCP_F16 ? (const void *)(s->g_f16 + first)
                                          : s->g + first;
    const struct optim_range range = {
        .master = s->w + first,
        .state = { s->m + first, s->v + first },
        .grad = grads,
        .grad_dtype = grad,
        .weights = weights == NONE ? NULL : s->w16 + first,
        .weight_dtype = weights == NONE ? DCP_F32 : (enum dcp_dtype)weights,
        .n = n,
        .first = first,
    };
    optim_step(&range, p);
}

/* As the papers write it. */
static void check_step(const struct optim_params *p)
{
    struct state s, old;
    state_init(&s, 10);
    old = s;
    step(&s, DCP_F32, NONE, 0, N, p);
    for (int i = 0; i < N; i++) {
        double w = (double)old.w[i], g = (double)old.g[i] * (double)p->grad_scale;
        if (!p->decoupled)
            g += p->weight_decay * w;
        double m = p->beta1 * (double)old.m[i] + (1 - p->beta1) * g;
        double v = p->beta2 * (double)old.v[i] + (1 - p->beta2) * g * g;
        double m_hat = m, v_hat = v;
        if (p->bias_correction) {
            m_hat /= 1 - pow(p->beta1, (double)p->step);
            v_hat /= 1 - pow(p->beta2, (double)p->step);
        }
        double decay = p->decoupled ? p->weight_decay * w : 0;
        double want = w - p->lr * (m_hat / (sqrt(v_hat) + p->eps) + decay);
        assert_true(fabs((double)s.m[i] - m) <= 2e-7 * (fabs(m) + 0.1));
        assert_true(fabs((double)s.v[i] - v) <= 3e-7 * v);
        assert_true(fabs((double)s.w[i] - want) <= 3e-7 * (fabs(want) + p->lr));
    }
    assert_true(s.w[0] != old.w[0] || p->weight_decay == 0); /* decay reaches it */
}

static void test_formulas(void **state)
{
    (void)state;
    struct optim_params p = typical;
    check_step(&p);
    p.step = 1, p.grad_scale = 1;
    check_step(&p);
    p.step = 100000;
    check_step(&p);
    p.bias_correction = false;
    check_step(&p);
    p.decoupled = false, p.bias_correction = true, p.step = 2;
    check_step(&p);
    p.weight_decay = 0;
    check_step(&p);
}

static void assert_same(const struct state *a, const struct state *b)
{
    assert_memory_equal(a->w, b->w, sizeof a->w);
    assert_memory_equal(a->m, b->m, sizeof a->m);
    assert_memory_equal(a->v, b->v, sizeof a->v);
    assert_memory_equal(a->w16, b->w16, sizeof a->w16);
}

/* Vectors, their rests, alignments and threads give the same bits. */
static void test_cuts(void **state)
{
    (void)state;
    struct state whole, cut;
    for (int way = 0; way < 6; way++) {
        enum dcp_dtype dtype = way < 4 ? DCP_BF16 : DCP_F16;
        struct optim_params p = typical;
        p.decoupled = way & 1;
        p.stochastic = way == 2 || way == 3;
        state_init(&whole, 20);
        step(&whole, dtype, (int)dtype, 0, N, &p);
        for (int64_t size = 1; size < 70; size++) {
            state_init(&cut, 20);
            for (int64_t i = 0; i < N; i += size)
                step(&cut, dtype, (int)dtype, i, i + size < N ? size : N - i, &p);
            assert_same(&whole, &cut);
        }
    }
}

/* All kinds of arguments agree. */
static void test_mixed(void **state)
{
    (void)state;
    struct state a, b;
    state_init(&a, 30);
    step(&a, DCP_F32, NONE, 0, N, &typical);
    static const int weights[] = { NONE, DCP_BF16, DCP_F16 };
    EACH_DTYPE(grad)
    for (size_t i = 0; i < DCP_ARRAY_LEN(weights); i++) {
        state_init(&b, 30);
        step(&b, grad, weights[i], 0, N, &typical);
        memset(a.w16, 0, sizeof a.w16);
        if (weights[i] != NONE)
            ops_to_16bit((enum dcp_dtype)weights[i], a.w, a.w16, N);
        assert_same(&a, &b);
    }
}

static void test_threads(void **state)
{
    (void)state;
    enum { MANY = 300007 };
    float *arrays[2][4];
    for (int t = 0; t < 2; t++) {
        for (int k = 0; k < 4; k++) {
            arrays[t][k] = dcp_mem_calloc(MANY, sizeof(float));
            assert_non_null(arrays[t][k]);
            for (uint64_t i = 0; i < MANY; i++)
                arrays[t][k][i] = (float)rng_uniform(SEED, 40 + (uint64_t)k, i);
        }
        ops_set_threads(t ? 4 : 1);
        const struct optim_range range = { .master = arrays[t][0],
                                           .state = { arrays[t][1], arrays[t][2] },
                                           .grad = arrays[t][3],
                                           .grad_dtype = DCP_F32,
                                           .n = MANY };
        optim_step(&range, &typical);
    }
    for (int k = 0; k < 4; k++) {
        assert_memory_equal(arrays[0][k], arrays[1][k], MANY * sizeof(float));
        free(arrays[0][k]);
        free(arrays[1][k]);
    }
    ops_set_threads(1);
}

/* Rounding at random takes one of the two neighbours, each as often as the value is near
 * to the other, and differs with the seed, the step and the element. */
static void test_stochastic(void **state)
{
    (void)state;
    enum { TRIES = 20000 };
    static const float values[] = {
        1.0f, 1.001f, -3.14159f, 1e-20f, 0.0f, 0x1.fffffep126f
    };
    for (size_t k = 0; k < DCP_ARRAY_LEN(values); k++) {
        float x = values[k];
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t low = (uint16_t)(bits >> 16), high = (uint16_t)(low + 1);
        double share = (double)(bits & 0xffff) / 65536;
        int n_high = 0;
        for (int64_t i = 0; i < TRIES; i++) {
            uint16_t got = optim_round(x, SEED, 1 + i % 7, i / 7);
            assert_true(got == low || (got == high && share > 0));
            n_high += got == high;
        }
        double expected = share * TRIES, deviation = sqrt(expected * (1 - share)) + 1;
        assert_true(fabs(n_high - expected) < 5 * deviation);
    }
    assert_int_equal(bf16_stochastic(NAN, 0xffff), 0x7fc0);
    assert_int_equal(bf16_stochastic(-INFINITY, 0xffff), 0xff80);

    struct state first, other;
    for (int change = 0; change < 4; change++) {
        struct optim_params p = typical;
        p.stochastic = true;
        state_init(&first, 60);
        other = first;
        step(&first, DCP_F32, DCP_BF16, 0, N, &p);
        p.seed += change == 1;
        p.step += change == 2;
        p.stochastic = change != 3;
        step(&other, DCP_F32, DCP_BF16, 0, N, &p);
        int differ = 0;
        for (int i = 0; i < N; i++)
            differ += first.w16[i] != other.w16[i];
        assert_true(change ? differ > N / 8 : differ == 0);
    }
}

/* NaN and infinity stay where they are. */
static void test_not_finite(void **state)
{
    (void)state;
    struct state s, clean;
    state_init(&s, 50);
    clean = s;
    s.g[5] = NAN, s.g[6] = INFINITY;
    step(&s, DCP_F32, NONE, 0, N, &typical);
    step(&clean, DCP_F32, NONE, 0, N, &typical);
    assert_true(isnan(s.w[5]) && isnan(s.w[6]));
    for (int i = 0; i < N; i++)
        if (i != 5 && i != 6)
            assert_true(s.w[i] == clean.w[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),   cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_mixed),      cmocka_unit_test(test_threads),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_stochastic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
