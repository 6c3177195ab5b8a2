/* steps: a shard of a small model that takes steps of an optimizer, with gradients that
 * follow from the step, the parameter and the element. */
#ifndef TESTS_LIB_STEPS_H
#define TESTS_LIB_STEPS_H

#include "trainer/model/model.h"
#include "trainer/shard/shard.h"

/* What ranks train together, and what becomes of it: whole arrays, by parameter. */
struct steps {
    struct model_config config;
    struct shard_options options; /* n_micros: all of the same gradients */
    struct optim_params params;   /* of which the step is counted here */
    int world_size, n_steps;
    /* Before and after each step, when there is one rank. */
    void (*before)(struct steps *steps, const struct shard *shard);
    void (*after)(struct steps *steps, const struct shard *shard);
    void *self;

    const struct model *model;
    const struct model_param *model_params;
    int n_params;
    int64_t n;      /* elements of all parameters */
    float *weights; /* or the masters */
    float *states[OPTIM_MAX_STATES];
    struct shard_bytes bytes, planned; /* of rank 0 */
};

/* GPT-2 with one layer, so small that a formula in double precision is quick. */
extern const struct model_config steps_model;

/* Exact in fp32; of the step that steps->params is at. */
float steps_gradient(const struct steps *steps, int param, int64_t i);
/* Takes them, ranks as threads, over the kernels of ops_cpu; steps_fini. */
void steps_run(struct steps *steps);
void steps_fini(struct steps *steps);
/* Both end in the same bits. */
void steps_assert_same(const struct steps *a, const struct steps *b);
/* Trained by these parameters, each world size, stage, hybrid sharding and dtype ends in
 * the same bits, in the memory that was planned. */
void steps_check_ranks(const struct optim_params *params);
/* One of these ways: three micro-batches and three steps of two layers, in which no size
 * is a multiple of any world size. */
struct steps steps_of(const struct optim_params *params, int world_size, int stage,
                      enum dcp_dtype dtype);
/* What a shard holds of a parameter: its i-th state; -1: its weights. */
const float *steps_array(const struct shard *shard, int i, int param);
/* How far values are from what they should be, beside the largest of these. */
double steps_off(const float *got, const double *want, int64_t n);
/* , "key": [x, ...] on standard output. */
void steps_print(const char *key, const float *x, int64_t n);

#endif
