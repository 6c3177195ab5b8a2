/* A model trained on GPUs over NCCL, a rank a thread: the state has the same bits at
 * every world size and stage, whatever the streams do. The fake of CUDA has eight ranks.
 */
#include "base/mem.h"
#include "lib/cuda.h"
#include "trainer/coll/coll.h"
#include "trainer/model/model.h"
#include "trainer/ops/optim.h"
#include "trainer/shard/shard.h"
#include <nccl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_WORLD_SIZE = 8, STEPS = 2, MICROS = 7, FEW_MICROS = 3, SEQ_LEN = 4 };

static const struct model_config config = { .family = "gpt2",
                                            .n_layer = 3,
                                            .n_head = 1,
                                            .n_embd = 6,
                                            .n_positions = SEQ_LEN,
                                            .vocab_size = 19 };

/* Where state waits, and how it goes there. */
enum { OPTIMIZER = 1, WEIGHTS = 2, PAGEABLE = 4, FILES = 8, HALF = 16 };

struct way {
    int world_size, stage, shard_size;
    enum dcp_dtype dtype;
    int offload;
    enum optim_type optimizer;
    int micros;     /* micro-batches in a step */
    bool quantized; /* weights and gradients, on their way */
    bool grad_fp32; /* gradients are not rounded */
};

/* What all ranks made: the moments and fp32 weights, whole, by parameter. */
struct outcome {
    int64_t n;
    float *values[3];
    double norms[STEPS], loss;
};

static char folder[] = "/tmp/zero_nccl.XXXXXX";

struct rank {
    const struct way *way;
    struct dcp_comm *comm;
    struct outcome *out;
    struct dcp_error err;
    int rc;
};

static int run_step(struct rank *r, struct model *model, struct shard *shard, int step,
                    double *out_norm)
{
    struct model_hooks hooks;
    const struct optim_params params = { .type = r->way->optimizer,
                                         .lr = 1e-2,
                                         .beta1 = 0.9,
                                         .beta2 = 0.99,
                                         .eps = 1e-8,
                                         .weight_decay = 0.1,
                                         .step = step + 1,
                                         .bias_correction = true,
                                         .decoupled = true,
                                         .grad_scale = 1,
                                         .stochastic = r->way->dtype == DCP_BF16 };
    bool again = false;
    shard_hooks(shard, &hooks);
    shard_begin(shard);
    for (int i = 0; i < shard_n_rounds(shard); i++) {
        int32_t ids[SEQ_LEN + 1];
        int64_t micro = shard_micro(shard, r->comm->rank, i);
        for (int t = 0; t <= SEQ_LEN; t++)
            ids[t] = (int32_t)((micro * 7 + t * 3 + step) % config.vocab_size);
        DCP_TRY(micro < r->way->micros
                    ? model_train(model, &hooks, ids, ids + 1, 1, SEQ_LEN,
                                  1.0f / (float)r->way->micros, &r->out->loss, &r->err)
                    : model_idle(model, &hooks, &r->err));
        DCP_TRY(shard_end_micro(shard, &r->err));
    }
    int rc = shard_reduce(shard, out_norm, &again, &r->err);
    assert_false(again);
    return rc ? rc : shard_update(shard, &params, &r->err);
}

/* Puts what this rank owns into the whole arrays. */
static int collect(struct rank *r, const struct model *model, const struct shard *shard)
{
    struct kernels kernels = model_kernels(model);
    int n_params, rc = kernels.ops->sync(kernels.ctx, &r->err);
    const struct model_param *params = model_params(model, &n_params);
    int64_t at = 0;
    for (int p = 0; !rc && p < n_params; at += params[p++].n_elems)
        for (int a = 0; !rc && a < 3; a++) {
            struct shard_range held;
            if (a == 0 && r->way->dtype == DCP_F32)
                shard_weights(shard, p, &held);
            else if (a == 0)
                shard_master(shard, p, &held);
            else
                shard_state(shard, a - 1, p, &held);
            if (held.end > held.begin) /* of the GPU, or of the host */
                cuda_must(cudaMemcpy(r->out->values[a] + at + held.begin, held.data,
                                     (size_t)(held.end - held.begin) * sizeof(float),
                                     cudaMemcpyDefault));
        }
    return rc;
}

