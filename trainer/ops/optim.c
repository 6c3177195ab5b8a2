/* optim: one loop in fp32, compiled for each optimizer; other dtypes are converted before
 * and after it, a block that the nearest cache holds at a time. */
#include "optim.h"
#include "optim_element.h"
#include "simd.h"
#include "value.h"

/* Elements that a thread takes at a time, in so many blocks. */
enum { BLOCK = 2048, PART = 32 * BLOCK };

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
    const float *grad;
    int64_t n;
};

INLINE void step_as(enum optim_type type, const struct at *at,
                    const struct optim_factors *factors)
{
    const struct optim_factors f = *factors;
    float *restrict master = at->master, *restrict first = at->first,
                    *restrict second = at->second;
    const float *restrict grad = at->grad;
    int n_states = optim_n_states(type);
    OPS_SIMD
    for (int64_t i = 0; i < at->n; i++) {
        float a = n_states > 0 ? first[i] : 0, b = n_states > 1 ? second[i] : 0;
        float w = optim_element(type, f, master[i], &a, &b, grad[i]);
        if (n_states > 0)
            first[i] = a;
        if (n_states > 1)
            second[i] = b;
        master[i] = w;
    }
}

/* Each optimizer is a function of its own. */
#define STEP_OF(name, type)                                              \
    DCP_VECTORS                                                          \
    static void name(const struct at *at, const struct optim_factors *f) \
    {                                                                    \
        step_as(type, at, f);                                            \
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

static void (*const steps[OPTIM_N_ALL])(const struct at *at,
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

INLINE void widen_as(enum dcp_dtype dtype, const void *restrict from, float *restrict to,
                     int64_t n)
{
    OPS_SIMD
    for (int64_t i = 0; i < n; i++)
        to[i] = value_get(dtype, from, i);
}

DCP_VECTORS
static void widen(enum dcp_dtype dtype, const void *from, float *to, int64_t n)
{
    BY_DTYPE(dtype, widen_as, from, to, n);
}

INLINE void narrow_as(enum dcp_dtype dtype, const float *restrict from, void *restrict to,
                      int64_t n)
{
    OPS_SIMD
    for (int64_t i = 0; i < n; i++)
        value_put(dtype, to, i, from[i]);
}

DCP_VECTORS
static void narrow(enum dcp_dtype dtype, const float *from, void *to, int64_t n)
{
    BY_DTYPE(dtype, narrow_as, from, to, n);
}

static void round_at_random(const float *master, uint16_t *weights, int64_t n,
                            int64_t first, const struct optim_params *params)
{
    for (int64_t i = 0; i < n; i++)
        weights[i] = optim_round(master[i], params->seed, params->step, first + i);
}

/* At most BLOCK elements, from the i-th on. */
static void step_block(const struct optim_range *r, int64_t i, int64_t n,
                       const struct optim_params *params, const struct optim_factors *f)
{
    float widened[BLOCK];
    const void *grad = (const char *)r->grad + (size_t)i * dcp_dtype_size(r->grad_dtype);
    const struct at at = {
        .master = r->master + i,
        .first = r->state[0] ? r->state[0] + i : NULL,
        .second = r->state[1] ? r->state[1] + i : NULL,
        .grad = r->grad_dtype == DCP_F32 ? grad : widened,
        .n = n,
    };
    if (r->grad_dtype != DCP_F32)
        widen(r->grad_dtype, grad, widened, n);
    steps[params->type](&at, f);
    if (r->weights && params->stochastic)
        round_at_random(at.master, r->weights + i, n, r->first + i, params);
    else if (r->weights)
        narrow(r->weight_dtype, at.master, r->weights + i, n);
}

void optim_step(const struct optim_range *range, const struct optim_params *params)
{
    const struct optim_range r = *range;
    const struct optim_factors f = optim_factors(params);
    OPS_PARALLEL_FOR(r.n > PART)
    for (int64_t part = 0; part < r.n; part += PART) {
        int64_t end = r.n - part < PART ? r.n : part + PART;
        for (int64_t i = part; i < end; i += BLOCK)
            step_block(&r, i, end - i < BLOCK ? end - i : BLOCK, params, &f);
    }
}
