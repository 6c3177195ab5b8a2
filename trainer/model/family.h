/* family: what a family of models is to the rest: a row of a table. A new one is a file
 * with such a row, and its name in families.c. */
#ifndef TRAINER_MODEL_FAMILY_H
#define TRAINER_MODEL_FAMILY_H

#include "model.h"
#include "trainer/ops/ops.h"
#include <jansson.h>

#define MODEL_CONFIG_FILE "config.json"

/* What models of all families have. */
struct model {
    const struct model_family *family;
    struct model_config config;
    enum dcp_dtype dtype;
    const struct ops *ops;
    void *ctx; /* of the ops */
    int batch, seq_len;
    struct model_recompute recompute;
    bool plan; /* without memory for activations */

    struct model_param *params;
    int n_params, n_units;

    /* Set by the family's open. */
    void *activations; /* what it keeps */
    uint64_t activation_bytes;
    int32_t *targets; /* [rows] of the micro-batch, there */

    int n_kept; /* rows whose keys and values are those of the last model_logits */
};

/* A row is a token of the micro-batch. Errors of all: those of kernels and hooks. */
struct model_family {
    const char *name; /* the model_type of its config.json */

    /* Refuses what no model of the family can have. Errors: USAGE, saying which number.
     */
    int (*check)(const struct model_config *config, struct dcp_error *err);
    /* The parameters of a configuration that was checked; caller frees *out_params. */
    int (*params)(const struct model_config *config, struct model_param **out_params,
                  int *out_n, struct dcp_error *err);
    /* Allocates the activations, or only counts them. Errors: MEMORY. Close takes what
     * was half opened. */
    int (*open)(struct model *model, struct dcp_error *err);
    void (*close)(struct model *model);

    /* Rows `begin` .. seq_len of each sequence, up to what the head reads; their tokens
     * are on the host; begin is 0 or batch is 1. Keys and values stay for later rows. */
    int (*forward)(struct model *model, const struct model_hooks *hooks,
                   const int32_t *tokens, int batch, int seq_len, int begin,
                   struct dcp_error *err);
    /* After it: the losses of its rows against model->targets, and all gradients of
     * grad_scale × their mean to the hooks. When it fails, units whose gradients were
     * begun stay so. */
    int (*backward)(struct model *model, const struct model_hooks *hooks, int batch,
                    int seq_len, float grad_scale, struct dcp_error *err);
    /* The losses alone. */
    int (*losses)(struct model *model, const struct model_hooks *hooks, int64_t rows,
                  struct dcp_error *err);
    /* The mean of either, when all that was begun is done. */
    int (*mean_loss)(struct model *model, int64_t rows, double *out_loss,
                     struct dcp_error *err);
    /* Logits of one row of what forward computed, to the host. */
    int (*logits)(struct model *model, const struct model_hooks *hooks, int64_t row,
                  float *out_logits, struct dcp_error *err);

    /* Its config.json; NULL: out of memory. And back. Errors: UNSUPPORTED (a model that
     * computes something else), CORRUPT. */
    json_t *(*json)(const struct model_config *config, enum dcp_dtype dtype);
    int (*parse)(const json_t *json, struct model_config *out_config,
                 struct dcp_error *err);
};

/* The first unit whose layer is computed again before the backward of `unit`, from there
 * up to `unit` itself; above it: none. The weights of those below it are asked for in
 * between. */
int model_recompute_from(const struct model *model, int unit);

/* NULL: no such family. */
const struct model_family *model_family_find(const char *name);
/* "'gpt2'", for messages. */
const char *model_family_names(void);
/* Errors: UNSUPPORTED (another family), those of the family's check. */
int model_config_check(const struct model_config *config, struct dcp_error *err);

#endif
