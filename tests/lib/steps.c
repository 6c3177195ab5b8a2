#include "steps.h"
#include "must.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 16 };

struct rank {
    struct steps *steps;
    struct coll *coll;
    pthread_mutex_t *lock;
    pthread_t thread;
};

const struct model_config steps_model = { .family = "gpt2",
                                          .n_layer = 1,
                                          .n_head = 1,
                                          .n_embd = 4,
                                          .n_positions = 4,
                                          .vocab_size = 8,
                                          .layer_norm_epsilon = 1e-5 };

float steps_gradient(const struct steps *s, int param, int64_t i)
{
    uint32_t h = (uint32_t)(i + 1) * 2654435761u + (uint32_t)param * 97u +
                 (uint32_t)s->params.step * 31337u;
    h ^= h >> 15;
    return (float)(int32_t)(h % 2003 - 1001) / 512;
}

const float *steps_array(const struct shard *shard, int i, int param)
{
    struct shard_range held;
    if (i < 0)
        shard_weights(shard, param, &held);
    else
        shard_state(shard, i, param, &held);
    return held.data;
}

double steps_off(const float *got, const double *want, int64_t n)
{
    double size = 0, off = 0;
    for (int64_t i = 0; i < n; i++)
        size = fmax(size, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        off = fmax(off, isfinite(got[i]) ? fabs((double)got[i] - want[i]) : INFINITY);
    return off > 0 ? off / size : 0;
}

void steps_print(const char *key, const float *x, int64_t n)
{
    printf(", \"%s\": [", key);
    for (int64_t i = 0; i < n; i++)
        printf("%s%.9g", i ? ", " : "", (double)x[i]);
    printf("]");
}

/* A micro-batch, or, where there is none left, nothing. */
static void give(const struct steps *s, const struct model_hooks *hooks, bool idle)
{
    float *grads[MODEL_MAX_UNIT_PARAMS];
    const void *weights[MODEL_MAX_UNIT_PARAMS];
    for (int u = model_n_units(s->model) - 1; u >= 0; u--) {
        must(hooks->acquire(hooks->self, u, weights, NULL) == 0);
        must(hooks->grad_begin(hooks->self, u, grads, NULL) == 0);
        for (int p = 0, k = 0; !idle && p < s->n_params; p++) {
            if (s->model_params[p].unit != u)
                continue;
            for (int64_t i = 0; i < s->model_params[p].n_elems; i++)
                grads[k][i] = steps_gradient(s, p, i);
            k++;
        }
        hooks->release(hooks->self, u);
        must(hooks->grad_end(hooks->self, u, NULL) == 0);
    }
}

/* A copy of what is to be done: each rank counts its own steps. */
static void take_steps(struct rank *r, struct steps *s, struct shard *shard)
{
    bool alone = s->world_size == 1;
    for (s->params.step = 1; s->params.step <= s->n_steps; s->params.step++) {
        struct model_hooks hooks;
        double norm;
        bool again;
        shard_hooks(shard, &hooks);
        shard_begin(shard);
        for (int i = 0; i < shard_n_rounds(shard); i++) {
            give(s, &hooks, shard_micro(shard, r->coll->rank, i) >= s->options.n_micros);
            must(shard_end_micro(shard, NULL) == 0);
        }
        must(shard_reduce(shard, &norm, &again, NULL) == 0 && !again);
        if (alone && s->before)
            s->before(s, shard);
        must(shard_update(shard, &s->params, NULL) == 0);
        if (alone && s->after)
            s->after(s, shard);
    }
}

static void copy(const struct shard_range *held, float *to)
{
    if (held->end > held->begin)
        memcpy(to + held->begin, held->data,
               (size_t)(held->end - held->begin) * sizeof *to);
}

/* What this rank has, into the whole arrays. */
static void collect(struct rank *r, const struct shard *shard)
{
    struct steps *s = r->steps;
    int64_t at = 0;
    pthread_mutex_lock(r->lock);
    for (int p = 0; p < s->n_params; at += s->model_params[p++].n_elems) {
        struct shard_range held;
        if (shard_has_master(shard))
            shard_master(shard, p, &held);
        else
            shard_weights(shard, p, &held);
        copy(&held, s->weights + at);
        for (int i = 0; i < optim_n_kept(shard_optimizer(shard, p)); i++) {
            shard_state(shard, i, p, &held);
            copy(&held, s->states[i] + at);
        }
    }
    if (r->coll->rank == 0)
        shard_memory(shard, &s->bytes);
    pthread_mutex_unlock(r->lock);
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct steps own = *r->steps;
    struct model *model;
    struct shard *shard;
    must(model_new(&own.config, own.options.dtype, ops_cpu(), 1, 2, &model, NULL) == 0);
    own.model = model;
    must(shard_new(model, &own.options, r->coll, &shard, NULL) == 0);
    must(shard_init(shard, 7, NULL) == 0);
    take_steps(r, &own, shard);
    collect(r, shard);
    shard_free(shard);
    model_free(model);
    coll_free(r->coll);
    return NULL;
}

static float *zeros(int64_t n)
{
    float *array = calloc((size_t)n, sizeof *array);
    must(array != NULL);
    return array;
}

/* The model stays, so that names and shapes do. */
void steps_run(struct steps *s)
{
    struct coll colls[MAX_RANKS];
    struct rank ranks[MAX_RANKS];
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct model *model;
    s->options.optimizer = s->params.type;
    must(model_new(&s->config, s->options.dtype, ops_cpu(), 1, 2, &model, NULL) == 0);
    s->model = model;
    s->model_params = model_params(model, &s->n_params);
    s->n = 0;
    for (int p = 0; p < s->n_params; p++)
        s->n += s->model_params[p].n_elems;
    s->weights = zeros(s->n);
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
        s->states[i] = zeros(s->n);
    must(coll_threads(colls, s->world_size, NULL) == 0);
    for (int r = 0; r < s->world_size; r++) {
        ranks[r] = (struct rank){ .steps = s, .coll = &colls[r], .lock = &lock };
        must(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]) == 0);
    }
    for (int r = 0; r < s->world_size; r++)
        pthread_join(ranks[r].thread, NULL);
    must(shard_plan(model, &s->options, s->world_size, false, false, &s->planned, NULL) ==
         0);
}

