/* labels: tsan */
#include "trainer/shard/shard.h"

#include "base/mem.h"
#include "trainer/ops/exact.h"
#include "trainer/ops/ops.h"
#include "trainer/ops/optim.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 3
#define MAX_WORLD_SIZE 16

static const struct model_config config = {
    .family = "gpt2",
    .n_layer = 2,
    .n_head = 1,
    .n_embd = 10,
    .n_positions = 6,
    .vocab_size = 23 /* no size is a multiple of any world size */
};

/* One way to train the same thing. */
struct way {
    int world_size, stage, shard_size, near_size;
    int micros; /* micro-batches in a step, of all ranks */
    bool bf16, fp16, grad_fp32, grad_bf16, stochastic;
    bool grows; /* the last micro-batch's gradients are 10^5 times those of the first */
    float odd;  /* one gradient of the last micro-batch, when it is not 0 */
};

static enum dcp_dtype dtype_of(const struct way *way)
{
    return way->bf16 ? DCP_BF16 : way->fp16 ? DCP_F16 : DCP_F32;
}

/* What all ranks of a way made together: whole arrays. */
struct outcome {
    int64_t n;        /* parameters */
    float *values[4]; /* weights, masters, m, v */
    int *times_held;  /* by ranks, of v: 1 where each element is owned once */
    double norms[STEPS];
    pthread_mutex_t lock; /* copies of one part are put in one after the other */
};

struct rank {
    const struct way *way;
    struct coll *coll;
    struct outcome *out; /* each rank writes what it owns */
    int failed;
};

#define CHECK(r, condition)                                                              \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "line %d: rank %d of %d, stage %d: %s\n", __LINE__,          \
                    (r)->coll->rank, (r)->way->world_size, (r)->way->stage, #condition); \
            (r)->failed++;                                                               \
        }                                                                                \
    } while (0)

/* A gradient whose sums depend on their order. */
static float gradient(int64_t micro, int step, int param, int64_t i)
{
    uint32_t h = (uint32_t)(i + 1) * 2654435761u + (uint32_t)param * 97u +
                 (uint32_t)micro * 31337u + (uint32_t)step * 7u;
    h ^= h >> 15;
    return ((float)(h % 20011) - 10005.0f) / 3e4f;
}

static struct optim_params adamw_of(int step)
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

/* What a model does with the hooks: forward over all units, then backward, in which the
 * first unit's gradients stay open until the end. */
