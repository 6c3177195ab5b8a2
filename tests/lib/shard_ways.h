/* shard_ways: one small training done in many ways, ranks as threads, so that what they
 * made can be held against each other. */
#ifndef TESTS_LIB_SHARD_WAYS_H
#define TESTS_LIB_SHARD_WAYS_H

#include "trainer/shard/shard.h"
#include <pthread.h>

#define WAY_STEPS 3
#define WAY_MAX_WORLD_SIZE 16

/* No size is a multiple of any world size. */
extern const struct model_config way_model;

/* One way to train the same thing. */
struct way {
    int world_size, stage, shard_size, near_size;
    int micros; /* micro-batches in a step, of all ranks */
    bool bf16, fp16, grad_fp32, grad_bf16, stochastic;
    bool grows;  /* the last micro-batch's gradients are 10^5 times those of the first */
    float odd;   /* one gradient of the last micro-batch, when it is not 0 */
    bool beside; /* communication overlaps; its limits as in shard_options */
    int64_t bucket, prefetch, live;
    int more_layers, width, vocab_size; /* of the model; 0: as it is */
    bool quantized_weights, quantized_grads;
    bool sees; /* gradients depend on the weights that the model sees: way_seen */
};

/* What all ranks of a way made together: whole arrays. */
struct outcome {
    int64_t n;        /* parameters */
    float *values[4]; /* weights as the model sees them, masters, m, v; with quantized
                       * ones of fp32 those that are kept stand for masters */
    int *times_held;  /* by ranks, of v: 1 where each element is owned once */
    double norms[WAY_STEPS];
    uint64_t n_calls, received_bytes; /* of the first rank's coll */
    int n_ahead; /* its units whose weights were on their way when a forward pass came */
    pthread_mutex_t lock; /* copies of one part are put in one after the other */
};

/* Trains one way, and checks on every rank what must hold of it: initial weights,
 * masters, the plan of its memory. */
struct outcome outcome_of(struct way way);
void outcome_free(struct outcome *out);
void outcome_assert_same(const struct outcome *a, const struct outcome *b);

/* What it is trained with: a gradient whose sums depend on their order, the optimizer. */
float way_gradient(int64_t micro, int step, int param, int64_t i);
float way_seen(float gradient, float weight);
struct optim_params way_adamw(int step);

#endif
