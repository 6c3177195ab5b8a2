/* whole_model: a model whose weights and gradients are whole in this process, and hooks
 * that count and can fail. */
#ifndef TESTS_LIB_WHOLE_MODEL_H
#define TESTS_LIB_WHOLE_MODEL_H

#include "trainer/model/model.h"

struct whole_model {
    struct model *model;
    const struct model_param *params;
    int n_params;
    enum dcp_dtype dtype;
    /* By parameter; weights in fp32 are the ones to change, then call whole_model_sync.
     */
    float **weights, **grads;
    void **compute; /* the weights in the compute dtype */
    struct model_hooks hooks;

    int acquired[64], grads_open[64], grads_done[64]; /* by unit */
    int calls;
    int fail_at; /* the hook call that fails, from 1; 0: none */
};

/* With the model's initial values. Fails the test when it cannot. */
void whole_model_init(struct whole_model *whole, const struct model_config *config,
                      enum dcp_dtype dtype, int batch, int seq_len);
void whole_model_init_with(struct whole_model *whole, const struct model_config *config,
                           enum dcp_dtype dtype, const struct ops *ops, int batch,
                           int seq_len);
void whole_model_make(struct whole_model *whole, const struct model_config *config,
                      const struct model_options *options, const struct ops *ops);
void whole_model_fini(struct whole_model *whole);
/* Weights to the compute dtype (and back: they become what is computed with). */
void whole_model_sync(struct whole_model *whole);
void whole_model_zero_grads(struct whole_model *whole);
/* Adds noise of this size to every weight, so that norms and biases are not trivial. */
void whole_model_shake(struct whole_model *whole, uint64_t seed, double std);
int64_t whole_model_elems(const struct whole_model *whole);

#endif
