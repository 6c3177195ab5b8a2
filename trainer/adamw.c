/* adamw: one loop, compiled for both dtypes of gradients. */
#include "adamw.h"
#include "ops_bf16.h"
#include "ops_simd.h"
#include <math.h>

/* A product and a sum that are fused into one operation round once, and compilers fuse
 * where they like. gcc does not in C11 mode, clang when it is told so. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define PART 65536 /* elements that a thread takes at a time */

/* The numbers of one step, in the precision that elements are computed with. */
struct factors {
    float grad_scale, l2_decay, keep; /* keep: 1 - lr × decay */
    float beta1_rest, beta2, beta2_rest;
    float root_correction, eps, step_size;
};

static struct factors factors_of(const struct adamw_params *p)
{
    double correction1 = 1, correction2 = 1;
    if (p->bias_correction) {
        correction1 = 1 - pow(p->beta1, (double)p->step);
        correction2 = 1 - pow(p->beta2, (double)p->step);
    }
    return (struct factors){
        .grad_scale = p->grad_scale,
        .l2_decay = p->decoupled ? 0 : (float)p->weight_decay,
        .keep = p->decoupled ? (float)(1 - p->lr * p->weight_decay) : 1,
        .beta1_rest = (float)(1 - p->beta1),
        .beta2 = (float)p->beta2,
        .beta2_rest = (float)(1 - p->beta2),
        .root_correction = (float)sqrt(correction2),
        .eps = (float)p->eps,
        .step_size = (float)(p->lr / correction1),
    };
}

static inline __attribute__((always_inline)) void step_as(
    bool bf16_grad, bool bf16_weights, float *restrict master, float *restrict m,
    float *restrict v, const void *restrict grad, uint16_t *restrict weights, int64_t n,
    const struct factors *factors)
{
    const struct factors f = *factors;
    OPS_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = bf16_grad ? bf16_to_f32(((const uint16_t *)grad)[i])
                            : ((const float *)grad)[i];
        float w = master[i];
        g = g * f.grad_scale + f.l2_decay * w;
        w = w * f.keep;
        float m_new = m[i] + f.beta1_rest * (g - m[i]);
        float v_new = v[i] * f.beta2 + f.beta2_rest * g * g;
        float root = sqrtf(v_new) / f.root_correction + f.eps;
        w = w - f.step_size * m_new / root;
        m[i] = m_new;
        v[i] = v_new;
        master[i] = w;
        if (bf16_weights)
            weights[i] = bf16_from_f32(w);
    }
}

OPS_CLONES
static void step_part(float *master, float *m, float *v, const void *grad, bool bf16_grad,
                      uint16_t *weights, int64_t n, const struct factors *f)
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

void adamw_step_mixed(float *master, float *m, float *v, const void *grad,
                      enum dcp_dtype grad_dtype, uint16_t *weights, int64_t n,
                      const struct adamw_params *params)
{
    const struct factors f = factors_of(params);
    bool bf16 = grad_dtype == DCP_BF16;
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t i = 0; i < n; i += PART)
        step_part(master + i, m + i, v + i,
                  (const char *)grad + (size_t)i * (bf16 ? 2 : 4), bf16,
                  weights ? weights + i : NULL, n - i < PART ? n - i : PART, &f);
}

void adamw_step(float *master, float *m, float *v, const float *grad, int64_t n,
                const struct adamw_params *params)
{
    adamw_step_mixed(master, m, v, grad, DCP_F32, NULL, n, params);
}