static void visit(struct rank *r, const struct model *model, struct model_hooks *hooks,
                  int64_t micro, int step)
{
    const void *weights[MODEL_MAX_UNIT_PARAMS];
    float *grads[MODEL_MAX_UNIT_PARAMS], *first[MODEL_MAX_UNIT_PARAMS];
    int n_params, n_units = model_n_units(model);
    const struct model_param *params = model_params(model, &n_params);
    for (int u = 0; u < n_units; u++) {
        CHECK(r, !hooks->acquire(hooks->self, u, weights, NULL));
        const void *once = weights[0];
        CHECK(r, !hooks->acquire(hooks->self, u, weights, NULL) && weights[0] == once);
        hooks->release(hooks->self, u);
        hooks->release(hooks->self, u);
    }
    CHECK(r, !hooks->grad_begin(hooks->self, 0, first, NULL));
    for (int u = n_units - 1; u >= 0; u--) {
        CHECK(r, !hooks->acquire(hooks->self, u, weights, NULL));
        float **to = u == 0 ? first : grads;
        if (u > 0)
            CHECK(r, !hooks->grad_begin(hooks->self, u, grads, NULL));
        int wrong = 0;
        for (int p = 0, k = 0; p < n_params; p++) {
            if (params[p].unit != u)
                continue;
            for (int64_t i = 0; i < params[p].n_elems; i++) {
                wrong += to[k][i] != 0;
                to[k][i] += gradient(micro, step, p, i) / (float)r->way->micros;
                if (r->way->grows && micro == r->way->micros - 1)
                    to[k][i] *= 1e5f;
            }
            if (r->way->odd != 0 && p == 3 && micro == r->way->micros - 1)
                to[k][1] = r->way->odd;
            k++;
        }
        CHECK(r, !wrong);
        hooks->release(hooks->self, u);
        CHECK(r, !hooks->grad_end(hooks->self, u, NULL));
    }
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
        for (int a = shard_has_master(shard) ? 0 : 1; a < 3; a++) {
            struct shard_range held;
            if (a)
                shard_state(shard, a - 1, p, &held);
            else
                shard_master(shard, p, &held);
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
    shard_raise(shard);
    for (int p = 0; p < n_params; weights += params[p++].n_elems) {
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
    CHECK(r, !shard_plan(model, options, r->coll->world_size, coll_overlaps(r->coll),
                         &planned, NULL));
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
    for (int step = 0; step < STEPS; step++) {
        double norm = 0;
        bool again = true;
        for (int times = 0; again; times++) {
            micro_batches(r, model, shard, &hooks, step);
            CHECK(r, !shard_reduce(shard, &norm, &again, NULL));
            CHECK(r, again == (r->way->grows && times == 0));
        }
        if (r->coll->rank == 0)
            r->out->norms[step] = norm;
        struct optim_params params = adamw_of(step);
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
        .dtype = dtype_of(r->way),
        .grad_fp32 = r->way->grad_fp32,
        .grad_bf16 = r->way->grad_bf16,
        .n_micros = r->way->micros,
    };
    CHECK(r, !model_new(&config, dtype_of(r->way), ops_cpu(), 1, 2, &model, NULL));
    CHECK(r, !shard_new(model, &options, r->coll, &shard, NULL));
    if (shard)
        train(r, model, shard);
    check_plan(r, model, &options, shard);
    shard_free(shard);
    model_free(model);
    coll_free(r->coll);
    return NULL;
}

static void outcome_free(struct outcome *out)
{
    for (int a = 0; a < 4; a++)
        free(out->values[a]);
    free(out->times_held);
}

/* Trains one way, ranks as threads. */
static struct outcome outcome_of(struct way way)
{
    struct outcome out = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct coll colls[MAX_WORLD_SIZE];
    struct rank ranks[MAX_WORLD_SIZE];
    pthread_t threads[MAX_WORLD_SIZE];
    struct model *model;
    int n_params, copies = way.shard_size   ? way.world_size / way.shard_size
                           : way.stage == 0 ? way.world_size
                                            : 1;
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
    bool has_masters = (way.bf16 || way.fp16) && !way.stochastic;
    for (int64_t i = 0; i < out.n; i++) {
        float weight = out.values[1][i];
        assert_int_equal(out.times_held[i], copies);
        if (has_masters)
            round_as(dtype_of(&way), &weight, 1);
        assert_true(!has_masters || out.values[0][i] == weight);
    }
    return out;
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    for (int v = 0; v < 4; v++)
        assert_memory_equal(a->values[v], b->values[v], (size_t)a->n * sizeof(float));
    for (int s = 0; s < STEPS; s++)
        assert_true(a->norms[s] == b->norms[s]);
}

/* The same training written down plainly: each parameter alone, sums in units, decay for
 * those of two dimensions. */
static void plain_training(const struct model *model, struct outcome *out)
{
    int n_params;
    const struct model_param *params = model_params(model, &n_params);
    float *w = out->values[0], *m = out->values[2], *v = out->values[3];
    for (int p = 0; p < n_params; p++) {
        int64_t n = params[p].n_elems;
        float *sum = calloc((size_t)n, sizeof *sum);
        model_init_values(model, p, 7, 0, n, w);
        for (int step = 0; step < STEPS; step++) {
            float peak = 0;
            for (int64_t i = 0; i < n; i++)
                peak = fmaxf(peak, fabsf(gradient(0, step, p, i) / 8));
            for (int64_t i = 0; i < n; i++) {
                int shift = exact_shift(peak, 8);
                int64_t units = 0;
                double plain = 0;
                for (int micro = 0; micro < 8; micro++) {
                    float g = gradient(micro, step, p, i) / 8;
                    units += llrint(ldexp((double)g, shift));
                    plain += (double)g;
                }
                sum[i] = (float)ldexp((double)units, -shift);
                assert_true(fabs(plain - (double)sum[i]) <=
                            0x1p-24 * fabs(plain) + 0x1p-40 * (double)peak);
                out->norms[step] += (double)sum[i] * sum[i];
            }
            struct optim_params adamw = adamw_of(step);
            adamw.weight_decay = params[p].ndim == 2 ? adamw.weight_decay : 0;
            const struct optim_range range = {
                .master = w, .state = { m, v }, .grad = sum, .grad_dtype = DCP_F32, .n = n
            };
            optim_step(&range, &adamw);
        }
        free(sum);
        w += n;
        m += n;
        v += n;
    }
}

static void is_plain_training(void **state)
{
    (void)state;
    struct outcome got =
        outcome_of((struct way){ .world_size = 4, .stage = 3, .micros = 8 });
    struct outcome want = { .n = got.n };
    struct model *model;
    for (int a = 0; a < 4; a++)
        want.values[a] = calloc((size_t)want.n, sizeof(float));
    assert_int_equal(model_new(&config, DCP_F32, ops_cpu(), 1, 2, &model, NULL), 0);
    plain_training(model, &want);
    model_free(model);
    for (int step = 0; step < STEPS; step++) {
        double norm = sqrt(want.norms[step]);
        assert_true(fabs(norm - got.norms[step]) < 1e-12 * norm);
        want.norms[step] = got.norms[step];
    }
    assert_same(&want, &got);
    outcome_free(&got);
    outcome_free(&want);
}

static void same_bits_as(const struct outcome *one, struct way way)
{
    struct outcome other = outcome_of(way);
    assert_same(one, &other);
    outcome_free(&other);
}

/* Every stage at every world size gives the same bits, with micro-batches that come out
 * even and not: in fp32, and with 16-bit weights whether gradients are rounded or not. */
static void same_bits_everywhere(void **state)
{
    (void)state;
    static const int world_sizes[] = { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16 };
    static const struct way ways[] = {
        { .micros = 8 },
        { .micros = 6 },
        { .micros = 5, .bf16 = true },
        { .micros = 24, .bf16 = true, .grad_fp32 = true },
        { .micros = 7, .bf16 = true, .stochastic = true },
        { .micros = 8, .fp16 = true },
        { .micros = 5, .fp16 = true, .grad_fp32 = true },
        { .micros = 1 },
        { .micros = 5, .grows = true },
    };
    for (size_t w = 0; w < DCP_ARRAY_LEN(ways); w++) {
        struct way way = ways[w];
        way.world_size = 1;
        struct outcome one = outcome_of(way);
        assert_true(one.norms[0] > 0);
        for (size_t n = 0; n < DCP_ARRAY_LEN(world_sizes); n++)
            for (way.stage = 0; way.stage < 4; way.stage++) {
                way.world_size = world_sizes[n];
                same_bits_as(&one, way);
            }
        way.stage = 3;
        for (way.world_size = 6; way.world_size <= 12; way.world_size += 6)
            for (way.shard_size = 1; way.shard_size < 6; way.shard_size++)
                if (way.world_size % way.shard_size == 0)
                    same_bits_as(&one, way);
        way.world_size = 6, way.shard_size = 0;
        for (way.near_size = 2; way.near_size <= 6; way.near_size++)
            if (way.world_size % way.near_size == 0)
                same_bits_as(&one, way);
        outcome_free(&one);
    }
}

/* The norm of gradients that are not finite is not either, on all ranks. */
static void tells_what_is_not_finite(void **state)
{
    (void)state;
    static const float odd[] = { INFINITY, -INFINITY, NAN };
    for (int k = 0; k < 3; k++)
        for (int world_size = 1; world_size < 4; world_size++)
            for (int stage = 0; stage < 4; stage++) {
                struct outcome out = outcome_of((struct way){ .world_size = world_size,
                                                              .stage = stage,
                                                              .micros = 2,
                                                              .bf16 = stage == 1,
                                                              .odd = odd[k] });
                assert_true(k < 2 ? isinf(out.norms[0]) : isnan(out.norms[0]));
                outcome_free(&out);
            }
}

/* Partial sums in 16 bits: stages agree, as each adds one micro-batch after the other. */
static void short_sums_agree_over_stages(void **state)
{
    (void)state;
    for (int fp16 = 0; fp16 < 2; fp16++) {
        struct way way = {
            .world_size = 1, .micros = 4, .bf16 = !fp16, .fp16 = fp16, .grad_bf16 = true
        };
        struct outcome zero = outcome_of(way);
        for (way.stage = 1; way.stage < 4; way.stage++)
            same_bits_as(&zero, way);
        way.stage = 3, way.world_size = 4, way.shard_size = 2; /* copies add up, too */
        struct outcome copies = outcome_of(way);
        for (int s = 0; s < STEPS; s++)
            assert_true(fabs(copies.norms[s] - zero.norms[s]) < 0.01 * zero.norms[s]);
        outcome_free(&copies);
        outcome_free(&zero);
    }
}

/* Bytes a parameter, of the largest rank: 16, 4 + 12/N, 2 + 14/N, 16/N, with one
 * micro-batch a rank, and with any number when partial sums are bf16. */
static void memory_follows_zero(void **state)
{
    (void)state;
    struct model_config small = config;
    small.n_embd = 64;
    small.vocab_size = 257;
    struct model *model;
    int n_params;
    int64_t n = 0;
    assert_int_equal(model_new(&small, DCP_BF16, ops_cpu(), 1, 2, &model, NULL), 0);
    const struct model_param *params = model_params(model, &n_params);
    for (int p = 0; p < n_params; p++)
        n += params[p].n_elems;
    const double want[] = { 16, 4 + 12.0 / 8, 2 + 14.0 / 8, 16.0 / 8 };
    for (int i = 0; i < 8; i++) {
        int stage = i % 4;
        struct shard_options options = { .stage = stage,
                                         .dtype = DCP_BF16,
                                         .grad_bf16 = i >= 4,
                                         .n_micros = i < 4 ? 8 : 32 };
        struct shard_bytes bytes;
        assert_int_equal(shard_plan(model, &options, 8, false, &bytes, NULL), 0);
        double got =
            (double)(bytes.weights + bytes.gradients + bytes.optimizer) / (double)n;
        assert_true(fabs(got - want[stage]) < 0.05 * want[stage]);
    }
    model_free(model);
}

static void refuses_uneven_groups(void **state)
{
    (void)state;
    struct coll coll;
    struct model *model;
    struct shard *shard;
    struct dcp_error err = { 0 };
    coll_self(&coll);
    assert_int_equal(model_new(&config, DCP_F32, ops_cpu(), 1, 2, &model, NULL), 0);
    struct shard_options options = {
        .stage = 3, .shard_size = 3, .dtype = DCP_F32, .n_micros = 1
    };
    assert_int_equal(shard_new(model, &options, &coll, &shard, &err), DCP_E_USAGE);
    assert_non_null(strstr(err.message, "groups of 3"));
    model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_plain_training),
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(tells_what_is_not_finite),
        cmocka_unit_test(memory_follows_zero),
        cmocka_unit_test(refuses_uneven_groups),
        cmocka_unit_test(short_sums_agree_over_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