/* What was planned is what there is, to the byte. */
static void check_plan(struct rank *r, const struct model *model,
                       const struct shard_options *options, const struct shard *shard)
{
    struct shard_bytes planned, held;
    if (r->comm->rank > 0 ||
        shard_plan(model, options, r->comm->world_size, true, true, &planned, &r->err))
        return;
    shard_memory(shard, &held);
    if (memcmp(&planned, &held, sizeof held))
        r->rc = dcp_error_set(&r->err, DCP_E_MISMATCH,
                              "planned and held: weights %zu %zu, gradients %zu %zu, "
                              "optimizer %zu %zu, transient %zu %zu, host %zu %zu",
                              planned.weights, held.weights, planned.gradients,
                              held.gradients, planned.optimizer, held.optimizer,
                              planned.transient, held.transient, planned.host, held.host);
}

static struct shard_options options_of(const struct way *way)
{
    const struct shard_offload offload = { .host = true,
                                           .folder = way->offload & FILES ? folder : NULL,
                                           .pageable = way->offload & PAGEABLE,
                                           .window = 40,
                                           .buffers = 2,
                                           .kept = 10,
                                           .stays = way->offload & HALF ? 0.5 : 0 };
    struct shard_options options = { .stage = way->stage,
                                     .shard_size = way->shard_size,
                                     .dtype = way->dtype,
                                     .optimizer = way->optimizer,
                                     .quantized_weights = way->quantized,
                                     .quantized_grads = way->quantized,
                                     .grad_fp32 = way->grad_fp32,
                                     .n_micros = way->micros };
    if (way->offload & OPTIMIZER)
        options.offload_optimizer = offload;
    if (way->offload & WEIGHTS)
        options.offload_weights = offload;
    return options;
}

static int train(struct rank *r, struct model *model, struct coll *coll)
{
    const struct shard_options options = options_of(r->way);
    struct shard *shard;
    int rc = shard_new(model, &options, coll, &shard, &r->err);
    if (!rc)
        rc = shard_init(shard, 5, &r->err);
    if (!rc && r->way->dtype != DCP_F32)
        rc = shard_spread(shard, &r->err);
    for (int step = 0; !rc && step < STEPS; step++)
        rc = run_step(r, model, shard, step, &r->out->norms[step]);
    if (!rc)
        rc = collect(r, model, shard);
    if (!rc)
        check_plan(r, model, &options, shard);
    shard_free(shard);
    return rc ? rc : r->err.code;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct model *model = NULL;
    struct coll coll = { .ops = NULL };
    int n = 0;
    cuda_must(cudaGetDeviceCount(&n));
    cuda_must(cudaSetDevice(r->comm->rank % n));
    r->rc = model_new(&config, r->way->dtype, ops_cuda(), 1, SEQ_LEN, &model, &r->err);
    if (!r->rc) {
        struct kernels kernels = model_kernels(model);
        r->rc = coll_nccl(&coll, &kernels, r->comm, &r->err);
    }
    if (!r->rc)
        r->rc = train(r, model, &coll);
    coll_free(&coll);
    model_free(model);
    return NULL;
}

