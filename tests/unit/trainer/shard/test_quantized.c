/* labels: tsan
 * Quantized weights and gradients: the same bits at every world size, and those of a
 * training that is written down plainly; what is not finite is found; fewer bytes. */
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
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 128, SEEN = 0, MASTER, M, V };

/* Parameters of several blocks, none of whole ones; more layers than stay gathered. */
#define WAY .micros = 5, .width = 22, .more_layers = 1, .sees = true

/* --- plainly --- */

static float round_to(enum dcp_dtype dtype, float value)
{
    uint16_t half;
    if (dtype == DCP_F32)
        return value;
    ops_to_16bit(dtype, &value, &half, 1);
    ops_from_16bit(dtype, &half, &value, 1);
    return value;
}

static enum dcp_dtype dtype_of(const struct way *way)
{
    return way->bf16 ? DCP_BF16 : way->fp16 ? DCP_F16 : DCP_F32;
}

/* The numbers of a parameter after they were in blocks. */
static void quantize(const struct model_param *param, float *x, int top,
                     enum dcp_dtype dtype)
{
    for (int64_t at = 0; param->ndim > 1 && at < param->n_elems; at += BLOCK) {
        int64_t end = at + BLOCK < param->n_elems ? at + BLOCK : param->n_elems;
        float peak = 0;
        for (int64_t i = at; i < end; i++)
            peak = fmaxf(peak, fabsf(x[i]));
        float step = round_to(dtype, peak) / (float)top;
        for (int64_t i = at; i < end; i++) {
            long steps = step > 0 ? lrintf(x[i] / step) : 0;
            steps = steps > top ? top : steps < -top ? -top : steps;
            x[i] = (float)steps * step;
        }
    }
}

/* One parameter's sum of all micro-batches, from the weights that are seen. */
static double plain_sum(const struct way *way, const struct model_param *param, int p,
                        int step, const float *seen, float *sum)
{
    int64_t n = param->n_elems;
    float *g = calloc((size_t)n, sizeof *g), reference = 0;
    int64_t *units = calloc((size_t)n, sizeof *units);
    double squares = 0;
    enum dcp_dtype dtype = way->grad_fp32 ? DCP_F32 : dtype_of(way);
    int shift = 0;
    for (int micro = 0; micro < way->micros; micro++) {
        for (int64_t i = 0; i < n; i++) {
            g[i] =
                way_seen(way_gradient(micro, step, p, i) / (float)way->micros, seen[i]);
            reference = fmaxf(reference, micro ? 0 : fabsf(g[i]));
        }
        shift = exact_shift(reference, way->micros);
        quantize(param, g, 7, dtype);
        for (int64_t i = 0; i < n; i++)
            units[i] += llrint(
                ldexp((double)(param->ndim > 1 ? g[i] : round_to(dtype, g[i])), shift));
    }
    for (int64_t i = 0; i < n; i++) {
        sum[i] = round_to(dtype, (float)ldexp((double)units[i], -shift));
        squares += (double)sum[i] * (double)sum[i];
    }
    free(g);
    free(units);
    return squares;
}

static void plain_training(const struct way *way, struct outcome *out)
{
    struct model *model;
    struct model_config config = way_model;
    int n_params;
    config.n_layer += way->more_layers;
    config.n_embd = way->width;
    assert_int_equal(model_new(&config, DCP_F32, ops_cpu(), 1, 2, &model, NULL), 0);
    const struct model_param *params = model_params(model, &n_params);
    int64_t at = 0;
    for (int p = 0; p < n_params; at += params[p++].n_elems) {
        int64_t n = params[p].n_elems;
        float *w = out->values[MASTER] + at, *seen = out->values[SEEN] + at;
        float *sum = calloc((size_t)n, sizeof *sum);
        model_init_values(model, p, 7, 0, n, w);
        for (int step = 0; step <= WAY_STEPS; step++) {
            for (int64_t i = 0; i < n; i++)
                seen[i] = round_to(dtype_of(way), w[i]);
            quantize(&params[p], seen, 127, dtype_of(way));
            for (int64_t i = 0; i < n; i++)
                seen[i] = round_to(dtype_of(way), seen[i]);
            if (step == WAY_STEPS)
                break;
            out->norms[step] += plain_sum(way, &params[p], p, step, seen, sum);
            struct optim_params adamw = way_adamw(step);
            adamw.weight_decay = params[p].ndim == 2 ? adamw.weight_decay : 0;
            const struct optim_range range = { .master = w,
                                               .state = { out->values[M] + at,
                                                          out->values[V] + at },
                                               .grad = sum,
                                               .grad_dtype = DCP_F32,
                                               .n = n };
            optim_step(&range, &adamw);
        }
        free(sum);
    }
    model_free(model);
}

/* --- tests --- */

static void is_plain_training(void **state)
{
    (void)state;
    for (int d = 0; d < 4; d++) {
        struct way way = { WAY, .world_size = 3, .stage = 3, .bf16 = d & 1,
                           .fp16 = d == 2 };
        way.grad_fp32 = d == 3;
        way.quantized_weights = way.quantized_grads = true;
        struct outcome got = outcome_of(way), want = { .n = got.n };
        for (int v = 0; v < 4; v++)
            want.values[v] = calloc((size_t)want.n, sizeof(float));
        plain_training(&way, &want);
        for (int s = 0; s < WAY_STEPS; s++) {
            double norm = sqrt(want.norms[s]);
            assert_true(fabs(norm - got.norms[s]) < 1e-9 * norm);
            want.norms[s] = got.norms[s];
        }
        outcome_assert_same(&want, &got);
        outcome_free(&got);
        outcome_free(&want);
    }
}

