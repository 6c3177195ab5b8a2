/* optim_element: what happens to one element, the same text for CPU and GPU.
 *
 * A product and a sum that are fused into one operation round once, and compilers fuse
 * where they like: gcc does not in C11 mode, clang and nvcc when they are told so. */
#ifndef TRAINER_OPS_OPTIM_ELEMENT_H
#define TRAINER_OPS_OPTIM_ELEMENT_H

#include "bf16.h"
#include "optim.h"
#include "rng_words.h"
#include <float.h>
#include <math.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

/* The numbers of one step, in the precision that elements are computed with. */
struct optim_factors {
    float grad_scale, l2_decay, keep; /* keep: 1 - lr × decay */
    float beta1, beta1_rest, beta2, beta2_rest;
    float root_correction, eps, step_size;
    float momentum, momentum_rest, undamped; /* undamped: 1 - dampening */
    float newest; /* weight of the newest square in a variance */
    bool nesterov;
};

static inline struct optim_factors optim_factors(const struct optim_params *p)
{
    double correction1 = 1, correction2 = 1, rate = p->lr;
    bool lamb = optim_is_lamb(p->type);
    bool decoupled = p->type == OPTIM_LION || p->type == OPTIM_ALONG ||
                     (p->type == OPTIM_ADAM && p->decoupled);
    struct optim_factors f;
    if ((p->type == OPTIM_ADAM || lamb) && p->bias_correction) {
        correction1 = 1 - pow(p->beta1, (double)p->step);
        correction2 = 1 - pow(p->beta2, (double)p->step);
    }
    if (p->type == OPTIM_ADAGRAD)
        rate = p->lr / (1 + (double)(p->step - 1) * p->lr_decay);
    if (lamb) /* both corrections are of the rate */
        rate = p->lr * sqrt(correction2) * (double)(p->type == OPTIM_LAMB ? 1 : p->trust);
    if (p->type == OPTIM_ALONG)
        rate = p->stride;
    f.grad_scale = p->grad_scale;
    f.l2_decay = decoupled ? 0 : (float)p->weight_decay;
    f.keep = decoupled ? (float)(1 - p->lr * p->weight_decay) : 1;
    f.beta1 = (float)p->beta1;
    f.beta1_rest = (float)(1 - p->beta1);
    f.beta2 = (float)p->beta2;
    f.beta2_rest = (float)(1 - p->beta2);
    f.root_correction = (float)sqrt(correction2);
    f.eps = p->eps >= 0 ? (float)p->eps : FLT_EPSILON;
    f.newest = (float)pow((double)p->step, p->variance_decay);
    f.step_size = (float)(rate / correction1);
    f.momentum = (float)p->momentum;
    f.momentum_rest = (float)(1 - p->momentum);
    /* The first gradient is the buffer's beginning, and is not damped. */
    f.undamped = p->step == 1 ? 1 : (float)(1 - p->dampening);
    f.nesterov = p->nesterov;
    return f;
}

/* Each returns the new weight. The gradient is scaled, the decay still to come. */
PORTABLE float optim_adam(struct optim_factors f, float w, float *m, float *v, float g)
{
    g = g + f.l2_decay * w;
    w = w * f.keep;
    float m_new = *m + f.beta1_rest * (g - *m);
    float v_new = *v * f.beta2 + f.beta2_rest * g * g;
    float root = sqrtf(v_new) / f.root_correction + f.eps;
    *m = m_new;
    *v = v_new;
    return w - f.step_size * m_new / root;
}

PORTABLE float optim_sgd(struct optim_factors f, float w, float g)
{
    g = g + f.l2_decay * w;
    return w - f.step_size * g;
}

PORTABLE float optim_momentum(struct optim_factors f, float w, float *buffer, float g)
{
    g = g + f.l2_decay * w;
    *buffer = *buffer * f.momentum + f.undamped * g;
    g = f.nesterov ? g + f.momentum * *buffer : *buffer;
    return w - f.step_size * g;
}