static struct outcome outcome_of(struct way way)
{
    struct dcp_comm comms[MAX_WORLD_SIZE];
    struct rank ranks[MAX_WORLD_SIZE];
    struct outcome outs[MAX_WORLD_SIZE], whole = { 0 };
    pthread_t threads[MAX_WORLD_SIZE];
    struct model *model;
    int n_params;
    assert_int_equal(model_new(&config, DCP_F32, ops_cpu(), 1, SEQ_LEN, &model, NULL), 0);
    const struct model_param *params = model_params(model, &n_params);
    for (int p = 0; p < n_params; p++)
        whole.n += params[p].n_elems;
    model_free(model);
    for (int a = 0; a < 3; a++)
        assert_non_null(whole.values[a] = calloc((size_t)whole.n, sizeof(float)));
    assert_int_equal(dcp_comm_threads(comms, way.world_size, NULL), 0);
    for (int r = 0; r < way.world_size; r++) {
        outs[r] = whole; /* ranks that own the same write the same */
        ranks[r] = (struct rank){ .way = &way, .comm = &comms[r], .out = &outs[r] };
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < way.world_size; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < way.world_size; r++) {
        dcp_comm_free(&comms[r]);
        if (ranks[r].rc)
            fail_msg("rank %d of %d, stage %d, offload %d: %s", r, way.world_size,
                     way.stage, way.offload, ranks[r].err.message);
        for (int s = 0; s < STEPS; s++)
            assert_true(outs[r].norms[s] == outs[0].norms[s]);
    }
    memcpy(whole.norms, outs[0].norms, sizeof whole.norms);
    return whole;
}

static void outcome_free(struct outcome *out)
{
    for (int a = 0; a < 3; a++)
        free(out->values[a]);
}

static void same_bits_as(const struct outcome *one, struct way way)
{
    struct outcome other = outcome_of(way);
    for (int a = 0; a < 3; a++)
        assert_memory_equal(one->values[a], other.values[a],
                            (size_t)one->n * sizeof(float));
    for (int s = 0; s < STEPS; s++)
        assert_true(one->norms[s] == other.norms[s]);
    outcome_free(&other);
}

/* Whether there are ranks for it. */
static bool there_is(int world_size)
{
    int n = 0;
    cuda_must(cudaGetDeviceCount(&n));
#ifdef CUDA_FAKE_NCCL_H
    n = MAX_WORLD_SIZE;
#endif
    return world_size <= n;
}

/* The first two of the world sizes, or all. */
static void every_world_size(const char *order, enum dcp_dtype dtype, bool all)
{
    static const int world_sizes[] = { 3, 8, 2, 5, 6 };
    struct way way = { .world_size = 1, .dtype = dtype, .micros = MICROS };
#ifdef CUDA_FAKE_NCCL_H
    setenv("CUDA_FAKE", order, 1);
#else
    (void)order;
#endif
    struct outcome one = outcome_of(way);
    assert_true(one.norms[0] > 0);
    for (way.stage = 1; way.stage < 4; way.stage++)
        same_bits_as(&one, way);
    for (size_t w = 0; w < (all ? DCP_ARRAY_LEN(world_sizes) : 2); w++)
        for (int k = 0; k < 2 && there_is(world_sizes[w]); k++) {
            way.world_size = world_sizes[w];
            way.stage = k ? 3 : world_sizes[w] % 3;
            same_bits_as(&one, way);
        }
    if (there_is(6))
        same_bits_as(&one, (struct way){ 6, 3, 2, dtype, 0, 0, MICROS, false, false });
    outcome_free(&one);
}

/* Blocks are made and taken apart in the order of the streams, too. Parameters of a rank
 * then begin anywhere in its sums, which become gradients in place. */
static void quantized(void **state)
{
    static const char *const orders[] = { "late", "others" };
    (void)state;
    for (int world_size = 2; world_size < 5 && there_is(world_size); world_size++) {
        struct way way = { .world_size = 1,
                           .stage = 3,
                           .dtype = DCP_BF16,
                           .micros = MICROS,
                           .quantized = true,
                           .grad_fp32 = world_size == 4 };
#ifdef CUDA_FAKE_NCCL_H
        setenv("CUDA_FAKE", orders[world_size % 2], 1);
#else
        (void)orders;
#endif
        struct outcome one = outcome_of(way);
        way.world_size = world_size;
        way.offload = world_size == 3 ? OPTIMIZER | WEIGHTS : 0;
        same_bits_as(&one, way);
        outcome_free(&one);
    }
}

