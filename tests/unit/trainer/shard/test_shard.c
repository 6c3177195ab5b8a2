/* labels: tsan */
#include "lib/shard_ways.h"
#include "lib/slower.h"

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
        for (int step = 0; step < WAY_STEPS; step++) {
            float peak = 0;
            for (int64_t i = 0; i < n; i++)
                peak = fmaxf(peak, fabsf(way_gradient(0, step, p, i) / 8));
            for (int64_t i = 0; i < n; i++) {
                int shift = exact_shift(peak, 8);
                int64_t units = 0;
                double plain = 0;
                for (int micro = 0; micro < 8; micro++) {
                    float g = way_gradient(micro, step, p, i) / 8;
                    units += llrint(ldexp((double)g, shift));
                    plain += (double)g;
                }
                sum[i] = (float)ldexp((double)units, -shift);
                assert_true(fabs(plain - (double)sum[i]) <=
                            0x1p-24 * fabs(plain) + 0x1p-40 * (double)peak);
                out->norms[step] += (double)sum[i] * sum[i];
            }
            struct optim_params adamw = way_adamw(step);
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
    assert_int_equal(model_new(&way_model, DCP_F32, ops_cpu(), 1, 2, &model, NULL), 0);
    plain_training(model, &want);
    model_free(model);
    for (int step = 0; step < WAY_STEPS; step++) {
        double norm = sqrt(want.norms[step]);
        assert_true(fabs(norm - got.norms[step]) < 1e-12 * norm);
        want.norms[step] = got.norms[step];
    }
    outcome_assert_same(&want, &got);
    outcome_free(&got);
    outcome_free(&want);
}

static void same_bits_as(const struct outcome *one, struct way way)
{
    struct outcome other = outcome_of(way);
    outcome_assert_same(one, &other);
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
        { .micros = 6, .sees = true },
        { .micros = 5, .bf16 = true },
        { .micros = 24, .bf16 = true, .grad_fp32 = true },
        { .micros = 7, .bf16 = true, .stochastic = true },
        { .micros = 8, .fp16 = true },
        { .micros = 5, .fp16 = true, .grad_fp32 = true },
        { .micros = 1 },
        { .micros = 5, .grows = true },
    };
    int seen = 0;
    for (size_t w = 0; w < DCP_ARRAY_LEN(ways); w++) {
        struct way way = ways[w];
        way.world_size = 1;
        struct outcome one = outcome_of(way);
        assert_true(one.norms[0] > 0);
        for (size_t n = 0; n < DCP_ARRAY_LEN(world_sizes); n++)
            for (way.stage = 0; way.stage < 4; way.stage++) {
                way.world_size = world_sizes[n];
                if (seen++ % SLOWER == 0)
                    same_bits_as(&one, way);
            }
        way.stage = 3;
        for (way.world_size = 6; way.world_size <= 12; way.world_size += 6)
            for (way.shard_size = 1; way.shard_size < 6; way.shard_size++)
                if (way.world_size % way.shard_size == 0 && seen++ % SLOWER == 0)
                    same_bits_as(&one, way);
        way.world_size = 6, way.shard_size = 0;
        for (way.near_size = 2; way.near_size <= 6; way.near_size++)
            if (way.world_size % way.near_size == 0 && seen++ % SLOWER == 0)
                same_bits_as(&one, way);
        outcome_free(&one);
    }
}

/* Nor does it show whether communication overlaps, and how much it moves at a time. */
static void same_bits_however_it_moves(void **state)
{
    (void)state;
    struct way way = { .world_size = 1, .micros = 5, .bf16 = true };
    struct outcome one = outcome_of(way);
    for (way.world_size = 2; way.world_size < 5; way.world_size++)
        for (int i = way.world_size % SLOWER; i < 24; i += SLOWER) {
            way.stage = i % 4;
            way.beside = i & 4;
            way.bucket = i < 8 ? 0 : i < 16 ? 50 : 1000;
            way.prefetch = i < 8 ? 0 : i < 16 ? -1 : 2000;
            way.live = i < 16 ? 0 : 100000;
            same_bits_as(&one, way);
        }
    way = (struct way){ 3, .stage = 3, .micros = 3, .bf16 = true, .more_layers = 3 };
    struct outcome two = outcome_of(way);
    way.live = 100000; /* all: a second gather is none */
    struct outcome live = outcome_of(way);
    assert_true(live.n_calls < two.n_calls);
    for (way.live = 0, way.beside = true; way.more_layers > 0; way.more_layers--) {
        struct outcome planned = outcome_of(way); /* which is checked there */
        outcome_free(&planned);
    }
    outcome_free(&live);
    outcome_free(&two);
    outcome_free(&one);
}

/* What comes next is on its way while a unit is used, however little room there is for
 * it, as in DeepSpeed; none only where that is asked for. */
static void gathers_ahead(void **state)
{
    (void)state;
    static const int64_t prefetches[] = { -1, 0, 50, 2000, 3000 };
    struct way way = {
        .world_size = 2, .stage = 3, .micros = 4, .beside = true, .more_layers = 3
    };
    int before = 0;
    for (size_t i = 0; i < DCP_ARRAY_LEN(prefetches); i++) {
        way.prefetch = prefetches[i];
        struct outcome out = outcome_of(way);
        assert_true(i ? out.n_ahead > 0 && out.n_ahead >= before : out.n_ahead == 0);
        before = out.n_ahead;
        outcome_free(&out);
    }
}

/* An embedding that fits into the room of a layer takes none away from one: what was
 * planned, which outcome_of checks, is enough for every micro-batch. */
static void embedding_smaller_than_a_layer(void **state)
{
    (void)state;
    struct way way = { .micros = 4, .more_layers = 1, .vocab_size = 100 };
    for (way.world_size = 1; way.world_size < 3; way.world_size++)
        for (way.stage = 0; way.stage < 4; way.stage += 3)
            for (int beside = 0; beside < 2; beside++) {
                way.beside = beside;
                struct outcome out = outcome_of(way);
                outcome_free(&out);
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
        for (int s = 0; s < WAY_STEPS; s++)
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
    struct model_config small = way_model;
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
        assert_int_equal(shard_plan(model, &options, 8, false, false, &bytes, NULL), 0);
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
    assert_int_equal(model_new(&way_model, DCP_F32, ops_cpu(), 1, 2, &model, NULL), 0);
    struct shard_options options = {
        .stage = 3, .shard_size = 3, .dtype = DCP_F32, .n_micros = 1
    };
    assert_int_equal(shard_new(model, &options, &coll, &shard, &err), DCP_E_USAGE);
    assert_non_null(strstr(err.message, "groups of 3"));
    err = (struct dcp_error){ 0 };
    options.shard_size = 1, options.near_size = 2;
    assert_int_equal(shard_new(model, &options, &coll, &shard, &err), DCP_E_USAGE);
    assert_non_null(strstr(err.message, "second copy"));
    model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_plain_training),
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(same_bits_however_it_moves),
        cmocka_unit_test(gathers_ahead),
        cmocka_unit_test(embedding_smaller_than_a_layer),
        cmocka_unit_test(tells_what_is_not_finite),
        cmocka_unit_test(memory_follows_zero),
        cmocka_unit_test(refuses_uneven_groups),
        cmocka_unit_test(short_sums_agree_over_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
