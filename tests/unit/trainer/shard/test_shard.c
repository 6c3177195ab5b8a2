/* labels: tsan */
#include "trainer/shard/shard.h"

#include "trainer/ops/adamw.h"
#include "trainer/ops/ops.h"
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
#define MAX_WORLD_SIZE 8

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
    int world_size, stage, shard_size;
    int micros; /* micro-batches in a step, of all ranks */
    bool bf16, grad_fp32, grad_bf16, stochastic;
};

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

static struct adamw_params adamw_of(int step)
{
    return (struct adamw_params){
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
            }
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
            if (r->way->bf16)
                ops_from_bf16(weights[k], out, n);
            else
                memcpy(out, weights[k], (size_t)n * sizeof *out);
            out += n;
        }
        hooks->release(hooks->self, u);
    }
}

/* Puts what this rank owns into the whole arrays. */
static void collect(struct rank *r, const struct model *model, const struct shard *shard)
{
    static const enum dcp_role roles[] = { DCP_ROLE_MASTER, DCP_ROLE_EXP_AVG,
                                           DCP_ROLE_EXP_AVG_SQ };
    int n_params;
    const struct model_param *params = model_params(model, &n_params);
    int64_t at = 0;
    pthread_mutex_lock(&r->out->lock);
    for (int p = 0; p < n_params; p++) {
        for (int a = shard_has_master(shard) ? 0 : 1; a < 3; a++) {
            struct shard_range held;
            shard_optim(shard, roles[a], p, &held);
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

static void train(struct rank *r, struct model *model, struct shard *shard)
{
    struct model_hooks hooks;
    shard_hooks(shard, &hooks);
    CHECK(r, !shard_init(shard, 7, NULL));
    for (int step = 0; step < STEPS; step++) {
        shard_begin(shard);
        for (int i = 0; i < r->way->micros / r->way->world_size; i++) {
            visit(r, model, &hooks, shard_micro(shard, r->coll->rank, i), step);
            CHECK(r, !shard_end_micro(shard, NULL));
        }
        double norm = 0;
        CHECK(r, !shard_reduce(shard, &norm, NULL));
        if (r->coll->rank == 0)
            r->out->norms[step] = norm;
        struct adamw_params params = adamw_of(step);
        params.stochastic = r->way->stochastic;
        CHECK(r, !shard_update(shard, &params, NULL));
    }
    float *weights = calloc((size_t)r->out->n, sizeof *weights);
    read_weights(r, model, &hooks, weights);
    if (r->coll->rank == r->coll->world_size - 1)
        memcpy(r->out->values[0], weights, (size_t)r->out->n * sizeof *weights);
    free(weights);
    collect(r, model, shard);
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct model *model;
    struct shard *shard = NULL;
    const struct shard_options options = {
        .stage = r->way->stage,
        .shard_size = r->way->shard_size,
        .bf16 = r->way->bf16,
        .grad_fp32 = r->way->grad_fp32,
        .grad_bf16 = r->way->grad_bf16,
        .accumulation = r->way->micros / r->way->world_size,
    };
    CHECK(r, !model_new(&config, r->way->bf16 ? DCP_BF16 : DCP_F32, ops_cpu(), 1, 2,
                        &model, NULL));
    CHECK(r, !shard_new(model, &options, r->coll, &shard, NULL));
    if (shard)
        train(r, model, shard);
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
    for (int64_t i = 0; i < out.n; i++)
        assert_int_equal(out.times_held[i], copies);
    return out;
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    for (int v = 0; v < 4; v++)
        assert_memory_equal(a->values[v], b->values[v], (size_t)a->n * sizeof(float));
    for (int s = 0; s < STEPS; s++)
        assert_true(a->norms[s] == b->norms[s]);
}

/* The same training written down plainly: each parameter alone, sums in the tree, decay
 * for those of two dimensions. */
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
            for (int64_t i = 0; i < n; i++) {
                float g[8];
                for (int micro = 0; micro < 8; micro++)
                    g[micro] = gradient(micro, step, p, i) / 8;
                sum[i] =
                    ((g[0] + g[1]) + (g[2] + g[3])) + ((g[4] + g[5]) + (g[6] + g[7]));
                out->norms[step] += (double)sum[i] * sum[i];
            }
            struct adamw_params adamw = adamw_of(step);
            adamw.weight_decay = params[p].ndim == 2 ? adamw.weight_decay : 0;
            const struct adamw_range range = {
                .master = w, .m = m, .v = v, .grad = sum, .grad_dtype = DCP_F32, .n = n
            };
            adamw_step(&range, &adamw);
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

/* Every stage at every world size gives the same bits: in fp32, and with bf16 weights
 * whether gradients are rounded or not. */
static void same_bits_everywhere(void **state)
{
    (void)state;
    static const struct way ways[] = {
        { .micros = 8 },
        { .micros = 8, .bf16 = true },
        { .micros = 8, .bf16 = true, .grad_fp32 = true },
        { .micros = 8, .bf16 = true, .stochastic = true }
    };
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct way way = ways[w];
        way.world_size = 1;
        struct outcome one = outcome_of(way);
        assert_true(one.norms[0] > 0);
        for (; way.world_size <= MAX_WORLD_SIZE; way.world_size *= 2)
            for (way.stage = 0; way.stage < 4; way.stage++)
                same_bits_as(&one, way);
        way.world_size = MAX_WORLD_SIZE;
        way.stage = 3;
        for (way.shard_size = 1; way.shard_size < MAX_WORLD_SIZE; way.shard_size *= 2)
            same_bits_as(&one, way);
        outcome_free(&one);
    }
}

/* Partial sums in bf16: stages agree, as each adds one micro-batch after the other. */
static void bf16_sums_agree_over_stages(void **state)
{
    (void)state;
    struct way way = { .world_size = 1, .micros = 4, .bf16 = true, .grad_bf16 = true };
    struct outcome zero = outcome_of(way);
    for (way.stage = 1; way.stage < 4; way.stage++)
        same_bits_as(&zero, way);
    outcome_free(&zero);
}

/* One micro-batch a rank: the stages agree also where gradients are kept in bf16, and at
 * world sizes that are not powers of two. */
static void stages_agree(void **state)
{
    (void)state;
    static const int world_sizes[] = { 3, 5, 7, 8 };
    for (size_t w = 0; w < sizeof world_sizes / sizeof *world_sizes; w++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct way way = { .world_size = world_sizes[w],
                               .micros = world_sizes[w],
                               .bf16 = bf16 };
            struct outcome zero = outcome_of(way);
            for (way.stage = 1; way.stage < 4; way.stage++) {
                struct outcome other = outcome_of(way);
                assert_same(&zero, &other);
                outcome_free(&other);
            }
            outcome_free(&zero);
        }
}

/* World sizes that are not powers of two add in an unusual order. */
static void odd_world_sizes_are_close(void **state)
{
    (void)state;
    for (int world_size = 3; world_size < 8; world_size += 2) {
        struct outcome one =
            outcome_of((struct way){ .world_size = 1, .micros = 2 * world_size });
        for (int stage = 0; stage < 4; stage++) {
            struct outcome other = outcome_of((struct way){
                .world_size = world_size, .micros = 2 * world_size, .stage = stage });
            for (int64_t i = 0; i < one.n; i++)
                assert_true(fabsf(one.values[0][i] - other.values[0][i]) < 1e-5f);
            outcome_free(&other);
        }
        outcome_free(&one);
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
                                         .bf16 = true,
                                         .grad_bf16 = i >= 4,
                                         .accumulation = i < 4 ? 1 : 4 };
        struct shard_bytes bytes;
        assert_int_equal(shard_plan(model, &options, 8, &bytes, NULL), 0);
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
    struct shard_options options = { .stage = 3, .shard_size = 3, .accumulation = 1 };
    assert_int_equal(shard_new(model, &options, &coll, &shard, &err), DCP_E_USAGE);
    assert_non_null(strstr(err.message, "groups of 3"));
    model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_plain_training),
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(stages_agree),
        cmocka_unit_test(odd_world_sizes_are_close),
        cmocka_unit_test(memory_follows_zero),
        cmocka_unit_test(refuses_uneven_groups),
        cmocka_unit_test(bf16_sums_agree_over_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