static void same_bits_as(const struct outcome *one, struct way way)
{
    struct outcome other = outcome_of(way);
    outcome_assert_same(one, &other);
    outcome_free(&other);
}

/* Every world size, copies of the model, a second copy of the weights. */
static void same_bits_everywhere(void **state)
{
    (void)state;
    static const int world_sizes[] = { 2, 3, 7 };
    static const struct way ways[] = {
        { WAY, .quantized_weights = true, .bf16 = true },
        { WAY, .quantized_grads = true, .fp16 = true },
        { WAY, .quantized_weights = true, .quantized_grads = true },
        { WAY, .quantized_grads = true, .bf16 = true, .grad_fp32 = true, .grows = true },
    };
    int seen = 0;
    for (size_t w = 0; w < DCP_ARRAY_LEN(ways); w++) {
        struct way way = ways[w];
        way.world_size = 1, way.stage = 3;
        struct outcome one = outcome_of(way);
        for (size_t n = 0; n < DCP_ARRAY_LEN(world_sizes); n++)
            for (way.stage = way.quantized_weights ? 3 : 2; way.stage < 4; way.stage++) {
                way.world_size = world_sizes[n];
                if (seen++ % SLOWER == 0)
                    same_bits_as(&one, way);
            }
        way.world_size = 4, way.stage = 3;
        for (way.shard_size = 1; way.shard_size < 4; way.shard_size *= 2)
            if (seen++ % SLOWER == 0)
                same_bits_as(&one, way);
        way.shard_size = 0;
        for (way.near_size = 2; way.near_size <= 4; way.near_size *= 2)
            if (seen++ % SLOWER == 0)
                same_bits_as(&one, way);
        outcome_free(&one);
    }
}

static void same_bits_however_it_moves(void **state)
{
    (void)state;
    struct way way = { WAY, .world_size = 1, .stage = 3, .bf16 = true };
    way.quantized_weights = way.quantized_grads = true, way.more_layers = 0;
    struct outcome one = outcome_of(way);
    way.beside = true;
    for (way.world_size = 2; way.world_size < 5; way.world_size++)
        for (int i = 0; i < 3; i++) {
            way.bucket = i == 1 ? 1 : 0;
            way.prefetch = i == 1 ? -1 : i == 2 ? 5000 : 0;
            way.live = i == 2 ? 100000 : 0;
            same_bits_as(&one, way);
        }
    outcome_free(&one);
}

/* Where nothing is gathered, or given away, nothing is quantized. */
static void lower_stages_are_as_ever(void **state)
{
    (void)state;
    for (int stage = 0; stage < 3; stage++) {
        struct way way = { WAY, .world_size = 3, .stage = stage };
        struct outcome plain = outcome_of(way), quantized;
        way.quantized_weights = true, way.quantized_grads = stage < 2;
        quantized = outcome_of(way);
        for (int v = SEEN; v <= V; v++)
            assert_true(v == MASTER ||
                        !memcmp(plain.values[v], quantized.values[v],
                                (size_t)plain.n * sizeof *plain.values[v]));
        outcome_free(&plain);
        outcome_free(&quantized);
    }
}

static void tells_what_is_not_finite(void **state)
{
    (void)state;
    static const float odd[] = { INFINITY, -INFINITY, NAN, 70000 };
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) {
            struct way way = { WAY, .world_size = 1 + i % 3, .stage = 3 - i % 2 };
            way.quantized_weights = way.quantized_grads = way.fp16 = true;
            way.odd = odd[k];
            struct outcome out = outcome_of(way);
            assert_true(k == 2 ? isnan(out.norms[0]) : isinf(out.norms[0]));
            outcome_free(&out);
        }
}

/* Of what weights and gradients of 16 bits are, those of 8.25 and 4.25 are 52 % and 27 %:
 * a little more with norms and biases, and what ranks tell each other besides. */
static void moves_less(void **state)
{
    (void)state;
    double bytes[4];
    for (int i = 0; i < 4; i++) {
        struct way way = { .micros = 4, .width = 96, .world_size = 4, .stage = 3 };
        way.bf16 = true, way.quantized_weights = i & 1, way.quantized_grads = i & 2;
        struct outcome out = outcome_of(way);
        bytes[i] = (double)out.received_bytes;
        outcome_free(&out);
    }
    double weights = bytes[0] - bytes[1], grads = bytes[0] - bytes[2];
    double all = weights / (1 - 8.25 / 16) + grads / (1 - 4.25 / 16);
    assert_true(all > 0.95 * bytes[0] && all < bytes[0]);
    assert_true(bytes[3] < 1.05 * (bytes[0] - weights - grads));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_plain_training),
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(same_bits_however_it_moves),
        cmocka_unit_test(lower_stages_are_as_ever),
        cmocka_unit_test(tells_what_is_not_finite),
        cmocka_unit_test(moves_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
