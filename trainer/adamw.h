/* adamw: Adam and AdamW on a range of parameters (Kingma and Ba, arXiv:1412.6980;
 * Loshchilov and Hutter, arXiv:1711.05101), in the order of operations of
 * torch.optim.AdamW.
 *
 * Elementwise, in fp32, each operation rounded on its own: an element's new values depend
 * on nothing but its old ones, so a range may be cut anywhere, at any alignment, over any
 * number of threads and ranks, with the same bits. */
#ifndef TRAINER_ADAMW_H
#define TRAINER_ADAMW_H

#include <dcp/tensor.h>

struct adamw_params {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;         /* of this update, from 1 */
    bool bias_correction; /* moments are divided by 1 - beta^step */
    bool
        decoupled; /* AdamW: decay shrinks the weight; else Adam: it joins the gradient */
    float grad_scale; /* what gradients are multiplied by first (clipping); else 1 */
};

/* Updates n elements of the weights, first and second moments in place. */
void adamw_step(float *master, float *m, float *v, const float *grad, int64_t n,
                const struct adamw_params *params);

/* The same with gradients in F32 or BF16; the new weights also go to `weights` as bf16,
 * rounded to nearest even, when that is not NULL. */
void adamw_step_mixed(float *master, float *m, float *v, const void *grad,
                      enum dcp_dtype grad_dtype, uint16_t *weights, int64_t n,
                      const struct adamw_params *params);

#endif