void steps_fini(struct steps *s)
{
    free(s->weights);
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
        free(s->states[i]);
    model_free((struct model *)s->model);
}

void steps_assert_same(const struct steps *a, const struct steps *b)
{
    size_t size_bytes = (size_t)a->n * sizeof(float);
    must(a->n == b->n && !memcmp(a->weights, b->weights, size_bytes));
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
        must(!memcmp(a->states[i], b->states[i], size_bytes));
}

struct steps steps_of(const struct optim_params *params, int world_size, int stage,
                      enum dcp_dtype dtype)
{
    struct steps s = { .config = steps_model,
                       .options = { .stage = stage, .dtype = dtype, .n_micros = 3 },
                       .params = *params,
                       .world_size = world_size,
                       .n_steps = 3 };
    s.config.n_layer = 2;
    s.config.n_embd = 10;
    s.config.vocab_size = 23;
    s.params.stochastic = dtype == DCP_BF16;
    return s;
}

static void check_way(const struct steps *one, struct steps s)
{
    steps_run(&s);
    steps_assert_same(one, &s);
    must(memcmp(&s.bytes, &s.planned, sizeof s.bytes) == 0);
    steps_fini(&s);
}

void steps_check_ranks(const struct optim_params *params)
{
    static const enum dcp_dtype dtypes[] = { DCP_F32, DCP_BF16 };
    for (int d = 0; d < 2; d++) {
        struct steps one = steps_of(params, 1, 0, dtypes[d]);
        steps_run(&one);
        for (int world_size = 1; world_size < 12; world_size += world_size < 4 ? 1 : 7)
            for (int stage = 0; stage < 4; stage++)
                check_way(&one, steps_of(params, world_size, stage, dtypes[d]));
        struct steps hybrid = steps_of(params, 4, 3, dtypes[d]);
        hybrid.options.shard_size = 2;
        check_way(&one, hybrid);
        steps_fini(&one);
    }
}
