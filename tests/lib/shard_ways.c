#include "shard_ways.h"

#include "trainer/ops/ops.h"
#include "trainer/ops/value.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct model_config way_model = { .family = "gpt2",
                                        .n_layer = 2,
                                        .n_head = 1,
                                        .n_embd = 10,
                                        .n_positions = 6,
                                        .vocab_size = 23 };

static struct model_config config_of(const struct way *way)
{
    struct model_config config = way_model;
    config.n_layer += way->more_layers;
    config.n_embd = way->width ? way->width : config.n_embd;
    config.vocab_size = way->vocab_size ? way->vocab_size : config.vocab_size;
    return config;
}

static enum dcp_dtype dtype_of(const struct way *way)
{
    return way->bf16 ? DCP_BF16 : way->fp16 ? DCP_F16 : DCP_F32;
}

struct rank {
    const struct way *way;
    struct coll *coll;
    struct outcome *out; /* each rank writes what it owns */
    int failed;
    const struct coll_ops *ops; /* the coll's own */
    uint64_t waited;            /* for its last call but those that wait themselves */
    int n_ahead;
};
static _Thread_local struct rank *this_rank;

#define CHECK(r, condition)                                                              \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "line %d: rank %d of %d, stage %d: %s\n", __LINE__,          \
                    (r)->coll->rank, (r)->way->world_size, (r)->way->stage, #condition); \
            (r)->failed++;                                                               \
        }                                                                                \
    } while (0)

float way_gradient(int64_t micro, int step, int param, int64_t i)
{
    uint32_t h = (uint32_t)(i + 1) * 2654435761u + (uint32_t)param * 97u +
                 (uint32_t)micro * 31337u + (uint32_t)step * 7u;
    h ^= h >> 15;
    return ((float)(h % 20011) - 10005.0f) / 3e4f;
}

float way_seen(float gradient, float weight)
{
    return gradient + 0.25f * weight;
}

struct optim_params way_adamw(int step)
{
    return (struct optim_params){
        .lr = 1e-2,
        .beta1 = 0.9,
        .beta2 = 0.99,
        .eps = 1e-8,
        .weight_decay = 0.1,
        .step = step + 1,
        .bias_correction = true,
        .decoupled = true,
        .grad_scale = 0.5f,
    };
}

/* The gradients of a micro-batch for a unit. */
static void give(struct rank *r, const struct model *model, int unit,
                 const void *const *weights, float **to, int64_t micro, int step)
{
    int n_params, wrong = 0;
    const struct model_param *params = model_params(model, &n_params);
    for (int p = 0, k = 0; p < n_params; p++) {
        if (params[p].unit != unit)
            continue;
        for (int64_t i = 0; i < params[p].n_elems; i++) {
            wrong += to[k][i] != 0;
            to[k][i] += way_gradient(micro, step, p, i) / (float)r->way->micros;
            if (r->way->sees)
                to[k][i] = way_seen(to[k][i], value_get(dtype_of(r->way), weights[k], i));
            if (r->way->grows && micro == r->way->micros - 1)
                to[k][i] *= 1e5f;
        }
        if (r->way->odd != 0 && p == 4 && micro == r->way->micros - 1)
            to[k][1] = r->way->odd;
        k++;
    }
    CHECK(r, !wrong);
}

static int watched_wait(void *self, uint64_t call, struct dcp_error *err)
{
    this_rank->waited = call;
    return this_rank->ops->wait(self, call, err);
}

/* What a model does with the hooks, and an idle one likewise: forward over all units,
 * then backward, in which the first unit's gradients stay open until the end. */
static void visit(struct rank *r, const struct model *model, struct model_hooks *hooks,
                  int64_t micro, int step)
{
    const void *weights[MODEL_MAX_UNIT_PARAMS];
    float *grads[MODEL_MAX_UNIT_PARAMS], *first[MODEL_MAX_UNIT_PARAMS];
    int n_units = model_n_units(model);
    for (int u = 0; u < n_units; u++) {
        r->n_ahead += u > 0 && r->coll->n_calls > r->waited;
        CHECK(r, !hooks->acquire(hooks->self, u, weights, NULL));
        const void *once = weights[0];
        CHECK(r, !hooks->acquire(hooks->self, u, weights, NULL) && weights[0] == once);
        hooks->release(hooks->self, u);
        hooks->release(hooks->self, u);
    }
    CHECK(r, !hooks->grad_begin(hooks->self, 0, first, NULL));
    for (int i = 0; i < n_units; i++) {
        int u = i ? n_units - i : 0;
        CHECK(r, !hooks->acquire(hooks->self, u, weights, NULL));
        if (u > 0)
            CHECK(r, !hooks->grad_begin(hooks->self, u, grads, NULL));
        give(r, model, u, weights, u == 0 ? first : grads, micro, step);
        hooks->release(hooks->self, u);
        CHECK(r, u == 0 || !hooks->grad_end(hooks->self, u, NULL));
    }
    CHECK(r, !hooks->grad_end(hooks->self, 0, NULL));
}

