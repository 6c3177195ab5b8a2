/* adamw_element: what happens to one element, the same text for CPU and GPU.
 *
 * A product and a sum that are fused into one operation round once, and compilers fuse
 * where they like: gcc does not in C11 mode, clang and nvcc when they are told so. */
#ifndef TRAINER_OPS_ADAMW_ELEMENT_H
#define TRAINER_OPS_ADAMW_ELEMENT_H

#include "adamw.h"
#include "bf16.h"
#include "rng_words.h"
#include <math.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

/* The numbers of one step, in the precision that elements are computed with. */
struct adamw_factors {
    float grad_scale, l2_decay, keep; /* keep: 1 - lr × decay */
    float beta1_rest, beta2, beta2_rest;
    float root_correction, eps, step_size;
};

static inline struct adamw_factors adamw_factors(const struct adamw_params *p)
{
    double correction1 = 1, correction2 = 1;
    struct adamw_factors f;
    if (p->bias_correction) {
        correction1 = 1 - pow(p->beta1, (double)p->step);
        correction2 = 1 - pow(p->beta2, (double)p->step);
    }
    f.grad_scale = p->grad_scale;
    f.l2_decay = p->decoupled ? 0 : (float)p->weight_decay;
    f.keep = p->decoupled ? (float)(1 - p->lr * p->weight_decay) : 1;
    f.beta1_rest = (float)(1 - p->beta1);
    f.beta2 = (float)p->beta2;
    f.beta2_rest = (float)(1 - p->beta2);
    f.root_correction = (float)sqrt(correction2);
    f.eps = (float)p->eps;
    f.step_size = (float)(p->lr / correction1);
    return f;
}

/* Returns the new weight. */
PORTABLE float adamw_element(struct adamw_factors f, float w, float *m, float *v, float g)
{
    g = g * f.grad_scale + f.l2_decay * w;
    w = w * f.keep;
    float m_new = *m + f.beta1_rest * (g - *m);
    float v_new = *v * f.beta2 + f.beta2_rest * g * g;
    float root = sqrtf(v_new) / f.root_correction + f.eps;
    *m = m_new;
    *v = v_new;
    return w - f.step_size * m_new / root;
}

/* The bf16 of element number `at` of the model, rounded at random. */
PORTABLE uint16_t adamw_round(float w, uint64_t seed, int64_t step, int64_t at)
{
    /* Eight elements share the 128 bits of one call. */
    uint32_t words[4];
    rng_words(seed, UINT64_C(1) << 63 | (uint64_t)step, (uint64_t)at / 8, words);
    uint32_t word = words[at % 8 / 2];
    return bf16_stochastic(w, at % 2 ? word >> 16 : word & 0xffff);
}

#endif