/* Offloaded, with the bits of what stays on the GPU. */
static void offloaded(const char *order, const struct way *ways, size_t n)
{
    struct outcome plain = { .n = 0 };
#ifdef CUDA_FAKE_NCCL_H
    setenv("CUDA_FAKE", order, 1);
#else
    (void)order;
#endif
    for (size_t w = 0; w < n; w++) {
        struct way way = ways[w], one = { .world_size = 1,
                                          .dtype = way.dtype,
                                          .optimizer = way.optimizer,
                                          .micros = FEW_MICROS };
        if (!w || way.dtype != ways[w - 1].dtype ||
            way.optimizer != ways[w - 1].optimizer) {
            outcome_free(&plain);
            plain = outcome_of(one);
        }
        if (there_is(way.world_size))
            same_bits_as(&plain, way);
    }
    outcome_free(&plain);
}

/* Ranks have one micro-batch, several, or some of them none. */
static const struct way offload_ways[] = {
    { 1, 0, 0, DCP_BF16, OPTIMIZER, 0, FEW_MICROS, false, false },
    { 2, 1, 0, DCP_BF16, OPTIMIZER, 0, FEW_MICROS, false, false },
    { 3, 2, 0, DCP_BF16, OPTIMIZER | PAGEABLE, 0, FEW_MICROS, false, false },
    { 1, 3, 0, DCP_BF16, OPTIMIZER | WEIGHTS, 0, FEW_MICROS, false, false },
    { 3, 3, 0, DCP_BF16, OPTIMIZER | WEIGHTS | PAGEABLE, 0, FEW_MICROS, false, false },
    { 2, 3, 0, DCP_BF16, OPTIMIZER | WEIGHTS | HALF, 0, FEW_MICROS, false, false },
    { 2, 3, 0, DCP_BF16, WEIGHTS, 0, FEW_MICROS, false, false },
    { 2, 3, 0, DCP_BF16, OPTIMIZER | WEIGHTS | FILES, 0, FEW_MICROS, false, false },
    { 4, 3, 2, DCP_BF16, OPTIMIZER | WEIGHTS | HALF, 0, FEW_MICROS, false, false },
    { 2, 0, 0, DCP_F32, OPTIMIZER, 0, FEW_MICROS, false, false },
    { 1, 3, 0, DCP_F32, WEIGHTS, 0, FEW_MICROS, false, false },
    { 1, 3, 0, DCP_F32, OPTIMIZER | HALF, 0, FEW_MICROS, false, false },
    { 2, 1, 0, DCP_F32, OPTIMIZER | FILES, 0, FEW_MICROS, false, false },
    { 2, 3, 0, DCP_F16, OPTIMIZER | WEIGHTS, 0, FEW_MICROS, false, false },
};

static void offloaded_late(void **state)
{
    (void)state;
    offloaded("late", offload_ways, DCP_ARRAY_LEN(offload_ways));
}

/* Those with the most streams. */
static void offloaded_early(void **state)
{
    (void)state;
    offloaded("others", offload_ways + 5, 2);
    offloaded("eager", offload_ways + 5, 1);
}

static void late_streams(void **state)
{
    (void)state;
    every_world_size("late", DCP_F32, false);
    every_world_size("late", DCP_BF16, true);
}

static void early_streams(void **state)
{
    (void)state;
    every_world_size("others", DCP_BF16, false);
    every_world_size("eager", DCP_F16, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_streams),    cmocka_unit_test(early_streams),
        cmocka_unit_test(quantized),       cmocka_unit_test(offloaded_late),
        cmocka_unit_test(offloaded_early),
    };
    cuda_need();
    if (!mkdtemp(folder))
        return 1;
    setenv("CUDA_FAKE_OPEN", "1", 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder); /* files in it have no name */
    return failed;
}
