/* optim: optimizers on a range of parameters.
 *
 *   Adam, AdamW  Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter, arXiv:1711.05101
 *   SGD          with momentum: Sutskever et al., ICML 2013
 *   Lion         Chen et al., "Symbolic discovery of optimization algorithms",
 *                arXiv:2302.06675
 *   Adagrad      Duchi et al., JMLR 12 (2011)
 *   LAMB         You et al., "Large batch optimization for deep learning", ICLR 2020, as
 * in DeepSpeed's FusedLamb: in three parts, since a parameter's step depends on norms
 * over all of it (shard/lamb.c)
 *   Muon         Jordan et al., "Muon: An optimizer for hidden layers in neural
 * networks", 2024: in two parts, between which the momentum of a whole matrix is made
 *                orthogonal (shard/muon.c)
 *   Adafactor    Shazeer and Stern, arXiv:1804.04235: in several parts, since a step
 *                depends on rows, columns and norms (shard/adafactor.c)
 *
 * in the order of operations of torch.optim, Lion in that of DeepSpeed's FusedLion.
 * (Where its sum is 0 Lion adds nothing, as in the paper: DeepSpeed's kernels for GPUs
 * and for CPUs take one sign each.)
 *
 * Elementwise, in fp32, each operation rounded on its own: an element's new values depend
 * on nothing but its old ones, so a range may be cut anywhere, at any alignment, over any
 * number of threads and ranks, with the same bits. */
#ifndef TRAINER_OPS_OPTIM_H
#define TRAINER_OPS_OPTIM_H

#include "newton_schulz.h"
#include "portable.h"
#include <dcp/tensor.h>

enum optim_type {
    OPTIM_ADAM, /* and AdamW, see `decoupled` */
    OPTIM_SGD,  /* without momentum */
    OPTIM_MOMENTUM,
    OPTIM_LION,
    OPTIM_ADAGRAD,
    OPTIM_LAMB, /* of a step: the moments; weights stay */
    OPTIM_MUON, /* of a step: the momentum; weights become what is made orthogonal, in an
                 * array of its size. Of hidden matrices; the rest has Adam */
    OPTIM_ADAFACTOR, /* of a step, for what is no matrix: the variance; weights stay */
    OPTIM_FACTORED,  /* Adafactor of matrices: no pass over elements */
    OPTIM_N_TYPES,
    /* What a step of LAMB goes on with: weights become the direction of the step, for
     * its norm, in a copy; they take the step. */
    OPTIM_LAMB_DIRECTION = OPTIM_N_TYPES,
    OPTIM_LAMB_STEP,
    OPTIM_ADAFACTOR_DIRECTION, /* weights become that, in a copy; of variances */
    OPTIM_ALONG, /* weights decay, and go along a direction: what stands for the state */
    OPTIM_N_ALL
};
enum { OPTIM_MAX_STATES = 2 };

PORTABLE bool optim_is_lamb(enum optim_type type)
{
    return type == OPTIM_LAMB || type == OPTIM_LAMB_DIRECTION || type == OPTIM_LAMB_STEP;
}

/* What an optimizer keeps for each element: arrays, zero at first. */
PORTABLE int optim_n_states(enum optim_type type)
{
    return type == OPTIM_ADAM || optim_is_lamb(type)     ? 2
           : type == OPTIM_SGD || type == OPTIM_FACTORED ? 0
                                                         : 1;
}
/* What it keeps for each parameter, named as in torch or DeepSpeed: those arrays, or, of
 * a matrix that is factored, one of its rows and one of its columns. */
static inline int optim_n_kept(enum optim_type type)
{
    return type == OPTIM_FACTORED ? 2 : optim_n_states(type);
}
extern const char *const optim_states[OPTIM_N_TYPES][OPTIM_MAX_STATES];
/* The shape of the i-th, of a parameter of that shape. */
static inline void optim_state_shape(enum optim_type type, int i, const int64_t shape[2],
                                     int64_t out[2])
{
    out[0] = type == OPTIM_FACTORED && i == 1 ? 1 : shape[0];
    out[1] = type == OPTIM_FACTORED && i == 0 ? 1 : shape[1];
}
/* What a parameter has when the model has `type`; hidden: it is a matrix within a layer.
 */
static inline enum optim_type optim_of(enum optim_type type, int ndim, bool hidden)
{
    return type == OPTIM_MUON && !hidden          ? OPTIM_ADAM
           : type == OPTIM_ADAFACTOR && ndim == 2 ? OPTIM_FACTORED
                                                  : type;
}

struct optim_params {
    enum optim_type type;
    double lr, weight_decay;
    double beta1, beta2; /* Adam, Lion, LAMB */
    double eps;          /* Adam, Adagrad, LAMB; Adafactor's first, NaN: that of fp32 */
    double momentum, dampening, lr_decay; /* momentum: and Muon's */
    bool nesterov;
    double min_trust, max_trust; /* LAMB: of norms of weights by norms of steps */
    float trust;                 /* LAMB_STEP: that ratio */
    double stride;               /* ALONG: of the direction */
    /* Adafactor: variances are means with the weight step^decay for the newest; eps of
     * the size of weights; the most that a direction's may be; whether steps follow the
     * size of weights, and get smaller with the root of their number. */
    double variance_decay, eps_scale, clip;
    bool scale_parameter, relative_step;
    /* For shard_update of Muon: the rate of what has Adam; how momenta are made
     * orthogonal; and whether steps are to be as long as AdamW's, by the shape (Liu et
     * al., "Muon is scalable for LLM training", arXiv:2502.16982). */
    double adam_lr;
    struct newton_schulz newton_schulz;
    bool match_rms;
    int64_t step;         /* of this update, from 1 */
    bool bias_correction; /* Adam, LAMB: moments are divided by 1 - beta^step */
    /* Adam: AdamW; decay shrinks the weight, as with Lion; else it joins the gradient. */
    bool decoupled;
    bool decay_all;   /* for shard_update: weight_decay is of all parameters */
    float grad_scale; /* what gradients are multiplied by first (clipping); else 1 */
    /* Weights in BF16 are rounded at random, the nearer neighbour the likelier, instead
     * of to nearest: a pure function of (seed, step, number of the element). (Gupta et
     * al., "Deep learning with limited numerical precision", ICML 2015, section 3.1.) */
    bool stochastic;
    uint64_t seed;
};

/* n elements: fp32 weights and states, changed in place; gradients in F32, BF16
 * or F16. */
struct optim_range {
    float *master, *state[OPTIM_MAX_STATES]; /* those that the optimizer has */
    const void *grad;
    enum dcp_dtype grad_dtype;
    uint16_t *weights;           /* NULL, or where the new weights also go */
    enum dcp_dtype weight_dtype; /* of these: BF16 or F16 */
    int64_t n;
    int64_t first; /* number of the first element, the same at every cut */
};

void optim_step(const struct optim_range *range, const struct optim_params *params);

#endif
