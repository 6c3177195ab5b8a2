/* own: the inside of a shard, for this folder only.
 *
 * Three orders of elements occur. Full order: all parameters, group by group: with Muon
 * hidden matrices first, then those with weight decay (stages 0 to 2). Own order: what
 * this rank owns, one piece behind the other; in full order of a stage below 3, in model
 * order at stage 3. Unit order: the parameters of one unit, each whole. */
#ifndef TRAINER_SHARD_OWN_H
#define TRAINER_SHARD_OWN_H

#include "ferry.h"
#include "shard.h"
#include "swap.h"

#include "base/part.h"
#include "trainer/ops/factor.h"
#include "trainer/ops/norm.h"
#include "trainer/ops/optim.h"
#include <stdbool.h>
#include <stddef.h>

#define SHARD_ALIGN 64 /* bytes, of every parameter */
/* The room of n elements, of any dtype, in elements. */
static inline int64_t shard_padded(int64_t n)
{
    return dcp_part_align(n, SHARD_ALIGN / 2);
}

/* A parameter group of stages 0 to 2. */
struct shard_group {
    int64_t begin, n; /* in full order */
    int64_t part;     /* elements of a rank, padding counted */
};

struct shard_param {
    int group;
    enum optim_type type;
    int64_t full_at;            /* in full order */
    int64_t begin, end, own_at; /* what this rank owns of it, in own order */
    /* Where its states begin: as in own order, but of what has such a state alone. */
    int64_t state_at[OPTIM_MAX_STATES];
    int64_t sums_at; /* Adafactor: those of its rows, then those of its columns */
};

/* Elements that the optimizer passes in one go. */
struct shard_run {
    int64_t own_at, weight_at, grad_at, n;
    int64_t state_at[OPTIM_MAX_STATES];
    int64_t full_at; /* its number in full order, the same at every cut */
    int group;
    enum optim_type type;
};

/* How a parameter's numbers go from rank to rank: in items of n numbers, the last one of
 * a part filled up. All of a unit's weights are in items of one size, and so are its
 * gradients; where some are quantized, those that are not are so many that fit. */
struct shard_item {
    int64_t n;
    size_t size_bytes;
    bool quantized; /* a block of ops/quant.h */
};

/* Where a part of the optimizer's state lies: masters and states, from stage 2 on
 * gradients, too; and the kernels that work on it there. */
struct shard_home {
    struct kernels kernels;
    bool apart;         /* on the host, where the model's kernels are not */
    int64_t begin, end; /* of what this rank owns: whole parameters */
    float *master;      /* from `begin` on; NULL: the weights are */
    float *state[OPTIM_MAX_STATES];
    int64_t state_begin[OPTIM_MAX_STATES], n_state[OPTIM_MAX_STATES]; /* see state_at */
    void *grads; /* from `begin` on; below stage 2 only where it is apart: what the
                    optimizer takes */
};
enum { SHARD_HERE, SHARD_AWAY, SHARD_N_HOMES }; /* with the kernels; offloaded */

/* Room of the model's kernels for what comes from the host and goes there, and the copies
 * that it waits for: a unit's gradients, or weights. */
struct shard_room {
    void *data;
    int unit; /* -1: none */
    uint64_t up, down;
    uint64_t call; /* of the coll that takes it */
};

/* How a unit's gradients come and go. */
struct shard_passage {
    uint64_t down; /* the copy after which they are on the host */
    int next;      /* the unit whose gradients end next; -1: not known */
    int ended;     /* micro-batch of the step in which they ended last; -1: none */
};

/* Room for one unit: gathered weights, or the gradients of a micro-batch. A slot that is
 * released keeps its unit's weights until the room is needed or the weights change. */
struct shard_slot {
    void *data;
    size_t size_bytes;
    int unit; /* -1: nothing */
    int users;
    uint64_t used; /* when, in calls */
    bool is_near;  /* it comes from the second copy */
    /* With a coll that works beside kernels: the parts of all ranks on their way. */
    void *landing;
    size_t landing_bytes;
    bool in_flight;
    bool from_host; /* by a copy, without the coll */
    uint64_t call;
};
struct shard_slots {
    struct shard_slot *items;
    size_t n, cap;
    uint64_t calls;
};

