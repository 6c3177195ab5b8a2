/* adamw: Adam and AdamW on a range of parameters (Kingma and Ba, arXiv:1412.6980;
 * Loshchilov and Hutter, arXiv:1711.05101), in the order of operations of
 * torch.optim.AdamW.
 *
 * Elementwise, in fp32, each operation rounded on its own: an element's new values depend
 * on nothing but its old ones, so a range may be cut anywhere, at any alignment, over any
 * number of threads and ranks, with the same bits. */
#ifndef TRAINER_OPS_ADAMW_H
#define TRAINER_OPS_ADAMW_H

#include <dcp/tensor.h>

struct adamw_params {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;         /* of this update, from 1 */
    bool bias_correction; /* moments are divided by 1 - beta^step */
    bool
        decoupled; /* AdamW: decay shrinks the weight; else Adam: it joins the gradient */
    float grad_scale; /* what gradients are multiplied by first (clipping); else 1 */
    /* bf16 weights are rounded at random, the nearer neighbour the likelier, instead of
     * to nearest: a pure function of (seed, step, number of the element). (Gupta et al.,
     * "Deep learning with limited numerical precision", ICML 2015, section 3.1.) */
    bool stochastic;
    uint64_t seed;
};

/* n elements: fp32 weights and moments, changed in place; gradients in F32 or BF16. */
struct adamw_range {
    float *master, *m, *v;
    const void *grad;
    enum dcp_dtype grad_dtype;
    uint16_t *weights; /* NULL, or where the new weights also go, as bf16 */
    int64_t n;
    int64_t first; /* number of the first element, the same at every cut */
};

void adamw_step(const struct adamw_range *range, const struct adamw_params *params);

#endif
