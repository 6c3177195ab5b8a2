/* Attention in bf16 and fp16, by cuDNN where it is there: over the whole batch, over
 * parts of it, and when it may not have the memory. */
#include "lib/arrays.h"
#include "lib/cuda.h"
#include "lib/must.h"
#include "trainer/ops/cpu/cpu.h"
#include "trainer/ops/cuda/cuda.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define BATCH 6
#define SEQ_LEN 24
#define HEADS 2
#define HEAD_SIZE 16
#define WIDTH (HEADS * HEAD_SIZE)
#define ROWS (BATCH * SEQ_LEN)
#define SCORES_BYTES (2 * HEADS * 128 * 128) /* of one sequence, as cuDNN keeps them */

static double bound_of(enum dcp_dtype dtype) /* of the norm */
{
    return dtype == DCP_BF16 ? 0.01 : 0.00125;
}

struct result {
    struct array out, lse, dqkv;
};

static struct result attend(const struct ops *ops, void *ctx, enum dcp_dtype dtype,
                            const struct array *qkv, const struct array *dout)
{
    const struct ops_attention shape = { dtype, BATCH, SEQ_LEN, HEADS, HEAD_SIZE, 0 };
    struct result r = { array_poisoned(dtype, ROWS * WIDTH),
                        array_poisoned(DCP_F32, ROWS * HEADS),
                        array_poisoned(dtype, ROWS * 3 * WIDTH) };
    must(!ops->attention(ctx, &shape, qkv->f32, r.out.t, r.lse.f32, NULL));
    must(!ops->attention_backward(ctx, &shape, qkv->f32, r.out.t, r.lse.f32, dout->f32,
                                  r.dqkv.t, NULL));
    must(!ops->sync(ctx, NULL));
    return r;
}

static void result_fini(struct result *r)
{
    array_fini(&r->out), array_fini(&r->lse), array_fini(&r->dqkv);
}

static void in_parts(enum dcp_dtype dtype)
{
    const int64_t limits[] = { BATCH * SCORES_BYTES, 2 * SCORES_BYTES, SCORES_BYTES - 1 };
    struct array qkv = array_normal(DCP_F32, ROWS * 3 * WIDTH, 1);
    struct array dout = array_normal(DCP_F32, ROWS * WIDTH, 1);
    void *oracle;
    must(!ops_cpu()->open(&oracle, NULL));
    struct result want = attend(ops_cpu(), oracle, dtype, &qkv, &dout);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        void *ctx;
        must(!ops_cuda()->open(&ctx, NULL));
        struct ops_cuda *cuda = ctx;
        cuda->attention_bytes = limits[i];
        for (int again = 0; again < 2; again++) {
            struct result got = attend(ops_cuda(), ctx, dtype, &qkv, &dout);
            assert_array_near("out", &got.out, &want.out, bound_of(dtype));
            assert_array_near("lse", &got.lse, &want.lse, bound_of(dtype));
            assert_array_near("dqkv", &got.dqkv, &want.dqkv, bound_of(dtype));
            result_fini(&got);
        }
        bool fits = limits[i] >= SCORES_BYTES;
        assert_int_equal(cuda->cudnn != NULL, TEST_HAS_CUDNN && fits);
        ops_cuda()->close(ctx);
    }
    result_fini(&want);
    ops_cpu()->close(oracle);
    array_fini(&qkv), array_fini(&dout);
}

static void test_parts(void **state)
{
    (void)state;
    EACH_16BIT_DTYPE(dtype)
    in_parts(dtype);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_parts) };
    cuda_need();
    cuda_use_arrays();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
