/* model: what the trainer trains. A model is a list of parameters in units; a unit (the
 * embedding, one block, the final norm) is what ZeRO-3 gathers, uses and frees at once.
 *
 * The model owns activations, never weights: it asks for a unit's weights when it needs
 * them and gives its gradients back when they are complete, through the hooks of the
 * caller. */
#ifndef TRAINER_MODEL_MODEL_H
#define TRAINER_MODEL_MODEL_H

#include "trainer/ops/ops.h"
#include <dcp/tensor.h>

#define MODEL_MAX_UNIT_PARAMS 16

struct model_config {
    char family[16]; /* "gpt2" */
    int n_layer, n_head, n_embd, n_positions, vocab_size;
    double layer_norm_epsilon; /* 0: 1e-5 */
};

enum model_init { MODEL_INIT_NORMAL, MODEL_INIT_ZEROS, MODEL_INIT_ONES };

struct model_param {
    char name[96]; /* as in the Hugging Face state dict: "transformer.h.0.ln_1.weight" */
    int ndim;
    int64_t shape[2];
    int64_t n_elems;
    int unit;
    bool decay; /* weight decay applies: two dimensions */
    enum model_init init;
    float init_std; /* of MODEL_INIT_NORMAL */
};

/* How the model reaches weights and gradients. Every call names a unit; arrays are in the
 * order of the unit's parameters. */
struct model_hooks {
    void *self;
    /* The unit's whole weights in the compute dtype, valid until release. Nested calls
     * for one unit are allowed and counted. */
    int (*acquire)(void *self, int unit, const void **out_weights, struct dcp_error *err);
    void (*release)(void *self, int unit);
    /* Zeroed fp32 memory for the unit's gradients of this micro-batch; add to it. */
    int (*grad_begin)(void *self, int unit, float **out_grads, struct dcp_error *err);
    /* They are complete: the caller reduces or accumulates them now. */
    int (*grad_end)(void *self, int unit, struct dcp_error *err);
};

struct model;

/* What the backward pass computes again of a layer, from the same bytes by the same
 * kernels and so to the same bits, instead of having kept it. (Chen et al., "Training
 * deep nets with sublinear memory cost", 2016.) */
struct model_recompute {
    int every; /* n > 0: all but the input of every n-th layer; 0: nothing, or only */
    bool attention; /* what attention makes: its input, queries, keys, values, output */
    bool host; /* with either: inputs of layers that are kept wait in the host's memory */
};

struct model_options {
    enum dcp_dtype dtype; /* of the weights: F32, BF16 or F16 */
    int batch, seq_len;   /* the largest micro-batch */
    struct model_recompute recompute;
    bool plan; /* no memory: the model can be asked about, and nothing else */
};

/* The parameters follow from the configuration alone. Caller owns. Errors: USAGE
 * (impossible configuration, says which number), UNSUPPORTED (another family), MEMORY. */
int model_make(const struct model_config *config, const struct model_options *options,
               const struct ops *ops, struct model **out_model, struct dcp_error *err);
/* The same, and everything is kept. */
int model_new(const struct model_config *config, enum dcp_dtype dtype,
              const struct ops *ops, int batch, int seq_len, struct model **out_model,
              struct dcp_error *err);
void model_free(struct model *model);

const struct model_config *model_config(const struct model *model);
/* All parameters, by unit; belongs to the model. */
const struct model_param *model_params(const struct model *model, int *out_n);
int model_n_units(const struct model *model);
/* Whether a parameter is a matrix within a layer: no embedding, and no head. */
bool model_is_hidden(const struct model *model, int param);
/* Of its activations, in the memory of the kernels; UINT64_MAX: more than can be. */
uint64_t model_activation_bytes(const struct model *model);
/* The longest sequence, as given to model_new. */
int model_seq_len(const struct model *model);
/* What it computes with; the context belongs to the model. */
struct kernels model_kernels(const struct model *model);
/* Fills `n` elements from `begin` on of a parameter with its initial values: a pure
 * function of (seed, parameter, element), so that every rank can make just its part, at
 * any world size. */
void model_init_values(const struct model *model, int param, uint64_t seed, int64_t begin,
                       int64_t n, float *out);

/* Forward and backward of one micro-batch: tokens and targets are batch × seq_len ids.
 * Gradients of grad_scale × (mean loss) go to the hooks. *out_loss is the mean
 * cross-entropy in nats. Errors: those of the hooks, CORRUPT (a token id outside the
 * vocabulary). */
int model_train(struct model *model, const struct model_hooks *hooks,
                const int32_t *tokens, const int32_t *targets, int batch, int seq_len,
                float grad_scale, double *out_loss, struct dcp_error *err);
/* The calls of the hooks that model_train makes, in their order, with nothing between:
 * for a rank without a micro-batch, as weights are gathered and gradients reduced
 * together. What the hooks give is not touched. */
int model_idle(const struct model *model, const struct model_hooks *hooks,
               struct dcp_error *err);
/* The loss alone. */
int model_loss(struct model *model, const struct model_hooks *hooks,
               const int32_t *tokens, const int32_t *targets, int batch, int seq_len,
               double *out_loss, struct dcp_error *err);
/* Logits of the position behind the last token: vocab_size floats. The model sees the
 * last seq_len tokens (of model_new) when there are more. Errors: as model_train, USAGE
 * (no token). */
int model_logits(struct model *model, const struct model_hooks *hooks,
                 const int32_t *tokens, int n_tokens, float *out_logits,
                 struct dcp_error *err);
/* The same for the tokens of the last model_logits or model_logits_next and one more,
 * with the keys and values kept from then: the weights must be the same still, and no
 * other call between. Errors: as model_logits, USAGE (nothing is kept, as where layers
 * are computed again, or seq_len tokens are: then call model_logits). */
int model_logits_next(struct model *model, const struct model_hooks *hooks, int32_t token,
                      float *out_logits, struct dcp_error *err);

/* The Hugging Face config.json of the configuration. Caller frees; NULL: out of memory.
 */
char *model_config_json(const struct model_config *config, enum dcp_dtype dtype);
/* And back, from a config.json. Errors: UNSUPPORTED (another family), CORRUPT. */
int model_config_parse(const char *json, size_t size_bytes,
                       struct model_config *out_config, struct dcp_error *err);

#endif
