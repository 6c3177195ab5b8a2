/* shard: the model state cut over ranks as ZeRO does it, and the steps that need all of
 * it: gathering weights, reducing gradients, the optimizer. (Rajbhandari et al., "ZeRO:
 * memory optimizations toward training trillion parameter models", SC20.)
 *
 *   stage  weights  gradients  master, states bytes a parameter, bf16, Adam, N ranks
 *   0      all      all        all            16
 *   1      all      all        part           4 + 12/N
 *   2      all      part       part           2 + 14/N
 *   3      part     part       part           16/N
 *
 * Stages 0 to 2 keep parameters in flat groups (see shard_group_of), each cut evenly
 * after padding to 2 N; stage 3 cuts each parameter alone. The padding is
 * never stored. In fp32 the weights are the masters.
 *
 * Gradients are summed in units (ops/exact.h), which add up to the same bits in any
 * order: world sizes, stages, copies of the model and the micro-batches that a rank has
 * do not show. Where a rank has several micro-batches in a step, or the model several
 * copies, that takes 8 bytes for each gradient that a rank holds instead of those above.
 *
 * With bf16 weights (fp16 likewise) the gradients of a micro-batch are rounded to bf16,
 * and so is the whole sum, that of stage 0 as that of others. grad_fp32 rounds nothing.
 * grad_bf16 keeps partial sums in bf16, added one after the other: the table holds at any
 * accumulation, but how many micro-batches a rank has shows in the bits.
 *
 * quantized_weights and quantized_grads make what goes between ranks small, in blocks of
 * ops/quant.h: of parameters with two dimensions or more, which are cut where blocks end.
 * One rank alone goes through the same, so that the world size does not show. Masters,
 * and weights as they are kept and saved, are never quantized.
 *
 * Thread rule: one shard, one thread. Everything collective is in model order. */
#ifndef TRAINER_SHARD_SHARD_H
#define TRAINER_SHARD_SHARD_H

#include "trainer/coll/coll.h"
#include "trainer/model/model.h"
#include "trainer/ops/optim.h"
#include <stdint.h>

/* State that waits on the host, or in a file of `folder`, while it is not worked on. */
struct shard_offload {
    bool host;          /* matters where the kernels' memory is another one */
    const char *folder; /* borrowed; or NULL */
    bool pageable;      /* memory that is copied is not pinned, but for buffers */
    int64_t window;     /* elements of a buffer; 0: enough */
    int buffers;        /* that may be in memory at once */
    int64_t kept;       /* weights: elements that stay in memory */
    double stays;       /* optimizer, stage 3: the first parameters, so much of the
                         * state, are not offloaded */
};

struct shard_options {
    int stage;      /* ZeRO 0 .. 3 */
    int shard_size; /* stage 3: ranks that share one copy; 0: all. Divides the world size
                     */
    int near_size;  /* stage 3: ranks side by side that keep a copy of the weights cut
                     * among them, once these were gathered from all, so that they are
                     * gathered there until they change (ZeRO++'s hpZ, Wang et al.,
                     * arXiv:2306.10209); 0 or 1: none. Divides the world size */
    bool quantized_weights; /* stage 3: they are gathered with 8 bits a number, and the
                             * model sees what comes of that (ZeRO++'s qwZ) */
    bool quantized_grads;   /* stages 2 and 3: those of a micro-batch go to their owners
                             * with 4 bits a number (qgZ) */
    enum dcp_dtype dtype;   /* of weights: F32, or BF16 or F16 with fp32 masters */
    bool grad_fp32;         /* gradients are fp32 also when weights have 16 bits */
    bool grad_bf16; /* with 16-bit weights: partial sums are in their dtype, too */
    enum optim_type optimizer;
    bool weights_only;     /* no gradients, no optimizer */
    int n_micros;          /* micro-batches of all ranks in a step; a rank has every
                            * world_size-th, some one less than others */
    bool no_overlap;       /* also with a coll that could work beside the kernels */
    int64_t reduce_bucket; /* elements of gradients that are exchanged at a time, at
                            * most; 0: a few MiB */
    int64_t prefetch;      /* stage 3, where it overlaps: elements of weights that are
                            * gathered ahead of use, and what is missing to whole units;
                            * 0: a unit; -1: none */
    bool no_forward_prefetch, no_backward_prefetch; /* likewise, of units that come up,
                                                     * or down again */
    int64_t max_live; /* stage 3: elements of weights that stay gathered until they
                       * change, least recently used first to go; 0: two units */
    struct shard_offload offload_optimizer; /* masters, states; from stage 2 gradients */
    struct shard_offload offload_weights;   /* stage 3 */
};