/* The weights as the model sees them. */
static void read_weights(struct rank *r, const struct model *model,
                         struct model_hooks *hooks, float *out)
{
    const void *weights[MODEL_MAX_UNIT_PARAMS];
    int n_params;
    const struct model_param *params = model_params(model, &n_params);
    for (int u = 0, p = 0; u < model_n_units(model); u++) {
        CHECK(r, !hooks->acquire(hooks->self, u, weights, NULL));
        for (int k = 0; p < n_params && params[p].unit == u; p++, k++) {
            int64_t n = params[p].n_elems;
            ops_cpu()->widen(NULL, dtype_of(r->way), n, weights[k], out);
            out += n;
        }
        hooks->release(hooks->self, u);
    }
}

/* Puts what this rank owns into the whole arrays. */
static void collect(struct rank *r, const struct model *model, const struct shard *shard)
{
    int n_params;
    const struct model_param *params = model_params(model, &n_params);
    int64_t at = 0;
    pthread_mutex_lock(&r->out->lock);
    for (int p = 0; p < n_params; p++) {
        bool kept = shard_has_master(shard) || r->way->quantized_weights;
        for (int a = kept ? 0 : 1; a < 3; a++) {
            struct shard_range held;
            if (a)
                shard_state(shard, a - 1, p, &held);
            else if (shard_has_master(shard))
                shard_master(shard, p, &held);
            else
                shard_weights(shard, p, &held);
            for (int64_t i = held.begin; i < held.end; i++) {
                r->out->values[1 + a][at + i] = ((float *)held.data)[i - held.begin];
                if (a == 2)
                    r->out->times_held[at + i]++;
            }
        }
        at += params[p].n_elems;
    }
    pthread_mutex_unlock(&r->out->lock);
}

static void micro_batches(struct rank *r, const struct model *model, struct shard *shard,
                          struct model_hooks *hooks, int step)
{
    shard_begin(shard);
    for (int i = 0; i < shard_n_rounds(shard); i++) {
        int64_t micro = shard_micro(shard, r->coll->rank, i);
        if (micro < r->way->micros)
            visit(r, model, hooks, micro, step);
        else
            CHECK(r, !model_idle(model, hooks, NULL));
        CHECK(r, !shard_end_micro(shard, NULL));
    }
}

/* A cast to 16 bits and back. */
static void round_as(enum dcp_dtype dtype, float *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        ops_to_16bit(dtype, &values[i], &half, 1);
        ops_from_16bit(dtype, &half, &values[i], 1);
    }
}

/* The first weights are the initial values in their dtype. */
static void check_init(struct rank *r, const struct model *model,
                       struct model_hooks *hooks)
{
    int n_params;
    if (r->way->quantized_weights)
        return;
    const struct model_param *params = model_params(model, &n_params);
    float *weights = calloc((size_t)r->out->n, sizeof *weights), *at = weights;
    float *values = calloc((size_t)r->out->n, sizeof *values);
    read_weights(r, model, hooks, weights);
    for (int p = 0; p < n_params; at += params[p++].n_elems) {
        int64_t n = params[p].n_elems;
        model_init_values(model, p, 7, 0, n, values);
        if (r->way->bf16 || r->way->fp16)
            round_as(dtype_of(r->way), values, n);
        CHECK(r, !memcmp(at, values, (size_t)n * sizeof *values));
    }
    free(weights);
    free(values);
}

/* Weights and masters that are made of each other stay the same. */
static void check_masters(struct rank *r, const struct model *model, struct shard *shard,
                          struct model_hooks *hooks, const float *weights)
{
    int n_params;
    const struct model_param *params = model_params(model, &n_params);
    float *again = calloc((size_t)r->out->n, sizeof *again);
    if (!r->way->stochastic) {
        CHECK(r, !shard_spread(shard, NULL));
        read_weights(r, model, hooks, again);
        CHECK(r, !memcmp(again, weights, (size_t)r->out->n * sizeof *again));
    }
    CHECK(r, !shard_raise(shard, NULL));
    for (int p = 0; p < n_params && !r->way->quantized_weights;
         weights += params[p++].n_elems) {
        struct shard_range held;
        shard_master(shard, p, &held);
        if (held.data)
            CHECK(r, !memcmp(held.data, weights + held.begin,
                             (size_t)(held.end - held.begin) * sizeof *weights));
    }
    free(again);
}

/* What was planned is what there is after steps, to the byte. */
static void check_plan(struct rank *r, const struct model *model,
                       const struct shard_options *options, const struct shard *shard)
{
    struct shard_bytes planned, held;
    if (r->coll->rank > 0)
        return;
    shard_memory(shard, &held);
    CHECK(r, !shard_plan(model, options, r->coll->world_size, false,
                         coll_overlaps(r->coll), &planned, NULL));
    CHECK(r, planned.weights == held.weights && planned.gradients == held.gradients &&
                 planned.optimizer == held.optimizer);
    CHECK(r, planned.transient == held.transient);
}