/* What ranks have given this one of a unit's gradients, and what is still to be summed.
 */
struct shard_exchange {
    int unit; /* -1: none */
    int64_t begin,
        n;       /* items: of this rank's of the unit, one parameter's behind another's */
    int n_parts; /* ranks that gave some */
    const char *parts;
    uint64_t call;           /* 0: they are there */
    bool ends;               /* nothing of the unit comes after it */
    struct shard_room *room; /* the sums' on their way to the host, or NULL */
};

/* Bytes that were taken: in the memory of the kernels, on the host where that is another
 * one, and in files. */
struct shard_tally {
    uint64_t here, host, swapped;
};

/* Norms over whole parameters, two of each. */
#define SHARD_N_NORMS 2
struct shard_norms {
    int64_t n_scratch; /* elements of each array below, which are made at a time */
    float *scratch[SHARD_N_NORMS], *peaks;
    double *digits;    /* NORM_DIGITS each */
    float *host_peaks; /* on the host, as the next one */
    struct norm *norms;
};

/* Adafactor: sums of squares over rows and columns of matrices. */
struct shard_factors {
    int64_t n; /* of all matrices */
    struct factor_sum *sums, *host_sums;
    int64_t n_vars;           /* rows and columns of the largest matrix */
    float *host_vars, *means; /* on the host; of each parameter's rows */
};

/* On the way to the norm of the gradients. */
struct shard_measure {
    double digits[NORM_DIGITS];
    float peak;
};

struct shard {
    struct shard_options options;
    const struct model *model;
    struct kernels kernels;           /* the model's */
    const struct model_param *params; /* likewise */
    int n_params, n_units;
    int *unit_first;  /* first parameter of a unit; n_units + 1 numbers */
    int64_t *near_at; /* where each unit begins in the second copy, items; likewise */
    bool *near_there; /* whether a unit is in it */

    struct coll *all;            /* the world; borrowed */
    struct coll split_in, outer; /* hybrid: ranks of one copy; ranks of one part */
    struct coll *inner;          /* ranks that share one copy of what is cut */
    struct coll near; /* ranks that keep a second copy of the weights; or none */

    struct shard_group groups[SHARD_N_GROUPS];
    struct shard_param *at;
    struct shard_run *runs;
    size_t n_runs;
    int64_t n_elems, n_own;     /* of all parameters, of what this rank owns */
    int64_t n_weights, n_grads; /* elements held of each */

    /* In the memory of the kernels, down to the staging. */
    void *weights;      /* full order, at stage 3 own order, maybe on the host */
    char *near_weights; /* of the second copy: unit order, each cut; as they travel */
    struct shard_home homes[SHARD_N_HOMES];
    int64_t n_state[OPTIM_MAX_STATES]; /* of all homes, see state_at */
    float *whole; /* Muon: a matrix, and what it takes to make it orthogonal */
    int *matrices, n_matrices; /* that it does */
    struct shard_norms norms;  /* LAMB, Adafactor */
    struct shard_factors factors;
    bool keeps_sums;           /* gradients are sums in units until the step ends */
    void *grads;               /* below stage 2: full order */
    float *peaks, *references; /* of each parameter: of this rank's gradients; of units */
    float *wide;               /* room for a parameter's, where partial sums are bf16 */
    float *host_peaks;         /* on the host: peaks and references */
    bool again, references_given; /* the next step, this one, by the peaks of all ranks */
    int micro, n_rounds;          /* micro-batches of the step: ended so far, of a rank */

    struct shard_slots gathered, unit_grads;
    /* The second ones only with a coll that works beside kernels. */
    char *staging[2];                      /* a unit between two orders, as it travels */
    char *landing[2];                      /* gradients that others give */
    size_t staging_bytes, landing_bytes;   /* of one */
    struct swap *optim_swap, *weight_swap; /* that some of these are in, or NULL */
    struct shard_tally taken, step; /* in all; of it what depends on micro-batches */
    bool optim_swapped;             /* what is offloaded of the optimizer is in a file */
    /* What is on the host while the kernels are not. */
    bool weights_apart, masters_stale; /* fp32: weights came from outside */
    struct kernels host;
    struct ferry *ferry;
    struct shard_room rooms[2];   /* gradients of a unit */
    struct shard_room fetched[2]; /* this rank's weights of a unit, to be gathered */
    struct shard_room out[2];     /* new weights, where the optimizer makes them */
    size_t room_bytes;            /* of one of rooms */
    int room_turn, fetch_turn, out_turn;
    struct shard_passage *passages; /* of units */
    int last_ended;                 /* unit whose gradients ended last; -1: none */
    uint64_t weights_down;          /* new weights are on the host after this copy */
    struct shard_measure host_measure;
    int packed, turn; /* which staging, which landing is used next */
    struct shard_measure *measure;
    struct shard_exchange exchange;

