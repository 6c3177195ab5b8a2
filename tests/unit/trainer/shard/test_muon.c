/* labels: tsan */
/* Muon over 2,000 steps, each against the formula of torch.optim.Muon in double
 * precision, from the state before it, and AdamW for the rest; the same bits at every
 * world size and stage. With the argument "print" the matrices after STEPS steps, for
 * tests/oracle/test_matrices_torch.py. */
#include "base/mem.h"
#include "base/part.h"
#include "lib/steps.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 1000, MOST = 256 };

static struct optim_params muon(void)
{
    return (struct optim_params){
        .type = OPTIM_MUON,
        .lr = 2e-2,
        .adam_lr = 1e-2,
        .weight_decay = 0.1,
        .beta1 = 0.9,
        .beta2 = 0.99,
        .eps = 1e-6,
        .momentum = 0.95,
        .nesterov = true,
        .newton_schulz = { .coefficients = { 3.4445, -4.7750, 2.0315 },
                           .eps = 1e-7,
                           .steps = 5 },
        .bias_correction = true,
        .decoupled = true,
        .grad_scale = 1,
    };
}

/* --- the formula --- */

/* c[m,n] = a[m,k] b[k,n]. */
static void product(int64_t m, int64_t n, int64_t k, const double *a, const double *b,
                    double *c)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            c[i * n + j] = 0;
            for (int64_t l = 0; l < k; l++)
                c[i * n + j] += a[i * k + l] * b[l * n + j];
        }
}

static void transpose(int64_t rows, int64_t columns, const double *x, double *out)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[j * rows + i] = x[i * columns + j];
}

/* torch's _zeropower_via_newtonschulz, which turns what is tall on its side. */
static void orthogonal(const struct newton_schulz *how, int64_t rows, int64_t columns,
                       double *x)
{
    double flat[MOST], gram[MOST], square[MOST], on[MOST], sum = 0;
    const double *k = how->coefficients;
    int64_t n = rows * columns, m = rows < columns ? rows : columns;
    if (rows > columns) {
        transpose(rows, columns, x, flat);
        memcpy(x, flat, (size_t)n * sizeof *x);
    }
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        x[i] /= fmax(sqrt(sum), how->eps);
    for (int step = 0; step < how->steps; step++) {
        transpose(m, n / m, x, flat);
        product(m, m, n / m, x, flat, gram);
        product(m, m, m, gram, gram, square);
        for (int64_t i = 0; i < m * m; i++)
            gram[i] = k[1] * gram[i] + k[2] * square[i];
        product(m, n / m, m, gram, x, on);
        for (int64_t i = 0; i < n; i++)
            x[i] = k[0] * x[i] + on[i];
    }
    if (rows > columns) {
        transpose(columns, rows, x, flat);
        memcpy(x, flat, (size_t)n * sizeof *x);
    }
}

/* What a parameter becomes. */
struct next {
    double w[MOST], m[MOST], v[MOST];
};

static void foresee_muon(const struct steps *s, int param, const float *w,
                         const float *buffer, struct next *out)
{
    const struct optim_params *o = &s->params;
    const struct model_param *p = &s->model_params[param];
    double on[MOST], rows = (double)p->shape[0], columns = (double)p->shape[1];
    double ratio =
        o->match_rms ? 0.2 * sqrt(fmax(rows, columns)) : sqrt(fmax(1, rows / columns));
    for (int64_t i = 0; i < p->n_elems; i++) {
        double g = (double)steps_gradient(s, param, i);
        out->m[i] = o->momentum * (double)buffer[i] + (1 - o->momentum) * g;
        on[i] = o->nesterov ? (1 - o->momentum) * g + o->momentum * out->m[i] : out->m[i];
    }
    orthogonal(&o->newton_schulz, p->shape[0], p->shape[1], on);
    for (int64_t i = 0; i < p->n_elems; i++)
        out->w[i] = (double)w[i] * (1 - o->lr * o->weight_decay) - o->lr * ratio * on[i];
}

static void foresee_adamw(const struct steps *s, int param, const float *w,
                          const float *m, const float *v, struct next *out)
{
    const struct optim_params *o = &s->params;
    bool decays = o->decay_all || s->model_params[param].decay;
    double decay = decays ? o->weight_decay : 0;
    for (int64_t i = 0; i < s->model_params[param].n_elems; i++) {
        double g = (double)steps_gradient(s, param, i);
        out->m[i] = o->beta1 * (double)m[i] + (1 - o->beta1) * g;
        out->v[i] = o->beta2 * (double)v[i] + (1 - o->beta2) * g * g;
        double mean = out->m[i] / (1 - pow(o->beta1, (double)o->step));
        double square = out->v[i] / (1 - pow(o->beta2, (double)o->step));
        out->w[i] = (double)w[i] * (1 - o->adam_lr * decay) -
                    o->adam_lr * mean / (sqrt(square) + o->eps);
    }
}

