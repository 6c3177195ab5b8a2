/* adamw: one loop, compiled for both dtypes of gradients. */
#include "adamw.h"
#include "adamw_element.h"
#include "simd.h"

#define PART 65536 /* elements that a thread takes at a time */

static inline __attribute__((always_inline)) void step_as(
    bool bf16_grad, bool bf16_weights, float *restrict master, float *restrict m,
    float *restrict v, const void *restrict grad, uint16_t *restrict weights, int64_t n,
    const struct adamw_factors *factors)
{
    const struct adamw_factors f = *factors;
    OPS_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = bf16_grad ? bf16_to_f32(((const uint16_t *)grad)[i])
                            : ((const float *)grad)[i];
        float m_new = m[i], v_new = v[i];
        float w = adamw_element(f, master[i], &m_new, &v_new, g);
        m[i] = m_new;
        v[i] = v_new;
        master[i] = w;
        if (bf16_weights)
            weights[i] = bf16_from_f32(w);
    }
}

OPS_CLONES
static void step_part(float *master, float *m, float *v, const void *grad, bool bf16_grad,
                      uint16_t *weights, int64_t n, const struct adamw_factors *f)
{
    if (bf16_grad && weights)
        step_as(true, true, master, m, v, grad, weights, n, f);
    else if (bf16_grad)
        step_as(true, false, master, m, v, grad, weights, n, f);
    else if (weights)
        step_as(false, true, master, m, v, grad, weights, n, f);
    else
        step_as(false, false, master, m, v, grad, weights, n, f);
}

static void round_part(const float *master, uint16_t *weights, int64_t n, int64_t first,
                       const struct adamw_params *params)
{
    for (int64_t i = 0; i < n; i++)
        weights[i] = adamw_round(master[i], params->seed, params->step, first + i);
}

void adamw_step(const struct adamw_range *range, const struct adamw_params *params)
{
    const struct adamw_range r = *range;
    const struct adamw_factors f = adamw_factors(params);
    bool bf16 = r.grad_dtype == DCP_BF16, stochastic = r.weights && params->stochastic;
    OPS_PARALLEL_FOR(r.n > PART)
    for (int64_t i = 0; i < r.n; i += PART) {
        int64_t n = r.n - i < PART ? r.n - i : PART;
        step_part(r.master + i, r.m + i, r.v + i,
                  (const char *)r.grad + (size_t)i * (bf16 ? 2 : 4), bf16,
                  r.weights && !stochastic ? r.weights + i : NULL, n, &f);
        if (stochastic)
            round_part(r.master + i, r.weights + i, n, r.first + i, params);
    }
}