    /* The order in which units were asked for, so that the next can be gathered before it
     * is asked for: by unit, and by whether the one before was lower, higher or none. */
    int *next_unit;
    int last_unit, before_unit; /* -1: none */
    int swapped_unit;           /* the last one that was asked for */

    int64_t *counts; /* of each rank of the world */
    double *told;    /* what ranks tell each other of their gradients: two numbers each */
};

/* The parts of shard_new: files for what is offloaded, where everything lies, and memory
 * for it, which shard_release frees; what can be cut. */
int shard_open_swaps(struct shard *s, struct dcp_error *err);
int shard_place(struct shard *s, struct dcp_error *err);
int shard_allocate(struct shard *s, struct dcp_error *err);
void shard_release(struct shard *s);
/* What follows from the number of micro-batches. */
void shard_count_rounds(struct shard *s);
int shard_check_groups(int world_size, int size, struct dcp_error *err);
/* Elements begin .. end of a parameter that a rank of `near` keeps. */
void shard_near_part(const struct shard *s, int param, int rank, int64_t *out_begin,
                     int64_t *out_end);
/* Weights in a file that come next, or are done with: all but those that stay in memory.
 * `begin`: of those held. */
void shard_swap_weights(struct shard *s, int64_t begin, int64_t n,
                        void (*act)(struct swap *swap, const void *from,
                                    uint64_t size_bytes));
/* Of n values that are not negative, in the memory of the kernels: the largest of all
 * ranks of a coll (NULL: of this one), on the host; infinity or NaN when one is.
 * Collective. */
int shard_largest(struct shard *s, struct coll *coll, size_t n, const float *peaks,
                  float *out, struct dcp_error *err);
/* What this rank owns of a parameter: how many elements; n of them from `at` on. */
static inline int64_t shard_n_own(const struct shard *s, int param)
{
    return s->at[param].end - s->at[param].begin;
}
struct shard_run shard_run_of(const struct shard *s, int param, int64_t at, int64_t n);
/* The same for the optimizer. */
struct optim_range shard_optim_range(const struct shard *s, const struct shard_run *run);
struct optim_range shard_param_range(const struct shard *s, int param, int64_t at,
                                     int64_t n);
/* `work` on as much of a run at a time as a buffer holds, where its state is in a file,
 * or its weights or gradients come and go. Of the next window comes what files, or with
 * `grads` the optimizer, need while this one is worked on. */
typedef int shard_work(struct shard *s, const struct shard_run *run, const void *with,
                       struct dcp_error *err);
int shard_in_windows(struct shard *s, const struct shard_run *run, bool grads,
                     shard_work *work, const void *with, struct dcp_error *err);
/* Whether one pass over the elements of a run is all of a step. */
static inline bool shard_is_one_pass(enum optim_type type)
{
    return type != OPTIM_LAMB && type != OPTIM_MUON && type != OPTIM_ADAFACTOR &&
           type != OPTIM_FACTORED;
}
/* Whether a parameter's parts are on several ranks. */
static inline bool shard_is_cut(const struct shard *s)
{
    return s->options.stage > 0 && s->inner->world_size > 1;
}
/* Makes such arrays of elements at .. at + n of a parameter, n <= n_scratch. */
typedef void shard_values(struct shard *s, int param, int64_t at, int64_t n,
                          const void *with, const float *out[SHARD_N_NORMS]);
/* The norms of what a function makes, the same bits at every cut; of what is not finite
 * 0. Collective. */
int shard_measure_norms(struct shard *s, shard_values *values, const void *with,
                        struct dcp_error *err);