PORTABLE float optim_lion(struct optim_factors f, float w, float *m, float g)
{
    float c = f.beta1 * *m + f.beta1_rest * g;
    float change = c > 0 ? f.step_size : c < 0 ? -f.step_size : c; /* c is 0 or NaN */
    *m = f.beta2 * *m + f.beta2_rest * g;
    return w * f.keep - change;
}

PORTABLE float optim_adagrad(struct optim_factors f, float w, float *sum, float g)
{
    g = g + f.l2_decay * w;
    *sum = *sum + g * g;
    return w - f.step_size * g / (sqrtf(*sum) + f.eps);
}

PORTABLE float optim_lamb(struct optim_factors f, float w, float *m, float *v, float g)
{
    *m = f.beta1 * *m + f.beta1_rest * g;
    *v = f.beta2 * *v + f.beta2_rest * g * g;
    return w;
}

PORTABLE float optim_lamb_direction(struct optim_factors f, float w, float m, float v)
{
    return m / (sqrtf(v) + f.eps) + f.l2_decay * w;
}

/* As torch's lerp does it: from the nearer end. */
PORTABLE float optim_lerp(float from, float to, float weight)
{
    return weight < 0.5f ? from + weight * (to - from) : to - (to - from) * (1 - weight);
}

PORTABLE float optim_muon(struct optim_factors f, float *m, float g)
{
    *m = optim_lerp(*m, g, f.momentum_rest);
    return f.nesterov ? optim_lerp(g, *m, f.momentum) : *m;
}

PORTABLE float optim_along(struct optim_factors f, float w, float direction)
{
    return w * f.keep - f.step_size * direction;
}

PORTABLE float optim_adafactor(struct optim_factors f, float w, float *variance, float g)
{
    *variance = optim_lerp(*variance, g * g, f.newest);
    return w;
}

/* Where there is no variance the direction is the gradient divided by eps. */
PORTABLE float optim_adafactor_direction(struct optim_factors f, float variance, float g)
{
    float least = f.eps * f.eps;
    return g / sqrtf(variance > least ? variance : least);
}

/* A variance of a matrix by its row and its column. */
PORTABLE float optim_factored(float row, float column, float mean)
{
    return row * column / mean;
}

PORTABLE float optim_blend(float a, float x, float b, float y)
{
    return a * x + b * y;
}

/* first, second: the states, as many as the optimizer has. */
PORTABLE float optim_element(enum optim_type type, struct optim_factors f, float w,
                             float *first, float *second, float g)
{
    g = g * f.grad_scale;
    return type == OPTIM_ADAM                  ? optim_adam(f, w, first, second, g)
           : type == OPTIM_SGD                 ? optim_sgd(f, w, g)
           : type == OPTIM_MOMENTUM            ? optim_momentum(f, w, first, g)
           : type == OPTIM_LION                ? optim_lion(f, w, first, g)
           : type == OPTIM_ADAGRAD             ? optim_adagrad(f, w, first, g)
           : type == OPTIM_LAMB                ? optim_lamb(f, w, first, second, g)
           : type == OPTIM_MUON                ? optim_muon(f, first, g)
           : type == OPTIM_ALONG               ? optim_along(f, w, *first)
           : type == OPTIM_ADAFACTOR           ? optim_adafactor(f, w, first, g)
           : type == OPTIM_ADAFACTOR_DIRECTION ? optim_adafactor_direction(f, *first, g)
           : type == OPTIM_LAMB_DIRECTION
               ? optim_lamb_direction(f, w, *first, *second)
               : w - f.step_size * optim_lamb_direction(f, w, *first, *second);
}

/* The bf16 of element number `at` of the model, rounded at random. */
PORTABLE uint16_t optim_round(float w, uint64_t seed, int64_t step, int64_t at)
{
    /* Eight elements share the 128 bits of one call. */
    uint32_t words[4];
    rng_words(seed, UINT64_C(1) << 63 | (uint64_t)step, (uint64_t)at / 8, words);
    uint32_t word = words[at % 8 / 2];
    return bf16_stochastic(w, at % 2 ? word >> 16 : word & 0xffff);
}

#endif