/* What this rank holds of a parameter: elements begin .. end. */
struct shard_range {
    int64_t begin, end;
    void *data; /* in the memory of the model's kernels, or what is offloaded in the
                 * host's; belongs to the shard */
};

/* In bytes. Of the kernels' memory; transient: gathered units, staging, and buffers of
 * what is in a file. Host: in its memory, where that is not the kernels', buffers of
 * files and of copies with it. Swapped: what is in files, and counts nowhere else.
 * Buffers: the part of transient or of host that is for it. */
struct shard_bytes {
    uint64_t weights, gradients, optimizer, transient, host, swapped, buffers;
};

/* Groups of parameters that the optimizer treats alike: with weight decay, and without.
 * Of Muon the hidden matrices are the first; what has Adam decays, or not. */
enum { SHARD_N_GROUPS = 3 };
int shard_group_of(const struct model *model, enum optim_type optimizer, int param);

struct shard;

/* Zeroed state for a model (borrowed) over a coll (borrowed), which moves what lies in
 * the memory of the model's kernels. Collective. Caller owns. Errors: USAGE (shard_size),
 * MEMORY, COMM; of offloading IO, NO_SPACE. */
int shard_new(const struct model *model, const struct shard_options *options,
              struct coll *coll, struct shard **out_shard, struct dcp_error *err);
void shard_free(struct shard *shard);

/* What rank 0 would hold at a world size after its first step, without making it; the
 * model may be a plan. gpu: the kernels have a memory of their own; overlaps: the coll
 * works beside the kernels, as NCCL's does, which takes more that is transient. Errors:
 * USAGE (shard_size), MEMORY. */
int shard_plan(const struct model *model, const struct shard_options *options,
               int world_size, bool gpu, bool overlaps, struct shard_bytes *out_bytes,
               struct dcp_error *err);

/* Initial weights and masters, moments zero. Not collective. Errors: those of kernels. */
int shard_init(struct shard *shard, uint64_t seed, struct dcp_error *err);

/* What this rank holds of the weights; of the masters (data NULL in fp32); of the i-th of
 * the states that the parameter's optimizer has. */
void shard_weights(const struct shard *shard, int param, struct shard_range *out_range);
void shard_master(const struct shard *shard, int param, struct shard_range *out_range);
void shard_state(const struct shard *shard, int i, int param,
                 struct shard_range *out_range);
int shard_group(const struct shard *shard, int param);
/* Muon's is Adam where a parameter is no hidden matrix. */
enum optim_type shard_optimizer(const struct shard *shard, int param);
/* False in fp32, and with weights_only. */
bool shard_has_master(const struct shard *shard);
int shard_stage(const struct shard *shard);
enum dcp_dtype shard_dtype(const struct shard *shard);
void shard_memory(const struct shard *shard, struct shard_bytes *out_bytes);
/* Floating-point parameters in all. */
int64_t shard_n_elems(const struct shard *shard);

/* Weights changed from outside: invalidates what was gathered of the old ones. */
void shard_touch(struct shard *shard);
/* 16 bits: makes the weights from the masters, on all ranks. Collective. */
int shard_spread(struct shard *shard, struct dcp_error *err);
/* 16 bits: makes the masters from the weights. Not collective. Errors: those of
 * kernels. */
int shard_raise(struct shard *shard, struct dcp_error *err);

/* How the model reaches the state. Collective at stage 3, and with gradients at stage 2:
 * all ranks run the model alike. */
void shard_hooks(struct shard *shard, struct model_hooks *out_hooks);

/* Another number of micro-batches in a step from now on, and the memory that it takes.
 * Not collective. Errors: MEMORY. */
int shard_set_micros(struct shard *shard, int n_micros, struct dcp_error *err);

/* A step: begin; n_rounds times the model's work, or model_idle where this rank has no
 * micro-batch any more, and end_micro; reduce; update. */
void shard_begin(struct shard *shard);
int shard_n_rounds(const struct shard *shard);
/* The number in the whole batch of a rank's i-th micro-batch; none from n_micros on. */
int64_t shard_micro(const struct shard *shard, int rank, int i);
int shard_end_micro(struct shard *shard, struct dcp_error *err);
/* The last micro-batch left each rank the sums over ranks of the gradients that it owns,
 * at stage 0 of all; this sums them over the copies of the model, and gives the norm of
 * all: infinity or NaN when one is. *out_again: a gradient was too large beside those of
 * the first micro-batch; the same step is to be begun again, and will have room for it.
 * Collective. */
int shard_reduce(struct shard *shard, double *out_norm, bool *out_again,
                 struct dcp_error *err);
/* The optimizer on what this rank owns, and the new weights to all. Collective. */
int shard_update(struct shard *shard, const struct optim_params *params,
                 struct dcp_error *err);

#endif