static bool is_matrix(const struct steps *s, int param)
{
    return strstr(s->model_params[param].name, ".h.") && s->model_params[param].ndim == 2;
}

static void foresee(struct steps *s, const struct shard *shard)
{
    struct next *next = s->self;
    for (int p = 0; p < s->n_params; p++) {
        const float *w = steps_array(shard, -1, p), *first = steps_array(shard, 0, p);
        assert_in_range(s->model_params[p].n_elems, 1, MOST);
        assert_int_equal(shard_optimizer(shard, p), is_matrix(s, p) ? OPTIM_MUON : 0);
        if (is_matrix(s, p))
            foresee_muon(s, p, w, first, &next[p]);
        else
            foresee_adamw(s, p, w, first, steps_array(shard, 1, p), &next[p]);
    }
}

static void compare(struct steps *s, const struct shard *shard)
{
    const struct next *next = s->self;
    for (int p = 0; p < s->n_params; p++) {
        int64_t n = s->model_params[p].n_elems;
        double off = fmax(steps_off(steps_array(shard, -1, p), next[p].w, n),
                          steps_off(steps_array(shard, 0, p), next[p].m, n));
        if (!is_matrix(s, p))
            off = fmax(off, steps_off(steps_array(shard, 1, p), next[p].v, n));
        if (!(off < 1e-5))
            fail_msg("step %d, %s: off by %g", (int)s->params.step,
                     s->model_params[p].name, off);
    }
}

static void follows_the_formula(void **state)
{
    (void)state;
    DCP_CLEANUP_FREE struct next *next = dcp_mem_calloc(64, sizeof *next);
    for (int way = 0; way < 2; way++) {
        struct steps s = { .config = steps_model,
                           .options = { .stage = 2, .dtype = DCP_F32, .n_micros = 1 },
                           .params = muon(),
                           .world_size = 1,
                           .n_steps = STEPS,
                           .before = foresee,
                           .after = compare,
                           .self = next };
        s.config.n_layer = 2;
        s.params.match_rms = s.params.decay_all = way;
        s.params.nesterov = !way;
        steps_run(&s);
        steps_fini(&s);
    }
}

/* --- ranks --- */

static void same_bits_everywhere(void **state)
{
    (void)state;
    const struct optim_params params = muon();
    steps_check_ranks(&params);
}

/* A matrix has one state, and the rest two; there is room for one matrix, and what it
 * takes. */
static void keeps_what_there_is(void **state)
{
    (void)state;
    const struct optim_params params = muon();
    struct steps s = steps_of(&params, 1, 0, DCP_F32), adam = s;
    int64_t n_matrices = 0, room = dcp_part_align(400, 32) + newton_schulz_room(10, 40);
    s.n_steps = adam.n_steps = 1;
    adam.params.type = OPTIM_ADAM;
    steps_run(&s);
    steps_run(&adam);
    for (int p = 0; p < s.n_params; p++)
        n_matrices += is_matrix(&s, p) ? s.model_params[p].n_elems : 0;
    assert_int_equal(s.bytes.optimizer, (uint64_t)(2 * s.n - n_matrices) * sizeof(float));
    assert_int_equal(s.bytes.transient,
                     adam.bytes.transient + (uint64_t)room * sizeof(float));
    steps_fini(&s);
    steps_fini(&adam);
}

/* --- for the oracle --- */

/* A line for each matrix: its gradients are those of the Python program, by its number.
 */
static void print_matrices(bool match_rms, bool nesterov)
{
    struct steps s = { .config = steps_model,
                       .options = { .dtype = DCP_F32, .n_micros = 1 },
                       .params = muon(),
                       .world_size = 1,
                       .n_steps = STEPS };
    int64_t at = 0;
    s.params.match_rms = match_rms;
    s.params.nesterov = nesterov;
    struct steps none = s;
    none.n_steps = 0;
    steps_run(&s);
    steps_run(&none);
    for (int p = 0; p < s.n_params; at += s.model_params[p++].n_elems) {
        const struct model_param *param = &s.model_params[p];
        if (!is_matrix(&s, p))
            continue;
        printf("{\"optimizer\": \"Muon\", \"param\": %d, \"shape\": [%d, %d], \"steps\": "
               "%d, \"lr\": %.17g, "
               "\"weight_decay\": %.17g, \"momentum\": %.17g, \"nesterov\": %d, "
               "\"match_rms\": %d",
               p, (int)param->shape[0], (int)param->shape[1], STEPS, s.params.lr,
               s.params.weight_decay, s.params.momentum, nesterov, match_rms);
        steps_print("begin", none.weights + at, param->n_elems);
        steps_print("w", s.weights + at, param->n_elems);
        steps_print("momentum_buffer", s.states[0] + at, param->n_elems);
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
        cmocka_unit_test(keeps_what_there_is),
    };
    if (argc == 2 && !strcmp(argv[1], "print")) {
        print_matrices(false, true);
        print_matrices(true, false);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
