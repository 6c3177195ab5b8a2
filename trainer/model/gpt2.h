/* gpt2: GPT-2 as Hugging Face defines it: learned positions, layer norm before each part,
 * GELU in its tanh form, weights of linear layers as [in, out], the head tied to the
 * token embedding, no dropout. (Radford et al., "Language models are unsupervised
 * multitask learners", 2019.)
 *
 * Unit 0 is the embedding, unit 1 + l block l, the last unit the final norm. */
#ifndef TRAINER_MODEL_GPT2_H
#define TRAINER_MODEL_GPT2_H

#include "family.h"

/* Places of the parameters in their units. */
enum { WTE, WPE, EMBEDDING_PARAMS };
enum { FINAL_WEIGHT, FINAL_BIAS, FINAL_PARAMS };
enum {
    LN_1_WEIGHT,
    LN_1_BIAS,
    ATTN_WEIGHT,
    ATTN_BIAS,
    ATTN_PROJ_WEIGHT,
    ATTN_PROJ_BIAS,
    LN_2_WEIGHT,
    LN_2_BIAS,
    FC_WEIGHT,
    FC_BIAS,
    FC_PROJ_WEIGHT,
    FC_PROJ_BIAS,
    BLOCK_PARAMS
};

/* What the backward pass needs of a layer norm: its input is kept where it came from. */
struct gpt2_norm {
    void *out; /* T[rows,C] */
    float *mean, *rstd;
};

/* What a block keeps, or makes again where others do (carve_blocks in gpt2.c). C: n_embd;
 * T: the compute dtype, as in ops/ops.h. A row is a token.
 */
struct gpt2_block {
    float *x; /* [rows,C] its input */
    struct gpt2_norm norm_1;
    float *qkv; /* [rows,3C] */
    float *lse; /* [batch,n_head,seq_len] */
    void *att;  /* T[rows,C] */
    float *mid; /* [rows,C] x and the attention's part */
    struct gpt2_norm norm_2;
    void *fc;   /* [rows,4C] what gelu_backward needs */
    void *gelu; /* T[rows,4C] */
};

/* What a model keeps of a micro-batch, in one block of the kernels' memory. */
struct gpt2 {
    void *memory;
    struct gpt2_block *blocks;
    float *host_x;   /* inputs of blocks on the host, [rows,C] each; or NULL */
    int32_t *tokens; /* [rows] of the micro-batch */
    float *x;        /* [rows,C] what the last block gives */
    struct gpt2_norm final;

    /* The head works on head_rows rows at a time. */
    int64_t head_rows;
    float *logits;       /* [head_rows,V] */
    void *dlogits;       /* T[head_rows,V]; in F32 the logits */
    double *losses;      /* [rows] */
    double *host_losses; /* [rows], where the host reads them */

    /* Gradients on their way back; in F32 the T arrays are the others. */
    float *dx;     /* [rows,C] of the block's output, then of its input */
    void *dx_t;    /* T[rows,C] */
    float *dpart;  /* [rows,C] of a part of the block */
    float *dwide;  /* [rows,4C] */
    void *dwide_t; /* T[rows,4C] */
};

extern const struct model_family gpt2_family;

/* For the files of the family: its row (family.h), and the gradients of the head:
 * what is dpart's goes there, and that of the embedding is added to dwte, when it is not
 * NULL. Forward puts the results of rows at the beginning of their arrays, but keys,
 * values and attention at their own rows. */
int gpt2_forward(struct model *model, const struct model_hooks *hooks,
                 const int32_t *tokens, int batch, int seq_len, int begin,
                 struct dcp_error *err);
/* What the backward of a layer needs and does not find, from its input; out: what the
 * layer gives, or NULL. w: its weights. */
int gpt2_recompute(struct model *model, int layer, const void *const *w, float *out,
                   int batch, int seq_len, struct dcp_error *err);
/* Where a block's input waits on the host; NULL: it does not. */
float *gpt2_host_x(const struct model *model, int layer);
int gpt2_head(struct model *model, const struct model_hooks *hooks, int64_t rows,
              float grad_scale, float *dwte, struct dcp_error *err);
int gpt2_losses(struct model *model, const struct model_hooks *hooks, int64_t rows,
                struct dcp_error *err);
int gpt2_mean_loss(struct model *model, int64_t rows, double *out_loss,
                   struct dcp_error *err);
int gpt2_logits(struct model *model, const struct model_hooks *hooks, int64_t row,
                float *out_logits, struct dcp_error *err);
int gpt2_backward(struct model *model, const struct model_hooks *hooks, int batch,
                  int seq_len, float grad_scale, struct dcp_error *err);
int gpt2_check(const struct model_config *config, struct dcp_error *err);
json_t *gpt2_json(const struct model_config *config, enum dcp_dtype dtype);
int gpt2_parse(const json_t *json, struct model_config *out_config,
               struct dcp_error *err);

/* Element i of a T array. */
void *gpt2_at(const struct model *model, void *array, int64_t i);

#endif