static void train(struct rank *r, struct model *model, struct shard *shard)
{
    struct model_hooks hooks;
    shard_hooks(shard, &hooks);
    CHECK(r, !shard_init(shard, 7, NULL));
    check_init(r, model, &hooks);
    for (int step = 0; step < WAY_STEPS; step++) {
        double norm = 0;
        bool again = true;
        for (int times = 0; again; times++) {
            micro_batches(r, model, shard, &hooks, step);
            CHECK(r, !shard_reduce(shard, &norm, &again, NULL));
            CHECK(r, again == (r->way->grows && times == 0));
        }
        if (r->coll->rank == 0)
            r->out->norms[step] = norm;
        struct optim_params params = way_adamw(step);
        params.stochastic = r->way->stochastic;
        if (isfinite(norm))
            CHECK(r, !shard_update(shard, &params, NULL));
    }
    float *weights = calloc((size_t)r->out->n, sizeof *weights);
    read_weights(r, model, &hooks, weights);
    if (r->coll->rank == r->coll->world_size - 1)
        memcpy(r->out->values[0], weights, (size_t)r->out->n * sizeof *weights);
    collect(r, model, shard);
    check_masters(r, model, shard, &hooks, weights);
    free(weights);
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct model *model;
    struct shard *shard = NULL;
    const struct shard_options options = {
        .stage = r->way->stage,
        .shard_size = r->way->shard_size,
        .near_size = r->way->near_size,
        .quantized_weights = r->way->quantized_weights,
        .quantized_grads = r->way->quantized_grads,
        .dtype = dtype_of(r->way),
        .grad_fp32 = r->way->grad_fp32,
        .grad_bf16 = r->way->grad_bf16,
        .n_micros = r->way->micros,
        .reduce_bucket = r->way->bucket,
        .prefetch = r->way->prefetch,
        .max_live = r->way->live,
    };
    CHECK(r, !r->way->beside || !coll_beside(r->coll, NULL));
    struct coll_ops watched = *r->coll->ops;
    if (r->way->beside) {
        this_rank = r;
        r->ops = r->coll->ops;
        watched.wait = watched_wait;
        r->coll->ops = &watched;
    }
    const struct model_config config = config_of(r->way);
    CHECK(r, !model_new(&config, dtype_of(r->way), ops_cpu(), 1, 2, &model, NULL));
    CHECK(r, !shard_new(model, &options, r->coll, &shard, NULL));
    if (shard)
        train(r, model, shard);
    check_plan(r, model, &options, shard);
    shard_free(shard);
    model_free(model);
    if (r->coll->rank == 0) {
        r->out->n_calls = r->coll->n_calls;
        r->out->received_bytes = r->coll->received_bytes;
        r->out->n_ahead = r->n_ahead;
    }
    coll_free(r->coll);
    return NULL;
}

void outcome_free(struct outcome *out)
{
    for (int a = 0; a < 4; a++)
        free(out->values[a]);
    free(out->times_held);
}

struct outcome outcome_of(struct way way)
{
    struct outcome out = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct coll colls[WAY_MAX_WORLD_SIZE];
    struct rank ranks[WAY_MAX_WORLD_SIZE];
    pthread_t threads[WAY_MAX_WORLD_SIZE];
    struct model *model;
    int n_params, copies = way.shard_size   ? way.world_size / way.shard_size
                           : way.stage == 0 ? way.world_size
                                            : 1;
    const struct model_config config = config_of(&way);
    assert_int_equal(model_new(&config, DCP_F32, ops_cpu(), 1, 2, &model, NULL), 0);
    const struct model_param *params = model_params(model, &n_params);
    for (int p = 0; p < n_params; p++)
        out.n += params[p].n_elems;
    model_free(model);
    for (int a = 0; a < 4; a++)
        out.values[a] = calloc((size_t)out.n, sizeof(float));
    out.times_held = calloc((size_t)out.n, sizeof(int));
    assert_int_equal(coll_threads(colls, way.world_size, NULL), 0);
    for (int r = 0; r < way.world_size; r++) {
        ranks[r] = (struct rank){ .way = &way, .coll = &colls[r], .out = &out };
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    int failed = 0;
    for (int r = 0; r < way.world_size; r++) {
        pthread_join(threads[r], NULL);
        failed += ranks[r].failed;
    }
    assert_int_equal(failed, 0);
    bool has_masters =
        (way.bf16 || way.fp16) && !way.stochastic && !way.quantized_weights;
    for (int64_t i = 0; i < out.n; i++) {
        float weight = out.values[1][i];
        assert_int_equal(out.times_held[i], copies);
        if (has_masters)
            round_as(dtype_of(&way), &weight, 1);
        assert_true(!has_masters || out.values[0][i] == weight);
    }
    return out;
}

void outcome_assert_same(const struct outcome *a, const struct outcome *b)
{
    for (int v = 0; v < 4; v++)
        assert_memory_equal(a->values[v], b->values[v], (size_t)a->n * sizeof(float));
    for (int s = 0; s < WAY_STEPS; s++)
        assert_true(a->norms[s] == b->norms[s]);
}
