/* optim: one loop, compiled for each optimizer and each dtype of gradients and of
 * weights. */
#include "optim.h"
#include "optim_element.h"
#include "simd.h"
#include "value.h"

#define PART 65536 /* elements that a thread takes at a time */

enum { NO_WEIGHTS = DCP_N_DTYPES }; /* beside the masters */

const char *const optim_states[OPTIM_N_TYPES][OPTIM_MAX_STATES] = {
    [OPTIM_ADAM] = { "exp_avg", "exp_avg_sq" },
    [OPTIM_MOMENTUM] = { "momentum_buffer" },
    [OPTIM_LION] = { "exp_avg" },
    [OPTIM_ADAGRAD] = { "sum" },
    [OPTIM_LAMB] = { "exp_avg", "exp_avg_sq" },
    [OPTIM_MUON] = { "momentum_buffer" },
    [OPTIM_ADAFACTOR] = { "variance" },
    [OPTIM_FACTORED] = { "row_var", "col_var" },
};

/* A range's arrays from an element on. */
struct at {
    float *master, *first, *second; /* NULL: there is no such state */
    const void *grad;
    uint16_t *weights;
    int64_t n;
};

INLINE void step_as(enum dcp_dtype grad_dtype, enum optim_type type, int weight_dtype,
                    const struct at *at, const struct optim_factors *factors)
{
    const struct optim_factors f = *factors;
    float *restrict master = at->master, *restrict first = at->first,
                    *restrict second = at->second;
    const void *restrict grad = at->grad;
    uint16_t *restrict weights = at->weights;
    int n_states = optim_n_states(type);
    OPS_SIMD
    for (int64_t i = 0; i < at->n; i++) {
        float a = n_states > 0 ? first[i] : 0, b = n_states > 1 ? second[i] : 0;
        float w =
            optim_element(type, f, master[i], &a, &b, value_get(grad_dtype, grad, i));
        if (n_states > 0)
            first[i] = a;
        if (n_states > 1)
            second[i] = b;
        master[i] = w;
        if (weight_dtype != NO_WEIGHTS)
            value_put((enum dcp_dtype)weight_dtype, weights, i, w);
    }
}

/* The dtypes of gradients and weights as constants. */
INLINE void step_weights(enum dcp_dtype grad_dtype, enum optim_type type,
                         int weight_dtype, const struct at *at,
                         const struct optim_factors *f)
{
    if (weight_dtype == DCP_BF16)
        step_as(grad_dtype, type, DCP_BF16, at, f);
    else if (weight_dtype == DCP_F16)
        step_as(grad_dtype, type, DCP_F16, at, f);
    else
        step_as(grad_dtype, type, NO_WEIGHTS, at, f);
}

/* And the optimizer: each is a function of its own. */
#define STEP_OF(name, type)                                                            \
    OPS_CLONES                                                                         \
    static void name(enum dcp_dtype grad_dtype, int weight_dtype, const struct at *at, \
                     const struct optim_factors *f)                                    \
    {                                                                                  \
        BY_DTYPE(grad_dtype, step_weights, type, weight_dtype, at, f);                 \
    }
STEP_OF(step_adam, OPTIM_ADAM)
STEP_OF(step_sgd, OPTIM_SGD)
STEP_OF(step_momentum, OPTIM_MOMENTUM)
STEP_OF(step_lion, OPTIM_LION)
STEP_OF(step_adagrad, OPTIM_ADAGRAD)
STEP_OF(lamb_moments, OPTIM_LAMB)
STEP_OF(lamb_direction, OPTIM_LAMB_DIRECTION)
STEP_OF(lamb_step, OPTIM_LAMB_STEP)
STEP_OF(muon_momentum, OPTIM_MUON)
STEP_OF(step_along, OPTIM_ALONG)
STEP_OF(adafactor_variance, OPTIM_ADAFACTOR)
STEP_OF(adafactor_direction, OPTIM_ADAFACTOR_DIRECTION)

static void (*const steps[OPTIM_N_ALL])(enum dcp_dtype grad_dtype, int weight_dtype,
                                        const struct at *at,
                                        const struct optim_factors *f) = {
    [OPTIM_ADAM] = step_adam,
    [OPTIM_SGD] = step_sgd,
    [OPTIM_MOMENTUM] = step_momentum,
    [OPTIM_LION] = step_lion,
    [OPTIM_ADAGRAD] = step_adagrad,
    [OPTIM_LAMB] = lamb_moments,
    [OPTIM_LAMB_DIRECTION] = lamb_direction,
    [OPTIM_LAMB_STEP] = lamb_step,
    [OPTIM_MUON] = muon_momentum,
    [OPTIM_ALONG] = step_along,
    [OPTIM_ADAFACTOR] = adafactor_variance,
    [OPTIM_ADAFACTOR_DIRECTION] = adafactor_direction,
};

static void round_part(const float *master, uint16_t *weights, int64_t n, int64_t first,
                       const struct optim_params *params)
{
    for (int64_t i = 0; i < n; i++)
        weights[i] = optim_round(master[i], params->seed, params->step, first + i);
}

void optim_step(const struct optim_range *range, const struct optim_params *params)
{
    const struct optim_range r = *range;
    const struct optim_factors f = optim_factors(params);
    bool stochastic = r.weights && params->stochastic;
    int weight_dtype = r.weights && !stochastic ? (int)r.weight_dtype : NO_WEIGHTS;
    size_t grad_bytes = dcp_dtype_size(r.grad_dtype);
    OPS_PARALLEL_FOR(r.n > PART)
    for (int64_t i = 0; i < r.n; i += PART) {
        int64_t n = r.n - i < PART ? r.n - i : PART;
        const struct at at = {
            .master = r.master + i,
            .first = r.state[0] ? r.state[0] + i : NULL,
            .second = r.state[1] ? r.state[1] + i : NULL,
            .grad = (const char *)r.grad + (size_t)i * grad_bytes,
            .weights = r.weights ? r.weights + i : NULL,
            .n = n,
        };
        steps[params->type](r.grad_dtype, weight_dtype, &at, &f);
        if (stochastic)
            round_part(r.master + i, r.weights + i, n, r.first + i, params);
    }
}