double shard_norm(const struct shard *s, int param, int i);
/* State of a run that is done with for now, where it is in a file. */
void shard_leave(struct shard *s, const struct shard_run *run);
/* Adafactor, by the parameters of each group. Collective. */
int shard_adafactor(struct shard *s, const struct optim_params *groups,
                    struct dcp_error *err);
void shard_adafactor_place(struct shard *s);
/* LAMB on what this rank owns, by the parameters of each group. Collective. */
int shard_lamb(struct shard *s, const struct optim_params *groups, struct dcp_error *err);
/* Muon on hidden matrices. Collective. */
int shard_muon(struct shard *s, const struct optim_params *params, struct dcp_error *err);
/* The order of work on them; floats of s->whole, 0 when there are none. */
void shard_muon_place(struct shard *s);
int64_t shard_muon_room(const struct shard *s);
/* Nothing is gathered, nor on its way: that comes first, and is not looked at. What fails
 * there the next call of the coll tells. */
void shard_land(struct shard *s);
/* Whether communication goes on beside the kernels. */
static inline bool shard_overlaps(const struct shard *s)
{
    return coll_overlaps(s->inner) && !s->options.no_overlap;
}
/* Of a gradient, or of the sum of it that is kept. */
size_t shard_kept_bytes(const struct shard *s);
/* Elements that this rank owns of a unit, whose parts lie one behind the other. */
int64_t shard_unit_own(const struct shard *s, int unit);
/* Elements that the optimizer works on at a time. */
int64_t shard_window(const struct shard *s, const struct shard_home *home);
/* Gathered weights are this rank's own, which only come from the host. */
bool shard_from_host(const struct shard *s);
/* They come while kernels work, so that a slot needs room for them beside. */
bool shard_lands(const struct shard *s);
/* Weights changed. */
void shard_forget(struct shard *s);

/* Own order, as a loop over groups with one over parameters in it: whether the
 * parameter's turn is in that group's. */
static inline bool shard_in_turn(const struct shard *s, int param, int group)
{
    return s->options.stage < 3 ? s->at[param].group == group : group == 0;
}
/* Elements begin .. end of a parameter that a rank of `inner` sums the gradients of, and
 * from stage 1 on owns. */
void shard_part(const struct shard *s, int param, int rank, int64_t *out_begin,
                int64_t *out_end);
/* Whether a unit's weights are put together when the model asks for them. */
bool shard_gathers(const struct shard *s);
size_t shard_weight_bytes(const struct shard *s); /* of an element */
size_t shard_grad_bytes(const struct shard *s);
/* The gradients of a micro-batch, and their sum, are rounded to the weights' dtype. */
bool shard_rounds(const struct shard *s);
/* Where a part of what this rank owns is at home. */
static inline const struct shard_home *shard_home_at(const struct shard *s, int64_t own)
{
    const struct shard_home *away = &s->homes[SHARD_AWAY];
    return own >= away->begin && away->begin < away->end ? away : &s->homes[SHARD_HERE];
}
static inline float *shard_master_at(const struct shard *s, int64_t own)
{
    const struct shard_home *home = shard_home_at(s, own);
    return home->master ? home->master + (own - home->begin) : NULL;
}
/* `at`: of all that have such a state. */
static inline float *shard_state_at(const struct shard *s, int i, int64_t own, int64_t at)
{
    const struct shard_home *home = shard_home_at(s, own);
    return home->state[i] ? home->state[i] + (at - home->state_begin[i]) : NULL;
}
/* Gradients, or while they are kept their sums; full order, from stage 2 own order. */
static inline void *shard_item_at(const struct shard *s, int64_t i, size_t item_bytes)
{
    const struct shard_home *home = shard_home_at(s, i);
    if (s->options.stage <= 1)
        return (char *)s->grads + (size_t)i * item_bytes;
    return (char *)home->grads + (size_t)(i - home->begin) * item_bytes;
}
static inline void *shard_grad_at(const struct shard *s, int64_t i)
{
    return shard_item_at(s, i, shard_grad_bytes(s));
}
static inline int64_t *shard_sum_at(const struct shard *s, int64_t i)
{
    return (int64_t *)shard_item_at(s, i, sizeof(int64_t));
}
/* Whether gradients of a parameter that this rank owns are on the host while the kernels
 * are not. */
