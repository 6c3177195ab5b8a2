/* shard: the model state cut over ranks as ZeRO does it, and the steps that need all of
 * it: gathering weights, reducing gradients, the optimizer. (Rajbhandari et al., "ZeRO:
 * memory optimizations toward training trillion parameter models", SC20.)
 *
 *   stage  weights  gradients  master, m, v   bytes a parameter, bf16, of N ranks
 *   0      all      all        all            16
 *   1      all      all        part           4 + 12/N
 *   2      all      part       part           2 + 14/N
 *   3      part     part       part           16/N
 *
 * Stages 0 to 2 keep parameters in two flat groups (with and without weight decay), each
 * cut evenly after padding to 2 N; stage 3 cuts each parameter alone. The padding is
 * never stored. In fp32 the weights are the masters.
 *
 * Sums of gradients over micro-batches run in the tree of coll/coll.h over the number of
 * the micro-batch in the whole batch, whatever rank it fell to: world sizes and
 * accumulations that are powers of two, and all stages, give the same bits. That takes
 * one more buffer of gradients each time accumulation - 1 doubles.
 *
 * With bf16 weights the gradients of a micro-batch are rounded to bf16, added in fp32,
 * and the whole sum is rounded to bf16. So a rank with one micro-batch in a step needs 2
 * bytes for a gradient, as above; one with more keeps its partial sums in fp32, and so
 * does one of several copies of the model. grad_fp32 rounds nothing. grad_bf16 keeps
 * partial sums in bf16, added one after the other: the table holds at any accumulation,
 * but only stages agree in every bit, not accumulations.
 *
 * Thread rule: one shard, one thread. Everything collective is in model order. */
#ifndef TRAINER_SHARD_SHARD_H
#define TRAINER_SHARD_SHARD_H

#include "trainer/coll/coll.h"
#include "trainer/model/model.h"
#include <stdint.h>

struct adamw_params;

struct shard_options {
    int stage;      /* ZeRO 0 .. 3 */
    int shard_size; /* stage 3: ranks that share one copy; 0: all. Divides the world size
                     */
    bool bf16;      /* weights, with fp32 masters; else fp32 */
    bool grad_fp32; /* gradients are fp32 also when weights are bf16 */
    bool grad_bf16; /* with bf16: partial sums are bf16, too */
    bool weights_only; /* no gradients, no optimizer */
    int accumulation;  /* micro-batches of a rank in a step */
};

/* What this rank holds of a parameter: elements begin .. end. */
struct shard_range {
    int64_t begin, end;
    void *data; /* in the memory of the model's kernels; belongs to the shard */
};

/* Memory, in bytes. Transient: gathered units and staging. */
struct shard_bytes {
    uint64_t weights, gradients, optimizer, transient;
};

struct shard;

/* Zeroed state for a model (borrowed) over a coll (borrowed), which moves what lies in
 * the memory of the model's kernels. Collective. Caller owns. Errors: USAGE (shard_size),
 * MEMORY, COMM. */
int shard_new(const struct model *model, const struct shard_options *options,
              struct coll *coll, struct shard **out_shard, struct dcp_error *err);
void shard_free(struct shard *shard);

/* What rank 0 would hold at a world size, without making it; nothing is transient yet. */
int shard_plan(const struct model *model, const struct shard_options *options,
               int world_size, struct shard_bytes *out_bytes, struct dcp_error *err);

/* Initial weights and masters, moments zero. Not collective. Errors: those of kernels. */
int shard_init(struct shard *shard, uint64_t seed, struct dcp_error *err);

/* What this rank holds of the weights, and of a tensor of the optimizer (role MASTER,
 * EXP_AVG or EXP_AVG_SQ, fp32; no MASTER in fp32). */
void shard_weights(const struct shard *shard, int param, struct shard_range *out_range);
void shard_optim(const struct shard *shard, enum dcp_role role, int param,
                 struct shard_range *out_range);
/* False in fp32, and with weights_only. */
bool shard_has_master(const struct shard *shard);
int shard_stage(const struct shard *shard);
enum dcp_dtype shard_dtype(const struct shard *shard);
void shard_memory(const struct shard *shard, struct shard_bytes *out_bytes);
/* Floating-point parameters in all. */
int64_t shard_n_elems(const struct shard *shard);

/* Weights changed from outside: invalidates what was gathered of the old ones. */
void shard_touch(struct shard *shard);
/* bf16: makes the weights from the masters, on all ranks. Collective. */
int shard_spread(struct shard *shard, struct dcp_error *err);
/* bf16: makes the masters from the weights. Not collective. */
void shard_raise(struct shard *shard);

/* How the model reaches the state. Collective at stage 3, and with gradients at stage 2:
 * all ranks run the model alike. */
void shard_hooks(struct shard *shard, struct model_hooks *out_hooks);

/* A step: begin; for each of this rank's micro-batches the model's work and end_micro;
 * reduce; update. */
void shard_begin(struct shard *shard);
/* The number in the whole batch of a rank's i-th micro-batch. */
int64_t shard_micro(const struct shard *shard, int rank, int i);
int shard_end_micro(struct shard *shard, struct dcp_error *err);
/* The last micro-batch left each rank the sums over ranks of the gradients that it owns,
 * at stage 0 of all; this sums them over the copies of the model, and gives the norm of
 * all: infinity or NaN when one is. Collective. */
int shard_reduce(struct shard *shard, double *out_norm, struct dcp_error *err);
/* The optimizer on what this rank owns, and the new weights to all. Collective. */
int shard_update(struct shard *shard, const struct adamw_params *params,
                 struct dcp_error *err);

#endif
