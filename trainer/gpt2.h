/* gpt2: GPT-2 as Hugging Face defines it: learned positions, layer norm before each part,
 * GELU in its tanh form, weights of linear layers as [in, out], the head tied to the
 * token embedding, no dropout. (Radford et al., "Language models are unsupervised
 * multitask learners", 2019.)
 *
 * Unit 0 is the embedding, unit 1 + l block l, the last unit the final norm. */
#ifndef TRAINER_GPT2_H
#define TRAINER_GPT2_H

#include "model.h"
#include "ops.h"

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

/* What a block keeps. C: n_embd; T: the compute dtype, as in ops.h. A row is a token. */
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

struct model {
    struct model_config config;
    enum dcp_dtype dtype;
    const struct ops *ops;
    void *ctx; /* of the ops */
    int batch, seq_len;

    struct model_param *params;
    int n_params, n_units;

    /* Activations, in one block of the kernels' memory. */
    void *memory;
    uint64_t memory_bytes;
    struct gpt2_block *blocks;
    int32_t *tokens, *targets; /* [rows] of the micro-batch */
    float *x;                  /* [rows,C] what the last block gives */
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

    int n_kept; /* rows whose keys and values are those of the last model_logits */
};

/* The parameters of a configuration that was checked; caller frees *out_params. */
int gpt2_params(const struct model_config *config, struct model_param **out_params,
                int *out_n, struct dcp_error *err);
/* Allocates the activations. Errors: MEMORY. */
int gpt2_open(struct model *model, struct dcp_error *err);
/* NULL fields are fine. */
void gpt2_close(struct model *model);

/* Rows `begin` .. seq_len of each sequence through embedding, blocks and final norm;
 * their tokens are on the host, as are targets below; begin is 0 or batch is 1. Results
 * of the rows lie at the beginning of their arrays, but keys, values and attention at
 * their own rows. */
int gpt2_forward(struct model *model, const struct model_hooks *hooks,
                 const int32_t *tokens, int batch, int seq_len, int begin,
                 struct dcp_error *err);
/* The losses of the rows that forward computed, against model->targets. When dwte is not
 * NULL: the gradient of grad_scale × their mean goes to model->dpart, and that of the
 * embedding is added to dwte. */
int gpt2_head(struct model *model, const struct model_hooks *hooks, int64_t rows,
              float grad_scale, float *dwte, struct dcp_error *err);
/* Their mean, when all that was begun is done. */
int gpt2_loss(struct model *model, int64_t rows, double *out_loss, struct dcp_error *err);
/* Logits of one row of what forward computed, to the host. */
int gpt2_head_row(struct model *model, const struct model_hooks *hooks, int64_t row,
                  float *out_logits, struct dcp_error *err);
/* After gpt2_forward: gpt2_head, and all gradients to the hooks. When it fails, units
 * whose gradients were begun stay so. */
int gpt2_backward(struct model *model, const struct model_hooks *hooks, int batch,
                  int seq_len, float grad_scale, struct dcp_error *err);

/* Element i of a T array. */
void *gpt2_at(const struct model *model, void *array, int64_t i);

/* Of model_config.c: refuses what no model can have. Errors: USAGE, saying which number;
 * UNSUPPORTED (another family). */
int model_config_check(const struct model_config *config, struct dcp_error *err);

#endif