static inline bool shard_grads_apart(const struct shard *s, int param)
{
    return s->options.stage > 1 && shard_home_at(s, s->at[param].own_at)->apart;
}
static inline void *shard_weight_at(const struct shard *s, int64_t i)
{
    return (char *)s->weights + (size_t)i * shard_weight_bytes(s);
}
/* Elements of a unit, each parameter rounded up so that the next is aligned. */
int64_t shard_unit_room(const struct shard *s, int unit);
enum dcp_dtype shard_grad_dtype(const struct shard *s);
/* An even cut of n elements in s->counts, at most `part` a rank; returns where this
 * rank's begins. */
int64_t shard_cut_evenly(struct shard *s, const struct coll *coll, int64_t n,
                         int64_t part);
/* What ranks sum of a parameter group below stage 3, from stage 1 on own of it,
 * likewise. */
int64_t shard_cut_group(struct shard *s, int group);

/* The ranks that a unit's weights come from. */
static inline struct coll *shard_coll_of(struct shard *s, bool is_near)
{
    return is_near ? &s->near : s->inner;
}
/* Of slots (slots.c): the one of a unit, or NULL; one that is free, or new; the unit's
 * parameters in it; how many are wanted of a unit's size. */
struct shard_slot *shard_slot_of(struct shard_slots *slots, int unit);
int shard_slot_take(struct shard *s, struct shard_slots *slots, int unit,
                    size_t size_bytes, int wanted, struct shard_slot **out_slot,
                    struct dcp_error *err);
void shard_slot_params(const struct shard *s, int unit, size_t item_bytes, char *data,
                       void **out);
int shard_slots_wanted(const struct shard *s, int unit);
/* Memory for its parts on their way; these have come. */
int shard_slot_landing(struct shard *s, struct shard_slot *slot, struct dcp_error *err);
int shard_slot_land(struct shard *s, struct shard_slot *slot, struct dcp_error *err);
void shard_slots_fini(struct shard *s, struct shard_slots *slots);

/* Whether weights, or gradients, are quantized on their way. */
bool shard_quantizes_weights(const struct shard *s);
bool shard_quantizes_grads(const struct shard *s);
/* Elements of a parameter that no border between ranks divides. */
int64_t shard_block(const struct shard *s, int param);
struct shard_item shard_weight_item(const struct shard *s, int param);
struct shard_item shard_grad_item(const struct shard *s, int param);
/* So many that n numbers take; the bytes of n numbers without what the last is filled up
 * with; of n that are not cut, where they end. */
static inline int64_t shard_n_items(struct shard_item item, int64_t n)
{
    return dcp_part_ceil(n, item.n);
}
static inline size_t shard_item_bytes(struct shard_item item, int64_t n)
{
    return item.quantized ? (size_t)shard_n_items(item, n) * item.size_bytes
                          : (size_t)n * item.size_bytes / (size_t)item.n;
}
/* Elements begin .. end of a parameter that a rank has. */
typedef void shard_cut(const struct shard *s, int param, int rank, int64_t *out_begin,
                       int64_t *out_end);
/* The items of each rank of a unit, in s->counts; returns the most of one. */
int64_t shard_count_items(struct shard *s, int unit, int world_size, shard_cut *cut,
                          struct shard_item (*item_of)(const struct shard *s, int param));
/* No cut makes more bytes of a unit on its way. */
size_t shard_travel_bytes(const struct shard *s, int unit,
                          struct shard_item (*item_of)(const struct shard *s, int param));

/* Hooks of the model. */
int shard_grad_begin(void *self, int unit, float **out_grads, struct dcp_error *err);
int shard_grad_end(void *self, int unit, struct dcp_error *err);
/* What was given last is summed. */
int shard_settle_exchange(struct shard *s, struct dcp_error *err);
/* Whether sums over this rank's micro-batches come before those over ranks. */
bool shard_sums_here(const struct shard *s);
/* Where a parameter's part that this rank sums begins in the gradients. */
int64_t shard_grad_place(const struct shard *s, int param);
/* This rank's part of the sums that were kept becomes gradients. */
void shard_settle_sums(struct shard *s);

#endif
